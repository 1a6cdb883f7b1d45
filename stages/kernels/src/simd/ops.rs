//! The vector bodies of sums, norms, softmax and element-wise operations: safe code over [`Simd`].
//!
//! Each struct is an operation with its arguments, named as in [`crate::scalar`], which defines
//! what it returns. Callers have checked the lengths.

pub use super::matmul::Matmul;
pub use super::quantise::Quantise;
pub use super::quantised::MatmulQuantised;
pub use super::read::Maximum;
pub use super::sums::WeightedSums;
pub use super::transposed::Transposed;
use super::{Element, F16, Floats, Operation, Simd, load_padded, store_first};
use crate::math::exp_steps;
use crate::scalar::{LANES, inverse_root, maximum, softmax_shift};
use bytemuck::TransparentWrapper;

/// One element of the output from the same element of K inputs and of the output itself.
trait Map<const K: usize> {
    fn map<S: Simd>(&self, cpu: S, inputs: [S::Vector; K], old: S::Vector) -> S::Vector;
}

/// Runs a map over whole slices; a short last chunk is filled up with zeros and cut off again.
#[inline(always)]
fn map<S: Simd, T: Element, const K: usize>(
    cpu: S,
    function: impl Map<K>,
    inputs: [&[T]; K],
    out: &mut [f32],
) {
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    let mut chunks: [&[[T; LANES]]; K] = [&[]; K];
    let mut rests: [&[T]; K] = [&[]; K];
    for k in 0..K {
        let (whole, rest) = inputs[k].as_chunks::<LANES>();
        (chunks[k], rests[k]) = (&whole[..out.len()], rest);
    }
    let mut values = [cpu.splat(0.0); K];
    for (c, out) in out.iter_mut().enumerate() {
        for k in 0..K {
            values[k] = T::load(cpu, &chunks[k][c]);
        }
        let old = cpu.load(out);
        cpu.store(function.map(cpu, values, old), out);
    }
    if !out_rest.is_empty() {
        for k in 0..K {
            values[k] = load_padded(cpu, rests[k]);
        }
        let old = load_padded(cpu, out_rest);
        store_first(cpu, function.map(cpu, values, old), out_rest);
    }
}

/// [`math::exp`](crate::math::exp), step by step the same.
#[inline(always)]
fn exp<S: Simd>(cpu: S, x: S::Vector) -> S::Vector {
    // min and max give the second operand if it is NaN.
    let x = cpu.min(cpu.splat(exp_steps::X_MAX), x);
    let x = cpu.max(cpu.splat(exp_steps::X_MIN), x);
    let magic = cpu.splat(exp_steps::MAGIC);
    let shifted = cpu.fma(x, cpu.splat(std::f32::consts::LOG2_E), magic);
    let n = cpu.sub(shifted, magic);
    let r = cpu.fma(n, cpu.splat(exp_steps::LN2_HIGH_NEGATED), x);
    let r = cpu.fma(n, cpu.splat(exp_steps::LN2_LOW_NEGATED), r);
    let mut q = cpu.splat(exp_steps::COEFFICIENTS[0]);
    for c in &exp_steps::COEFFICIENTS[1..] {
        q = cpu.fma(q, r, cpu.splat(*c));
    }
    let value = cpu.add(cpu.fma(q, cpu.mul(r, r), r), cpu.splat(1.0));
    cpu.scale_by_power(value, shifted)
}

/// [`math::sigmoid`](crate::math::sigmoid), step by step the same.
#[inline(always)]
fn sigmoid<S: Simd>(cpu: S, x: S::Vector) -> S::Vector {
    let one = cpu.splat(1.0);
    // x * -1 is -x, also for zeros and infinities.
    cpu.div(one, cpu.add(one, exp(cpu, cpu.mul(x, cpu.splat(-1.0)))))
}

/// The 16 lanes of a dot.
#[inline(always)]
fn dot_lanes<S: Simd, T: Element>(cpu: S, w: &[T], x: &[f32]) -> S::Vector {
    let (w, w_rest) = w.as_chunks::<LANES>();
    let (x, x_rest) = x.as_chunks::<LANES>();
    let mut lanes = cpu.splat(0.0);
    for (w, x) in w.iter().zip(x) {
        lanes = cpu.fma(T::load(cpu, w), cpu.load(x), lanes);
    }
    if !w_rest.is_empty() {
        lanes = cpu.fma(load_padded(cpu, w_rest), load_padded(cpu, x_rest), lanes);
    }
    lanes
}

/// Sum of products.
pub struct Dot<'a> {
    pub w: Floats<'a>,
    pub x: &'a [f32],
}

impl Operation for Dot<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) -> f32 {
        cpu.tree_sum(match self.w {
            Floats::F32(w) => dot_lanes(cpu, w, self.x),
            Floats::Bf16(w) => dot_lanes(cpu, w, self.x),
            Floats::F16(w) => dot_lanes(cpu, F16::wrap_slice(w), self.x),
        })
    }
}

/// Plain sum.
pub struct Sum<'a> {
    pub x: &'a [f32],
}

impl Operation for Sum<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) -> f32 {
        let (x, rest) = self.x.as_chunks::<LANES>();
        let mut lanes = cpu.splat(0.0);
        for x in x {
            lanes = cpu.add(lanes, cpu.load(x));
        }
        if !rest.is_empty() {
            lanes = cpu.add(lanes, load_padded(cpu, rest));
        }
        cpu.tree_sum(lanes)
    }
}

/// y = fma(a, w, y).
pub struct Axpy<'a> {
    pub a: f32,
    pub x: &'a [f32],
    pub y: &'a mut [f32],
}

struct AxpyMap(f32);

impl Map<1> for AxpyMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, [x]: [S::Vector; 1], old: S::Vector) -> S::Vector {
        cpu.fma(cpu.splat(self.0), x, old)
    }
}

impl Operation for Axpy<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        map(cpu, AxpyMap(self.a), [self.x], self.y);
    }
}

/// y = y + x.
pub struct Add<'a> {
    pub x: &'a [f32],
    pub y: &'a mut [f32],
}

struct AddMap;

impl Map<1> for AddMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, [x]: [S::Vector; 1], old: S::Vector) -> S::Vector {
        cpu.add(old, x)
    }
}

impl Operation for Add<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        map(cpu, AddMap, [self.x], self.y);
    }
}

/// y = y * a.
pub struct Scale<'a> {
    pub a: f32,
    pub y: &'a mut [f32],
}

struct ScaleMap(f32);

impl Map<0> for ScaleMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, []: [S::Vector; 0], old: S::Vector) -> S::Vector {
        cpu.mul(old, cpu.splat(self.0))
    }
}

impl Operation for Scale<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        map::<S, f32, 0>(cpu, ScaleMap(self.a), [], self.y);
    }
}

/// Root-mean-square norm.
pub struct RmsNorm<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub epsilon: f32,
    pub out: &'a mut [f32],
}

struct RmsNormMap(f32);

impl Map<2> for RmsNormMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, [x, w]: [S::Vector; 2], _: S::Vector) -> S::Vector {
        cpu.mul(cpu.mul(x, cpu.splat(self.0)), w)
    }
}

impl Operation for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let square_sum = cpu.tree_sum(dot_lanes(cpu, self.x, self.x));
        let factor = inverse_root(square_sum, self.x.len(), self.epsilon);
        map(cpu, RmsNormMap(factor), [self.x, self.weight], self.out);
    }
}

/// Layer norm.
pub struct LayerNorm<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub bias: &'a [f32],
    pub epsilon: f32,
    pub out: &'a mut [f32],
}

struct CentreMap(f32);

impl Map<1> for CentreMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, [x]: [S::Vector; 1], _: S::Vector) -> S::Vector {
        cpu.sub(x, cpu.splat(self.0))
    }
}

struct LayerNormMap(f32);

impl Map<2> for LayerNormMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, [w, b]: [S::Vector; 2], old: S::Vector) -> S::Vector {
        cpu.add(cpu.mul(cpu.mul(old, cpu.splat(self.0)), w), b)
    }
}

impl Operation for LayerNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let mean = Sum { x: self.x }.run(cpu) / self.x.len() as f32;
        map(cpu, CentreMap(mean), [self.x], self.out);
        let square_sum = cpu.tree_sum(dot_lanes(cpu, &*self.out, self.out));
        let factor = inverse_root(square_sum, self.x.len(), self.epsilon);
        map(cpu, LayerNormMap(factor), [self.weight, self.bias], self.out);
    }
}

/// Exponentials against the maximum, and their sum.
pub struct SoftmaxBlock<'a> {
    pub scores: &'a mut [f32],
}

struct ShiftedExpMap(f32);

impl Map<0> for ShiftedExpMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, []: [S::Vector; 0], old: S::Vector) -> S::Vector {
        exp(cpu, cpu.sub(old, cpu.splat(self.0)))
    }
}

impl Operation for SoftmaxBlock<'_> {
    type Output = (f32, f32);
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) -> (f32, f32) {
        let (chunks, rest) = self.scores.as_chunks::<LANES>();
        let mut largest = cpu.splat(f32::NEG_INFINITY);
        for chunk in chunks {
            largest = cpu.max(cpu.load(chunk), largest);
        }
        let mut lanes = [0.0; LANES];
        cpu.store(largest, &mut lanes);
        let max = maximum(maximum(f32::NEG_INFINITY, &lanes), rest);
        map::<S, f32, 0>(cpu, ShiftedExpMap(softmax_shift(max)), [], self.scores);
        (max, Sum { x: self.scores }.run(cpu))
    }
}

/// Gated activation.
pub struct SiluMul<'a> {
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub out: &'a mut [f32],
}

struct SiluMulMap;

impl Map<2> for SiluMulMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, [gate, up]: [S::Vector; 2], _: S::Vector) -> S::Vector {
        cpu.mul(cpu.mul(gate, sigmoid(cpu, gate)), up)
    }
}

impl Operation for SiluMul<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        map(cpu, SiluMulMap, [self.gate, self.up], self.out);
    }
}

/// Logistic function in place.
pub struct Sigmoid<'a> {
    pub x: &'a mut [f32],
}

struct SigmoidMap;

impl Map<0> for SigmoidMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, []: [S::Vector; 0], old: S::Vector) -> S::Vector {
        sigmoid(cpu, old)
    }
}

impl Operation for Sigmoid<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        map::<S, f32, 0>(cpu, SigmoidMap, [], self.x);
    }
}

/// e^x in place.
pub struct Exp<'a> {
    pub x: &'a mut [f32],
}

struct ExpMap;

impl Map<0> for ExpMap {
    #[inline(always)]
    fn map<S: Simd>(&self, cpu: S, []: [S::Vector; 0], old: S::Vector) -> S::Vector {
        exp(cpu, old)
    }
}

impl Operation for Exp<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        map::<S, f32, 0>(cpu, ExpMap, [], self.x);
    }
}
