//! The vector body of matmul: tiles of weight rows and tokens, each pair with its own 16 lanes.
//!
//! Few tokens ([`Direct`]): the weights stream from memory once, straight into registers, and are
//! shared by the tokens. Many tokens ([`Packed`]): a block of columns of a few weight rows is
//! widened into a small buffer that stays in the first-level cache while tiles of tokens pass by;
//! the lanes wait in another buffer between column blocks, so no sum is ever cut. Both give the
//! bits of a plain dot.

use super::{Element, Operation, Simd, Weights, load_padded, padded};
use crate::kernels::Activations;
use crate::scalar::LANES;

/// Tokens per pass of the packed path: their activations should fit the second-level cache.
const TOKENS_PER_PASS: usize = 48;
/// Chunks of 16 columns per column block of the packed path.
const CHUNKS_PER_BLOCK: usize = 32;

/// Every activation row times every weight row; see [`crate::Kernels::matmul`].
pub struct Matmul<'a> {
    pub w: Weights<'a>,
    pub cols: usize,
    pub x: Activations<'a>,
    pub out: &'a mut [f32],
}

impl Operation for Matmul<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let (cols, x, out) = (self.cols, self.x, self.out);
        match self.w {
            Weights::F32(w) => matmul(cpu, Job { w, cols, x, out }),
            Weights::Bf16(w) => matmul(cpu, Job { w, cols, x, out }),
        }
    }
}

/// A matmul with its weights' type known.
struct Job<'a, T> {
    w: &'a [T],
    cols: usize,
    x: Activations<'a>,
    out: &'a mut [f32],
}

#[inline(always)]
fn matmul<S: Simd, T: Element>(cpu: S, job: Job<T>) {
    if S::WIDE {
        match job.x.rows.len() {
            0 => (),
            1 => cpu.run(Direct::<T, 4, 1>(job)),
            2 => cpu.run(Direct::<T, 4, 2>(job)),
            3 => cpu.run(Direct::<T, 4, 3>(job)),
            4 => cpu.run(Direct::<T, 4, 4>(job)),
            5 => cpu.run(Direct::<T, 4, 5>(job)),
            6 => cpu.run(Direct::<T, 4, 6>(job)),
            _ => cpu.run(Packed::<T, 4, 6>(job)),
        }
    } else {
        match job.x.rows.len() {
            0 => (),
            1 => cpu.run(Direct::<T, 4, 1>(job)),
            2 => cpu.run(Direct::<T, 2, 2>(job)),
            3 => cpu.run(Direct::<T, 2, 3>(job)),
            _ => cpu.run(Packed::<T, 2, 3>(job)),
        }
    }
}

/// Exactly N tokens, R weight rows at a time.
struct Direct<'a, T, const R: usize, const N: usize>(Job<'a, T>);

impl<T: Element, const R: usize, const N: usize> Operation for Direct<'_, T, R, N> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let Job { w, cols, x, out } = self.0;
        let rows = w.len() / cols;
        let mut tokens: [&[f32]; N] = [&[]; N];
        for (t, token) in tokens.iter_mut().enumerate() {
            *token = x.token(t, cols);
        }
        let whole = rows / R * R;
        for r in (0..whole).step_by(R) {
            let sums = direct_tile::<S, T, R, N>(cpu, &w[r * cols..], cols, &tokens);
            for t in 0..N {
                out[t * rows + r..][..R].copy_from_slice(&sums[t]);
            }
        }
        for r in whole..rows {
            let sums = direct_tile::<S, T, 1, N>(cpu, &w[r * cols..], cols, &tokens);
            for t in 0..N {
                out[t * rows + r] = sums[t][0];
            }
        }
    }
}

/// Dots of the first R rows of `w` with N tokens.
#[inline(always)]
fn direct_tile<S: Simd, T: Element, const R: usize, const N: usize>(
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
    for c in 0..count {
        let mut weights = [cpu.splat(0.0); R];
        for r in 0..R {
            weights[r] = T::load(cpu, &w_chunks[r][c]);
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

/// Any number of tokens, in tiles of R weight rows by N tokens.
struct Packed<'a, T, const R: usize, const N: usize>(Job<'a, T>);

/// R widened weight rows, chunk by chunk.
type Block<const R: usize> = [[[f32; LANES]; R]; CHUNKS_PER_BLOCK];
/// The lanes of every token of a pass with R weight rows.
type Waiting<const R: usize> = [[[f32; LANES]; R]; TOKENS_PER_PASS];

impl<T: Element, const R: usize, const N: usize> Operation for Packed<'_, T, R, N> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let Job { w, cols, x, out } = self.0;
        let rows = w.len() / cols;
        let mut block: Block<R> = [[[0.0; LANES]; R]; CHUNKS_PER_BLOCK];
        let mut waiting: Waiting<R> = [[[0.0; LANES]; R]; TOKENS_PER_PASS];
        for first in (0..x.rows.len()).step_by(TOKENS_PER_PASS) {
            let tokens = TOKENS_PER_PASS.min(x.rows.len() - first);
            let x = Activations { rows: &x.rows[first..first + tokens], ..x };
            for r in (0..rows).step_by(R) {
                let here = R.min(rows - r);
                let w = &w[r * cols..(r + here) * cols];
                for start in (0..cols).step_by(CHUNKS_PER_BLOCK * LANES) {
                    let width = (CHUNKS_PER_BLOCK * LANES).min(cols - start);
                    pack(cpu, w, cols, start, width, &mut block);
                    let lanes = &mut waiting[..tokens];
                    pass::<S, R, N>(cpu, &block, x, start, width, lanes);
                }
                for (t, lanes) in waiting[..tokens].iter().enumerate() {
                    for (k, lanes) in lanes[..here].iter().enumerate() {
                        out[(first + t) * rows + r + k] = cpu.tree_sum(cpu.load(lanes));
                    }
                }
            }
        }
    }
}

/// Widens columns `start .. start + width` of the rows of `w`; a short last chunk gets zeros.
/// Rows that `w` doesn't have keep what the block held: their sums are not used.
#[inline(always)]
fn pack<S: Simd, T: Element, const R: usize>(
    cpu: S,
    w: &[T],
    cols: usize,
    start: usize,
    width: usize,
    block: &mut Block<R>,
) {
    for (r, row) in w.chunks_exact(cols).enumerate() {
        let (chunks, rest) = row[start..start + width].as_chunks();
        for (chunk, to) in chunks.iter().zip(block.iter_mut()) {
            cpu.store(T::load(cpu, chunk), &mut to[r]);
        }
        if !rest.is_empty() {
            cpu.store(load_padded(cpu, rest), &mut block[chunks.len()][r]);
        }
    }
}

/// Adds a column block to the lanes of all tokens of a pass.
#[inline(always)]
fn pass<S: Simd, const R: usize, const N: usize>(
    cpu: S,
    block: &Block<R>,
    x: Activations,
    start: usize,
    width: usize,
    lanes: &mut [[[f32; LANES]; R]],
) {
    let fresh = start == 0;
    let (tiles, rest) = lanes.as_chunks_mut::<N>();
    let mut t = 0;
    for tile in tiles {
        let mut parts: [&[f32]; N] = [&[]; N];
        for (k, part) in parts.iter_mut().enumerate() {
            *part = &x.token(t + k, start + width)[start..];
        }
        packed_tile(cpu, block, &parts, fresh, tile);
        t += N;
    }
    for lanes in rest.chunks_mut(1) {
        let parts = [&x.token(t, start + width)[start..]];
        if let [lanes] = lanes {
            packed_tile(cpu, block, &parts, fresh, std::array::from_mut(lanes));
        }
        t += 1;
    }
}

/// Adds a column block to the lanes of R rows by N tokens.
#[inline(always)]
fn packed_tile<S: Simd, const R: usize, const N: usize>(
    cpu: S,
    block: &Block<R>,
    parts: &[&[f32]; N],
    fresh: bool,
    waiting: &mut [[[f32; LANES]; R]; N],
) {
    let count = parts[0].len() / LANES;
    let mut chunks: [&[[f32; LANES]]; N] = [&[]; N];
    let mut lanes = [[cpu.splat(0.0); R]; N];
    for t in 0..N {
        chunks[t] = &parts[t].as_chunks().0[..count];
        for r in 0..R {
            if !fresh {
                lanes[t][r] = cpu.load(&waiting[t][r]);
            }
        }
    }
    for (c, weights) in block[..count].iter().enumerate() {
        for t in 0..N {
            let x = cpu.load(&chunks[t][c]);
            for r in 0..R {
                lanes[t][r] = cpu.fma(cpu.load(&weights[r]), x, lanes[t][r]);
            }
        }
    }
    for t in 0..N {
        let rest = &parts[t][count * LANES..];
        for r in 0..R {
            if !rest.is_empty() {
                let x = cpu.load(&padded(rest));
                lanes[t][r] = cpu.fma(cpu.load(&block[count][r]), x, lanes[t][r]);
            }
            cpu.store(lanes[t][r], &mut waiting[t][r]);
        }
    }
}
