//! The job of latent attention: some heads of one row over all the positions that the row looks at.
//!
//! The query is absorbed into the latent space, so that scores and sums read latents, not keys and
//! values. Softmax runs block by block over KV blocks of constant length ([`Softmax`]).

use super::latent::{Latent, LatentPages};
use super::softmax::{self, Softmax};
use super::{HEAD_ROWS, HEADS_AT_ONCE, JOBS_PER_THREAD_MIN};
use crate::compute::Compute;
use crate::limits::KV_BLOCK_ROWS;
use crate::placed::PlacedHeads;
use crate::queue::{Grid, Job, TILES_MAX, Task};
use crate::spec::MlaSpec;
use crate::wave::{Row, Wave};
use millstream_kernels::{ActivationLayout, Activations, Kernels, Quantised, QuantisedRowMut};
use millstream_topology::arena::LayerArena;
use std::ops::Range;

/// Scratch. Of each head: absorbed query, rope query, the softmax, and of one run of a block the parts
/// of latents and of rope keys. Of all: the latent quantised: codes of one byte, two numbers for each
/// unit of 16 columns at least.
pub(super) fn scratch_len(mla: &MlaSpec) -> usize {
    let softmax = softmax::scratch_len(mla.latent_rank);
    let of_head = mla.latent_rank + mla.rope_dim + softmax + 2 * KV_BLOCK_ROWS;
    let quantised = mla.latent_rank.next_multiple_of(64) / 4 + 2 * mla.latent_rank.div_ceil(16);
    HEADS_AT_ONCE.min(mla.heads) * of_head + quantised
}

/// What all rows of a wave are attended with.
pub(super) struct Heads<'a> {
    pub actor: &'a Latent,
    pub arena: &'a LayerArena,
    pub wave: &'a Wave,
    /// `[rows, heads * (nope + rope)]`
    pub query: &'a [f32],
    /// Which of the wave's [`ropes`](Wave::ropes) turns queries.
    pub rope: usize,
}

impl Heads<'_> {
    /// Fills `context`, `[rows, heads * value_dim]`.
    pub(super) fn attend(&self, compute: &mut Compute, context: &mut [f32]) {
        let (tokens, heads) = (self.wave.rows.len(), self.actor.mla.heads);
        compute.count_weights(self.actor.weights.latent_up.bytes());
        let group = (TILES_MAX / heads).max(1);
        for first in (0..tokens).step_by(group) {
            self.attend_rows(compute, first..tokens.min(first + group), context);
        }
    }

    /// As [`Heads::attend`], for rows whose tiles fit one grid.
    fn attend_rows(&self, compute: &mut Compute, rows: Range<usize>, context: &mut [f32]) {
        let mla = &self.actor.mla;
        let width = mla.heads * mla.value_dim;
        let context = &mut context[rows.start * width..rows.end * width];
        let latent_up = &self.actor.weights.latent_up;
        let task = HeadTask {
            kernels: compute.kernels,
            heads: self,
            latent_up,
            pages: &self.actor.pages,
            mla,
            first_row: rows.start,
            out: Grid::new(context, width, width, 1, mla.value_dim),
        };
        let threads = compute.threads();
        let heads_at_once =
            (mla.heads * rows.len() / (threads * JOBS_PER_THREAD_MIN)).clamp(1, HEADS_AT_ONCE);
        compute.run(
            |jobs, _| {
                let mut first = 0;
                while first < mla.heads {
                    let node = latent_up.node_of(first);
                    let of_node =
                        (first..mla.heads).take_while(|&head| latent_up.node_of(head) == node);
                    let count = of_node.take(heads_at_once).count();
                    for row in 0..rows.len() {
                        let job = Job { part: count as u32, row: row as u32, col: first as u32 };
                        jobs.push(node, job);
                    }
                    first += count;
                }
            },
            &task,
        );
    }
}

struct HeadTask<'a> {
    kernels: Kernels,
    heads: &'a Heads<'a>,
    latent_up: &'a PlacedHeads,
    pages: &'a LatentPages,
    mla: &'a MlaSpec,
    first_row: usize,
    out: Grid<'a, f32>,
}

/// A job's part of the scratch; `[heads, ..]` each but the last.
struct Room<'s> {
    absorbed: &'s mut [f32],
    rope_query: &'s mut [f32],
    /// Two parts of the scores of a run.
    parts: [&'s mut [f32]; 2],
    softmax: &'s mut [f32],
    quantised: &'s mut [f32],
}

impl<'s> Room<'s> {
    fn new(heads: usize, mla: &MlaSpec, scratch: &'s mut [f32]) -> Room<'s> {
        let mut rest = scratch;
        let mut cut = |len: usize| rest.split_off_mut(..len).expect("scratch_len has room for all");
        let (rank, block) = (mla.latent_rank, heads * KV_BLOCK_ROWS);
        Room {
            absorbed: cut(heads * rank),
            rope_query: cut(heads * mla.rope_dim),
            parts: [cut(block), cut(block)],
            softmax: cut(heads * softmax::scratch_len(rank)),
            quantised: rest,
        }
    }
}

impl Task for HeadTask<'_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let (first_head, heads) = (job.col as usize, job.part as usize);
        let index = self.first_row + job.row as usize;
        let rank = self.mla.latent_rank;
        let mut room = Room::new(heads, self.mla, scratch);
        let queries = room.absorbed.chunks_mut(rank);
        for (head, (absorbed, rope)) in
            queries.zip(room.rope_query.chunks_mut(self.mla.rope_dim)).enumerate()
        {
            self.turn_query(index, first_head + head, absorbed, rope);
        }
        let wave = self.heads.wave;
        let row = &wave.rows[index];
        let selected = wave.selection.of(index);
        let mut softmax = Softmax::new(self.kernels, heads, rank, room.softmax);
        let queries = [&*room.absorbed, &*room.rope_query];
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
            self.block(row, &position, count, queries, &mut room.parts, &mut softmax);
        }
        for (head, latent) in softmax.finish().chunks(rank).enumerate() {
            let mut out = self.out.take(job.row as usize, first_head + head);
            self.values(first_head + head, latent, room.quantised, out.row(0));
        }
    }
}

impl HeadTask<'_> {
    /// The head's query in latent space, and its rope part turned.
    fn turn_query(&self, index: usize, head: usize, absorbed: &mut [f32], rope_query: &mut [f32]) {
        let mla = self.mla;
        let width = mla.nope_dim + mla.rope_dim;
        let query = &self.heads.query[(index * mla.heads + head) * width..][..width];
        absorbed.fill(0.0);
        let keys = self.latent_up.key(self.heads.arena, head);
        self.kernels.transposed(keys, &query[..mla.nope_dim], absorbed);
        let (cos, sin) = self.heads.wave.ropes[self.heads.rope].of(index);
        self.kernels.rope(&query[mla.nope_dim..], cos, sin, mla.rope.interleaved, rope_query);
    }

    /// The head's values from the latent that it gathered.
    fn values(&self, head: usize, latent: &[f32], scratch: &mut [f32], out: &mut [f32]) {
        let weights = self.latent_up.value(self.heads.arena, head);
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

    /// One block for every head, taken into the softmax.
    fn block(
        &self,
        row: &Row,
        position: &dyn Fn(usize) -> usize,
        count: usize,
        queries: [&[f32]; 2],
        parts: &mut [&mut [f32]; 2],
        softmax: &mut Softmax<'_>,
    ) {
        let page = self.heads.wave.page_of(row, position(0));
        let LatentPages { latents, rope_keys, .. } = self.pages;
        let heads = queries[0].len() / self.mla.latent_rank;
        for run in runs(position, count) {
            let place = latents.place(page, 0, position(run.start));
            let keys = [latents.matrix(place, run.len()), rope_keys.matrix(place, run.len())];
            for ((keys, query), out) in keys.into_iter().zip(queries).zip(&mut *parts) {
                let rows = &HEAD_ROWS[..heads];
                let x = Activations { data: query, stride: query.len() / heads, rows };
                self.kernels.matmul(keys, x, &mut out[..heads * run.len()]);
            }
            let [content, turned] = &*parts;
            for head in 0..heads {
                let part = head * run.len()..(head + 1) * run.len();
                let parts = content[part.clone()].iter().zip(&turned[part]);
                let scores = &mut softmax.scores[head * KV_BLOCK_ROWS..][run.clone()];
                for (score, (content, turned)) in scores.iter_mut().zip(parts) {
                    *score = (content + turned) * self.mla.score_scale;
                }
            }
        }
        let runs = runs(position, count).map(|run| {
            let place = latents.place(page, 0, position(run.start));
            let rows = latents.rows(place, run.len());
            (run, rows)
        });
        softmax.add(count, runs);
    }
}

/// The runs of neighbours among the first `count` positions.
fn runs(position: &dyn Fn(usize) -> usize, count: usize) -> impl Iterator<Item = Range<usize>> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let begin = first;
        if begin == count {
            return None;
        }
        first += 1;
        while first < count && position(first) == position(first - 1) + 1 {
            first += 1;
        }
        Some(begin..first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_whole_and_in_order() {
        let positions = [3, 4, 5, 9, 11, 12];
        let found: Vec<_> = runs(&|i| positions[i], positions.len()).collect();
        assert_eq!(found, [0..3, 3..4, 4..6]);
        assert_eq!(runs(&|i| i, 0).count(), 0);
    }
}
