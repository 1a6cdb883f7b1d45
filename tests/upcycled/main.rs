//! Mixtures made of a small dense model (`examples/upcycle.rs`, docs/upcycling.md) say what it says.
//!
//! One test makes a mixture of a tiny model and compares logits. The other compares texts of real
//! language with greedy answers made by another implementation, resident and streamed; it needs
//! mixtures that were made before, which `MILLSTREAM_UPCYCLED` names, and says so where it has none.

use millstream::engine::{Engine, Model, Options, Request};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories of mixtures, with colons between them.
const VARIABLE: &str = "MILLSTREAM_UPCYCLED";

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn start(directory: &Path, slots: Option<usize>) -> Engine {
    let options = Options {
        experts_per_layer: slots,
        context: Some(512),
        logits_rows_max: 64,
        ..Options::default()
    };
    let model = Model::open(directory).expect("the model opens");
    Engine::start(model, &options).expect("the engine starts")
}

/// The example as cargo built it beside this test; None where it was left out.
fn example() -> Option<PathBuf> {
    let test = std::env::current_exe().expect("a path");
    let built = test.parent()?.parent()?.join("examples/upcycle");
    built.exists().then_some(built)
}

#[test]
fn a_mixture_of_a_tiny_model_gives_its_logits() {
    let Some(example) = example() else {
        println!("not run: the example isn't built; `cargo build --examples` builds it");
        return;
    };
    let source = data().join("gguf/llama.gguf");
    let room = tempfile::tempdir().expect("a temporary directory");
    let made = room.path().join("mixture");
    let words = ["--experts", "6", "--top-k", "3"];
    let output = Command::new(example).arg(&source).arg(&made).args(words).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let logits = |directory: &Path, slots| {
        let engine = start(directory, slots);
        let tokens = (0..40).map(|i| (i * 37 + 11) % 96).collect();
        let request = Request { keep_logits: true, ..Request::greedy(tokens, 0) };
        let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(()));
        answer.expect("it runs").logits.expect("kept")
    };
    let dense = logits(&source, None);
    let mixture = logits(&made, Some(1));
    let size = dense.iter().map(|logit| logit.abs()).fold(0.0, f32::max);
    let apart = dense.iter().zip(&mixture).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // The mixture is rounded to bf16, and the source's formats take int8 activations.
    assert!(apart < 0.05 * size, "logits of up to {size} are {apart} apart");
}

#[test]
fn real_language_stays_the_same_resident_and_streamed() {
    let Some(directories) = std::env::var_os(VARIABLE) else {
        println!("not run: {VARIABLE} names no mixture; docs/upcycling.md says how to make some");
        return;
    };
    let text = std::fs::read_to_string(data().join("upcycled/smollm2.json")).expect("references");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        serde_json::from_value(value.clone()).expect("a list of ids")
    };
    for directory in std::env::split_paths(&directories) {
        let spec = Model::open(&directory).expect("the model opens").spec;
        let experts = spec.layers[0].moe().expect("a mixture").experts;
        // What is always resident takes a share of the memory as well.
        let streamed = (experts / 5).max(1);
        for slots in [streamed, experts] {
            if slots == experts && experts > 16 {
                println!("{}: resident is left out, it is too large", directory.display());
                continue;
            }
            let engine = start(&directory, Some(slots));
            for case in json["prompts"].as_array().expect("prompts") {
                let expected = ids(&case["greedy_ids"]);
                let request = Request::greedy(ids(&case["prompt_ids"]), expected.len());
                let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(()));
                let found = answer.expect("it runs").answer_ids;
                assert_eq!(
                    found,
                    expected,
                    "{} with {slots} slots: {}",
                    directory.display(),
                    case["prompt"]
                );
            }
            println!(
                "{}: eight answers, {slots} of {experts} experts in slots",
                directory.display()
            );
        }
    }
}
