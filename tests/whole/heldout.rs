//! The loss of a model on held-out text, by the engine: mean negative log-likelihood in nats.

use millstream::engine::{Engine, Model, Options, Request};
use millstream_stages::dequantised::Dequantised;

/// Rows read at once.
const CHUNK: usize = 256;

/// An engine that can give the logits of every row.
pub fn start(model: Model) -> Engine {
    let options = Options { prefill_chunk: CHUNK, logits_rows_max: CHUNK, ..Options::default() };
    Engine::start(model, &options).expect("the engine starts")
}

/// Mean negative log-likelihood per token over windows of so many tokens, each of which starts
/// afresh.
pub fn loss(model: Model, ids: &[u32], window: usize) -> f64 {
    let vocabulary = model.spec.vocabulary;
    loss_of(&start(model), vocabulary, ids, window)
}

/// As [`loss`], by a running engine.
pub fn loss_of(engine: &Engine, vocabulary: usize, ids: &[u32], window: usize) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    let mut first = 0;
    while first + 1 < ids.len() {
        let tokens = &ids[first..ids.len().min(first + window + 1)];
        let (fed, wanted) = (&tokens[..tokens.len() - 1], &tokens[1..]);
        let request = Request { keep_logits: true, ..Request::greedy(fed.to_vec(), 0) };
        let answer = engine.generate(&request, &mut |_| std::ops::ControlFlow::Continue(()));
        let logits = answer.expect("it reads the window").logits.expect("kept");
        for (logits, &token) in logits.chunks_exact(vocabulary).zip(wanted) {
            sum += negative_log_likelihood(logits, token);
        }
        count += wanted.len();
        first += window;
    }
    sum / f64::from(u32::try_from(count).expect("a short text"))
}

fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().fold(f64::NEG_INFINITY, |max, &l| max.max(f64::from(l)));
    let sum: f64 = logits.iter().map(|&l| libm::exp(f64::from(l) - largest)).sum();
    libm::log(sum) + largest - f64::from(logits[token as usize])
}

/// The same model, every weight decoded to f32 and every activation kept in f32.
pub fn dequantised(model: Model) -> Model {
    Model { source: std::sync::Arc::new(Dequantised(model.source)), ..model }
}
