//! Valid checkpoints: what is in the files is what the stages get, in every stored format.
//!
//! The models are written by the tests, byte by byte; expected values are computed here from the
//! written bytes.

#[path = "../checkpoint_files/mod.rs"]
mod checkpoint_files;
#[path = "../checkpoint_reading/mod.rs"]
mod checkpoint_reading;
mod containers;
mod formats;
mod snapshots;

use checkpoint_files::TestModel;
use millstream::checkpoint::ModelFiles;
use millstream_stages::ids::{ExpertId, LayerId};
use tempfile::TempDir;

const MOE_LAYER: LayerId = LayerId(1);
const EXPERT: ExpertId = ExpertId(2);
const EXPERT_PREFIX: &str = "model.layers.1.mlp.experts.2.";

fn open(model: &TestModel) -> (TempDir, ModelFiles) {
    let directory = tempfile::tempdir().expect("a directory");
    model.write(directory.path());
    let files = ModelFiles::open(directory.path()).unwrap_or_else(|e| panic!("{e}"));
    (directory, files)
}

/// The values of a bf16 tensor of the model.
fn values(model: &mut TestModel, name: &str) -> Vec<f32> {
    let bytes = model.tensor(name).data.as_chunks::<2>().0.iter();
    bytes.map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)).collect()
}

/// The power of two that a biased exponent other than 0 and 255 means.
fn power_of_two(exponent: u8) -> f32 {
    f32::from_bits(u32::from(exponent) << 23)
}
