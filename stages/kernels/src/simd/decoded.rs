//! Matmul of codes in blocks with f32 activations: weights are decoded, then the f32 rule holds.
//!
//! The path of references and of formats whose table line says f32; integer activations go another
//! way. A block's 16 rows have 16 lanes each per token; they are walked over 64 columns at a
//! time, so that a tile is decoded once for up to four tokens.

use super::columns::{Block, ColumnCode, Room, TILE_CHUNKS, TILE_COLUMNS};
use super::{Simd, load_padded};
use crate::activations::Activations;
use crate::formats::block::BLOCK_ROWS;
use crate::scalar::LANES;
use crate::weights::Weights;

/// Every activation row times every weight row, block by block.
#[inline(always)]
pub fn all_blocks<S: Simd, C: ColumnCode>(cpu: S, w: Weights, x: Activations, out: &mut [f32]) {
    let (fours, ones) = x.rows.as_chunks::<4>();
    for index in 0..w.rows().div_ceil(BLOCK_ROWS) {
        let mut outs = out.chunks_mut(4 * w.rows());
        for (rows, out) in fours.iter().zip(&mut outs) {
            some_tokens::<S, C, 4>(cpu, w, index, Activations { rows, ..x }, out);
        }
        let outs = outs.next().unwrap_or_default().chunks_mut(w.rows());
        for (row, out) in ones.iter().zip(outs) {
            some_tokens::<S, C, 1>(cpu, w, index, Activations { rows: &[*row], ..x }, out);
        }
    }
}

/// One block times N tokens.
#[inline(always)]
fn some_tokens<S: Simd, C: ColumnCode, const N: usize>(
    cpu: S,
    w: Weights,
    index: usize,
    x: Activations,
    out: &mut [f32],
) {
    let (rows, cols) = (w.rows(), w.cols());
    let mut tokens: [&[f32]; N] = [&[]; N];
    for (t, token) in tokens.iter_mut().enumerate() {
        *token = x.token(t, cols);
    }
    let first_row = index * BLOCK_ROWS;
    let block_rows = BLOCK_ROWS.min(rows - first_row);
    let block = Block::of(w, index);
    let mut room = Room::new();
    let mut lanes = [[cpu.splat(0.0); N]; BLOCK_ROWS];
    for first in (0..cols).step_by(TILE_COLUMNS) {
        let tile = block.tile::<S, C>(cpu, first, &mut room);
        let chunks = TILE_CHUNKS.min((cols - first).div_ceil(LANES));
        for (r, lanes) in lanes[..block_rows].iter_mut().enumerate() {
            for chunk in 0..chunks {
                let column = first + chunk * LANES;
                let weights = tile.chunk::<S, C>(cpu, r, chunk);
                let weights = clear_behind(cpu, weights, cols - column);
                for t in 0..N {
                    let x = match tokens[t][column..].first_chunk() {
                        Some(x) => cpu.load(x),
                        None => load_padded(cpu, &tokens[t][column..]),
                    };
                    lanes[t] = cpu.fma(weights, x, lanes[t]);
                }
            }
        }
    }
    for (r, lanes) in lanes[..block_rows].iter().enumerate() {
        for t in 0..N {
            out[t * rows + first_row + r] = cpu.tree_sum(lanes[t]);
        }
    }
}

/// The first lanes, as many as are left of the columns, and +0 behind them.
#[inline(always)]
fn clear_behind<S: Simd>(cpu: S, weights: S::Vector, left: usize) -> S::Vector {
    if left >= LANES {
        return weights;
    }
    let mut lanes = [0.0; LANES];
    cpu.store(weights, &mut lanes);
    lanes[left..].fill(0.0);
    cpu.load(&lanes)
}
