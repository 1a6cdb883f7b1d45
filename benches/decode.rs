//! Decode and prefill of the embedded model, resident and streamed: `cargo bench --bench decode`.
//!
//! Prints one line per setting: the median of five runs. The ratio of streamed to resident decode
//! and of one thread to two are within one run, so they hold on a noisy machine; the absolute
//! figures are this machine's at this moment.

use millstream::engine::{Engine, Model, Options, Request, Statistics};
use std::ops::ControlFlow;
use std::path::Path;

const REPETITIONS: usize = 5;
const PROMPT: usize = 256;
const ANSWER: usize = 128;

fn measure(threads: usize, slots: usize) -> Vec<Statistics> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nano-glm-dsa");
    let model = Model::open(&directory).expect("the embedded model's files");
    let options =
        Options { threads: Some(threads), experts_per_layer: Some(slots), ..Options::default() };
    let engine = Engine::start(model, &options).expect("the engine starts");
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 200 + i * 7 % 2000).collect();
    let run = |_| {
        let request = Request::greedy(prompt.clone(), ANSWER);
        let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(()));
        answer.expect("it runs").statistics
    };
    (0..REPETITIONS).map(run).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    // `cargo test --benches` passes --test: then one small setting is enough.
    let quick = std::env::args().any(|argument| argument == "--test");
    let settings: &[(usize, usize)] =
        if quick { &[(1, 48)] } else { &[(1, 48), (2, 48), (1, 8), (2, 8), (1, 1)] };
    println!(
        "threads  slots  pp{PROMPT} tok/s  tg{ANSWER} tok/s  hits %  read MB/token  weights GB/s"
    );
    for &(threads, slots) in settings {
        let runs = measure(threads, slots);
        let of = |figure: &dyn Fn(&Statistics) -> f64| median(runs.iter().map(figure).collect());
        println!(
            "{threads:>7}  {slots:>5}  {:>11.1}  {:>11.1}  {:>6.1}  {:>13.3}  {:>12.2}",
            of(&|s| s.prefill_tok_s),
            of(&|s| s.decode_tok_s),
            of(&|s| s.hit_share.unwrap_or(1.0) * 100.0),
            of(&|s| s.read_mb_per_token),
            of(&|s| s.memory_read_gb_s),
        );
    }
}
