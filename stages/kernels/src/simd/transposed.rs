//! The vector body of the transposed use: `y[c] = fma(q[r], w[r, c], y[c])`, rows ascending.
//!
//! Rows of floats are taken one by one: memory is fastest in address order, and the sums stay in
//! the first-level cache. Blocks of codes are taken 64 columns at a time: four registers of sums
//! walk down the block's 16 rows while weights are decoded into registers.

use super::columns::{Block, ColumnCode, Room, TILE_CHUNKS, TILE_COLUMNS, Tile};
use super::rows::{Layout, Row, Rows, SCALE_CHUNKS};
use super::{Element, Operation, Simd};
use crate::formats::{block::BLOCK_ROWS, codes::for_codes};
use crate::scalar::LANES;
use crate::weights::Weights;

/// Columns instead of rows; see [`crate::Kernels::transposed`].
pub struct Transposed<'a> {
    pub w: Weights<'a>,
    pub q: &'a [f32],
    pub y: &'a mut [f32],
}

impl Operation for Transposed<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let Transposed { w, q, y } = self;
        match Layout::of(w) {
            Layout::F32(rows) => all_rows(cpu, rows, q, y),
            Layout::Bf16(rows) => all_rows(cpu, rows, q, y),
            Layout::F16(rows) => all_rows(cpu, rows, q, y),
            Layout::Fp8(rows) => all_rows(cpu, rows, q, y),
            Layout::Codes(kind) => for_codes!(kind, C => all_blocks::<S, C>(cpu, w, q, y)),
        }
    }
}

/// Columns whose sums are held apart while all rows pass by.
const HELD_COLUMNS: usize = 512;

/// Sums of some columns, aligned so that no load or store touches two cache lines.
#[repr(align(64))]
struct Held([[f32; LANES]; HELD_COLUMNS / LANES]);

/// Row by row.
#[inline(always)]
fn all_rows<S: Simd, T: Element>(cpu: S, w: Rows<T>, q: &[f32], y: &mut [f32]) {
    let mut held = Held([[0.0; LANES]; HELD_COLUMNS / LANES]);
    for (block, y) in y.chunks_mut(HELD_COLUMNS).enumerate() {
        let (count, first) = (y.len() / LANES, block * HELD_COLUMNS / LANES);
        held.0.as_flattened_mut()[..y.len()].copy_from_slice(y);
        for (r, q) in q.iter().enumerate() {
            let factor = cpu.splat(*q);
            add_row(cpu, w.row(r), first, factor, &mut held.0[..count]);
            if count * LANES < y.len() {
                let rest = w.row(r).rest(cpu, first + count);
                let sum = cpu.fma(factor, rest, cpu.load(&held.0[count]));
                cpu.store(sum, &mut held.0[count]);
            }
        }
        y.copy_from_slice(&held.0.as_flattened()[..y.len()]);
    }
}

/// Adds a row's chunks from `first` on, times a factor, to the sums.
#[inline(always)]
fn add_row<S: Simd, T: Element>(
    cpu: S,
    row: Row<T>,
    first: usize,
    factor: S::Vector,
    sums: &mut [[f32; LANES]],
) {
    let chunks = &row.weights.as_chunks::<LANES>().0[first..first + sums.len()];
    let run = if T::SCALED { SCALE_CHUNKS } else { sums.len().max(1) };
    for (index, (chunks, sums)) in chunks.chunks(run).zip(sums.chunks_mut(run)).enumerate() {
        let scale = row.scale(cpu, first + index * run);
        for (chunk, sum) in chunks.iter().zip(sums) {
            let weights = T::load(cpu, chunk);
            let weights = if T::SCALED { cpu.mul(weights, scale) } else { weights };
            cpu.store(cpu.fma(factor, weights, cpu.load(sum)), sum);
        }
    }
}

/// Block by block, and in each 64 columns at a time.
#[inline(always)]
fn all_blocks<S: Simd, C: ColumnCode>(cpu: S, w: Weights, q: &[f32], y: &mut [f32]) {
    let mut room = Room::new();
    let (tiles, rest) = y.as_chunks_mut::<TILE_COLUMNS>();
    for (index, q) in q.chunks(BLOCK_ROWS).enumerate() {
        let block = Block::of(w, index);
        for (tile, y) in tiles.iter_mut().enumerate() {
            let tile = block.tile::<S, C>(cpu, tile * TILE_COLUMNS, &mut room);
            one_tile::<S, C>(cpu, &tile, q, y);
        }
        if !rest.is_empty() {
            let tile = block.tile::<S, C>(cpu, tiles.len() * TILE_COLUMNS, &mut room);
            let mut padded = [0.0; TILE_COLUMNS];
            padded[..rest.len()].copy_from_slice(rest);
            one_tile::<S, C>(cpu, &tile, q, &mut padded);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

/// The rows of a tile, from first to last.
#[inline(always)]
fn one_tile<S: Simd, C: ColumnCode>(cpu: S, tile: &Tile, q: &[f32], y: &mut [f32; TILE_COLUMNS]) {
    let (y, _) = y.as_chunks_mut::<LANES>();
    let mut sums = [cpu.splat(0.0); TILE_CHUNKS];
    for chunk in 0..TILE_CHUNKS {
        sums[chunk] = cpu.load(&y[chunk]);
    }
    for (r, q) in q.iter().enumerate() {
        let factor = cpu.splat(*q);
        for (chunk, sum) in sums.iter_mut().enumerate() {
            let weights = tile.chunk::<S, C>(cpu, r, chunk);
            *sum = cpu.fma(factor, weights, *sum);
        }
    }
    for chunk in 0..TILE_CHUNKS {
        cpu.store(sums[chunk], &mut y[chunk]);
    }
}
