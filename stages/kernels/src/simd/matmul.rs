//! The vector body of matmul: tiles of weight rows and tokens, each pair with its own 16 lanes.
//!
//! A tile is R weight rows by N tokens, whole rows from start to end: the lanes stay in registers,
//! a weight load is shared by the tokens of the tile and an activation load by its weight rows.
//! Weights come from memory once: all tokens pass over a group of weight rows that fits the
//! second-level cache before the next group is touched.
//!
//! For a token alone everything depends on how memory is walked (measured: benches/kernels).
//! Memory is fastest one row after the other. But a row's lanes are one chain of multiply-adds, and
//! a long activation row that is read again for every weight row pushes itself out of the
//! first-level cache. So long rows are taken several at a time, from places far apart: the rows are
//! cut into R runs, and a tile takes one row of each, so that each place is one long stream.

use super::decoded::all_blocks;
use super::rows::{Layout, Row, Rows, SCALE_CHUNKS};
use super::walk::Walk;
use super::{Element, Operation, Simd, Weights, load_padded};
use crate::activations::Activations;
use crate::formats::{block::LINE_BYTES, codes::for_codes};
use crate::scalar::LANES;
use std::ops::Range;

/// Weight bytes that all tokens pass over before the next are touched: a part of the smallest
/// second-level cache (512 KiB) of the CPUs in question, with room left for activations.
const GROUP_BYTES: usize = 256 << 10;

/// How far ahead of its use a weight is asked for: by one token, and by several.
const NEAR_BYTES: usize = 1 << 10;
const FAR_BYTES: usize = 8 << 10;

/// The most columns of an activation row that stays in the first-level cache (32 KiB) while weights
/// stream through it.
const COLS_IN_CACHE: usize = 3072;

/// Every activation row times every weight row; see [`crate::Kernels::matmul`].
pub struct Matmul<'a> {
    pub w: Weights<'a>,
    pub x: Activations<'a>,
    pub out: &'a mut [f32],
}

impl Operation for Matmul<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let Matmul { w, x, out } = self;
        match Layout::of(w) {
            Layout::F32(rows) => all_groups(cpu, rows, w.rows(), x, out),
            Layout::Bf16(rows) => all_groups(cpu, rows, w.rows(), x, out),
            Layout::F16(rows) => all_groups(cpu, rows, w.rows(), x, out),
            Layout::Fp8(rows) => all_groups(cpu, rows, w.rows(), x, out),
            Layout::Codes(kind) => for_codes!(kind, C => all_blocks::<S, C>(cpu, w, x, out)),
        }
    }
}

/// Group by group, and in each the tokens in tiles as large as the registers allow.
#[inline(always)]
fn all_groups<S: Simd, T: Element>(
    cpu: S,
    w: Rows<T>,
    rows: usize,
    x: Activations,
    out: &mut [f32],
) {
    // A multiple of four, the most rows of a tile of several tokens; one token takes all at once.
    let group = match x.rows.len() {
        1 => rows.max(1),
        _ => (GROUP_BYTES / size_of::<T>() / w.stride.max(1)).max(4) & !3,
    };
    for first_row in (0..rows).step_by(group) {
        let end = rows.min(first_row + group);
        let mut t = 0;
        while t < x.rows.len() {
            let tokens = tokens_of_tile::<S, T>(x.rows.len() - t);
            let x = Activations { rows: &x.rows[t..t + tokens], ..x };
            let out = &mut out[t * rows..(t + tokens) * rows];
            run_job(cpu, Job { w: w.from(first_row), x, out, rows, first_row, end });
            t += tokens;
        }
    }
}

/// How many of the tokens that are left go into a tile.
#[inline(always)]
fn tokens_of_tile<S: Simd, T: Element>(left: usize) -> usize {
    match (S::WIDE, T::SCALED) {
        // fp8 takes more work to decode than to multiply: eight tokens share it.
        (true, true) if left >= 8 => 8,
        (true, _) => left.min(6),
        (false, _) => left.min(3),
    }
}

/// Picks the tile.
#[inline(always)]
fn run_job<S: Simd, T: Element>(cpu: S, job: Job<T>) {
    // A byte's chain would be slower than memory, so bytes are never taken row by row.
    let one_by_one = size_of::<T>() > 1 && job.w.cols <= COLS_IN_CACHE;
    match (S::WIDE, job.x.rows.len()) {
        (_, 1) if one_by_one => cpu.run(Tiles::<T, 1, 1>(job)),
        (true, 1) if size_of::<T>() == 2 => cpu.run(Tiles::<T, 8, 1>(job)),
        (false, 1) if size_of::<T>() == 2 => cpu.run(Tiles::<T, 6, 1>(job)),
        (_, 1) => cpu.run(Tiles::<T, 4, 1>(job)),
        (true, 2) => cpu.run(Tiles::<T, 4, 2>(job)),
        (true, 3) => cpu.run(Tiles::<T, 4, 3>(job)),
        (true, 4) => cpu.run(Tiles::<T, 4, 4>(job)),
        (true, 5) => cpu.run(Tiles::<T, 4, 5>(job)),
        (true, 6) => cpu.run(Tiles::<T, 4, 6>(job)),
        (true, _) => cpu.run(Tiles::<T, 2, 8>(job)),
        (false, 2) => cpu.run(Tiles::<T, 2, 2>(job)),
        (false, _) => cpu.run(Tiles::<T, 2, 3>(job)),
    }
}

/// Some weight rows times a few tokens.
struct Job<'a, T> {
    /// The weights from row `first_row` on; those after row `end` are not used yet.
    w: Rows<'a, T>,
    x: Activations<'a>,
    /// The tokens' outputs, `rows` of each.
    out: &'a mut [f32],
    rows: usize,
    first_row: usize,
    end: usize,
}

/// A job for exactly N tokens, R weight rows at a time.
struct Tiles<'a, T, const R: usize, const N: usize>(Job<'a, T>);

impl<T: Element, const R: usize, const N: usize> Operation for Tiles<'_, T, R, N> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let Job { w, x, out, rows, first_row, end } = self.0;
        let mut tokens: [&[f32]; N] = [&[]; N];
        for (t, token) in tokens.iter_mut().enumerate() {
            *token = x.token(t, w.cols);
        }
        let tiles = (end - first_row) / R;
        for i in 0..tiles {
            let row = |r| if N == 1 { r * tiles + i } else { i * R + r };
            let tile = std::array::from_fn(|r| w.row(row(r)));
            let sums = tile_sums::<S, T, R, N>(cpu, tile, &tokens);
            for t in 0..N {
                for r in 0..R {
                    out[t * rows + first_row + row(r)] = sums[t][r];
                }
            }
        }
        for i in R * tiles..end - first_row {
            let sums = tile_sums::<S, T, 1, N>(cpu, [w.row(i)], &tokens);
            for t in 0..N {
                out[t * rows + first_row + i] = sums[t][0];
            }
        }
    }
}

/// Dots of R rows with N tokens.
#[inline(always)]
fn tile_sums<S: Simd, T: Element, const R: usize, const N: usize>(
    cpu: S,
    rows: [Row<T>; R],
    tokens: &[&[f32]; N],
) -> [[f32; R]; N] {
    let cols = tokens[0].len();
    let count = cols / LANES;
    let mut lanes = [[cpu.splat(0.0); R]; N];
    let mut scales = [cpu.splat(1.0); R];
    if T::SCALED {
        for first in (0..count).step_by(SCALE_CHUNKS) {
            for r in 0..R {
                scales[r] = rows[r].scale(cpu, first);
            }
            let chunks = first..count.min(first + SCALE_CHUNKS);
            lanes = add_chunks(cpu, &rows, tokens, chunks, &scales, lanes);
        }
    } else {
        lanes = add_chunks(cpu, &rows, tokens, 0..count, &scales, lanes);
    }
    if count * LANES < cols {
        for r in 0..R {
            let weights = rows[r].rest(cpu, count);
            for t in 0..N {
                let x = load_padded(cpu, &tokens[t][count * LANES..]);
                lanes[t][r] = cpu.fma(weights, x, lanes[t][r]);
            }
        }
    }
    let mut sums = [[0.0; R]; N];
    for t in 0..N {
        for r in 0..R {
            sums[t][r] = cpu.tree_sum(lanes[t][r]);
        }
    }
    sums
}

/// Adds the products of some chunks of columns to the lanes.
#[inline(always)]
fn add_chunks<S: Simd, T: Element, const R: usize, const N: usize>(
    cpu: S,
    rows: &[Row<T>; R],
    tokens: &[&[f32]; N],
    chunks: Range<usize>,
    scales: &[S::Vector; R],
    mut lanes: [[S::Vector; R]; N],
) -> [[S::Vector; R]; N] {
    let mut w_chunks: [&[[T; LANES]]; R] = [&[]; R];
    let mut x_chunks: [&[[f32; LANES]]; N] = [&[]; N];
    for r in 0..R {
        w_chunks[r] = &rows[r].weights.as_chunks().0[chunks.clone()];
    }
    for t in 0..N {
        x_chunks[t] = &tokens[t].as_chunks().0[chunks.clone()];
    }
    // Several tokens leave time: behind these rows, in address order.
    let ahead = R * tokens[0].len() + chunks.start * R * LANES + FAR_BYTES / size_of::<T>();
    // Measured: f32 gains by this everywhere, 16 bits only where lines are to be asked for.
    let line = (LINE_BYTES / size_of::<T>()).max(LANES);
    let ask_near = N == 1
        && R > 1
        && (size_of::<T>() == 4 || size_of::<T>() == 2 && cpu.avx2().walk() == Walk::Ask);
    for c in 0..chunks.len() {
        let mut weights = [cpu.splat(0.0); R];
        for r in 0..R {
            weights[r] = T::load(cpu, &w_chunks[r][c]);
            if T::SCALED {
                weights[r] = cpu.mul(weights[r], scales[r]);
            }
            if ask_near && (c * LANES).is_multiple_of(line) {
                rows[r].ask((chunks.start + c) * LANES + NEAR_BYTES / size_of::<T>(), line);
            }
        }
        if N > 1 {
            rows[0].ask(ahead + c * R * LANES, R * LANES);
        }
        for t in 0..N {
            let x = cpu.load(&x_chunks[t][c]);
            for r in 0..R {
                lanes[t][r] = cpu.fma(weights[r], x, lanes[t][r]);
            }
        }
    }
    lanes
}
