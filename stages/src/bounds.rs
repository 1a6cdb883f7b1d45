//! What an executor must offer for a model: the longest job list, and the scratch of one job.
//!
//! Made once at start from the model and its limits; crews and the simulation's crew are built to it.

use crate::attend;
use crate::compute::{inner_width, job_columns};
use crate::limits::{JOB_COLUMNS, Limits};
use crate::queue::TILES_MAX;
use crate::spec::{AttentionSpec, IndexerUse, ModelSpec};

fn tiles(rows: usize) -> usize {
    rows.div_ceil(JOB_COLUMNS)
}

/// The longest job list of one node.
pub fn jobs_max(spec: &ModelSpec, limits: &Limits) -> usize {
    let mut most = tiles(spec.vocabulary).max(tiles(spec.hidden) * 8).max(limits.rows_max);
    for layer in &spec.layers {
        let attention = attention_tiles(&layer.attention);
        let inner = tiles(inner_width(layer)) + 8;
        let experts = layer.moe().map_or(0, |moe| tiles(moe.experts));
        most = [most, attention, inner, experts].into_iter().fold(0, usize::max);
    }
    // Attention and index scores fill a grid at most.
    most.max(TILES_MAX)
}

/// Jobs of the products of one layer's attention, those of one batch added up.
fn attention_tiles(attention: &AttentionSpec) -> usize {
    match attention {
        AttentionSpec::Mla(mla) => {
            let query = tiles(mla.heads * (mla.nope_dim + mla.rope_dim));
            let down = tiles(mla.query_rank.unwrap_or(0)) + tiles(mla.latent_rank + mla.rope_dim);
            let index = match &mla.indexer {
                IndexerUse::Full(indexer) => {
                    tiles(indexer.heads * indexer.dim) + tiles(indexer.dim) + tiles(indexer.heads)
                }
                IndexerUse::Dense | IndexerUse::Shared => 0,
            };
            query + down + index
        }
        AttentionSpec::Gqa(gqa) => {
            tiles(gqa.heads * gqa.head_dim) + 2 * tiles(gqa.key_heads * gqa.head_dim)
        }
    }
}

/// f32 elements of scratch that a job may need.
pub fn scratch_len(spec: &ModelSpec, limits: &Limits) -> usize {
    let attention = spec.layers.iter().map(|layer| attend::scratch_len(&layer.attention));
    // Up to eight slices of the widest matrix share a grid.
    let inner = spec.layers.iter().map(inner_width).max().unwrap_or(0);
    let widest = spec.vocabulary.max(8 * spec.hidden).max(inner);
    let tiles = 5 * limits.rows_max * job_columns(widest);
    attention.fold(tiles, usize::max)
}
