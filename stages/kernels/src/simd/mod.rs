//! The vector bodies of the kernels (x86-64).
//!
//! [`Kernels`](crate::Kernels) holds one of the CPU tokens [`Avx2`] and [`Avx512`]; a token can
//! only come from its `detect`, so holding one is the proof that the instructions exist. [`Simd`]
//! is what a token can do with 16 lanes; the bodies ([`ops`], [`matmul`]) are safe code, generic
//! over it, and are compiled once per token inside a function with the right target features.
//! Unsafe code is only here and in the two files that implement [`Simd`].

#![allow(unsafe_code)]

mod avx2;
mod avx512;
pub mod matmul;
pub mod ops;

pub use avx2::Avx2;
pub use avx512::Avx512;

use crate::weights::{Floats, Weights};
use crate::scalar::LANES;
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

/// An operation with its arguments, able to run on any 16 lanes.
pub trait Operation {
    /// What it returns.
    type Output;
    /// Does it; must be `#[inline(always)]` to be compiled with the CPU's instructions.
    fn run<S: Simd>(self, cpu: S) -> Self::Output;
}

/// Sixteen f32 lanes on a CPU that is known to have the instructions.
pub trait Simd: Copy {
    /// The lanes.
    type Vector: Copy;
    /// True if there are 32 registers of 16 lanes, false if there are 8.
    const WIDE: bool;

    /// Runs an operation in a function compiled for this CPU.
    fn run<O: Operation>(self, operation: O) -> O::Output;
    /// All lanes the same.
    fn splat(self, value: f32) -> Self::Vector;
    /// Lanes from memory.
    fn load(self, from: &[f32; LANES]) -> Self::Vector;
    /// Lanes from bf16, widened exactly.
    fn load_bf16(self, from: &[u16; LANES]) -> Self::Vector;
    /// Lanes to memory.
    fn store(self, value: Self::Vector, to: &mut [f32; LANES]);
    /// a + b.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a - b.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a * b.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a / b, IEEE.
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a * b + c, rounded once.
    fn fma(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// a < b ? a : b, so b if either is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a > b ? a : b, so b if either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The tree of [`scalar::tree_sum`](crate::scalar::tree_sum).
    fn tree_sum(self, lanes: Self::Vector) -> f32;
    /// `value * 2^n` in two exact factors, n being the integer that [`math::exp`](crate::math::exp)
    /// left in the low bits of `shifted`.
    fn scale_by_power(self, value: Self::Vector, shifted: Self::Vector) -> Self::Vector;
}

/// What lies in memory as a weight.
pub trait Element: Copy + Default {
    /// Loads and widens 16 of them.
    fn load<S: Simd>(cpu: S, from: &[Self; LANES]) -> S::Vector;
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(cpu: S, from: &[f32; LANES]) -> S::Vector {
        cpu.load(from)
    }
}

impl Element for u16 {
    #[inline(always)]
    fn load<S: Simd>(cpu: S, from: &[u16; LANES]) -> S::Vector {
        cpu.load_bf16(from)
    }
}

/// Loads a chunk shorter than 16, filled up with zeros.
#[inline(always)]
fn load_padded<S: Simd, T: Element>(cpu: S, from: &[T]) -> S::Vector {
    let mut chunk = [T::default(); LANES];
    chunk[..from.len()].copy_from_slice(from);
    T::load(cpu, &chunk)
}

/// Stores the first lanes, as many as there is room for.
#[inline(always)]
fn store_first<S: Simd>(cpu: S, value: S::Vector, to: &mut [f32]) {
    let mut chunk = [0.0; LANES];
    cpu.store(value, &mut chunk);
    to.copy_from_slice(&chunk[..to.len()]);
}

/// Asks for the cache line of element `index` of `values`, which may lie beyond its end.
#[inline(always)]
fn prefetch<T>(values: &[T], index: usize) {
    let place = values.as_ptr().wrapping_add(index);
    // SAFETY:
    // - x86-64 always has the instruction (SSE).
    // - it is a hint: it reads nothing into the program and never faults, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) }
}
