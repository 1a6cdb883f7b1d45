//! The vector body of the transposed use of a plain f32 matrix with several vectors of factors: a few
//! vectors' sums over 64 columns stay in registers while all rows pass by, so that every load of weights
//! serves them all. `y[v, c] = fma(q[v, r], w[r, c], y[v, c])`, rows ascending, as
//! [`transposed`](super::transposed) does for one vector.

use super::{Operation, Simd};
use crate::scalar::LANES;

/// See [`crate::Kernels::weighted_sums`].
pub struct WeightedSums<'a> {
    pub w: &'a [f32],
    pub q: &'a [f32],
    pub stride: usize,
    pub y: &'a mut [f32],
    pub cols: usize,
}

impl Operation for WeightedSums<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let WeightedSums { w, q, stride, y, cols } = self;
        if cols == 0 {
            return;
        }
        let vectors_max = if S::WIDE { 4 } else { 2 };
        let rows = w.len() / cols;
        let mut first = 0;
        for y in y.chunks_mut(vectors_max * cols) {
            let vectors = y.len() / cols;
            let factors = Factors { q: &q[first * stride..], stride, rows };
            match (S::WIDE, vectors) {
                (true, 4) => vectors_of::<S, 4, 4>(cpu, w, factors, y, cols),
                (true, 3) => vectors_of::<S, 3, 4>(cpu, w, factors, y, cols),
                (true, 2) => vectors_of::<S, 2, 4>(cpu, w, factors, y, cols),
                (false, 2) => vectors_of::<S, 2, 2>(cpu, w, factors, y, cols),
                (true, _) => vectors_of::<S, 1, 4>(cpu, w, factors, y, cols),
                (false, _) => vectors_of::<S, 1, 2>(cpu, w, factors, y, cols),
            }
            first += vectors;
        }
    }
}

/// The factors of some vectors.
#[derive(Clone, Copy)]
struct Factors<'a> {
    q: &'a [f32],
    stride: usize,
    rows: usize,
}

/// `V` vectors, `C` chunks of columns at a time.
#[inline(always)]
fn vectors_of<S: Simd, const V: usize, const C: usize>(
    cpu: S,
    w: &[f32],
    factors: Factors<'_>,
    y: &mut [f32],
    cols: usize,
) {
    let mut col = 0;
    while col + C * LANES <= cols {
        tile::<S, V, C>(cpu, w, factors, y, cols, col);
        col += C * LANES;
    }
    while col + LANES <= cols {
        tile::<S, V, 1>(cpu, w, factors, y, cols, col);
        col += LANES;
    }
    for col in col..cols {
        for v in 0..V {
            let q = &factors.q[v * factors.stride..][..factors.rows];
            let sum = &mut y[v * cols + col];
            for (r, q) in q.iter().enumerate() {
                *sum = q.mul_add(w[r * cols + col], *sum);
            }
        }
    }
}

/// `C` chunks of columns from `col` on.
#[inline(always)]
fn tile<S: Simd, const V: usize, const C: usize>(
    cpu: S,
    w: &[f32],
    factors: Factors<'_>,
    y: &mut [f32],
    cols: usize,
    col: usize,
) {
    let Factors { q, stride, rows } = factors;
    let mut sums = [[cpu.splat(0.0); C]; V];
    for (v, sums) in sums.iter_mut().enumerate() {
        let (chunks, _) = y[v * cols + col..].as_chunks::<LANES>();
        for (sum, chunk) in sums.iter_mut().zip(chunks) {
            *sum = cpu.load(chunk);
        }
    }
    // Lists of one length spare checks in the loop.
    let q: [&[f32]; V] = std::array::from_fn(|v| &q[v * stride..][..rows]);
    for r in 0..rows {
        let (chunks, _) = w[r * cols + col..].as_chunks::<LANES>();
        let chunks: &[[f32; LANES]; C] = chunks.first_chunk().expect("the tile's columns");
        let weights: [S::Vector; C] = std::array::from_fn(|c| cpu.load(&chunks[c]));
        for (sums, q) in sums.iter_mut().zip(q) {
            let factor = cpu.splat(q[r]);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = cpu.fma(factor, weights, *sum);
            }
        }
    }
    for (v, sums) in sums.iter().enumerate() {
        let (chunks, _) = y[v * cols + col..].as_chunks_mut::<LANES>();
        for (sum, chunk) in sums.iter().zip(chunks) {
            cpu.store(*sum, chunk);
        }
    }
}
