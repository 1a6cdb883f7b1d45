//! The indexer of sparse attention: which positions a row looks at.
//!
//! score_t = sum over index heads of weight_h * relu(q_h . k_t / sqrt(dim)), times 1/sqrt(heads)
//! (DeepSeek-V3.2 report, "lightning indexer"). The `top_k` largest are kept, equal scores by
//! rising position. Scores are cut over rows and KV blocks, the selection over rows.

use super::latent::Latent;
use super::pages::Pages;
use super::{HEAD_ROWS, HEADS_AT_ONCE};
use crate::compute::{Compute, Product};
use crate::limits::{JOB_COLUMNS, KV_BLOCK_ROWS, Limits};
use crate::placed::{PlacedRows, Placer};
use crate::queue::{Grid, Job, TILES_MAX, Task};
use crate::spec::{AttentionSpec, IndexerSpec, IndexerUse, MlaSpec, ModelSpec};
use crate::wave::Wave;
use crate::weights::{Part, SourceError};
use millstream_kernels::{Activations, Kernels, Weights};

/// Rows whose scores are made in one batch of jobs at most.
const ROWS_PER_GROUP: usize = 64;

/// Weights of a layer's indexer.
pub(super) struct IndexWeights {
    query: PlacedRows,
    key: PlacedRows,
    key_norm: Vec<f32>,
    key_norm_bias: Vec<f32>,
    weights: PlacedRows,
}

/// Working memory of the indexer.
#[derive(Default)]
pub(super) struct IndexBuffers {
    query: Vec<f32>,
    turned: Vec<f32>,
    key: Vec<f32>,
    normed: Vec<f32>,
    weights: Vec<f32>,
    scores: Vec<f32>,
    order: Vec<f32>,
}

impl IndexWeights {
    /// Places the weights of a layer's indexer.
    pub(super) fn place(placer: &mut Placer<'_>) -> Result<IndexWeights, SourceError> {
        Ok(IndexWeights {
            query: placer.rows(Part::IndexQuery, JOB_COLUMNS),
            key: placer.rows(Part::IndexKey, JOB_COLUMNS),
            key_norm: placer.vector(Part::IndexKeyNorm)?,
            key_norm_bias: placer.vector(Part::IndexKeyNormBias)?,
            weights: placer.rows(Part::IndexWeights, JOB_COLUMNS),
        })
    }
}

impl IndexBuffers {
    /// Room for the largest wave in any layer; empty without an indexer.
    pub(super) fn new(model: &ModelSpec, limits: &Limits) -> IndexBuffers {
        let [query, dim, heads] = widths(model);
        let room = |width: usize| vec![0.0; limits.rows_max * width];
        let [scores, order] = score_lens(model, limits);
        IndexBuffers {
            query: room(query),
            turned: room(query),
            key: room(dim),
            normed: vec![0.0; dim],
            weights: room(heads),
            scores: vec![0.0; scores],
            order: vec![0.0; order],
        }
    }

    /// Bytes of [`IndexBuffers::new`].
    pub(super) fn bytes(model: &ModelSpec, limits: &Limits) -> usize {
        let [query, dim, heads] = widths(model);
        let of_rows = limits.rows_max * (2 * query + dim + heads);
        4 * (of_rows + dim + score_lens(model, limits).iter().sum::<usize>())
    }
}

fn indexers(model: &ModelSpec) -> impl Iterator<Item = &IndexerSpec> {
    model.layers.iter().filter_map(|layer| match &layer.attention {
        AttentionSpec::Mla(mla) => indexer_of(mla),
        AttentionSpec::Gqa(_) => None,
    })
}

/// A layer's own indexer.
pub(super) fn indexer_of(mla: &MlaSpec) -> Option<&IndexerSpec> {
    match &mla.indexer {
        IndexerUse::Full(indexer) => Some(indexer),
        IndexerUse::Dense | IndexerUse::Shared => None,
    }
}

/// Of the widest indexer each: its query, its key, its heads.
fn widths(model: &ModelSpec) -> [usize; 3] {
    indexers(model).fold([0; 3], |[query, dim, heads], indexer| {
        [query.max(indexer.heads * indexer.dim), dim.max(indexer.dim), heads.max(indexer.heads)]
    })
}

/// Elements of the scores that are held at once, and of one row's in order.
fn score_lens(model: &ModelSpec, limits: &Limits) -> [usize; 2] {
    match indexers(model).next() {
        None => [0, 0],
        Some(_) => {
            let all = limits.context_max.saturating_mul(limits.rows_max.min(ROWS_PER_GROUP));
            [limits.index_scores_max.min(all), limits.context_max]
        }
    }
}

impl IndexBuffers {
    /// The products that read the normed state: index key and head weights.
    pub(super) fn products_down<'a>(
        &'a mut self,
        weights: &'a IndexWeights,
        x: &'a [f32],
        stride: usize,
    ) -> [Product<'a>; 2] {
        [
            Product { weights: &weights.key, x, stride, out: &mut self.key },
            Product { weights: &weights.weights, x, stride, out: &mut self.weights },
        ]
    }

    /// The product that reads the normed query rank, or the normed state where queries have none.
    pub(super) fn product_up<'a>(
        &'a mut self,
        weights: &'a IndexWeights,
        x: &'a [f32],
    ) -> Product<'a> {
        Product { weights: &weights.query, x, stride: weights.query.cols, out: &mut self.query }
    }
}

/// Remembers the rows' index keys and fills the wave's selection; the products are done.
pub(super) fn select(
    actor: &mut Latent,
    wave: &mut Wave,
    compute: &mut Compute,
    buffers: &mut IndexBuffers,
    indexer: &IndexerSpec,
    rope: usize,
) {
    let Latent { mla, weights, pages, .. } = actor;
    let weights = weights.index.as_ref().expect("a full layer has index weights");
    let keys = &mut pages.index_keys;
    let kernels = compute.kernels;
    let turn = |index: usize, x: &[f32], out: &mut [f32]| {
        let (cos, sin) = wave.ropes[rope].of(index);
        let (turned, rest) = out.split_at_mut(mla.rope_dim);
        kernels.rope(&x[..mla.rope_dim], cos, sin, indexer.rope.interleaved, turned);
        rest.copy_from_slice(&x[mla.rope_dim..]);
    };
    for (index, row) in wave.rows.iter().enumerate() {
        let key = &buffers.key[index * indexer.dim..][..indexer.dim];
        let (norm, bias) = (&weights.key_norm, &weights.key_norm_bias);
        kernels.layer_norm(key, norm, bias, indexer.norm_epsilon, &mut buffers.normed);
        let position = row.position as usize;
        let place = keys.place(wave.page_of(row, position), 0, position);
        turn(index, &buffers.normed, keys.row_mut(place));
        for head in 0..indexer.heads {
            let range = (index * indexer.heads + head) * indexer.dim..;
            let range = range.start..range.start + indexer.dim;
            turn(index, &buffers.query[range.clone()], &mut buffers.turned[range]);
        }
    }
    choose(keys, wave, compute, buffers, indexer);
}

/// Scores and selection, in groups of rows whose scores fit the buffer.
fn choose(
    keys: &Pages,
    wave: &mut Wave,
    compute: &mut Compute,
    buffers: &mut IndexBuffers,
    indexer: &IndexerSpec,
) {
    let tokens = wave.rows.len();
    let longest = wave.rows.iter().map(|row| row.position as usize + 1).max().unwrap_or(0);
    if longest <= indexer.top_k {
        wave.selection.counts[..tokens].fill(None);
        return;
    }
    let group = (buffers.scores.len() / longest).clamp(1, ROWS_PER_GROUP);
    // A job scores whole KV blocks of one row; few enough that a group's jobs fit one grid.
    let blocks = longest.div_ceil(KV_BLOCK_ROWS);
    let span = blocks.div_ceil(TILES_MAX / ROWS_PER_GROUP) * KV_BLOCK_ROWS;
    for first in (0..tokens).step_by(group) {
        let rows = first..tokens.min(first + group);
        let scores = &mut buffers.scores[..rows.len() * longest];
        let task = ScoreTask {
            kernels: compute.kernels,
            indexer,
            keys,
            wave,
            query: &buffers.turned,
            weights: &buffers.weights,
            first_row: first,
            span,
            out: Grid::new(scores, longest, longest, 1, span),
        };
        compute.run(
            |jobs, map| {
                for row in rows.clone() {
                    let jobs_of_row = wave.rows[row].position as usize / span + 1;
                    for block in 0..jobs_of_row {
                        let job = Job { part: 0, row: (row - first) as u32, col: block as u32 };
                        jobs.push((row + block) % map.nodes, job);
                    }
                }
            },
            &task,
        );
        for row in rows {
            let keys = wave.rows[row].position as usize + 1;
            let scores = &buffers.scores[(row - first) * longest..][..keys];
            keep_largest(scores, indexer.top_k, &mut buffers.order, wave, row);
        }
    }
}

/// Keeps the positions of the `top_k` largest scores, ascending.
fn keep_largest(scores: &[f32], top_k: usize, order: &mut [f32], wave: &mut Wave, row: usize) {
    let selection = &mut wave.selection;
    if scores.len() <= top_k {
        selection.counts[row] = None;
        return;
    }
    let order = &mut order[..scores.len()];
    order.copy_from_slice(scores);
    // No score is a NaN here (ScoreTask), and +0 must equal -0: partial_cmp, not total_cmp.
    let falling = |a: &f32, b: &f32| b.partial_cmp(a).expect("scores are numbers");
    let (_, threshold, _) = order.select_nth_unstable_by(top_k - 1, falling);
    let threshold = *threshold;
    let above = scores.iter().filter(|&&score| score > threshold).count();
    let mut equal_left = top_k - above;
    let kept = &mut selection.positions[row * selection.width..][..top_k];
    let mut count = 0;
    for (position, &score) in scores.iter().enumerate() {
        let take = score > threshold || (score == threshold && equal_left > 0);
        if take {
            equal_left -= usize::from(score == threshold);
            kept[count] = position as u32;
            count += 1;
        }
    }
    selection.counts[row] = Some(count as u32);
}

/// Scratch: the dots of some heads with the keys of a block.
pub(super) const SCRATCH_LEN: usize = HEADS_AT_ONCE * KV_BLOCK_ROWS;

struct ScoreTask<'a> {
    kernels: Kernels,
    indexer: &'a IndexerSpec,
    keys: &'a Pages,
    wave: &'a Wave,
    query: &'a [f32],
    weights: &'a [f32],
    first_row: usize,
    /// Positions of one job, a multiple of the KV block.
    span: usize,
    out: Grid<'a, f32>,
}

impl Task for ScoreTask<'_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let index = self.first_row + job.row as usize;
        let row = &self.wave.rows[index];
        let first = job.col as usize * self.span;
        let end = (first + self.span).min(row.position as usize + 1);
        let mut tile = self.out.take(job.row as usize, job.col as usize);
        for (block, out) in tile.row(0)[..end - first].chunks_mut(KV_BLOCK_ROWS).enumerate() {
            let position = first + block * KV_BLOCK_ROWS;
            let place = self.keys.place(self.wave.page_of(row, position), 0, position);
            self.scores(index, self.keys.matrix(place, out.len()), scratch, out);
        }
    }
}

impl ScoreTask<'_> {
    /// Scores of neighbours, whose keys are the rows of `keys`; those that are no numbers are below all others.
    fn scores(&self, index: usize, keys: Weights<'_>, scratch: &mut [f32], out: &mut [f32]) {
        let IndexerSpec { heads, dim, .. } = *self.indexer;
        let dim_scale = 1.0 / (dim as f32).sqrt();
        let head_scale = 1.0 / (heads as f32).sqrt();
        out.fill(0.0);
        for first in (0..heads).step_by(HEADS_AT_ONCE) {
            let count = HEADS_AT_ONCE.min(heads - first);
            let data = &self.query[(index * heads + first) * dim..][..count * dim];
            let x = Activations { data, stride: dim, rows: &HEAD_ROWS[..count] };
            let dots = &mut scratch[..count * out.len()];
            self.kernels.matmul(keys, x, dots);
            let weights = &self.weights[index * heads + first..][..count];
            for (weight, dots) in weights.iter().zip(dots.chunks(out.len())) {
                for (score, dot) in out.iter_mut().zip(dots) {
                    let dot = dot * dim_scale;
                    let positive = if dot > 0.0 { dot } else { 0.0 };
                    *score = weight.mul_add(positive, *score);
                }
            }
        }
        for score in out {
            let scaled = *score * head_scale;
            *score = if scaled.is_nan() { f32::NEG_INFINITY } else { scaled };
        }
    }
}
