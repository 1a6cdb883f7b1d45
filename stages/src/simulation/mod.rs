//! The simulation: all actors on one thread, the next one picked by a seeded generator.
//!
//! A run draws a machine (nodes, workers, seats), slots and room for results, lets three sequences
//! go through in waves of drawn company, with a reader that delays, reorders, shortens and fails,
//! and holds every row that didn't fail to the straight-line pass, bit for bit. A red run panics
//! with its seed.

mod injector;
mod model;
mod random;
mod reader;
mod world;

pub use injector::{FaultInjector, InjectedFaults};
pub use model::{RandomFormats, RandomModel};
pub use random::Random;
pub use reader::{FaultyReader, Manners, MemoryReader};
pub use world::{Outcome, World};

use crate::spec::{
    AttentionSpec, FfnSpec, GateScore, GateSpec, IndexerSpec, IndexerUse, LayerSpec, MlaSpec,
    ModelSpec, MoeSpec, RopeSpec,
};

/// A model small enough to run thousands of times: two mixtures between dense layers, an indexer
/// that is shared once, two groups of experts.
pub fn small_spec() -> ModelSpec {
    let layer = |indexer: IndexerUse, ffn: FfnSpec| LayerSpec {
        attention: AttentionSpec::Mla(MlaSpec {
            heads: 4,
            query_rank: 8,
            latent_rank: 12,
            nope_dim: 4,
            rope_dim: 4,
            value_dim: 4,
            score_scale: 1.0 / 8f32.sqrt(),
            rope: RopeSpec { theta: 10_000.0, interleaved: true },
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
        rope: RopeSpec { theta: 10_000.0, interleaved: true },
        norm_epsilon: 1e-6,
    });
    let moe = |groups, groups_kept| {
        FfnSpec::Moe(MoeSpec {
            experts: 6,
            top_k: 2,
            intermediate: 8,
            shared_intermediate: 8,
            gate: GateSpec {
                score: GateScore::Sigmoid,
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
