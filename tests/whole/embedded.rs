//! The small trained model: held-out loss of the embedded int8 rows and, where the bf16 original is
//! at hand, its loss and its greedy text.

use crate::support::{data, say};
use millstream::engine::{Engine, Model, Options, Request};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Tokens of one window; each starts afresh.
const WINDOW: usize = 256;

fn start(directory: &Path) -> Engine {
    let options = Options { prefill_chunk: WINDOW, logits_rows_max: WINDOW, ..Options::default() };
    Engine::start(Model::open(directory).expect("the model opens"), &options).expect("it starts")
}

fn heldout_ids() -> Vec<u32> {
    let text = std::fs::read_to_string(data().join("nano-glm-dsa/heldout_ids.json"));
    let file: serde_json::Value = serde_json::from_str(&text.expect("held-out ids")).expect("JSON");
    serde_json::from_value(file["tokens"].clone()).expect("a list of ids")
}

/// Mean over all predictions of -log p(next token).
fn heldout_loss(engine: &Engine) -> f64 {
    let ids = heldout_ids();
    let predictions = ids.len() - 1;
    let mut sum = 0.0;
    for first in (0..predictions).step_by(WINDOW) {
        let end = predictions.min(first + WINDOW);
        let request = Request { keep_logits: true, ..Request::greedy(ids[first..end].to_vec(), 0) };
        let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(()));
        let logits = answer.expect("it runs").logits.expect("kept");
        let vocabulary = logits.len() / (end - first);
        for (logits, &next) in logits.chunks(vocabulary).zip(&ids[first + 1..=end]) {
            sum += minus_log_probability(logits, next);
        }
    }
    sum / predictions as f64
}

fn minus_log_probability(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| libm::exp(f64::from(l - largest))).sum();
    libm::log(sum) - f64::from(logits[token as usize] - largest)
}

fn reference() -> serde_json::Value {
    let text = std::fs::read_to_string(data().join("nano-glm-dsa/greedy.json"));
    serde_json::from_str(&text.expect("the reference")).expect("JSON")
}

#[test]
fn embedded_model_keeps_the_heldout_loss() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nano-glm-dsa");
    let loss = heldout_loss(&start(&directory));
    let expected = reference()["heldout_nll_window256"].as_f64().expect("a loss");
    println!("int8 rows: held-out loss {loss:.5}, bf16 reference {expected:.5}");
    assert!((loss - expected).abs() < 0.002, "{loss} against {expected}");
}

/// The bf16 original isn't in the repository (37 MB).
fn original() -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models/nano-glm-dsa");
    if directory.join("model.safetensors").exists() {
        return Some(directory);
    }
    say(&format!("not run: {} with the bf16 weights is missing", directory.display()));
    None
}

#[test]
fn bf16_original_keeps_loss_and_greedy_text() {
    let Some(directory) = original() else { return };
    let engine = start(&directory);
    let reference = reference();
    let loss = heldout_loss(&engine);
    let expected = reference["heldout_nll_window256"].as_f64().expect("a loss");
    println!("bf16: held-out loss {loss:.5}, reference {expected:.5}");
    assert!((loss - expected).abs() < 0.001, "{loss} against {expected}");
    for case in reference["greedy"].as_array().expect("cases") {
        let ids =
            |key: &str| -> Vec<u32> { serde_json::from_value(case[key].clone()).expect("ids") };
        let margins: Vec<f64> = serde_json::from_value(case["margin"].clone()).expect("margins");
        let expected = ids("greedy_ids");
        let request = Request::greedy(ids("prompt_ids"), expected.len());
        let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(()));
        let found = answer.expect("it runs").answer_ids;
        let differs = (0..expected.len()).find(|&i| found[i] != expected[i]);
        if let Some(index) = differs {
            println!("{}: differs at {index}, margin {}", case["prompt"], margins[index]);
            assert!(margins[index] <= 1e-3, "{}: differs at token {index}", case["prompt"]);
        }
    }
}
