//! Which tensors a model of a given spec has, and of which shape.
//!
//! Family-independent: derived from the [`ModelSpec`] alone, in the words of [`Part`]. The checkpoint
//! checks every file against these lists; the shapes are those documented at [`Part`].

use crate::ids::{ExpertId, LayerId};
use crate::spec::{
    AttentionSpec, FfnSpec, GqaSpec, IndexerUse, LayerSpec, MlaSpec, ModelSpec, QueryKeyNorm,
};
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
    let mut parts = vec![Part::InputNorm];
    match &layer.attention {
        AttentionSpec::Mla(mla) => latent_parts(mla, &mut parts),
        AttentionSpec::Gqa(gqa) => grouped_parts(gqa, &mut parts),
    }
    parts.push(Part::PostNorm);
    match &layer.ffn {
        FfnSpec::Dense { .. } => parts.extend([Part::DenseGate, Part::DenseUp, Part::DenseDown]),
        FfnSpec::Moe(moe) => {
            parts.push(Part::Router);
            let mut add = |there: bool, some: &[Part]| parts.extend(some.iter().filter(|_| there));
            add(moe.gate.logit_bias, &[Part::RouterLogitBias]);
            add(moe.gate.bias, &[Part::RouterBias]);
            add(moe.expert_bias, &EXPERT_BIASES);
            let shared = moe.shared_intermediate > 0;
            add(shared, &[Part::SharedGate, Part::SharedUp, Part::SharedDown]);
            add(shared && moe.shared_score, &[Part::SharedScore]);
        }
    }
    parts
}

/// The biases of a layer's routed experts, in the order gate, up, down.
pub const EXPERT_BIASES: [Part; 3] =
    [Part::ExpertGateBiases, Part::ExpertUpBiases, Part::ExpertDownBiases];

fn latent_parts(mla: &MlaSpec, parts: &mut Vec<Part>) {
    match mla.query_rank {
        Some(_) => parts.extend([Part::QueryDown, Part::QueryNorm, Part::QueryUp]),
        None => parts.push(Part::Query),
    }
    parts.extend([Part::LatentDown, Part::LatentNorm, Part::LatentUp, Part::Output]);
    if mla.bias {
        parts.extend(mla.query_rank.map(|_| Part::QueryDownBias));
        parts.extend([Part::LatentDownBias, Part::OutputBias]);
    }
    if let IndexerUse::Full(_) = mla.indexer {
        parts.extend([Part::IndexQuery, Part::IndexKey, Part::IndexWeights]);
        parts.extend([Part::IndexKeyNorm, Part::IndexKeyNormBias]);
    }
}

fn grouped_parts(gqa: &GqaSpec, parts: &mut Vec<Part>) {
    parts.extend([Part::Query, Part::Key, Part::Value, Part::Output]);
    let mut add = |there: bool, some: &[Part]| parts.extend(some.iter().filter(|_| there));
    add(gqa.bias, &[Part::QueryBias, Part::KeyBias, Part::ValueBias]);
    add(gqa.output_bias, &[Part::OutputBias]);
    let normed = gqa.query_key_norm != QueryKeyNorm::None;
    add(normed, &[Part::QueryHeadsNorm, Part::KeyHeadsNorm]);
    add(gqa.sinks, &[Part::Sinks]);
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
    match (&layer.attention, part) {
        (_, Part::InputNorm | Part::PostNorm) => Some([1, hidden]),
        (AttentionSpec::Mla(mla), part) => latent_shape(mla, hidden, part),
        (AttentionSpec::Gqa(gqa), part) => grouped_shape(gqa, hidden, part),
    }
}

fn latent_shape(mla: &MlaSpec, hidden: usize, part: Part) -> Option<[usize; 2]> {
    let indexer = match mla.indexer {
        IndexerUse::Full(indexer) => Some(indexer),
        IndexerUse::Dense | IndexerUse::Shared => None,
    };
    let query_rank = mla.query_rank;
    let query_width = mla.heads * (mla.nope_dim + mla.rope_dim);
    let latent_and_rope = mla.latent_rank + mla.rope_dim;
    let biased = |len: usize| mla.bias.then_some([1, len]);
    match part {
        Part::Query => query_rank.is_none().then_some([query_width, hidden]),
        Part::QueryDown => query_rank.map(|rank| [rank, hidden]),
        Part::QueryDownBias => query_rank.and_then(biased),
        Part::QueryNorm => query_rank.map(|rank| [1, rank]),
        Part::QueryUp => query_rank.map(|rank| [query_width, rank]),
        Part::LatentDown => Some([latent_and_rope, hidden]),
        Part::LatentDownBias => biased(latent_and_rope),
        Part::LatentNorm => Some([1, mla.latent_rank]),
        Part::LatentUp => Some([mla.heads * (mla.nope_dim + mla.value_dim), mla.latent_rank]),
        Part::Output => Some([hidden, mla.heads * mla.value_dim]),
        Part::OutputBias => biased(hidden),
        // An indexer reads the query's low rank, or the state itself where there is none.
        Part::IndexQuery => {
            indexer.map(|indexer| [indexer.heads * indexer.dim, query_rank.unwrap_or(hidden)])
        }
        Part::IndexKey => indexer.map(|indexer| [indexer.dim, hidden]),
        Part::IndexKeyNorm | Part::IndexKeyNormBias => indexer.map(|indexer| [1, indexer.dim]),
        Part::IndexWeights => indexer.map(|indexer| [indexer.heads, hidden]),
        _ => None,
    }
}

fn grouped_shape(gqa: &GqaSpec, hidden: usize, part: Part) -> Option<[usize; 2]> {
    let (queries, keys) = (gqa.heads * gqa.head_dim, gqa.key_heads * gqa.head_dim);
    let normed = |all: usize| match gqa.query_key_norm {
        QueryKeyNorm::None => None,
        QueryKeyNorm::EachHead => Some([1, gqa.head_dim]),
        QueryKeyNorm::AllHeads => Some([1, all]),
    };
    match part {
        Part::Query => Some([queries, hidden]),
        Part::Key | Part::Value => Some([keys, hidden]),
        Part::QueryBias => gqa.bias.then_some([1, queries]),
        Part::KeyBias | Part::ValueBias => gqa.bias.then_some([1, keys]),
        Part::QueryHeadsNorm => normed(queries),
        Part::KeyHeadsNorm => normed(keys),
        Part::Sinks => gqa.sinks.then_some([1, gqa.heads]),
        Part::Output => Some([hidden, queries]),
        Part::OutputBias => gqa.output_bias.then_some([1, hidden]),
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
        (FfnSpec::Moe(moe), Part::RouterLogitBias) => {
            moe.gate.logit_bias.then_some([1, moe.experts])
        }
        (FfnSpec::Moe(moe), Part::RouterBias) => moe.gate.bias.then_some([1, moe.experts]),
        (FfnSpec::Moe(moe), Part::ExpertGateBiases | Part::ExpertUpBiases) => {
            moe.expert_bias.then_some([moe.experts, moe.intermediate])
        }
        (FfnSpec::Moe(moe), Part::ExpertDownBiases) => {
            moe.expert_bias.then_some([moe.experts, hidden])
        }
        (FfnSpec::Moe(moe), Part::SharedScore) => {
            (moe.shared_intermediate > 0 && moe.shared_score).then_some([1, hidden])
        }
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
            | Part::QueryBias
            | Part::KeyBias
            | Part::ValueBias
            | Part::QueryHeadsNorm
            | Part::KeyHeadsNorm
            | Part::Sinks
            | Part::QueryDownBias
            | Part::QueryNorm
            | Part::LatentDownBias
            | Part::LatentNorm
            | Part::OutputBias
            | Part::IndexKeyNorm
            | Part::IndexKeyNormBias
            | Part::RouterLogitBias
            | Part::RouterBias
    )
}
