//! How tensors are cut into pieces: the model's own cut, the same for every plan.
//!
//! A piece is a block of a tensor that is laid out by itself, so that a node can hold it whole:
//! slices of what is summed or gated, the key and value rows of each head. Packs store pieces one
//! after the other in this order, [`crate::placed`] deals them over nodes, and the straight-line
//! pass sums over them. Tensors that are not listed here are one piece, whose rows may be dealt.

use crate::ids::LayerId;
use crate::parts::part_shape;
use crate::spec::{AttentionSpec, ModelSpec};
use crate::weights::{Part, Rectangle};

/// The pieces of a tensor, in order. Empty when the model has no such tensor.
pub fn pieces(spec: &ModelSpec, layer: Option<LayerId>, part: Part) -> Vec<Rectangle> {
    let Some([rows, cols]) = part_shape(spec, layer, part) else { return vec![] };
    match cut_of(part) {
        Cut::Whole => vec![Rectangle { rows: 0..rows, cols: 0..cols }],
        Cut::Heads => heads(spec, layer, cols),
        Cut::RowSlices => {
            let width = rows / spec.slices;
            let slice = |s| Rectangle { rows: s * width..(s + 1) * width, cols: 0..cols };
            (0..spec.slices).map(slice).collect()
        }
        Cut::ColumnSlices => {
            let width = cols / spec.slices;
            let slice = |s| Rectangle { rows: 0..rows, cols: s * width..(s + 1) * width };
            (0..spec.slices).map(slice).collect()
        }
    }
}

/// How a tensor is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Not at all.
    Whole,
    /// Per head its key rows, then its value rows.
    Heads,
    /// Into S runs of rows.
    RowSlices,
    /// Into S runs of columns: the summed dimension.
    ColumnSlices,
}

/// How a tensor is cut.
pub const fn cut_of(part: Part) -> Cut {
    match part {
        Part::LatentUp => Cut::Heads,
        Part::Output | Part::DenseDown | Part::SharedDown | Part::ExpertDown(_) => {
            Cut::ColumnSlices
        }
        Part::DenseGate
        | Part::DenseUp
        | Part::SharedGate
        | Part::SharedUp
        | Part::ExpertGate(_)
        | Part::ExpertUp(_) => Cut::RowSlices,
        Part::Embedding
        | Part::FinalNorm
        | Part::Head
        | Part::InputNorm
        | Part::PostNorm
        | Part::Query
        | Part::QueryBias
        | Part::Key
        | Part::KeyBias
        | Part::Value
        | Part::ValueBias
        | Part::QueryHeadsNorm
        | Part::KeyHeadsNorm
        | Part::Sinks
        | Part::QueryDown
        | Part::QueryDownBias
        | Part::QueryNorm
        | Part::QueryUp
        | Part::LatentDown
        | Part::LatentDownBias
        | Part::LatentNorm
        | Part::OutputBias
        | Part::IndexQuery
        | Part::IndexKey
        | Part::IndexKeyNorm
        | Part::IndexKeyNormBias
        | Part::IndexWeights
        | Part::Router
        | Part::RouterLogitBias
        | Part::RouterBias
        | Part::ExpertGateBiases
        | Part::ExpertUpBiases
        | Part::ExpertDownBiases
        | Part::SharedScore => Cut::Whole,
    }
}

fn heads(spec: &ModelSpec, layer: Option<LayerId>, cols: usize) -> Vec<Rectangle> {
    let Some(layer) = layer.and_then(|id| spec.layers.get(id.index())) else { return vec![] };
    let AttentionSpec::Mla(mla) = &layer.attention else { return vec![] };
    let head_rows = mla.nope_dim + mla.value_dim;
    let head = |head: usize| {
        let first = head * head_rows;
        let value = first + mla.nope_dim;
        [first..value, value..first + head_rows].map(|rows| Rectangle { rows, cols: 0..cols })
    };
    (0..mla.heads).flat_map(head).collect()
}
