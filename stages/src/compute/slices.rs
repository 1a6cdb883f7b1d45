//! Matrices whose columns are cut at the model's slices, times rows of activations.
//!
//! Owned by [`Compute`]. Each whole subtree of slices on a node gives one partial result, made by one
//! job a tile; the leading thread adds subtrees in the balanced tree ([`SliceMap`](crate::placed::SliceMap)).
//! Several matrices of one shape, each for a run of the rows, can share a batch.

use super::{Compute, Input, job_columns, multiply};
use crate::placed::{PlacedSlices, SliceMap, Subtree};
use crate::quantised::{QuantisedBuffer, RowSource};
use crate::queue::{Grid, Job, TILES_MAX, Task};
use millstream_kernels::{ActivationLayout, Activations, Kernels, Weights};
use millstream_topology::arena::LayerArena;
use std::ops::Range;
use std::sync::Arc;

/// Tokens up to which one matrix is summed slice by slice.
const LEAF_TOKENS_MAX: usize = 4;

/// A slice of a matrix: of which matrix of a batch, and which slice of it.
pub(super) type SliceOf<'a, 'w> = &'a (dyn Fn(usize, usize) -> Weights<'w> + Sync);

/// Activations whose columns are cut into slices.
#[derive(Clone, Copy)]
pub(super) struct SlicedInput<'a> {
    pub data: &'a [f32],
    /// From the first element of a slice to that of the next.
    pub slice_offset: usize,
    /// From one row to the next within a slice.
    pub stride: usize,
}

impl Compute {
    /// `out[t] = weights * x[t]` with the columns cut at the slices, `[tokens, rows]`. `x` has
    /// row length `stride`; slice s begins at column `s * slice_cols`.
    pub fn slices_times(
        &mut self,
        arena: &LayerArena,
        weights: &PlacedSlices,
        x: &[f32],
        stride: usize,
        tokens: usize,
        out: &mut [f32],
    ) {
        self.weight_bytes += weights.bytes() as u64;
        let slice = |_, slice: usize| weights.view(arena, slice);
        let input = SlicedInput { data: x, slice_offset: weights.slice_cols, stride };
        let partials = std::mem::take(&mut self.partials);
        let partials = self.sum_slices(partials, &slice, std::slice::from_ref(&(0..tokens)), input);
        out[..tokens * weights.rows].copy_from_slice(&partials[..tokens * weights.rows]);
        self.partials = partials;
    }

    /// Partial results of every subtree, then their sum in the first `[tokens, rows]` of the
    /// returned buffer. Matrix i of the batch takes the rows `runs[i]`; all have one shape.
    pub(super) fn sum_slices(
        &mut self,
        mut partials: Vec<f32>,
        slice: SliceOf<'_, '_>,
        runs: &[Range<usize>],
        input: SlicedInput<'_>,
    ) -> Vec<f32> {
        let tokens = runs[runs.len() - 1].end;
        let first = slice(0, 0);
        let (rows, slice_cols) = (first.rows(), first.cols());
        let mut buffers = std::mem::take(&mut self.quantised);
        let identity = &self.identity[..tokens];
        let layout = ActivationLayout::of(first.format(), slice_cols);
        if let Some(layout) = layout {
            let SlicedInput { data, slice_offset, stride } = input;
            let slices = self.map.slices;
            let source = RowSource { data, slice_offset, stride, slices, rows: identity };
            let filling = buffers[0].fill(self.kernels, layout, source, &mut self.jobs);
            if let Some(filling) = filling {
                self.executor.run(&self.jobs, &filling);
            }
        }
        let map = self.pieces(runs, rows);
        let trees = map.subtrees.len();
        let columns = self.slice_columns(&map, runs, first);
        let tile_rows = tile_rows(runs);
        let task = SlicesTask {
            kernels: self.kernels,
            subtrees: &map.subtrees,
            slice,
            input,
            codes: layout.map(|_| &buffers[0]),
            identity,
            runs,
            tile_rows,
            out: Grid::new(&mut partials[..trees * tokens * rows], rows, rows, tile_rows, columns),
        };
        self.jobs.clear();
        for unit in 0..runs.len() {
            for (index, tree) in map.subtrees.iter().enumerate() {
                for col in 0..rows.div_ceil(columns) {
                    let job = Job { part: index as u32, row: unit as u32, col: col as u32 };
                    self.jobs.push(tree.node, job);
                }
            }
        }
        self.executor.run(&self.jobs, &task);
        let kernels = self.kernels;
        let one = tokens * rows;
        map.merge(&mut |into, from| {
            let (left, right) = partials.split_at_mut(from * one);
            kernels.add(&right[..one], &mut left[into * one..][..one]);
        });
        self.quantised = buffers;
        partials
    }

    /// What a job's share of the sum is: whole subtrees, or, for one matrix and few tokens, single slices. A
    /// job then reads one long run instead of a short one in each slice, and the leading thread adds a
    /// few more rows.
    fn pieces(&self, runs: &[Range<usize>], rows: usize) -> Arc<SliceMap> {
        let tokens = runs[runs.len() - 1].end;
        let trees = self.leaves.subtrees.len();
        let tiles = trees * rows.div_ceil(job_columns(trees * rows));
        let fits = trees * tokens <= self.map.subtrees.len() * self.identity.len()
            && tiles <= TILES_MAX.min(self.executor.jobs_max());
        let few = runs.len() == 1 && tokens <= LEAF_TOKENS_MAX;
        if few && fits { self.leaves.clone() } else { self.map.clone() }
    }

    /// Columns of a job's output where it goes through all slices in turn, each of which is a place of
    /// its own in memory.
    fn slice_columns(&self, map: &SliceMap, runs: &[Range<usize>], slice: Weights<'_>) -> usize {
        let rows = slice.rows();
        let row_bytes = slice.bytes().len() / rows.max(1);
        let tokens = runs.iter().map(Range::len).max().unwrap_or(0);
        let trees = map.subtrees.len();
        let columns = job_columns(trees * rows);
        self.grown(columns, tokens, row_bytes, rows * runs.len() * trees)
            .min(rows.next_multiple_of(16))
    }
}

/// Rows of a grid's tile: all of them where they belong to one matrix, else one, for then the runs' lengths
/// differ.
pub(super) fn tile_rows(runs: &[Range<usize>]) -> usize {
    match runs {
        [run] => run.len(),
        _ => 1,
    }
}

/// Down columns of a subtree of slices; a tile is some output columns of one subtree.
struct SlicesTask<'a, 'w> {
    kernels: Kernels,
    subtrees: &'a [Subtree],
    slice: SliceOf<'a, 'w>,
    input: SlicedInput<'a>,
    /// The input quantised, where the weights take it so: slice by slice, row by row.
    codes: Option<&'a QuantisedBuffer>,
    identity: &'a [u32],
    /// The rows of each matrix.
    runs: &'a [Range<usize>],
    tile_rows: usize,
    out: Grid<'a, f32>,
}

/// What one job of a [`SlicesTask`] makes.
struct Piece<'a> {
    unit: usize,
    /// Rows of the matrix.
    rows: Range<usize>,
    /// Which rows of the input.
    identity: &'a [u32],
    len: usize,
}

impl Task for SlicesTask<'_, '_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let tree = self.subtrees[job.part as usize];
        let unit = job.row as usize;
        let run = self.runs[unit].clone();
        let total = self.runs[self.runs.len() - 1].end;
        let first = (job.part as usize * total + run.start) / self.tile_rows;
        let tiles = first..first + run.len() / self.tile_rows;
        let rows = self.out.columns(job.col as usize);
        let cols = rows.len();
        let piece =
            Piece { unit, rows, identity: &self.identity[run.clone()], len: run.len() * cols };
        self.subtree(&piece, tree.first, tree.count, scratch);
        let mut results = scratch[..piece.len].chunks(cols);
        for tile in tiles {
            let mut tile = self.out.take(tile, job.col as usize);
            for row in 0..tile.rows() {
                tile.row(row).copy_from_slice(results.next().expect("a result for each row"));
            }
        }
    }
}

impl SlicesTask<'_, '_> {
    /// The sum over `count` slices from `first`, in the first `len` elements of `scratch`.
    fn subtree(&self, piece: &Piece<'_>, first: usize, count: usize, scratch: &mut [f32]) {
        let len = piece.len;
        if count == 1 {
            let rows = piece.identity;
            let x = match self.codes {
                Some(codes) => Input::Codes(codes.view(first * self.identity.len(), rows)),
                None => Input::Floats(Activations {
                    data: &self.input.data[first * self.input.slice_offset..],
                    stride: self.input.stride,
                    rows,
                }),
            };
            let weights = (self.slice)(piece.unit, first).slice(piece.rows.clone());
            multiply(self.kernels, weights, x, &mut scratch[..len]);
            return;
        }
        let half = count / 2;
        self.subtree(piece, first, half, scratch);
        let (left, right) = scratch.split_at_mut(len);
        self.subtree(piece, first + half, half, right);
        self.kernels.add(&right[..len], left);
    }
}
