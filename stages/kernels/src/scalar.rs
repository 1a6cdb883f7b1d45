//! The definition of every kernel, in plain Rust for reading.
//!
//! What these functions return is what every instruction set returns, to the bit. A sum runs over
//! 16 lanes that start at +0: element i goes into lane i mod 16, in order. A short last chunk is
//! filled up with zeros. The lanes are then added in one tree: i with i + 8, i + 4, i + 2, i + 1.
//! [`Kernels`](crate::Kernels) checks lengths and calls these (or the vector bodies, which tests hold
//! against them); the straight-line pass may call them directly. Lengths are the caller's business:
//! here a mismatch panics or ends at the shorter side.

use crate::format::{Weights, bf16_to_f32};
use crate::math;

/// Virtual lanes of every sum.
pub const LANES: usize = 16;

/// The lanes of a running sum.
pub type Lanes = [f32; LANES];

/// A chunk, filled up with +0.
pub fn padded(chunk: &[f32]) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes[..chunk.len()].copy_from_slice(chunk);
    lanes
}

/// The tree: 16 lanes to 8, 4, 2, 1.
pub fn tree_sum(lanes: Lanes) -> f32 {
    let a: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let b: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
    let c: [f32; 2] = std::array::from_fn(|i| b[i] + b[i + 2]);
    c[0] + c[1]
}

/// Sum of products; see [`Kernels::dot`](crate::Kernels::dot).
pub fn dot(w: Weights, x: &[f32]) -> f32 {
    match w {
        Weights::F32(w) => dot_with(w, x, |w| w),
        Weights::Bf16(w) => dot_with(w, x, bf16_to_f32),
    }
}

fn dot_with<T: Copy + Default>(w: &[T], x: &[f32], widen: impl Fn(T) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for (w, x) in w.chunks(LANES).zip(x.chunks(LANES)) {
        let x = padded(x);
        for (i, lane) in lanes.iter_mut().enumerate() {
            // T::default() is +0 in every format.
            let weight = widen(w.get(i).copied().unwrap_or_default());
            *lane = weight.mul_add(x[i], *lane);
        }
    }
    tree_sum(lanes)
}

/// Plain sum in 16 lanes; see [`Kernels::sum`](crate::Kernels::sum).
pub fn sum(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for chunk in x.chunks(LANES) {
        for (lane, x) in lanes.iter_mut().zip(padded(chunk)) {
            *lane += x;
        }
    }
    tree_sum(lanes)
}

/// Dots of every weight row with every token; see [`Kernels::matmul`](crate::Kernels::matmul).
pub fn matmul(w: Weights, cols: usize, x: crate::Activations, out: &mut [f32]) {
    let rows = w.len() / cols;
    for t in 0..x.rows.len() {
        let token = x.token(t, cols);
        for r in 0..rows {
            out[t * rows + r] = dot(w.slice(r * cols..(r + 1) * cols), token);
        }
    }
}

/// y = fma(a, x, y); see [`Kernels::axpy`](crate::Kernels::axpy).
pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = a.mul_add(*x, *y);
    }
}

/// y = fma(a, w, y); see [`Kernels::axpy_weights`](crate::Kernels::axpy_weights).
pub fn axpy_weights(a: f32, w: Weights, y: &mut [f32]) {
    match w {
        Weights::F32(w) => axpy(a, w, y),
        Weights::Bf16(w) => {
            for (w, y) in w.iter().zip(y) {
                *y = a.mul_add(bf16_to_f32(*w), *y);
            }
        }
    }
}

/// y = y + x; see [`Kernels::add`](crate::Kernels::add).
pub fn add(x: &[f32], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y += *x;
    }
}

/// y = y * a; see [`Kernels::scale`](crate::Kernels::scale).
pub fn scale(a: f32, y: &mut [f32]) {
    for y in y {
        *y *= a;
    }
}

/// 1 / sqrt(mean square + epsilon): the factor of both norms.
pub fn inverse_root(square_sum: f32, count: usize, epsilon: f32) -> f32 {
    1.0 / (square_sum / count as f32 + epsilon).sqrt()
}

/// Root-mean-square norm; see [`Kernels::rms_norm`](crate::Kernels::rms_norm).
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let factor = inverse_root(dot(Weights::F32(x), x), x.len(), epsilon);
    for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
        *out = (x * factor) * w;
    }
}

/// Layer norm; see [`Kernels::layer_norm`](crate::Kernels::layer_norm).
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    let mean = sum(x) / x.len() as f32;
    for (out, x) in out.iter_mut().zip(x) {
        *out = x - mean;
    }
    let factor = inverse_root(dot(Weights::F32(out), out), x.len(), epsilon);
    for ((out, w), b) in out.iter_mut().zip(weight).zip(bias) {
        *out = (*out * factor) * w + b;
    }
}

/// Exponentials against the block's maximum; see
/// [`Kernels::softmax_block`](crate::Kernels::softmax_block).
pub fn softmax_block(scores: &mut [f32]) -> (f32, f32) {
    let max = maximum(f32::NEG_INFINITY, scores);
    let shift = softmax_shift(max);
    for score in scores.iter_mut() {
        *score = math::exp(*score - shift);
    }
    (max, sum(scores))
}

/// The largest of `start` and the values; NaN is passed over, and a zero is +0 whatever its sign.
pub fn maximum(start: f32, values: &[f32]) -> f32 {
    values.iter().fold(start, |max, x| if *x > max { *x } else { max }) + 0.0
}

/// What a block subtracts before exp: its maximum, or 0 if all is -inf (where inf - inf is NaN).
pub fn softmax_shift(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Gated activation; see [`Kernels::silu_mul`](crate::Kernels::silu_mul).
pub fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, g), u) in out.iter_mut().zip(gate).zip(up) {
        *out = math::silu(*g) * u;
    }
}

/// Logistic function of every element; see [`Kernels::sigmoid`](crate::Kernels::sigmoid).
pub fn sigmoid(x: &mut [f32]) {
    for x in x {
        *x = math::sigmoid(*x);
    }
}

/// e^x of every element; see [`Kernels::exp`](crate::Kernels::exp).
pub fn exp(x: &mut [f32]) {
    for x in x {
        *x = math::exp(*x);
    }
}

/// Rotation of pairs; see [`Kernels::rope`](crate::Kernels::rope).
pub fn rope(x: &[f32], cos: &[f32], sin: &[f32], interleaved: bool, out: &mut [f32]) {
    let half = cos.len();
    let (first, second) = out.split_at_mut(half);
    for (j, ((first, second), (cos, sin))) in
        first.iter_mut().zip(second).zip(cos.iter().zip(sin)).enumerate()
    {
        let (a, b) = if interleaved { (x[2 * j], x[2 * j + 1]) } else { (x[j], x[j + half]) };
        *first = a * cos - b * sin;
        *second = b * cos + a * sin;
    }
}
