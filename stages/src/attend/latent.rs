//! The attention job: one head of one row over all the positions that the row looks at.
//!
//! The query is absorbed into the latent space, so that scores and sums read latents, not keys and
//! values. Softmax runs block by block over KV blocks of constant length, merged left to right:
//! the bytes don't depend on how many rows a wave has.

use super::{Attend, Keys};
use crate::compute::Compute;
use crate::limits::KV_BLOCK_ROWS;
use crate::placed::PlacedHeads;
use crate::queue::{Grid, Job, TILES_MAX, Task};
use crate::spec::MlaSpec;
use crate::wave::{Row, Wave};
use millstream_kernels::{
    ActivationLayout, Activations, Floats, Kernels, Quantised, QuantisedRowMut,
};
use millstream_topology::arena::LayerArena;
use std::ops::Range;

/// Scratch: absorbed query, two latents, rope query, one block of scores, and the latent
/// quantised: codes of one byte, two numbers for each unit of 16 columns at least.
pub(super) fn scratch_len(mla: &MlaSpec) -> usize {
    let quantised = mla.latent_rank.next_multiple_of(64) / 4 + 2 * mla.latent_rank.div_ceil(16);
    3 * mla.latent_rank + mla.rope_dim + KV_BLOCK_ROWS + quantised
}

/// Fills `buffers.context`, `[rows, heads * value_dim]`, from `buffers.query`.
pub(super) fn attend(actor: &mut Attend, wave: &Wave, compute: &mut Compute, mla: &MlaSpec) {
    let tokens = wave.rows.len();
    compute.count_weights(actor.weights.latent_up.bytes());
    let group = (TILES_MAX / mla.heads).max(1);
    for first in (0..tokens).step_by(group) {
        attend_rows(actor, wave, compute, mla, first..tokens.min(first + group));
    }
}

/// As [`attend`], for rows whose tiles fit one grid.
fn attend_rows(
    actor: &mut Attend,
    wave: &Wave,
    compute: &mut Compute,
    mla: &MlaSpec,
    rows: Range<usize>,
) {
    let width = mla.heads * mla.value_dim;
    let context = &mut actor.buffers.context[rows.start * width..rows.end * width];
    let task = HeadTask {
        kernels: compute.kernels,
        arena: &actor.arena,
        latent_up: &actor.weights.latent_up,
        keys: &actor.keys,
        query: &actor.buffers.query,
        wave,
        mla,
        first_row: rows.start,
        out: Grid::new(context, width, width, 1, mla.value_dim),
    };
    let latent_up = &actor.weights.latent_up;
    compute.run(
        |jobs, _| {
            for head in 0..mla.heads {
                let node = latent_up.node_of(head);
                for row in 0..rows.len() {
                    jobs.push(node, Job { part: 0, row: row as u32, col: head as u32 });
                }
            }
        },
        &task,
    );
}

struct HeadTask<'a> {
    kernels: Kernels,
    arena: &'a LayerArena,
    latent_up: &'a PlacedHeads,
    keys: &'a Keys,
    query: &'a [f32],
    wave: &'a Wave,
    mla: &'a MlaSpec,
    first_row: usize,
    out: Grid<'a, f32>,
}

/// What the softmax over some blocks has gathered, beside the latent.
struct Gathered {
    largest: f32,
    sum: f32,
}

impl Task for HeadTask<'_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let (index, head) = (self.first_row + job.row as usize, job.col as usize);
        let mla = self.mla;
        let (absorbed, rest) = scratch.split_at_mut(mla.latent_rank);
        let (latent, rest) = rest.split_at_mut(mla.latent_rank);
        let (block_latent, rest) = rest.split_at_mut(mla.latent_rank);
        let (rope_query, rest) = rest.split_at_mut(mla.rope_dim);
        let (scores, quantised) = rest.split_at_mut(KV_BLOCK_ROWS);
        self.turn_query(index, head, absorbed, rope_query);

        let query = HeadQuery { absorbed, rope: rope_query };
        let row = &self.wave.rows[index];
        let selected = self.wave.selection.of(index);
        let mut gathered: Option<Gathered> = None;
        let mut taken = 0;
        for block in 0..=row.position as usize / KV_BLOCK_ROWS {
            let first = block * KV_BLOCK_ROWS;
            let end = (first + KV_BLOCK_ROWS).min(row.position as usize + 1);
            let listed = selected.map(|list| {
                let rest = &list[taken..];
                let count = rest.partition_point(|&position| (position as usize) < end);
                taken += count;
                &rest[..count]
            });
            let count = listed.map_or(end - first, <[u32]>::len);
            if count == 0 {
                continue;
            }
            let position = |i: usize| listed.map_or(first + i, |list| list[i] as usize);
            let scores = &mut scores[..count];
            let into = if gathered.is_none() { &mut *latent } else { &mut *block_latent };
            let part = self.block(row, &position, &query, scores, into);
            gathered = Some(match gathered {
                None => part,
                Some(before) => self.merge(before, part, latent, block_latent),
            });
        }
        let gathered = gathered.expect("a row attends at least to one position");
        self.kernels.scale(1.0 / gathered.sum, latent);
        let mut out = self.out.take(job.row as usize, head);
        self.values(head, latent, quantised, out.row(0));
    }
}

struct HeadQuery<'a> {
    absorbed: &'a [f32],
    rope: &'a [f32],
}

impl HeadTask<'_> {
    /// The head's query in latent space, and its rope part turned.
    fn turn_query(&self, index: usize, head: usize, absorbed: &mut [f32], rope_query: &mut [f32]) {
        let mla = self.mla;
        let width = mla.nope_dim + mla.rope_dim;
        let query = &self.query[(index * mla.heads + head) * width..][..width];
        absorbed.fill(0.0);
        let keys = self.latent_up.key(self.arena, head);
        self.kernels.transposed(keys, &query[..mla.nope_dim], absorbed);
        let half = mla.rope_dim / 2;
        let angles = index * half..(index + 1) * half;
        let (cos, sin) = (&self.wave.rope.cos[angles.clone()], &self.wave.rope.sin[angles]);
        self.kernels.rope(&query[mla.nope_dim..], cos, sin, mla.rope.interleaved, rope_query);
    }

    /// The head's values from the latent that it gathered.
    fn values(&self, head: usize, latent: &[f32], scratch: &mut [f32], out: &mut [f32]) {
        let weights = self.latent_up.value(self.arena, head);
        let Some(layout) = ActivationLayout::of(weights.format(), latent.len()) else {
            let x = Activations { data: latent, stride: latent.len(), rows: &[0] };
            return self.kernels.matmul(weights, x, out);
        };
        let (codes, rest) = scratch.split_at_mut(layout.codes() / 4);
        let (scales, rest) = rest.split_at_mut(layout.units());
        let codes = bytemuck::cast_slice_mut(codes);
        let sums = bytemuck::cast_slice_mut(&mut rest[..layout.units()]);
        let row = QuantisedRowMut { codes: &mut *codes, scales: &mut *scales, sums: &mut *sums };
        self.kernels.quantise(&layout, latent, row);
        let x = Quantised { layout, codes, scales, sums, rows: &[0] };
        self.kernels.matmul_quantised(weights, x, out);
    }

    /// Softmax and weighted latent of one block.
    fn block(
        &self,
        row: &Row,
        position: &dyn Fn(usize) -> usize,
        query: &HeadQuery<'_>,
        scores: &mut [f32],
        latent: &mut [f32],
    ) -> Gathered {
        let page = self.wave.page_of(row, position(0));
        for (i, score) in scores.iter_mut().enumerate() {
            let place = self.keys.place(page, position(i));
            let content = self.kernels.dot(Floats::F32(query.absorbed), self.keys.latent(place));
            let turned = self.kernels.dot(Floats::F32(query.rope), self.keys.rope_key(place));
            *score = (content + turned) * self.mla.score_scale;
        }
        let (largest, sum) = self.kernels.softmax_block(scores);
        latent.fill(0.0);
        for (i, &share) in scores.iter().enumerate() {
            let place = self.keys.place(page, position(i));
            self.kernels.axpy(share, self.keys.latent(place), latent);
        }
        Gathered { largest, sum }
    }

    /// A later block into what the blocks before it gave.
    fn merge(
        &self,
        before: Gathered,
        block: Gathered,
        latent: &mut [f32],
        block_latent: &[f32],
    ) -> Gathered {
        let largest = if block.largest > before.largest { block.largest } else { before.largest };
        let keep = millstream_kernels::math::exp(before.largest - largest);
        let take = millstream_kernels::math::exp(block.largest - largest);
        let sum = take.mul_add(block.sum, before.sum * keep);
        self.kernels.scale(keep, latent);
        self.kernels.axpy(take, block_latent, latent);
        Gathered { largest, sum }
    }
}
