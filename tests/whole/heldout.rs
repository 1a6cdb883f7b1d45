//! The loss of a model on held-out text, by the engine: mean negative log-likelihood in nats.

use millstream::engine::{Engine, Model, Options, Request};
use millstream_stages::dequantised::Dequantised;

/// Tokens of a window; each is predicted from those before it in its window.
pub const WINDOW: usize = 512;

/// Mean negative log-likelihood per token over windows of [`WINDOW`] tokens.
pub fn loss(model: Model, ids: &[u32]) -> f64 {
    let vocabulary = model.spec.vocabulary;
    let options = Options { context: Some(WINDOW + 1), prefill_chunk: 128, ..Options::default() };
    let options = Options { logits_rows_max: options.prefill_chunk, ..options };
    let engine = Engine::start(model, &options).expect("the engine starts");
    let (mut sum, mut count) = (0.0, 0);
    let mut first = 0;
    while first + 1 < ids.len() {
        let window = &ids[first..ids.len().min(first + WINDOW + 1)];
        let (fed, wanted) = (&window[..window.len() - 1], &window[1..]);
        let request = Request { keep_logits: true, ..Request::greedy(fed.to_vec(), 0) };
        let answer = engine.generate(&request, &mut |_| std::ops::ControlFlow::Continue(()));
        let logits = answer.expect("it reads the window").logits.expect("kept");
        for (logits, &token) in logits.chunks_exact(vocabulary).zip(wanted) {
            sum += negative_log_likelihood(logits, token);
        }
        count += wanted.len();
        first += WINDOW;
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
