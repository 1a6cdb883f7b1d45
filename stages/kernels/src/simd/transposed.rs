//! The vector body of the transposed use: `y[c] = fma(q[r], w[r, c], y[c])`, rows ascending.
//!
//! Rows of floats are taken four at a time, so that `y` is loaded and stored once for four rows.
//! Blocks of codes are taken 64 columns at a time: four registers of `y` walk down the block's 16
//! rows while weights are decoded into registers. Either way the weights are read once, in
//! address order but for a window of four rows or one block, and `y` stays in the first-level
//! cache.

use super::columns::{Block, ColumnCode, Room, TILE_CHUNKS, TILE_COLUMNS, Tile};
use super::rows::{Layout, Rows, SCALE_CHUNKS};
use super::{Element, Operation, Simd, load_padded, store_first};
use crate::formats::block::BLOCK_ROWS;
use crate::formats::{
    int2_row::Int2, int3_group::Int3, int4_group::Int4, int8_row::Int8, mxfp4::E2m1,
};
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
            Layout::Int8 => all_blocks::<S, Int8>(cpu, w, q, y),
            Layout::Int4 => all_blocks::<S, Int4>(cpu, w, q, y),
            Layout::Int3 => all_blocks::<S, Int3>(cpu, w, q, y),
            Layout::Int2 => all_blocks::<S, Int2>(cpu, w, q, y),
            Layout::E2m1 => all_blocks::<S, E2m1>(cpu, w, q, y),
        }
    }
}

/// Row by row.
#[inline(always)]
fn all_rows<S: Simd, T: Element>(cpu: S, w: Rows<T>, q: &[f32], y: &mut [f32]) {
    let (y, y_rest) = y.as_chunks_mut::<LANES>();
    let run = if T::SCALED { SCALE_CHUNKS } else { y.len().max(1) };
    for (r, q) in q.iter().enumerate() {
        let row = w.row(r);
        let factor = cpu.splat(*q);
        let chunks = &row.weights.as_chunks::<LANES>().0[..y.len()];
        for (run, (chunks, y)) in chunks.chunks(run).zip(y.chunks_mut(run)).enumerate() {
            let scale = row.scale(cpu, run * SCALE_CHUNKS);
            for (chunk, y) in chunks.iter().zip(y) {
                let weights = T::load(cpu, chunk);
                let weights = if T::SCALED { cpu.mul(weights, scale) } else { weights };
                cpu.store(cpu.fma(factor, weights, cpu.load(y)), y);
            }
        }
        if !y_rest.is_empty() {
            let rest = row.rest(cpu, y.len());
            store_first(cpu, cpu.fma(factor, rest, load_padded(cpu, y_rest)), y_rest);
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
fn one_tile<S: Simd, C: ColumnCode>(
    cpu: S,
    tile: &Tile,
    q: &[f32],
    y: &mut [f32; TILE_COLUMNS],
) {
    let (y, _) = y.as_chunks_mut::<LANES>();
    let mut sums = [cpu.splat(0.0); TILE_CHUNKS];
    for chunk in 0..TILE_CHUNKS {
        sums[chunk] = cpu.load(&y[chunk]);
    }
    for (r, q) in q.iter().enumerate() {
        let factor = cpu.splat(*q);
        for chunk in 0..TILE_CHUNKS {
            let weights = tile.chunk::<S, C>(cpu, r, chunk);
            sums[chunk] = cpu.fma(factor, weights, sums[chunk]);
        }
    }
    for chunk in 0..TILE_CHUNKS {
        cpu.store(sums[chunk], &mut y[chunk]);
    }
}
