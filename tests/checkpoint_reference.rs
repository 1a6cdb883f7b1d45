//! The reference models that Hugging Face transformers wrote: real files of the family, in bf16,
//! f32 and fp8, open without a stranger, and their experts unpack to what their tensors hold.

use millstream::checkpoint::ModelFiles;
use millstream::checkpoint::describe::describe;
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::resident_parts;
use millstream_stages::weights::{ExpertParts, MatrixData, Part, WeightSource};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Name, dense layers, indexer layers, slices, expert format.
const MODELS: &[(&str, usize, usize, usize, WeightFormat)] = &[
    ("glm-dsa", 1, 3, 2, WeightFormat::Bf16),
    ("glm-dsa-grp-tied-f32", 2, 4, 4, WeightFormat::F32),
    ("glm-dsa-fp8", 1, 2, 4, WeightFormat::F32),
];

fn open(name: &str) -> ModelFiles {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name);
    ModelFiles::open(&data).unwrap_or_else(|e| panic!("{e}"))
}

/// The three parts of an expert as the loader's path gives them, as bytes.
fn unpacked(model: &ModelFiles, layer: LayerId, expert: ExpertId, weights: usize) -> [Vec<u8>; 3] {
    let mut staging = Vec::new();
    for extent in model.expert_extents(layer, expert) {
        let start = staging.len();
        staging.resize(start + extent.bytes, 0);
        let file = &model.checkpoint.files()[extent.file.index()];
        file.read_exact_at(&mut staging[start..], extent.offset).expect("read");
    }
    let words = match model.expert_format(layer) {
        WeightFormat::F32 => weights,
        WeightFormat::Bf16 => weights / 2,
    };
    // Words of 4 bytes, as a part that is widened must be aligned for f32.
    let mut parts = [(); 3].map(|()| vec![0u32; words]);
    let [gate, up, down] = parts.each_mut().map(|part| bytemuck::cast_slice_mut(part));
    model.unpack_expert(layer, expert, &staging, ExpertParts { gate, up, down });
    parts.map(|part| bytemuck::cast_slice(&part).to_vec())
}

fn bytes(data: &MatrixData) -> Vec<u8> {
    match data {
        MatrixData::F32(data) => bytemuck::cast_slice(data).to_vec(),
        MatrixData::Bf16(data) => bytemuck::cast_slice(data).to_vec(),
    }
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
        assert_eq!(model.expert_format(LayerId(2)), format, "{name}");
        for (layer, part) in resident_parts(&model.blueprint.spec) {
            let loaded = model.load(layer, part).unwrap_or_else(|e| panic!("{e}"));
            assert!(loaded.to_f32().iter().all(|weight| weight.is_finite()), "{name}: {part:?}");
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
                let weights = moe.intermediate * model.blueprint.spec.hidden;
                let parts = unpacked(&model, id, expert, weights);
                let names =
                    [Part::ExpertGate(expert), Part::ExpertUp(expert), Part::ExpertDown(expert)];
                for (part, unpacked) in names.into_iter().zip(parts) {
                    let loaded = model.load(Some(id), part).unwrap_or_else(|e| panic!("{e}"));
                    assert!(bytes(&loaded.data) == unpacked, "{name}: {id} {part:?}");
                }
            }
        }
    }
}
