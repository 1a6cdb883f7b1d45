//! The vector body of matmul: tiles of weight rows and tokens, each pair with its own 16 lanes.
//!
//! A tile is R weight rows by N tokens, whole rows from start to end: the lanes stay in registers,
//! a weight load is shared by the tokens of the tile and an activation load by its weight rows.
//! Weights come from memory once: all tokens pass over a group of weight rows that fits the
//! second-level cache before the next group is touched.

use super::{Element, Floats, Operation, Simd, Weights, load_padded, prefetch};
use crate::activations::Activations;
use crate::scalar::LANES;

/// Weight bytes that all tokens pass over before the next are touched: a part of the smallest
/// second-level cache (512 KiB) of the CPUs in question, with room left for activations.
const GROUP_BYTES: usize = 256 << 10;

/// How far ahead of its use a weight is asked for, at least. Rows are asked for in address order,
/// whatever order a tile reads them in: the memory likes one long stream best.
const AHEAD_BYTES: usize = 8 << 10;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

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
        match self.w.floats() {
            Some(Floats::F32(w)) => all_groups(cpu, w, self.w.cols(), self.x, self.out),
            Some(Floats::Bf16(w)) => all_groups(cpu, w, self.w.cols(), self.x, self.out),
            Some(Floats::F16(_)) | None => crate::scalar::matmul(self.w, self.x, self.out),
        }
    }
}

/// Group by group, and in each the tokens in tiles as large as the registers allow.
#[inline(always)]
fn all_groups<S: Simd, T: Element>(cpu: S, w: &[T], cols: usize, x: Activations, out: &mut [f32]) {
    let rows = w.len() / cols;
    // A multiple of four, the most rows that a tile has.
    let group = (GROUP_BYTES / size_of::<T>() / cols).max(4) & !3;
    // Measured from memory (benches/kernels.rs): a token alone reads bf16 rows and short f32 rows
    // fastest one by one, f32 rows of 16 KiB four at a time.
    let one_by_one = size_of::<T>() < 4 || cols <= 1024;
    let tokens_max = if S::WIDE { 6 } else { 3 };
    for first_row in (0..rows).step_by(group) {
        let end = rows.min(first_row + group);
        let mut t = 0;
        while t < x.rows.len() {
            let tokens = tokens_max.min(x.rows.len() - t);
            let w = &w[first_row * cols..];
            let x = Activations { rows: &x.rows[t..t + tokens], ..x };
            let out = &mut out[t * rows..(t + tokens) * rows];
            let job = Job { w, cols, x, out, rows, first_row, end };
            match (S::WIDE, tokens) {
                (_, 1) if one_by_one => cpu.run(Tiles::<T, 1, 1>(job)),
                (_, 1) => cpu.run(Tiles::<T, 4, 1>(job)),
                (true, 2) => cpu.run(Tiles::<T, 4, 2>(job)),
                (true, 3) => cpu.run(Tiles::<T, 4, 3>(job)),
                (true, 4) => cpu.run(Tiles::<T, 4, 4>(job)),
                (true, 5) => cpu.run(Tiles::<T, 4, 5>(job)),
                (true, _) => cpu.run(Tiles::<T, 4, 6>(job)),
                (false, 2) => cpu.run(Tiles::<T, 2, 2>(job)),
                (false, _) => cpu.run(Tiles::<T, 2, 3>(job)),
            }
            t += tokens;
        }
    }
}

/// Some weight rows times a few tokens.
struct Job<'a, T> {
    /// The weights from row `first_row` on; those after row `end` are not used yet.
    w: &'a [T],
    cols: usize,
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
        let Job { mut w, cols, x, out, rows, first_row, end } = self.0;
        let mut tokens: [&[f32]; N] = [&[]; N];
        for (t, token) in tokens.iter_mut().enumerate() {
            *token = x.token(t, cols);
        }
        let mut r = first_row;
        while r + R <= end {
            let sums = tile::<S, T, R, N>(cpu, w, cols, &tokens);
            for t in 0..N {
                out[t * rows + r..][..R].copy_from_slice(&sums[t]);
            }
            w = &w[R * cols..];
            r += R;
        }
        while r < end {
            let sums = tile::<S, T, 1, N>(cpu, w, cols, &tokens);
            for t in 0..N {
                out[t * rows + r] = sums[t][0];
            }
            w = &w[cols..];
            r += 1;
        }
    }
}

/// Dots of the first R rows of `w` with N tokens.
#[inline(always)]
fn tile<S: Simd, T: Element, const R: usize, const N: usize>(
    cpu: S,
    w: &[T],
    cols: usize,
    tokens: &[&[f32]; N],
) -> [[f32; R]; N] {
    let count = cols / LANES;
    let mut w_chunks: [&[[T; LANES]]; R] = [&[]; R];
    let mut x_chunks: [&[[f32; LANES]]; N] = [&[]; N];
    for r in 0..R {
        w_chunks[r] = &w[r * cols..][..cols].as_chunks().0[..count];
    }
    for t in 0..N {
        x_chunks[t] = &tokens[t].as_chunks().0[..count];
    }
    let mut lanes = [[cpu.splat(0.0); R]; N];
    // Past these rows, and a cache line for every line that is read here.
    let ahead = (R * cols).max(AHEAD_BYTES / size_of::<T>());
    for c in 0..count {
        let mut weights = [cpu.splat(0.0); R];
        for r in 0..R {
            weights[r] = T::load(cpu, &w_chunks[r][c]);
        }
        for line in 0..(R * LANES * size_of::<T>()).div_ceil(LINE_BYTES) {
            prefetch(w, ahead + c * R * LANES + line * (LINE_BYTES / size_of::<T>()));
        }
        for t in 0..N {
            let x = cpu.load(&x_chunks[t][c]);
            for r in 0..R {
                lanes[t][r] = cpu.fma(weights[r], x, lanes[t][r]);
            }
        }
    }
    if count * LANES < cols {
        for r in 0..R {
            let weights = load_padded(cpu, &w[r * cols..][count * LANES..cols]);
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
