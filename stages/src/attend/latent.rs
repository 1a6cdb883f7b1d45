//! The attention job: some heads of one row over all the positions that the row looks at.
//!
//! The query is absorbed into the latent space, so that scores and sums read latents, not keys and
//! values. Softmax runs block by block over KV blocks of constant length, merged left to right:
//! the bytes don't depend on how many rows a wave has.

use super::{Attend, HEAD_ROWS, HEADS_AT_ONCE, Keys};
use crate::compute::Compute;
use crate::limits::KV_BLOCK_ROWS;
use crate::placed::PlacedHeads;
use crate::queue::{Grid, Job, TILES_MAX, Task};
use crate::spec::MlaSpec;
use crate::wave::{Row, Wave};
use millstream_kernels::{ActivationLayout, Activations, Kernels, Quantised, QuantisedRowMut};
use millstream_topology::arena::LayerArena;
use std::ops::Range;

/// Jobs that every thread should get.
const JOBS_PER_THREAD_MIN: usize = 2;

/// Scratch. Of each head: absorbed query, two latents, rope query, scores of one block, and of one run of it the
/// parts of latents and of rope keys. Of all: the latent quantised: codes of one byte, two
/// numbers for each unit of 16 columns at least.
pub(super) fn scratch_len(mla: &MlaSpec) -> usize {
    let of_head = 3 * mla.latent_rank + mla.rope_dim + 3 * KV_BLOCK_ROWS;
    let quantised = mla.latent_rank.next_multiple_of(64) / 4 + 2 * mla.latent_rank.div_ceil(16);
    HEADS_AT_ONCE.min(mla.heads) * of_head + quantised
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
                    jobs.push(node, Job { part: count as u32, row: row as u32, col: first as u32 });
                }
                first += count;
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

/// A job's part of the scratch; `[heads, ..]` each but the last two.
struct Room<'s> {
    absorbed: &'s mut [f32],
    rope_query: &'s mut [f32],
    latents: &'s mut [f32],
    /// Of the block at hand, [`KV_BLOCK_ROWS`] a head.
    scores: &'s mut [f32],
    /// Two parts of the scores of a run.
    parts: [&'s mut [f32]; 2],
    block_latents: &'s mut [f32],
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
            latents: cut(heads * rank),
            scores: cut(block),
            parts: [cut(block), cut(block)],
            block_latents: cut(heads * rank),
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
        let row = &self.wave.rows[index];
        let selected = self.wave.selection.of(index);
        let mut gathered: [Option<Gathered>; HEADS_AT_ONCE] = [const { None }; HEADS_AT_ONCE];
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
            self.block(row, &position, count, &mut room, &mut gathered[..heads]);
        }
        let latents = room.latents.chunks_mut(rank);
        for (head, (latent, gathered)) in latents.zip(&gathered).enumerate() {
            let gathered = gathered.as_ref().expect("a row attends at least to one position");
            self.kernels.scale(1.0 / gathered.sum, latent);
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

    /// One block for every head, merged into what blocks before it gave.
    fn block(
        &self,
        row: &Row,
        position: &dyn Fn(usize) -> usize,
        count: usize,
        room: &mut Room<'_>,
        gathered: &mut [Option<Gathered>],
    ) {
        let page = self.wave.page_of(row, position(0));
        let heads = gathered.len();
        for run in runs(position, count) {
            let place = self.keys.place(page, position(run.start));
            let keys = [self.keys.latents(place, run.len()), self.keys.rope_keys(place, run.len())];
            let queries = [&*room.absorbed, &*room.rope_query];
            for ((keys, query), out) in keys.into_iter().zip(queries).zip(&mut room.parts) {
                let rows = &HEAD_ROWS[..heads];
                let x = Activations { data: query, stride: query.len() / heads, rows };
                self.kernels.matmul(keys, x, &mut out[..heads * run.len()]);
            }
            let [content, turned] = &room.parts;
            for head in 0..heads {
                let part = head * run.len()..(head + 1) * run.len();
                let parts = content[part.clone()].iter().zip(&turned[part]);
                let scores = &mut room.scores[head * KV_BLOCK_ROWS..][run.clone()];
                for (score, (content, turned)) in scores.iter_mut().zip(parts) {
                    *score = (content + turned) * self.mla.score_scale;
                }
            }
        }
        self.add_latents(page, position, count, room, gathered);
    }

    /// Softmax of every head's scores, the block's latents weighted by it, and both merged.
    fn add_latents(
        &self,
        page: usize,
        position: &dyn Fn(usize) -> usize,
        count: usize,
        room: &mut Room<'_>,
        gathered: &mut [Option<Gathered>],
    ) {
        // All heads have met the same blocks.
        let is_first = gathered[0].is_none();
        let into = if is_first { &mut *room.latents } else { &mut *room.block_latents };
        into.fill(0.0);
        let mut parts = [const { None }; HEADS_AT_ONCE];
        for (part, scores) in parts.iter_mut().zip(room.scores.chunks_mut(KV_BLOCK_ROWS)) {
            let (largest, sum) = self.kernels.softmax_block(&mut scores[..count]);
            *part = Some(Gathered { largest, sum });
        }
        let rank = self.mla.latent_rank;
        for run in runs(position, count) {
            let place = self.keys.place(page, position(run.start));
            let latents = self.keys.latent_rows(place, run.len());
            let shares = &room.scores[run.start..];
            self.kernels.weighted_sums(latents, shares, KV_BLOCK_ROWS, into, rank);
        }
        let blocks = room.block_latents.chunks(rank);
        let heads = gathered.iter_mut().zip(parts).zip(room.latents.chunks_mut(rank).zip(blocks));
        for ((before, part), (latent, block_latent)) in heads {
            let part = part.expect("made above for every head");
            *before = Some(match before.take() {
                None => part,
                Some(before) => self.merge(before, part, latent, block_latent),
            });
        }
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
