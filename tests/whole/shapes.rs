//! The layers of the determinism matrix's test models.

use millstream_stages::simulation::RandomFormats;
use millstream_stages::spec::{
    Activation, AttentionSpec, FfnSpec, GateScore, GateSpec, GqaSpec, IndexerSpec, IndexerUse,
    LayerSpec, MlaSpec, ModelSpec, MoeSpec, QueryKeyNorm, RopeScaling, RopeSpec,
};

/// Experts per row of the test models.
pub const TOP_K: usize = 4;
/// Experts of a layer of the test models.
pub const EXPERTS: usize = 12;

/// The test model: several slices, an indexer of its own and a shared one, dense and sparse layers.
/// Formats in groups get wider layers, so that they are cut too.
pub fn latent(formats: &RandomFormats) -> ModelSpec {
    let [value_dim, intermediate, shared, dense] = widths(formats);
    let rope = RopeSpec { theta: 10_000.0, interleaved: true, scaling: RopeScaling::None };
    let layer = |indexer: IndexerUse, ffn: FfnSpec| LayerSpec {
        attention: AttentionSpec::Mla(MlaSpec {
            heads: 8,
            query_rank: Some(20),
            latent_rank: 24,
            nope_dim: 12,
            rope_dim: 8,
            value_dim,
            score_scale: 1.0 / 20f32.sqrt(),
            rope,
            latent_norm_epsilon: 1e-6,
            bias: true,
            indexer,
        }),
        ffn,
        norm_epsilon: 1e-5,
    };
    let full =
        IndexerUse::Full(IndexerSpec { heads: 4, dim: 16, top_k: 20, rope, norm_epsilon: 1e-6 });
    let moe = || {
        FfnSpec::Moe(MoeSpec {
            experts: EXPERTS,
            top_k: TOP_K,
            intermediate,
            shared_intermediate: shared,
            shared_score: false,
            activation: Activation::Silu,
            expert_bias: false,
            gate: GateSpec {
                score: GateScore::Sigmoid,
                logit_bias: false,
                bias: true,
                groups: 3,
                groups_kept: 2,
                normalise: true,
                scale: 2.5,
            },
        })
    };
    let layers = vec![
        layer(full, FfnSpec::Dense { intermediate: dense }),
        layer(IndexerUse::Shared, moe()),
        layer(full, moe()),
        layer(IndexerUse::Shared, FfnSpec::Dense { intermediate: dense }),
    ];
    model(layers, formats)
}

/// The test model of what the other has not: grouped-query attention with and without a window,
/// sinks, norms, clips, biases and a stretched rope, latent attention whose queries have no low rank;
/// clamped and biased experts beside a scored shared one.
pub fn alternating(formats: &RandomFormats) -> ModelSpec {
    let [head_dim, intermediate, shared, dense] = widths(formats);
    let layer = |attention, ffn| LayerSpec { attention, ffn, norm_epsilon: 1e-5 };
    let layers = vec![
        layer(grouped(head_dim), FfnSpec::Dense { intermediate: dense }),
        layer(windowed(head_dim), FfnSpec::Moe(clamped(intermediate, shared))),
        layer(biased(head_dim), FfnSpec::Moe(unscored(intermediate))),
        layer(direct(head_dim), FfnSpec::Dense { intermediate: dense }),
    ];
    model(layers, formats)
}

/// The layers of [`alternating`], all of them dense: no experts, no slots.
pub fn dense(formats: &RandomFormats) -> ModelSpec {
    let mut spec = alternating(formats);
    let [_, _, _, intermediate] = widths(formats);
    spec.layers.iter_mut().for_each(|layer| layer.ffn = FfnSpec::Dense { intermediate });
    spec
}

/// Width of a head's values, of experts, of the shared expert, of dense layers.
fn widths(formats: &RandomFormats) -> [usize; 4] {
    if formats.group() > 1 { [32, 256, 512, 256] } else { [12, 24, 48, 80] }
}

fn gqa(head_dim: usize) -> GqaSpec {
    let scaling = RopeScaling::Yarn {
        factor: 4.0,
        context: 512.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        magnitude: 1.138_629_4,
    };
    GqaSpec {
        heads: 8,
        key_heads: 2,
        head_dim,
        rope_dim: 8,
        rope: RopeSpec { theta: 10_000.0, interleaved: false, scaling },
        score_scale: 1.0 / (head_dim as f32).sqrt(),
        query_key_norm: QueryKeyNorm::None,
        query_key_norm_epsilon: 1e-5,
        clip: None,
        bias: true,
        output_bias: true,
        window: None,
        sinks: false,
    }
}

/// Norms of each head, sinks, everything before a row.
fn grouped(head_dim: usize) -> AttentionSpec {
    let query_key_norm = QueryKeyNorm::EachHead;
    AttentionSpec::Gqa(GqaSpec { query_key_norm, sinks: true, ..gqa(head_dim) })
}

/// As many key heads as heads, a norm over all of them, clips, and a window within one block or two.
fn windowed(head_dim: usize) -> AttentionSpec {
    AttentionSpec::Gqa(GqaSpec {
        key_heads: 8,
        query_key_norm: QueryKeyNorm::AllHeads,
        clip: Some(1.5),
        bias: false,
        output_bias: false,
        window: Some(10),
        ..gqa(head_dim)
    })
}

/// No norms, sinks, a window that is reached only within an answer.
fn biased(head_dim: usize) -> AttentionSpec {
    AttentionSpec::Gqa(GqaSpec { key_heads: 1, window: Some(74), sinks: true, ..gqa(head_dim) })
}

/// Latent attention whose queries are projected in one step.
fn direct(value_dim: usize) -> AttentionSpec {
    AttentionSpec::Mla(MlaSpec {
        heads: 8,
        query_rank: None,
        latent_rank: 24,
        nope_dim: 12,
        rope_dim: 8,
        value_dim,
        score_scale: 1.0 / 20f32.sqrt(),
        rope: RopeSpec {
            theta: 10_000.0,
            interleaved: true,
            scaling: RopeScaling::Linear { factor: 2.0 },
        },
        latent_norm_epsilon: 1e-6,
        bias: true,
        indexer: IndexerUse::Dense,
    })
}

fn clamped(intermediate: usize, shared_intermediate: usize) -> MoeSpec {
    MoeSpec {
        experts: EXPERTS,
        top_k: TOP_K,
        intermediate,
        shared_intermediate,
        shared_score: true,
        activation: Activation::Clamped { alpha: 1.702, limit: 0.9 },
        expert_bias: true,
        gate: GateSpec {
            score: GateScore::Softmax,
            logit_bias: true,
            bias: false,
            groups: 1,
            groups_kept: 1,
            normalise: true,
            scale: 1.0,
        },
    }
}

/// A shared expert as wide as the routed ones: computed with them in one batch.
fn unscored(intermediate: usize) -> MoeSpec {
    let mut moe = clamped(intermediate, intermediate);
    (moe.shared_score, moe.gate.normalise) = (false, false);
    moe
}

fn model(layers: Vec<LayerSpec>, formats: &RandomFormats) -> ModelSpec {
    let slices = ModelSpec::choose_slices(&layers, formats.group());
    assert_eq!(slices, (256 / formats.group()).min(8), "the test model is cut");
    ModelSpec {
        vocabulary: 75,
        hidden: 40,
        slices,
        layers,
        final_norm_epsilon: 1e-5,
        tied_head: false,
        context_max: 128,
    }
}
