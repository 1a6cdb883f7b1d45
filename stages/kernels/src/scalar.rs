//! The definition of every kernel, in plain Rust for reading.
//!
//! What these functions return is what every instruction set returns, to the bit. A sum runs over
//! 16 lanes that start at +0: element i goes into lane i mod 16, in order. A short last chunk is
//! filled up with zeros. The lanes are then added in one tree: i with i + 8, i + 4, i + 2, i + 1.
//! [`Kernels`](crate::Kernels) checks lengths and calls these (or the vector bodies, which tests hold
//! against them); the straight-line pass may call them directly. Lengths are the caller's business:
//! here a mismatch panics or ends at the shorter side.

use crate::activations::{ActivationLayout, Quantised, QuantisedRow, QuantisedRowMut};
use crate::formats::{BlockCode, bf16::bf16_to_f32, codes::for_codes, f16::f16_to_f32};
use crate::math;
use crate::weights::{Floats, Weights};

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
pub fn dot(w: Floats, x: &[f32]) -> f32 {
    match w {
        Floats::F32(w) => dot_with(w.len(), x, |i| w[i]),
        Floats::Bf16(w) => dot_with(w.len(), x, |i| bf16_to_f32(w[i])),
        Floats::F16(w) => dot_with(w.len(), x, |i| f16_to_f32(w[i])),
    }
}

/// The f32 rule over weights 0, 1, 2, .. ; what is missing of the last chunk counts as +0.
fn dot_with(len: usize, x: &[f32], weight: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    for (chunk, x) in x.chunks(LANES).enumerate() {
        let x = padded(x);
        for (i, lane) in lanes.iter_mut().enumerate() {
            let index = chunk * LANES + i;
            let weight = if index < len { weight(index) } else { 0.0 };
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
pub fn matmul(w: Weights, x: crate::Activations, out: &mut [f32]) {
    let (rows, cols) = (w.rows(), w.cols());
    for t in 0..x.rows.len() {
        let token = x.token(t, cols);
        for r in 0..rows {
            out[t * rows + r] = match w.floats() {
                Some(floats) => dot(floats.slice(r * cols..(r + 1) * cols), token),
                None => dot_with(cols, token, |c| w.weight(r, c)),
            };
        }
    }
}

/// Exact integer dots and one scaled sum; see
/// [`Kernels::matmul_quantised`](crate::Kernels::matmul_quantised).
pub fn matmul_quantised(w: Weights, x: Quantised, out: &mut [f32]) {
    let kind = w.format().codes().expect("floats take f32 activations");
    let dot = for_codes!(kind, C => dot_quantised::<C>);
    let rows = w.rows();
    for t in 0..x.rows.len() {
        let token = x.token(t);
        for r in 0..rows {
            out[t * rows + r] = dot(w, r, &x.layout, token);
        }
    }
}

/// One row times one token: for every unit, in order, `sum = fma(dot, weight scale * activation
/// scale, sum)`, the dot an exact integer. Where weights have minima: `sum = fma(fma(dot, weight
/// scale, minimum * sum of the unit's activation codes), activation scale, sum)`.
fn dot_quantised<C: BlockCode>(
    w: Weights,
    row: usize,
    layout: &ActivationLayout,
    x: QuantisedRow,
) -> f32 {
    let mut sum = 0.0f32;
    for (unit, scale) in x.scales.iter().enumerate() {
        let columns = unit * layout.unit..w.cols().min((unit + 1) * layout.unit);
        let mut dot = 0;
        for column in columns.clone() {
            let code = i32::from(x.codes[layout.order.place(column)]);
            dot += C::value(w.code::<C>(row, column)) * code;
        }
        let weight_scale = w.scale::<C>(row, columns.start);
        sum = match w.minimum(row, columns.start) {
            None => (dot as f32).mul_add(weight_scale * scale, sum),
            Some(minimum) => {
                let minima = minimum * x.sums[unit] as f32;
                (dot as f32).mul_add(weight_scale, minima).mul_add(*scale, sum)
            }
        };
    }
    sum
}

/// Below this a group of activations counts as zero: 127 / max would overflow.
pub const QUANTISED_MIN: f32 = 1e-30;

/// Rounds a row to int8 by groups; see [`Kernels::quantise`](crate::Kernels::quantise).
pub fn quantise(layout: &ActivationLayout, x: &[f32], out: QuantisedRowMut) {
    out.codes.fill(0);
    for (group, x) in x.chunks(layout.group).enumerate() {
        let first = group * layout.group;
        // Of non-negative floats the larger has the larger bits; NaN is above infinity.
        let max = f32::from_bits(x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0));
        let (scale, factor) = quantisation(max);
        for (i, x) in x.iter().enumerate() {
            let code = if factor == 0.0 { 0.0 } else { (x * factor).round_ties_even() };
            out.codes[layout.order.place(first + i)] = code as i8;
        }
        for unit in first / layout.unit..(first + x.len()).div_ceil(layout.unit) {
            out.scales[unit] = scale;
            let columns = unit * layout.unit..layout.cols.min((unit + 1) * layout.unit);
            let code = |column: usize| i32::from(out.codes[layout.order.place(column)]);
            out.sums[unit] = columns.map(code).sum();
        }
    }
}

/// The scale of a group of activations whose largest magnitude is `max`, and the factor to codes.
/// A group that isn't finite gets scale NaN and codes 0, so that its results are NaN.
pub fn quantisation(max: f32) -> (f32, f32) {
    if !max.is_finite() {
        (f32::NAN, 0.0)
    } else if max < QUANTISED_MIN {
        (0.0, 0.0)
    } else {
        (max / 127.0, 127.0 / max)
    }
}

/// Columns instead of rows; see [`Kernels::transposed`](crate::Kernels::transposed).
pub fn transposed(w: Weights, q: &[f32], y: &mut [f32]) {
    for (r, q) in q.iter().enumerate() {
        for (c, y) in y.iter_mut().enumerate() {
            *y = q.mul_add(w.weight(r, c), *y);
        }
    }
}

/// Several vectors of factors; see [`Kernels::weighted_sums`](crate::Kernels::weighted_sums).
pub fn weighted_sums(w: &[f32], q: &[f32], stride: usize, y: &mut [f32], cols: usize) {
    for (v, y) in y.chunks_mut(cols.max(1)).enumerate() {
        let q = &q[v * stride..];
        for (row, q) in w.chunks(cols.max(1)).zip(q) {
            axpy(*q, row, y);
        }
    }
}

/// y = fma(a, x, y); see [`Kernels::axpy`](crate::Kernels::axpy).
pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = a.mul_add(*x, *y);
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
    let factor = inverse_root(dot(Floats::F32(x), x), x.len(), epsilon);
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
    let factor = inverse_root(dot(Floats::F32(out), out), x.len(), epsilon);
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

/// The largest element; see [`Kernels::maximum`](crate::Kernels::maximum).
pub fn largest(x: &[f32], _order: crate::kernels::ReadOrder) -> f32 {
    maximum(f32::NEG_INFINITY, x)
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
