//! The reference models that Hugging Face transformers wrote: real files of the family, in bf16,
//! f32 and fp8, open without a stranger, and their experts unpack to what their tensors hold.

mod checkpoint_reading;

use checkpoint_reading::{read, read_expert};
use millstream::checkpoint::ModelFiles;
use millstream::checkpoint::describe::describe;
use millstream_kernels::{ScaleType, WeightFormat};
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::{expert_parts, resident_parts};
use millstream_stages::weights::WeightSource;
use std::path::Path;

/// Name, dense layers, indexer layers, slices, expert format. Groups of 128 columns leave the fp8
/// model whole.
const MODELS: &[(&str, usize, usize, usize, WeightFormat)] = &[
    ("glm-dsa", 1, 3, 2, WeightFormat::Bf16),
    ("glm-dsa-grp-tied-f32", 2, 4, 4, WeightFormat::F32),
    ("glm-dsa-fp8", 1, 2, 1, WeightFormat::Fp8Block128(ScaleType::F32)),
];

fn open(name: &str) -> ModelFiles {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name);
    ModelFiles::open(&data).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn reference_models_open_without_a_stranger() {
    for &(name, dense, indexers, slices, format) in MODELS {
        let model = open(name);
        assert!(model.unknown.is_empty(), "{name}: {:?}", model.unknown);
        let description = describe(&model);
        let dimensions = &description.dimensions;
        assert_eq!(dimensions.layers - dimensions.moe_layers, dense, "{name}");
        assert_eq!(dimensions.indexer_layers, indexers, "{name}");
        assert_eq!(dimensions.slices, slices, "{name}");
        assert_eq!(description.skipped_tensors > 0, description.draft_layers > 0, "{name}");
        assert_eq!(model.expert_formats(LayerId(2)), [format; 3], "{name}");
        for (layer, part) in resident_parts(&model.blueprint.spec) {
            let values = read(&model, layer, part).unwrap_or_else(|e| panic!("{e}"));
            assert!(values.iter().all(|weight| weight.is_finite()), "{name}: {part:?}");
        }
    }
}

#[test]
fn every_expert_unpacks_to_what_its_tensors_hold() {
    for &(name, ..) in MODELS {
        let model = open(name);
        for (index, layer) in model.blueprint.spec.layers.iter().enumerate() {
            let Some(moe) = layer.moe() else { continue };
            let id = LayerId(index as u32);
            for expert in (0..moe.experts as u32).map(ExpertId) {
                let unpacked = read_expert(&model, id, expert);
                for (part, unpacked) in expert_parts(expert).into_iter().zip(unpacked) {
                    let values = read(&model, Some(id), part).unwrap_or_else(|e| panic!("{e}"));
                    assert!(values == unpacked, "{name}: {id} {part:?}");
                }
            }
        }
    }
}
