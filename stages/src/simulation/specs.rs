//! Models small enough to run thousands of times: what the simulation and other tests run on.

use crate::spec::{
    Activation, AttentionSpec, FfnSpec, GateScore, GateSpec, GqaSpec, IndexerSpec, IndexerUse,
    LayerSpec, MlaSpec, ModelSpec, MoeSpec, QueryKeyNorm, RopeScaling, RopeSpec,
};

const ROPE: RopeSpec = RopeSpec { theta: 10_000.0, interleaved: true, scaling: RopeScaling::None };

/// Blends some frequencies even of the few that a small head has.
const STRETCHED: RopeScaling = RopeScaling::Yarn {
    factor: 4.0,
    context: 512.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    truncate: false,
    magnitude: 1.138_629_4,
};

/// Two mixtures between dense layers, an indexer
/// that is shared once, two groups of experts.
pub fn small_spec() -> ModelSpec {
    let layer = |indexer: IndexerUse, ffn: FfnSpec| LayerSpec {
        attention: AttentionSpec::Mla(MlaSpec {
            heads: 4,
            query_rank: Some(8),
            latent_rank: 12,
            nope_dim: 4,
            rope_dim: 4,
            value_dim: 4,
            score_scale: 1.0 / 8f32.sqrt(),
            rope: ROPE,
            latent_norm_epsilon: 1e-6,
            bias: false,
            indexer,
        }),
        ffn,
        norm_epsilon: 1e-5,
    };
    let full = IndexerUse::Full(IndexerSpec {
        heads: 2,
        dim: 8,
        top_k: 4,
        rope: ROPE,
        norm_epsilon: 1e-6,
    });
    let moe = |groups, groups_kept| {
        FfnSpec::Moe(MoeSpec {
            experts: 6,
            top_k: 2,
            intermediate: 8,
            shared_intermediate: 8,
            shared_score: false,
            activation: Activation::Silu,
            expert_bias: false,
            gate: GateSpec {
                score: GateScore::Sigmoid,
                logit_bias: false,
                bias: true,
                groups,
                groups_kept,
                normalise: true,
                scale: 2.5,
            },
        })
    };
    let layers = vec![
        layer(full, FfnSpec::Dense { intermediate: 16 }),
        layer(IndexerUse::Shared, moe(1, 1)),
        layer(full, moe(3, 2)),
        layer(IndexerUse::Shared, FfnSpec::Dense { intermediate: 16 }),
    ];
    model(layers)
}

/// As small, with what the other has not: grouped-query attention with and without a window, sinks,
/// norms, clips, biases, a stretched rope; clamped and biased experts beside a scored shared one; and
/// one layer of latent attention whose queries have no low rank.
pub fn alternating_spec() -> ModelSpec {
    let gqa = GqaSpec {
        heads: 4,
        key_heads: 2,
        head_dim: 8,
        rope_dim: 6,
        rope: RopeSpec { scaling: STRETCHED, interleaved: false, ..ROPE },
        score_scale: 1.0 / 8f32.sqrt(),
        query_key_norm: QueryKeyNorm::EachHead,
        query_key_norm_epsilon: 1e-5,
        clip: None,
        bias: true,
        output_bias: true,
        window: None,
        sinks: true,
    };
    let windowed = GqaSpec {
        key_heads: 4,
        rope_dim: 8,
        query_key_norm: QueryKeyNorm::AllHeads,
        clip: Some(1.5),
        window: Some(3),
        sinks: false,
        ..gqa.clone()
    };
    let biased = GqaSpec { query_key_norm: QueryKeyNorm::None, window: Some(5), ..gqa.clone() };
    let latent = MlaSpec {
        heads: 4,
        query_rank: None,
        latent_rank: 12,
        nope_dim: 4,
        rope_dim: 4,
        value_dim: 4,
        score_scale: 1.0 / 8f32.sqrt(),
        rope: ROPE,
        latent_norm_epsilon: 1e-6,
        bias: true,
        indexer: IndexerUse::Dense,
    };
    let clamped = clamped();
    let unscored = MoeSpec {
        shared_intermediate: 8,
        shared_score: false,
        gate: GateSpec { normalise: false, ..clamped.gate },
        ..clamped.clone()
    };
    let layer = |attention, ffn| LayerSpec { attention, ffn, norm_epsilon: 1e-5 };
    model(vec![
        layer(AttentionSpec::Gqa(gqa), FfnSpec::Dense { intermediate: 16 }),
        layer(AttentionSpec::Gqa(windowed), FfnSpec::Moe(clamped)),
        layer(AttentionSpec::Gqa(biased), FfnSpec::Moe(unscored)),
        layer(AttentionSpec::Mla(latent), FfnSpec::Dense { intermediate: 16 }),
    ])
}

fn clamped() -> MoeSpec {
    let gate = GateSpec {
        score: GateScore::Softmax,
        logit_bias: true,
        bias: false,
        groups: 1,
        groups_kept: 1,
        normalise: true,
        scale: 1.0,
    };
    MoeSpec {
        experts: 6,
        top_k: 2,
        intermediate: 8,
        shared_intermediate: 16,
        shared_score: true,
        activation: Activation::Clamped { alpha: 1.702, limit: 0.9 },
        expert_bias: true,
        gate,
    }
}

/// As small, without any experts: every layer is dense, as in a Llama.
pub fn plain_spec() -> ModelSpec {
    let layers = alternating_spec().layers.into_iter();
    let dense = |layer| LayerSpec { ffn: FfnSpec::Dense { intermediate: 16 }, ..layer };
    model(layers.map(dense).collect())
}

fn model(layers: Vec<LayerSpec>) -> ModelSpec {
    ModelSpec {
        vocabulary: 24,
        hidden: 16,
        slices: ModelSpec::choose_slices(&layers, 1),
        layers,
        final_norm_epsilon: 1e-5,
        tied_head: false,
        context_max: 64,
    }
}
