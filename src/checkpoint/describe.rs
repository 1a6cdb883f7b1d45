//! What a model on disk is, as plain figures: the data behind `inspect`.
//!
//! Counts tensors and bytes from the headers; nothing is loaded. [`Description`] serialises to
//! JSON with units in its names and prints as text.

use super::source::ModelFiles;
use super::stored::StoredTensor;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::load::ExpertShape;
use millstream_stages::parts::{expert_parts, resident_parts};
use millstream_stages::pieces::pieces;
use millstream_stages::spec::{AttentionSpec, FfnSpec, IndexerUse, ModelSpec};
use millstream_stages::weights::{Part, Rectangle, WeightSource};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What a model on disk is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// The `model_type`.
    pub family: String,
    /// Its sizes.
    pub dimensions: Dimensions,
    /// Files of weights.
    pub files: usize,
    /// Tensors and bytes by stored format, scales included in the bytes.
    pub formats: Vec<FormatTotal>,
    /// Weights of the model, drafts aside.
    pub weights: u64,
    /// Weights that one token uses.
    pub weights_per_token: u64,
    /// Bytes of the tensors that stay in memory, as stored.
    pub resident_stored_bytes: u64,
    /// The same as the kernels want it.
    pub resident_memory_bytes: u64,
    /// Bytes of all routed experts, as stored.
    pub experts_stored_bytes: u64,
    /// Bytes of the largest routed expert, as stored: what is read for it.
    pub expert_stored_bytes_max: u64,
    /// Bytes of the largest routed expert as the kernels want it: what a slot holds.
    pub expert_memory_bytes_max: u64,
    /// Bytes of routed experts that one token reads when none is in memory.
    pub expert_bytes_per_token: u64,
    /// Draft layers that the checkpoint may hold and that are not run.
    pub draft_layers: usize,
    /// Tensors that are known and not used, mostly the draft layers'.
    pub skipped_tensors: usize,
    /// Their bytes.
    pub skipped_bytes: u64,
    /// Tensors that nobody knows.
    pub unknown_tensors: Vec<String>,
    /// Tensors that are in a file but not in the index.
    pub unindexed_tensors: Vec<String>,
}

/// A model's sizes; those of experts are the largest of all layers, 0 if it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Dimensions {
    /// Decoder layers.
    pub layers: usize,
    /// Layers with routed experts.
    pub moe_layers: usize,
    /// Layers with an indexer of their own.
    pub indexer_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Attention heads.
    pub heads: usize,
    /// Heads of keys and values; 0 with latent attention.
    pub key_heads: usize,
    /// Width of a head of keys; 0 with latent attention.
    pub head_dim: usize,
    /// Rank of the cached latent; 0 without.
    pub latent_rank: usize,
    /// Layers in which a row sees only a window of positions.
    pub window_layers: usize,
    /// Positions of that window.
    pub window: usize,
    /// Positions that an indexer keeps.
    pub index_top_k: usize,
    /// Rows of a dense layer's gate.
    pub dense_intermediate: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Rows of a routed expert's gate.
    pub expert_intermediate: usize,
    /// Rows of the shared expert's gate.
    pub shared_intermediate: usize,
    /// Longest context in tokens.
    pub context_max: usize,
    /// Slices that every expert is cut into.
    pub slices: usize,
    /// Whether the output head is the embedding.
    pub tied_head: bool,
}

/// Tensors and bytes of one stored format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormatTotal {
    /// The format's name.
    pub format: String,
    /// Tensors.
    pub tensors: usize,
    /// Their bytes in the files, with their scales.
    pub bytes: u64,
}

/// Describes an open model.
///
/// # Panics
/// When the model wasn't checked by [`ModelFiles::open`].
pub fn describe(model: &ModelFiles) -> Description {
    let mut totals = Totals::default();
    for (layer, part) in resident_parts(&model.blueprint.spec) {
        let stored = find(model, layer, part);
        totals.add(&stored);
        totals.resident_stored += stored_bytes(&stored);
        // Of the embedding one row is used; a tied one is also the output head.
        if part != Part::Embedding || model.blueprint.spec.tied_head {
            totals.weights_per_token += weights(&stored);
        }
    }
    for index in 0..model.blueprint.spec.layers.len() {
        add_experts(model, LayerId(index as u32), &mut totals);
    }
    let skipped: Vec<u64> = model
        .checkpoint
        .tensors()
        .filter(|(name, _)| model.blueprint.skipped.covers(name))
        .map(|(_, place)| place.bytes)
        .collect();
    Description {
        family: model.blueprint.family.clone(),
        dimensions: dimensions(&model.blueprint.spec),
        files: model.checkpoint.files().len(),
        formats: totals.formats.into_values().collect(),
        weights: totals.weights,
        weights_per_token: totals.weights_per_token,
        resident_stored_bytes: totals.resident_stored,
        resident_memory_bytes: resident_bytes(&model.blueprint.spec, model),
        experts_stored_bytes: totals.experts_stored,
        expert_stored_bytes_max: totals.expert_stored_max,
        expert_memory_bytes_max: totals.expert_memory_max,
        expert_bytes_per_token: totals.expert_bytes_per_token,
        draft_layers: model.blueprint.draft_layers,
        skipped_tensors: skipped.len(),
        skipped_bytes: skipped.iter().sum(),
        unknown_tensors: model.unknown.clone(),
        unindexed_tensors: model.checkpoint.unindexed().to_vec(),
    }
}

/// Sums over the tensors of a model.
#[derive(Default)]
struct Totals {
    formats: BTreeMap<String, FormatTotal>,
    weights: u64,
    weights_per_token: u64,
    resident_stored: u64,
    experts_stored: u64,
    expert_stored_max: u64,
    expert_memory_max: u64,
    expert_bytes_per_token: u64,
}

impl Totals {
    fn add(&mut self, stored: &StoredTensor) {
        let format = stored.format.to_string();
        let total = self.formats.entry(format.clone()).or_insert(FormatTotal {
            format,
            tensors: 0,
            bytes: 0,
        });
        total.tensors += 1;
        total.bytes += stored_bytes(stored);
        self.weights += weights(stored);
    }
}

fn add_experts(model: &ModelFiles, layer: LayerId, totals: &mut Totals) {
    let (Some(moe), Some(experts)) =
        (model.blueprint.spec.layers[layer.index()].moe(), model.experts(layer))
    else {
        return;
    };
    let spec = &model.blueprint.spec;
    let shape = ExpertShape::new(spec.hidden, moe, spec.slices, experts.formats());
    totals.expert_memory_max = totals.expert_memory_max.max(shape.expert_bytes() as u64);
    let mut largest = 0;
    for expert in 0..moe.experts {
        let tensors = expert_parts(ExpertId(expert as u32)).map(|p| find(model, Some(layer), p));
        let stored: u64 = tensors.iter().map(stored_bytes).sum();
        tensors.iter().for_each(|tensor| totals.add(tensor));
        totals.experts_stored += stored;
        largest = largest.max(stored);
    }
    let chosen = moe.top_k as u64;
    totals.expert_stored_max = totals.expert_stored_max.max(largest);
    totals.expert_bytes_per_token += chosen * largest;
    totals.weights_per_token += chosen * 3 * (moe.intermediate * spec.hidden) as u64;
}

fn find(model: &ModelFiles, layer: Option<LayerId>, part: Part) -> StoredTensor {
    model.stored(layer, part).expect("every tensor was checked when the model was opened")
}

fn weights(stored: &StoredTensor) -> u64 {
    (stored.rows * stored.cols) as u64
}

fn stored_bytes(stored: &StoredTensor) -> u64 {
    stored.bytes() as u64
}

/// Bytes of the tensors that stay in memory, piece by piece as the kernels want them.
pub fn resident_bytes(spec: &ModelSpec, source: &dyn WeightSource) -> u64 {
    let bytes = |(layer, part): (Option<LayerId>, Part)| -> u64 {
        let format = source.format(layer, part);
        let piece = |piece: &Rectangle| format.matrix_bytes(piece.rows.len(), piece.cols.len());
        pieces(spec, layer, part).iter().map(piece).sum::<usize>() as u64
    };
    resident_parts(spec).into_iter().map(bytes).sum()
}

/// A model's sizes.
pub(super) fn dimensions(spec: &ModelSpec) -> Dimensions {
    let mut found = Dimensions {
        layers: spec.layers.len(),
        hidden: spec.hidden,
        vocabulary: spec.vocabulary,
        context_max: spec.context_max,
        slices: spec.slices,
        tied_head: spec.tied_head,
        ..Dimensions::default()
    };
    for layer in &spec.layers {
        match &layer.attention {
            AttentionSpec::Mla(mla) => {
                found.heads = mla.heads;
                found.latent_rank = mla.latent_rank;
                if let IndexerUse::Full(indexer) = mla.indexer {
                    found.indexer_layers += 1;
                    found.index_top_k = indexer.top_k;
                }
            }
            AttentionSpec::Gqa(gqa) => {
                (found.heads, found.key_heads) = (gqa.heads, gqa.key_heads);
                found.head_dim = gqa.head_dim;
                if let Some(window) = gqa.window {
                    found.window_layers += 1;
                    found.window = window;
                }
            }
        }
        match &layer.ffn {
            FfnSpec::Dense { intermediate } => found.dense_intermediate = *intermediate,
            FfnSpec::Moe(moe) => {
                found.moe_layers += 1;
                found.experts = found.experts.max(moe.experts);
                found.top_k = found.top_k.max(moe.top_k);
                found.expert_intermediate = found.expert_intermediate.max(moe.intermediate);
                found.shared_intermediate = found.shared_intermediate.max(moe.shared_intermediate);
            }
        }
    }
    found
}

impl Dimensions {
    /// Heads and what is kept of a position, in words.
    fn attention(&self) -> String {
        match self.latent_rank {
            0 => {
                format!("{} heads, {} of keys, width {}", self.heads, self.key_heads, self.head_dim)
            }
            rank => format!("{} heads, latent {rank}", self.heads),
        }
    }

    /// Which positions a row looks at, in words.
    fn sight(&self) -> String {
        let of = format!("of {} layers", self.layers);
        match (self.indexer_layers, self.window_layers) {
            (0, 0) => "all positions before".to_string(),
            (0, count) => format!("the last {} positions in {count} {of}", self.window),
            (count, _) => format!("{} positions chosen in {count} {of}", self.index_top_k),
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.dimensions;
        let line = |f: &mut fmt::Formatter<'_>, name: &str, value: String| {
            writeln!(f, "{name:<20}{value}")
        };
        line(f, "family", self.family.clone())?;
        let kinds = format!(
            "{} ({} dense, {} of experts)",
            d.layers,
            d.layers - d.moe_layers,
            d.moe_layers
        );
        line(f, "layers", kinds)?;
        let tied = if d.tied_head { ", tied head" } else { "" };
        line(f, "hidden", format!("{}, vocabulary {}{tied}", d.hidden, d.vocabulary))?;
        line(f, "attention", d.attention())?;
        line(f, "sees", d.sight())?;
        if d.moe_layers > 0 {
            let experts =
                format!("{} of {} a layer, width {}", d.top_k, d.experts, d.expert_intermediate);
            line(f, "experts", format!("{experts}, shared width {}", d.shared_intermediate))?;
        }
        if d.moe_layers < d.layers {
            line(f, "dense layers", format!("width {}", d.dense_intermediate))?;
        }
        line(f, "context", format!("{} tokens", d.context_max))?;
        line(f, "slices", d.slices.to_string())?;
        line(f, "weights", format!("{}, {} per token", self.weights, self.weights_per_token))?;
        for total in &self.formats {
            let text = format!("{} tensors, {}", total.tensors, size(total.bytes));
            line(f, &format!("  {}", total.format), text)?;
        }
        let (stored, memory) = (self.resident_stored_bytes, self.resident_memory_bytes);
        line(
            f,
            "always in memory",
            format!("{} stored, {} in memory", size(stored), size(memory)),
        )?;
        line(f, "all experts", size(self.experts_stored_bytes))?;
        let (stored, memory) = (self.expert_stored_bytes_max, self.expert_memory_bytes_max);
        line(f, "one expert", format!("{} stored, {} in memory", size(stored), size(memory)))?;
        line(f, "experts per token", size(self.expert_bytes_per_token))?;
        line(f, "files", self.files.to_string())?;
        if self.skipped_tensors > 0 {
            let (count, bytes) = (self.skipped_tensors, size(self.skipped_bytes));
            line(
                f,
                "not run",
                format!("{count} tensors, {bytes} ({} draft layers)", self.draft_layers),
            )?;
        }
        for (name, tensors) in
            [("unknown", &self.unknown_tensors), ("not in the index", &self.unindexed_tensors)]
        {
            if let Some(first) = tensors.first() {
                line(f, name, format!("{} tensors, such as {first}", tensors.len()))?;
            }
        }
        Ok(())
    }
}

/// A byte count for people.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}
