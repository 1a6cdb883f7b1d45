//! Whole models in GGUF against references that another implementation computed on the same weights,
//! and the engine on them: streamed, and from a pack, the same bytes as resident.
//!
//! The models are random and of every architecture; `make.py` writes them with the gguf package, and
//! transformers gives the logits. Together they have every type that is read.

use millstream::checkpoint::{Checkpoint, ModelFiles};
use millstream::convert::{Conversion, Nobody, Options as ConvertOptions};
use millstream::engine::{Engine, Model, Options, Request};
use millstream_kernels::formats::ggml::kind::GGML_TYPES;
use millstream_stages::dequantised::Dequantised;
use millstream_stages::straight_line::StraightLine;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How far logits may be from the reference's, as a share of its largest.
const APART_MAX: f32 = 1e-3;

#[derive(Deserialize)]
struct Reference {
    prompt: Vec<u32>,
    /// Of the prompt's last positions.
    logits: Vec<Vec<f32>>,
    /// What follows, the likeliest token each time.
    greedy: Vec<u32>,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf")
}

/// The models, each with its reference.
fn models() -> Vec<(PathBuf, Reference)> {
    let entries = std::fs::read_dir(directory()).expect("the models");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "json"));
    found.sort();
    assert!(found.len() >= 10, "models are missing: {found:?}");
    let model = |path: PathBuf| {
        let text = std::fs::read(&path).expect("a reference");
        let reference = serde_json::from_slice(&text).expect("JSON of a reference");
        let whole = path.with_extension("gguf");
        // One of them is in several files.
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let first = std::fs::read_dir(directory()).expect("the models").map(|e| e.unwrap().path());
        let of_series =
            |path: &PathBuf| path.to_string_lossy().contains(&format!("{stem}-00001-of"));
        let path =
            if whole.exists() { whole } else { first.into_iter().find(of_series).expect("it") };
        (path, reference)
    };
    found.into_iter().map(model).collect()
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, |most, value| most.max(value.abs()))
}

#[test]
fn every_architecture_gives_the_logits_of_the_reference() {
    for (path, reference) in models() {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let model = ModelFiles::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(model.unknown.is_empty(), "{name}: {:?}", model.unknown);
        let spec = model.blueprint.spec.clone();
        let tokens: Vec<u32> = reference.prompt.iter().chain(&reference.greedy).copied().collect();
        // Weights as they are, activations not rounded.
        let source = Dequantised(Arc::new(model));
        let steps = StraightLine::<f32>::new(&spec, &source).run(&tokens).expect("it runs");
        let first = reference.prompt.len() - reference.logits.len();
        let mut worst = 0.0f32;
        for (step, expected) in steps[first..].iter().zip(&reference.logits) {
            assert_eq!(step.logits.len(), expected.len(), "{name}");
            let apart = step.logits.iter().zip(expected).map(|(a, b)| a - b);
            worst = worst.max(largest(apart) / largest(expected.iter().copied()));
        }
        println!("{name}: logits within {worst:.1e} of the largest");
        assert!(worst <= APART_MAX, "{name}: logits are {worst} off");
        for (index, &token) in reference.greedy.iter().enumerate() {
            let logits = &steps[reference.prompt.len() - 1 + index].logits;
            let best = largest(logits.iter().copied());
            let most = logits.iter().copied().fold(f32::MIN, f32::max);
            let behind = most - logits[token as usize];
            assert!(behind <= 2.0 * APART_MAX * best, "{name}: token {index} is {behind} behind");
        }
    }
}

#[derive(Deserialize)]
struct Published {
    prompt: Vec<u32>,
    /// Every 97th logit behind the prompt.
    logits: Vec<f32>,
    largest: f32,
    best: usize,
}

#[test]
fn published_file_gives_the_logits_of_the_reference() {
    let Some(path) = std::env::var_os("MILLSTREAM_SMOLLM2_GGUF") else {
        println!("not run: MILLSTREAM_SMOLLM2_GGUF names no SmolLM2-135M-Instruct.Q4_1.gguf");
        return;
    };
    let reference = directory().with_file_name("gguf-tokenizers").join("smollm2_logits.json");
    let reference = std::fs::read(reference).expect("the reference");
    let reference: Published = serde_json::from_slice(&reference).expect("JSON of a reference");
    let model = ModelFiles::open(Path::new(&path)).expect("opens");
    let spec = model.blueprint.spec.clone();
    let source = Dequantised(Arc::new(model));
    let steps = StraightLine::<f32>::new(&spec, &source).run(&reference.prompt).expect("it runs");
    let logits = &steps.last().expect("a prompt").logits;
    let apart = logits.iter().step_by(97).zip(&reference.logits).map(|(a, b)| a - b);
    let worst = largest(apart) / reference.largest;
    println!("SmolLM2: logits within {worst:.1e} of the largest");
    assert!(worst <= APART_MAX, "logits are {worst} off");
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("some");
    assert_eq!(best, reference.best);
}

#[test]
fn models_together_have_every_type_that_is_read() {
    let mut found = BTreeSet::new();
    for (path, _) in models() {
        let checkpoint = Checkpoint::open(&path).expect("opens");
        found.extend(checkpoint.tensors().filter_map(|(_, place)| place.ggml));
    }
    let missing: Vec<&str> = GGML_TYPES
        .iter()
        .filter(|ggml| ggml.format().is_some() && !found.contains(ggml))
        .map(|ggml| ggml.name())
        .collect();
    assert!(missing.is_empty(), "no model has {missing:?}");
}

/// All logits of the reference's tokens and the tokens that follow, as bits.
fn run(model: Model, experts_per_layer: Option<usize>, reference: &Reference) -> Vec<u32> {
    let options = Options { experts_per_layer, logits_rows_max: 96, ..Options::default() };
    let engine = Engine::start(model, &options).expect("the engine starts");
    let request = Request { keep_logits: true, ..Request::greedy(reference.prompt.clone(), 8) };
    let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(())).expect("it runs");
    let logits = answer.logits.expect("kept");
    logits.iter().map(|logit| logit.to_bits()).chain(answer.answer_ids).collect()
}

#[test]
fn streamed_and_from_a_pack_the_bytes_are_those_of_a_resident_run() {
    for (path, reference) in models() {
        let open = |path: &Path| Model::open(path).expect("opens");
        let resident = run(open(&path), None, &reference);
        assert_eq!(run(open(&path), Some(1), &reference), resident, "{}: slots", path.display());
        let room = tempfile::tempdir().expect("a directory");
        let pack = room.path().join("pack");
        let keep = "keep".parse().expect("a format");
        let options = ConvertOptions {
            experts: keep,
            dense: keep,
            io: keep,
            mtp: keep,
            ..Default::default()
        };
        let conversion = Conversion::prepare(&path, &pack, &options).expect("planned");
        conversion.run(&Nobody).expect("converted");
        assert_eq!(run(open(&pack), Some(1), &reference), resident, "{}: pack", path.display());
    }
}

#[test]
fn unreadable_type_is_refused_by_tensor_and_type() {
    let bytes = std::fs::read(directory().join("mixtral.gguf")).expect("a model");
    let name = b"blk.0.ffn_gate_exps.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("the tensor");
    // After the name: the number of dimensions, three lengths, the type.
    let kind = at + name.len() + 4 + 3 * 8;
    assert_eq!(bytes[kind], 12, "Q4_K");
    let room = tempfile::tempdir().expect("a directory");
    let path = room.path().join("model.gguf");
    let mut damaged = bytes.clone();
    // IQ2_XXS has as many columns in a block, and fewer bytes.
    damaged[kind] = 16;
    std::fs::write(&path, &damaged).expect("written");
    let error = ModelFiles::open(&path).unwrap_err().to_string();
    assert!(error.contains("blk.0.ffn_gate_exps.weight") && error.contains("IQ2_XXS"), "{error}");
}

#[test]
fn directory_with_one_model_stands_for_it() {
    let room = tempfile::tempdir().expect("a directory");
    std::fs::copy(directory().join("gpt_oss.gguf"), room.path().join("x.gguf")).expect("copied");
    std::fs::write(room.path().join("config.json"), "{}").expect("written");
    let model = ModelFiles::open(room.path()).expect("opens");
    assert_eq!(model.blueprint.family, "gpt_oss");
}
