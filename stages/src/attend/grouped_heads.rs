//! The job of grouped-query attention: some heads of one key head and one row, over all the positions
//! that the row looks at.
//!
//! The heads share every pass over their key head's keys and values. Softmax runs block by block over
//! KV blocks of constant length ([`Softmax`]); a window leaves out the positions before it, a sink is
//! taken in at the end.

use super::grouped::Grouped;
use super::softmax::{self, Softmax};
use super::{HEAD_ROWS, HEADS_AT_ONCE, JOBS_PER_THREAD_MIN};
use crate::compute::Compute;
use crate::limits::KV_BLOCK_ROWS;
use crate::queue::{Grid, Job, TILES_MAX, Task};
use crate::spec::GqaSpec;
use crate::wave::{Row, Wave};
use millstream_kernels::{Activations, Kernels};
use std::ops::Range;

/// Heads that share a pass at least, where a key head has so many: out of the caches, a pass over keys
/// and values costs one head as much as four.
const HEADS_AT_ONCE_MIN: usize = 4;

/// Scratch. Of each head: turned query, the softmax, dots of one block. Of all: a head being turned.
pub(super) fn scratch_len(gqa: &GqaSpec) -> usize {
    let of_head = gqa.head_dim + softmax::scratch_len(gqa.head_dim) + KV_BLOCK_ROWS;
    HEADS_AT_ONCE.min(gqa.heads / gqa.key_heads) * of_head + gqa.head_dim
}

/// What all rows of a wave are attended with.
pub(super) struct Heads<'a> {
    pub actor: &'a Grouped,
    pub wave: &'a Wave,
    /// `[rows, heads * head_dim]`
    pub query: &'a [f32],
    /// Which of the wave's [`ropes`](Wave::ropes) turns queries.
    pub rope: usize,
}

impl Heads<'_> {
    /// Fills `context`, `[rows, heads * head_dim]`.
    pub(super) fn attend(&self, compute: &mut Compute, context: &mut [f32]) {
        let tokens = self.wave.rows.len();
        let group = (TILES_MAX / self.actor.gqa.heads).max(1);
        for first in (0..tokens).step_by(group) {
            self.attend_rows(compute, first..tokens.min(first + group), context);
        }
    }

    /// As [`Heads::attend`], for rows whose tiles fit one grid.
    fn attend_rows(&self, compute: &mut Compute, rows: Range<usize>, context: &mut [f32]) {
        let GqaSpec { heads, key_heads, head_dim, .. } = self.actor.gqa;
        let width = heads * head_dim;
        let context = &mut context[rows.start * width..rows.end * width];
        let task = HeadTask {
            kernels: compute.kernels,
            heads: self,
            gqa: &self.actor.gqa,
            first_row: rows.start,
            out: Grid::new(context, width, width, 1, head_dim),
        };
        let of_key_head = heads / key_heads;
        let heads_at_once = (heads * rows.len() / (compute.threads() * JOBS_PER_THREAD_MIN))
            .clamp(HEADS_AT_ONCE_MIN, HEADS_AT_ONCE)
            .min(of_key_head);
        compute.run(
            |jobs, map| {
                let mut dealt = 0;
                for key_head in 0..key_heads {
                    let end = (key_head + 1) * of_key_head;
                    for first in (key_head * of_key_head..end).step_by(heads_at_once) {
                        let part = heads_at_once.min(end - first) as u32;
                        for row in 0..rows.len() {
                            let job = Job { part, row: row as u32, col: first as u32 };
                            jobs.push(dealt % map.nodes, job);
                            dealt += 1;
                        }
                    }
                }
            },
            &task,
        );
    }
}

struct HeadTask<'a> {
    kernels: Kernels,
    heads: &'a Heads<'a>,
    gqa: &'a GqaSpec,
    first_row: usize,
    out: Grid<'a, f32>,
}

impl Task for HeadTask<'_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let (first_head, heads) = (job.col as usize, job.part as usize);
        let index = self.first_row + job.row as usize;
        let dim = self.gqa.head_dim;
        let (queries, rest) = scratch.split_at_mut(heads * dim);
        let (dots, rest) = rest.split_at_mut(heads * KV_BLOCK_ROWS);
        let (softmax, rest) = rest.split_at_mut(heads * softmax::scratch_len(dim));
        self.turn_queries(index, first_head, queries, &mut rest[..dim]);
        let row = &self.heads.wave.rows[index];
        let mut softmax = Softmax::new(self.kernels, heads, dim, softmax);
        let key_head = first_head / (self.gqa.heads / self.gqa.key_heads);
        let seen = seen(row.position as usize, self.gqa.window);
        for block in seen.start / KV_BLOCK_ROWS..=row.position as usize / KV_BLOCK_ROWS {
            let first = block * KV_BLOCK_ROWS;
            let positions = seen.start.max(first)..seen.end.min(first + KV_BLOCK_ROWS);
            self.block(row, key_head, positions, queries, dots, &mut softmax);
        }
        if let Some(sinks) = &self.heads.actor.weights.sinks {
            softmax.add_sinks(&sinks[first_head..first_head + heads]);
        }
        for (head, values) in softmax.finish().chunks(dim).enumerate() {
            let mut out = self.out.take(job.row as usize, first_head + head);
            out.row(0).copy_from_slice(values);
        }
    }
}

/// The positions that a row looks at.
fn seen(position: usize, window: Option<usize>) -> Range<usize> {
    let end = position + 1;
    window.map_or(0, |window| end.saturating_sub(window))..end
}

impl HeadTask<'_> {
    /// The heads' queries as they meet the keys.
    fn turn_queries(&self, index: usize, first: usize, queries: &mut [f32], scratch: &mut [f32]) {
        let GqaSpec { heads, head_dim, .. } = *self.gqa;
        let finish = self.heads.actor.query_finish(self.kernels);
        let angles = self.heads.wave.ropes[self.heads.rope].of(index);
        let from = &self.heads.query[(index * heads + first) * head_dim..];
        for (query, out) in from.chunks(head_dim).zip(queries.chunks_mut(head_dim)) {
            finish.finish(query, angles, scratch, out);
        }
    }

    /// Some positions of one block for every head, taken into the softmax.
    fn block(
        &self,
        row: &Row,
        key_head: usize,
        positions: Range<usize>,
        queries: &[f32],
        dots: &mut [f32],
        softmax: &mut Softmax<'_>,
    ) {
        let Grouped { keys, values, .. } = self.heads.actor;
        let (count, dim) = (positions.len(), self.gqa.head_dim);
        let page = self.heads.wave.page_of(row, positions.start);
        let place = keys.place(page, key_head, positions.start);
        let heads = queries.len() / dim;
        let x = Activations { data: queries, stride: dim, rows: &HEAD_ROWS[..heads] };
        let dots = &mut dots[..heads * count];
        self.kernels.matmul(keys.matrix(place, count), x, dots);
        let scores = softmax.scores.chunks_mut(KV_BLOCK_ROWS);
        for (scores, dots) in scores.zip(dots.chunks(count)) {
            for (score, dot) in scores.iter_mut().zip(dots) {
                *score = dot * self.gqa.score_scale;
            }
        }
        softmax.add(count, std::iter::once((0..count, values.rows(place, count))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_the_row_itself_and_those_right_before_it() {
        assert_eq!(seen(5, None), 0..6);
        assert_eq!(seen(5, Some(1)), 5..6);
        assert_eq!(seen(5, Some(4)), 2..6);
        assert_eq!(seen(2, Some(4)), 0..3);
    }
}
