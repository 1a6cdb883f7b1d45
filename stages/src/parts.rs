//! Which tensors a model of a given spec has, and of which shape.
//!
//! Family-independent: derived from the [`ModelSpec`] alone, in the words of [`Part`]. The checkpoint
//! checks every file against these lists; the shapes are those documented at [`Part`].

use crate::ids::{ExpertId, LayerId};
use crate::spec::{AttentionSpec, FfnSpec, IndexerUse, LayerSpec, ModelSpec};
use crate::weights::Part;

/// The tensors of a model that stay in memory, in the order in which they are used.
pub fn resident_parts(spec: &ModelSpec) -> Vec<(Option<LayerId>, Part)> {
    let mut parts = vec![(None, Part::Embedding)];
    for (index, layer) in spec.layers.iter().enumerate() {
        let id = Some(LayerId(index as u32));
        parts.extend(layer_parts(layer).into_iter().map(|part| (id, part)));
    }
    parts.push((None, Part::FinalNorm));
    if !spec.tied_head {
        parts.push((None, Part::Head));
    }
    parts
}

/// The three tensors of a routed expert, in the order gate, up, down.
pub fn expert_parts(expert: ExpertId) -> [Part; 3] {
    [Part::ExpertGate(expert), Part::ExpertUp(expert), Part::ExpertDown(expert)]
}

fn layer_parts(layer: &LayerSpec) -> Vec<Part> {
    let AttentionSpec::Mla(mla) = &layer.attention;
    let mut parts = vec![Part::InputNorm, Part::QueryDown, Part::QueryNorm, Part::QueryUp];
    parts.extend([Part::LatentDown, Part::LatentNorm, Part::LatentUp, Part::Output]);
    if mla.bias {
        parts.extend([Part::QueryDownBias, Part::LatentDownBias, Part::OutputBias]);
    }
    if let IndexerUse::Full(_) = mla.indexer {
        parts.extend([Part::IndexQuery, Part::IndexKey, Part::IndexWeights]);
        parts.extend([Part::IndexKeyNorm, Part::IndexKeyNormBias]);
    }
    parts.push(Part::PostNorm);
    match &layer.ffn {
        FfnSpec::Dense { .. } => parts.extend([Part::DenseGate, Part::DenseUp, Part::DenseDown]),
        FfnSpec::Moe(moe) => {
            parts.push(Part::Router);
            if moe.gate.bias {
                parts.push(Part::RouterBias);
            }
            if moe.shared_intermediate > 0 {
                parts.extend([Part::SharedGate, Part::SharedUp, Part::SharedDown]);
            }
        }
    }
    parts
}

/// A part's shape as rows and columns; vectors have one row. None when the model has no such
/// part: a layer out of range, an expert of a dense layer, a bias where there is none.
pub fn part_shape(spec: &ModelSpec, layer: Option<LayerId>, part: Part) -> Option<[usize; 2]> {
    let hidden = spec.hidden;
    match (layer, part) {
        (None, Part::Embedding) => Some([spec.vocabulary, hidden]),
        (None, Part::Head) => (!spec.tied_head).then_some([spec.vocabulary, hidden]),
        (None, Part::FinalNorm) => Some([1, hidden]),
        (Some(id), part) => {
            let layer = spec.layers.get(id.index())?;
            attention_shape(layer, hidden, part).or_else(|| ffn_shape(layer, hidden, part))
        }
        (None, _) => None,
    }
}

fn attention_shape(layer: &LayerSpec, hidden: usize, part: Part) -> Option<[usize; 2]> {
    let AttentionSpec::Mla(mla) = &layer.attention;
    let indexer = match mla.indexer {
        IndexerUse::Full(indexer) => Some(indexer),
        IndexerUse::Dense | IndexerUse::Shared => None,
    };
    let query_rank = mla.query_rank;
    let latent_and_rope = mla.latent_rank + mla.rope_dim;
    let biased = |len: usize| mla.bias.then_some([1, len]);
    match part {
        Part::InputNorm | Part::PostNorm => Some([1, hidden]),
        Part::QueryDown => Some([query_rank, hidden]),
        Part::QueryDownBias => biased(query_rank),
        Part::QueryNorm => Some([1, query_rank]),
        Part::QueryUp => Some([mla.heads * (mla.nope_dim + mla.rope_dim), query_rank]),
        Part::LatentDown => Some([latent_and_rope, hidden]),
        Part::LatentDownBias => biased(latent_and_rope),
        Part::LatentNorm => Some([1, mla.latent_rank]),
        Part::LatentUp => Some([mla.heads * (mla.nope_dim + mla.value_dim), mla.latent_rank]),
        Part::Output => Some([hidden, mla.heads * mla.value_dim]),
        Part::OutputBias => biased(hidden),
        Part::IndexQuery => indexer.map(|indexer| [indexer.heads * indexer.dim, query_rank]),
        Part::IndexKey => indexer.map(|indexer| [indexer.dim, hidden]),
        Part::IndexKeyNorm | Part::IndexKeyNormBias => indexer.map(|indexer| [1, indexer.dim]),
        Part::IndexWeights => indexer.map(|indexer| [indexer.heads, hidden]),
        _ => None,
    }
}

fn ffn_shape(layer: &LayerSpec, hidden: usize, part: Part) -> Option<[usize; 2]> {
    match (&layer.ffn, part) {
        (FfnSpec::Dense { intermediate }, Part::DenseGate | Part::DenseUp) => {
            Some([*intermediate, hidden])
        }
        (FfnSpec::Dense { intermediate }, Part::DenseDown) => Some([hidden, *intermediate]),
        (FfnSpec::Moe(moe), Part::Router) => Some([moe.experts, hidden]),
        (FfnSpec::Moe(moe), Part::RouterBias) => moe.gate.bias.then_some([1, moe.experts]),
        (FfnSpec::Moe(moe), Part::SharedGate | Part::SharedUp) => {
            (moe.shared_intermediate > 0).then_some([moe.shared_intermediate, hidden])
        }
        (FfnSpec::Moe(moe), Part::SharedDown) => {
            (moe.shared_intermediate > 0).then_some([hidden, moe.shared_intermediate])
        }
        (FfnSpec::Moe(moe), Part::ExpertGate(expert) | Part::ExpertUp(expert)) => {
            (expert.index() < moe.experts).then_some([moe.intermediate, hidden])
        }
        (FfnSpec::Moe(moe), Part::ExpertDown(expert)) => {
            (expert.index() < moe.experts).then_some([hidden, moe.intermediate])
        }
        _ => None,
    }
}

/// Whether a part is stored as a vector, with one dimension.
pub fn is_vector(part: Part) -> bool {
    matches!(
        part,
        Part::FinalNorm
            | Part::InputNorm
            | Part::PostNorm
            | Part::QueryDownBias
            | Part::QueryNorm
            | Part::LatentDownBias
            | Part::LatentNorm
            | Part::OutputBias
            | Part::IndexKeyNorm
            | Part::IndexKeyNormBias
            | Part::RouterBias
    )
}
