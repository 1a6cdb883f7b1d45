//! A stream beside a long prompt: `cargo run --release --example interference -- [MODEL] [TOKENS]`.
//!
//! One stream answers. Then a prompt of so many tokens (4,000 unless said otherwise) comes and is read
//! beside it: once at the pace that servers keep, once as fast as it goes. Says the time between tokens of
//! the stream alone and while the prompt is read, and how long the prompt took. Without a model, the one
//! inside.

use millstream::engine::{Engine, Event, Model, Options, Request};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Tokens of the stream that are looked at alone.
const ALONE_TOKENS: usize = 300;

/// A prompt of random ids.
fn prompt(seed: u32, tokens: usize, vocabulary: usize) -> Vec<u32> {
    let word = |i: u32| (seed + i).wrapping_mul(2_654_435_761) >> 8;
    (0..tokens as u32).map(|i| word(i) % vocabulary as u32).collect()
}

/// The 50th and 99th percentile in ms.
fn percentiles(gaps: &mut [Duration]) -> (f64, f64) {
    gaps.sort_unstable();
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share).round() as usize];
    (at(0.5).as_secs_f64() * 1e3, at(0.99).as_secs_f64() * 1e3)
}

fn measure(name: &str, directory: &std::path::Path, tokens: usize, pace: Option<f64>) {
    let model = Model::open(directory).expect("the model opens");
    let (vocabulary, context_max) = (model.spec.vocabulary, model.spec.context_max);
    let context = context_max.min(tokens + 4096);
    assert!(tokens + 1 < context, "the model's context is {context_max}");
    let options =
        Options { context: Some(context), sequences_max: 2, ..Options::default().serving() };
    let options = Options { prefill_pace: pace, ..options };
    let engine = Engine::start(model, &options).expect("it starts");
    let stream = Request::greedy(prompt(1, 30, vocabulary), context - 31);
    let stream = engine.begin(&stream).expect("it can be met");
    let mut last = Instant::now();
    let mut gap = || {
        let Event::Token(_) = stream.next() else { panic!("the stream ended") };
        let gap = last.elapsed();
        last = Instant::now();
        gap
    };
    // The first tokens load experts.
    for _ in 0..50 {
        gap();
    }
    let mut alone: Vec<Duration> = (0..ALONE_TOKENS).map(|_| gap()).collect();
    let since = Instant::now();
    let long = Request::greedy(prompt(2, tokens, vocabulary), 1);
    let long = engine.begin(&long).expect("it can be met");
    let (mut beside, mut reading) = (vec![], true);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| while !matches!(long.next(), Event::Done(_)) {});
        while reading {
            beside.push(gap());
            reading = !read.is_finished();
        }
    });
    let read_s = since.elapsed().as_secs_f64();
    let ((alone_p50, alone_p99), (p50, p99)) = (percentiles(&mut alone), percentiles(&mut beside));
    println!(
        "{name}: alone p50 {alone_p50:.2} p99 {alone_p99:.2} ms; beside {tokens} tokens p50 {p50:.2} p99 \
         {p99:.2} ms ({:.2} and {:.2} times) over {} tokens; the prompt took {read_s:.1} s",
        p50 / alone_p50,
        p99 / alone_p99,
        beside.len(),
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().map(PathBuf::from);
    let tokens = arguments.next().map_or(4000, |tokens| tokens.parse().expect("a number"));
    let embedded = || millstream::embedded::unpack(None).expect("unpacked").directory;
    let directory = directory.unwrap_or_else(embedded);
    measure("servers' pace", &directory, tokens, Options::default().serving().prefill_pace);
    measure("no pace", &directory, tokens, None);
}
