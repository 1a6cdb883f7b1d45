//! What the tests of the whole share: reference files and models with a changed configuration.
//!
//! Reference files were made by another implementation of the models; their layout is described in
//! docs/testing.md.

use millstream_kernels::formats::ActivationKind;
use millstream_stages::dequantised::Dequantised;
use millstream_stages::ids::LayerId;
use millstream_stages::parts::resident_parts;
use millstream_stages::spec::ModelSpec;
use millstream_stages::weights::WeightSource;
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The tests' own data.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// The reference models, every family among them, by the names of their directories.
pub fn tiny_models() -> Vec<String> {
    let entries = std::fs::read_dir(data().join("tiny")).expect("reference models");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("readable").file_name().into_string().expect("a name in ASCII")
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    assert!(names.len() >= 14, "reference models are missing: {names:?}");
    names
}

/// Calls a check for every reference model, two at a time.
///
/// # Panics
/// As the check does.
pub fn for_each_tiny_model(check: impl Fn(&str) + Sync) {
    let names = tiny_models();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            check(name);
        }
    };
    std::thread::scope(|scope| {
        for thread in [scope.spawn(work), scope.spawn(work)] {
            thread.join().expect("the check holds");
        }
    });
}

/// Weights whose kernels take int8 activations, seen through f32: references round no activations.
/// Others stay as they are.
pub fn unrounded(spec: &ModelSpec, source: Arc<dyn WeightSource>) -> Arc<dyn WeightSource> {
    let takes_codes = |layer: usize| {
        let formats =
            spec.layers[layer].moe().map(|_| source.expert_formats(LayerId(layer as u32)));
        formats.into_iter().flatten().any(|format| format.activations() == ActivationKind::Int8)
    };
    let resident = resident_parts(spec)
        .into_iter()
        .any(|(layer, part)| source.format(layer, part).activations() == ActivationKind::Int8);
    match resident || (0..spec.layers.len()).any(takes_codes) {
        true => Arc::new(Dequantised(source)),
        false => source,
    }
}

/// A reference: cases and their tensors.
pub struct Reference {
    /// The model's directory.
    pub directory: PathBuf,
    /// `ref.json`.
    pub json: Value,
    bytes: Vec<u8>,
}

/// One case of a reference.
pub struct Case {
    /// Its name, the prefix of its tensors.
    pub name: String,
    /// Changes to the configuration.
    pub overrides: Value,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// What greedy decoding gives, the end token ignored.
    pub greedy: Vec<u32>,
}

impl Reference {
    /// Opens the reference in a directory.
    pub fn open(directory: &Path) -> Reference {
        let json = std::fs::read_to_string(directory.join("ref.json")).expect("ref.json");
        Reference {
            directory: directory.to_path_buf(),
            json: serde_json::from_str(&json).expect("ref.json is JSON"),
            bytes: std::fs::read(directory.join("ref.safetensors")).expect("ref.safetensors"),
        }
    }

    /// The name of its directory.
    pub fn name(&self) -> String {
        self.directory.file_name().expect("a directory").to_string_lossy().into_owned()
    }

    /// All cases.
    pub fn cases(&self) -> Vec<Case> {
        let ids = |value: &Value| -> Vec<u32> {
            serde_json::from_value(value.clone()).expect("a list of ids")
        };
        let case = |case: &Value| Case {
            name: case["name"].as_str().expect("a name").to_owned(),
            overrides: case["config_overrides"].clone(),
            prompt: ids(&case["prompt_ids"]),
            greedy: ids(&case["greedy_ids"]),
        };
        self.json["cases"].as_array().expect("cases").iter().map(case).collect()
    }

    /// How far two logits may be apart: max(2e-4, 3 times the reference's own noise).
    pub fn tolerance(&self) -> f64 {
        let noise = self.json["f32_vs_f64_max_abs_logit_diff"].as_f64().expect("noise");
        (3.0 * noise).max(2e-4)
    }

    /// A tensor of a case as f32, with its shape; none if the reference has no such tensor.
    pub fn f32(&self, case: &Case, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
        let file = SafeTensors::deserialize(&self.bytes).expect("a safetensors file");
        let tensor = file.tensor(&format!("{}.{name}", case.name)).ok()?;
        let values = match tensor.dtype() {
            safetensors::Dtype::F32 => {
                let chunks = tensor.data().chunks_exact(4);
                chunks.map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
            }
            safetensors::Dtype::F64 => {
                let chunks = tensor.data().chunks_exact(8);
                chunks
                    .map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes")) as f32)
                    .collect()
            }
            other => panic!("{name} is {other:?}"),
        };
        Some((tensor.shape().to_vec(), values))
    }

    /// A tensor of a case as integers, with its shape.
    pub fn integers(&self, case: &Case, name: &str) -> Option<(Vec<usize>, Vec<i64>)> {
        let file = SafeTensors::deserialize(&self.bytes).expect("a safetensors file");
        let tensor = file.tensor(&format!("{}.{name}", case.name)).ok()?;
        let data = tensor.data();
        let values = match tensor.dtype() {
            safetensors::Dtype::I64 => data
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")))
                .collect(),
            safetensors::Dtype::I32 => data
                .chunks_exact(4)
                .map(|b| i64::from(i32::from_le_bytes(b.try_into().expect("four bytes"))))
                .collect(),
            safetensors::Dtype::I16 => data
                .chunks_exact(2)
                .map(|b| i64::from(i16::from_le_bytes(b.try_into().expect("two bytes"))))
                .collect(),
            safetensors::Dtype::U8 => data.iter().map(|&b| i64::from(b)).collect(),
            other => panic!("{name} is {other:?}"),
        };
        Some((tensor.shape().to_vec(), values))
    }

    /// The model's directory with a case's changes to the configuration: links, and a new
    /// `config.json`.
    pub fn model_for(&self, case: &Case) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for entry in std::fs::read_dir(&self.directory).expect("the model's directory") {
            let entry = entry.expect("a directory entry");
            let into = directory.path().join(entry.file_name());
            if entry.file_name() == "config.json" {
                let text = std::fs::read_to_string(entry.path()).expect("config.json");
                let mut config: Value = serde_json::from_str(&text).expect("JSON");
                for (key, value) in case.overrides.as_object().expect("an object") {
                    config[key] = value.clone();
                }
                std::fs::write(into, config.to_string()).expect("a written config.json");
            } else {
                std::os::unix::fs::symlink(entry.path(), into).expect("a link");
            }
        }
        directory
    }
}

/// Says something that the reader of a passing run must see: past the test harness, which keeps
/// what a passing test prints.
pub fn say(text: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "{text}").expect("stderr is open");
}

/// The largest distance between two vectors.
pub fn max_distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let distance = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
    a.iter().zip(b).map(distance).fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}

/// Index of the largest logit, the lowest among equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let best = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    (0..logits.len()).fold(0, best) as u32
}

/// The small model's held-out tokens.
pub fn heldout_ids() -> Vec<u32> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nano-glm-dsa/heldout_ids.json");
    let text = std::fs::read_to_string(path).expect("held-out ids");
    let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    serde_json::from_value(file["tokens"].clone()).expect("a list of ids")
}
