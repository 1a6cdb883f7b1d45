//! The small trained model: held-out loss of the embedded pack and, where the bf16 original is
//! at hand, its loss and its greedy text.

use crate::heldout::{loss, loss_of, start};
use crate::support::{data, heldout_ids, say};
use millstream::engine::{Model, Request};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Tokens of one window; each starts afresh.
const WINDOW: usize = 256;

fn reference() -> serde_json::Value {
    let text = std::fs::read_to_string(data().join("nano-glm-dsa/greedy.json"));
    serde_json::from_str(&text.expect("the reference")).expect("JSON")
}

#[test]
fn embedded_model_keeps_the_heldout_loss() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nano-glm-dsa");
    let model = Model::open(&directory).expect("the model opens");
    let loss = loss(model, &heldout_ids(), WINDOW);
    let expected = reference()["heldout_nll_window256"].as_f64().expect("a loss");
    println!("the pack: held-out loss {loss:.5}, bf16 reference {expected:.5}");
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
    let model = Model::open(&directory).expect("the model opens");
    let vocabulary = model.spec.vocabulary;
    let engine = start(model);
    let reference = reference();
    let loss = loss_of(&engine, vocabulary, &heldout_ids(), WINDOW);
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
