//! Softmax over KV blocks for some heads that look at the same positions.
//!
//! A job's working memory, in its scratch: scores of the block at hand, and what the blocks before it
//! gave. Softmax runs within a block; blocks are merged left to right, so the bytes depend on
//! positions alone (docs/determinism.md, rule 3).

use super::HEADS_AT_ONCE;
use crate::limits::KV_BLOCK_ROWS;
use millstream_kernels::{Kernels, math};
use std::ops::Range;

/// What the softmax over some blocks has gathered for one head, beside its values.
struct Gathered {
    largest: f32,
    sum: f32,
}

/// The softmax of some heads.
pub(super) struct Softmax<'s> {
    kernels: Kernels,
    heads: usize,
    /// Width of what is summed.
    width: usize,
    /// Scores of the block at hand, [`KV_BLOCK_ROWS`] a head.
    pub scores: &'s mut [f32],
    /// `[heads, width]`: gathered so far.
    values: &'s mut [f32],
    /// The same of the block at hand.
    block_values: &'s mut [f32],
    gathered: [Option<Gathered>; HEADS_AT_ONCE],
}

/// f32 elements of scratch for each head.
pub(super) const fn scratch_len(width: usize) -> usize {
    2 * width + KV_BLOCK_ROWS
}

impl<'s> Softmax<'s> {
    /// Of nothing yet; `scratch` is [`scratch_len`] times `heads` long.
    pub(super) fn new(
        kernels: Kernels,
        heads: usize,
        width: usize,
        scratch: &'s mut [f32],
    ) -> Self {
        let (scores, rest) = scratch.split_at_mut(heads * KV_BLOCK_ROWS);
        let (values, block_values) = rest.split_at_mut(heads * width);
        let gathered = [const { None }; HEADS_AT_ONCE];
        Softmax { kernels, heads, width, scores, values, block_values, gathered }
    }

    /// Takes in the block whose `count` scores are in `scores`. `runs` are the places of runs among
    /// them, with the rows that the scores weigh.
    pub(super) fn add<'a>(
        &mut self,
        count: usize,
        runs: impl Iterator<Item = (Range<usize>, &'a [f32])>,
    ) {
        // All heads have met the same blocks.
        let is_first = self.gathered[0].is_none();
        let into = if is_first { &mut *self.values } else { &mut *self.block_values };
        into.fill(0.0);
        let mut parts = [const { None }; HEADS_AT_ONCE];
        for (part, scores) in parts.iter_mut().zip(self.scores.chunks_mut(KV_BLOCK_ROWS)) {
            let (largest, sum) = self.kernels.softmax_block(&mut scores[..count]);
            *part = Some(Gathered { largest, sum });
        }
        for (run, rows) in runs {
            let shares = &self.scores[run.start..];
            self.kernels.weighted_sums(rows, shares, KV_BLOCK_ROWS, into, self.width);
        }
        let blocks = self.block_values.chunks(self.width);
        let values = self.values.chunks_mut(self.width).zip(blocks);
        for ((before, part), (value, block)) in self.gathered.iter_mut().zip(parts).zip(values) {
            let part = part.expect("made above for every head");
            *before = Some(match before.take() {
                None => part,
                Some(before) => merge(self.kernels, before, part, value, Some(block)),
            });
        }
    }

    /// Takes in each head's sink: a block of one score without a value.
    pub(super) fn add_sinks(&mut self, sinks: &[f32]) {
        let heads = self.gathered.iter_mut().zip(self.values.chunks_mut(self.width));
        for ((before, value), &largest) in heads.zip(sinks) {
            let gathered = before.take().expect(ATTENDS);
            let sink = Gathered { largest, sum: 1.0 };
            *before = Some(merge(self.kernels, gathered, sink, value, None));
        }
    }

    /// The values of every head, `[heads, width]`.
    pub(super) fn finish(self) -> &'s mut [f32] {
        for (value, gathered) in self.values.chunks_mut(self.width).zip(&self.gathered) {
            let gathered = gathered.as_ref().expect(ATTENDS);
            self.kernels.scale(1.0 / gathered.sum, value);
        }
        &mut self.values[..self.heads * self.width]
    }
}

const ATTENDS: &str = "a row attends at least to one position";

/// A later block into what the blocks before it gave.
fn merge(
    kernels: Kernels,
    before: Gathered,
    block: Gathered,
    value: &mut [f32],
    block_value: Option<&[f32]>,
) -> Gathered {
    let largest = if block.largest > before.largest { block.largest } else { before.largest };
    let keep = math::exp(before.largest - largest);
    let take = math::exp(block.largest - largest);
    let sum = take.mul_add(block.sum, before.sum * keep);
    kernels.scale(keep, value);
    if let Some(block_value) = block_value {
        kernels.axpy(take, block_value, value);
    }
    Gathered { largest, sum }
}
