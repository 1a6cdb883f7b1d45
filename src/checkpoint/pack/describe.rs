//! What a pack is, as plain figures: the data behind `inspect`.

use super::files::PackFiles;
use super::layout::tensor_bytes;
use crate::checkpoint::describe::{Description, FormatTotal, dimensions, resident_bytes};
use millstream_kernels::WeightFormat;
use millstream_stages::ids::LayerId;
use millstream_stages::load::EXPERT_MATRICES;
use millstream_stages::parts::{part_shape, resident_parts};
use millstream_stages::weights::{Part, WeightSource};
use std::collections::BTreeMap;

/// Describes an open pack. Bytes in files and in memory are the same, spaces between tensors aside.
pub fn describe_pack(pack: &PackFiles) -> Description {
    let spec = &pack.blueprint.spec;
    let resident = resident_bytes(spec, pack);
    let mut found = Description {
        family: pack.blueprint.family.clone(),
        dimensions: dimensions(spec),
        files: pack.layouts().count(),
        formats: vec![],
        weights: 0,
        weights_per_token: 0,
        resident_stored_bytes: resident,
        resident_memory_bytes: resident,
        experts_stored_bytes: 0,
        expert_stored_bytes_max: 0,
        expert_memory_bytes_max: 0,
        expert_bytes_per_token: 0,
        draft_layers: pack.blueprint.draft_layers,
        skipped_tensors: pack.formats().mtp.len(),
        skipped_bytes: 0,
        unknown_tensors: vec![],
        unindexed_tensors: vec![],
    };
    for tensor in &pack.formats().mtp {
        found.skipped_bytes += tensor.format.matrix_bytes(tensor.rows, tensor.cols) as u64;
    }
    let mut totals = BTreeMap::new();
    for (layer, part) in resident_parts(spec) {
        let format = pack.format(layer, part);
        let bytes = tensor_bytes(&pack.blueprint, layer, part, format);
        let [rows, cols] = part_shape(spec, layer, part).expect("a part of the model");
        let weights = (rows * cols) as u64;
        add(&mut totals, format, 1, bytes);
        found.weights += weights;
        // Of the embedding one row is used; a tied one is also the output head.
        if part != Part::Embedding || spec.tied_head {
            found.weights_per_token += weights;
        }
    }
    for index in 0..spec.layers.len() {
        add_experts(pack, LayerId(index as u32), &mut found, &mut totals);
    }
    found.formats = totals.into_values().collect();
    found
}

fn add_experts(
    pack: &PackFiles,
    layer: LayerId,
    found: &mut Description,
    totals: &mut BTreeMap<String, FormatTotal>,
) {
    let spec = &pack.blueprint.spec;
    let Some(moe) = spec.layers[layer.index()].moe() else { return };
    let shape = pack.expert_shape(layer);
    let (experts, chosen) = (moe.experts as u64, moe.top_k as u64);
    for matrix in EXPERT_MATRICES {
        let bytes = (shape.range(matrix).len() * shape.slices) as u64;
        add(totals, shape.formats[matrix as usize], moe.experts, experts * bytes);
    }
    let (bytes, weights) =
        (shape.expert_bytes() as u64, (3 * moe.intermediate * spec.hidden) as u64);
    found.weights += experts * weights;
    found.weights_per_token += chosen * weights;
    found.experts_stored_bytes += experts * bytes;
    found.expert_stored_bytes_max = found.expert_stored_bytes_max.max(bytes);
    found.expert_memory_bytes_max = found.expert_memory_bytes_max.max(bytes);
    found.expert_bytes_per_token += chosen * bytes;
}

fn add(
    totals: &mut BTreeMap<String, FormatTotal>,
    format: WeightFormat,
    tensors: usize,
    bytes: u64,
) {
    let name = format.to_string();
    let blank = FormatTotal { format: name.clone(), tensors: 0, bytes: 0 };
    let total = totals.entry(name).or_insert(blank);
    total.tensors += tensors;
    total.bytes += bytes;
}
