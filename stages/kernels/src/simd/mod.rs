//! The vector bodies of the kernels (x86-64).
//!
//! [`Kernels`](crate::Kernels) holds one of the CPU tokens [`Avx2`] and [`Avx512`]; a token can
//! only come from its `detect`, so holding one is the proof that the instructions exist. [`Simd`]
//! is what a token can do with 16 lanes of f32. For codes of integer formats a token has another
//! one beside it ([`Simd::run_integers`]), which knows lines of codes and dots of bytes
//! (`integers`). The bodies ([`ops`], [`matmul`], [`transposed`], `quantised`) are safe code,
//! generic over tokens, and are compiled once per token inside a function with the right target
//! features. Unsafe code is only here, in the files that implement the two traits, and in
//! `quantise`.

#![allow(unsafe_code)]

mod avx2;
mod avx512;
mod codes;
mod columns;
mod decoded;
mod half_dots;
mod heads;
mod integers;
mod integers256;
mod integers512;
pub mod matmul;
pub mod ops;
mod quantise;
mod quantised;
mod quantised_tile;
mod read;
mod rows;
mod sums;
pub mod transposed;
mod walk;

pub use avx2::Avx2;
pub use avx512::Avx512;

use crate::formats::ScaleType;
use crate::scalar::LANES;
use crate::weights::{Floats, Weights};
use bytemuck::TransparentWrapper;
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// What the f16 that an fp8 code's bits are moved to is short of: 2^8, the difference of the
/// exponents' biases (15 and 7).
const FP8_HALVES_FACTOR: f32 = 256.0;

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
    /// Sixteen 32-bit words, one beside each lane.
    type Words: Copy;
    /// True if there are 32 registers of 16 lanes, false if there are 8.
    const WIDE: bool;

    /// Runs an operation in a function compiled for this CPU.
    fn run<O: Operation>(self, operation: O) -> O::Output;
    /// Runs an integer operation on the integer instructions that go with this CPU.
    fn run_integers<O: integers::IntegerOperation>(self, operation: O);
    /// The proof of AVX2, which every CPU here has.
    fn avx2(self) -> Avx2;
    /// All lanes the same.
    fn splat(self, value: f32) -> Self::Vector;
    /// Lanes from memory.
    fn load(self, from: &[f32; LANES]) -> Self::Vector;
    /// Lanes from bf16, widened exactly.
    fn load_bf16(self, from: &[u16; LANES]) -> Self::Vector;
    /// Lanes from f16, widened exactly; NaN becomes quiet.
    fn load_f16(self, from: &[u16; LANES]) -> Self::Vector;
    /// Lanes from fp8 E4M3, widened exactly.
    fn load_fp8(self, from: &[u8; LANES]) -> Self::Vector;
    /// Lanes from signed bytes.
    fn load_i8(self, from: &[i8; LANES]) -> Self::Vector;
    /// Words from memory.
    fn load_words(self, from: &[u32; LANES]) -> Self::Words;
    /// The first eight words all `low`, the others all `high`.
    fn words(self, low: u32, high: u32) -> Self::Words;
    /// Each word moved towards its low end by so many bits (below 32).
    fn shift_right(self, words: Self::Words, bits: Self::Words) -> Self::Words;
    /// Each word moved two bits towards its high end.
    fn shift_left_2(self, words: Self::Words) -> Self::Words;
    /// The two lowest bits of each word of `low`, the other bits of `high`.
    fn join_2(self, low: Self::Words, high: Self::Words) -> Self::Words;
    /// The lane of `table` that the four lowest bits of each word name.
    fn lookup(self, table: Self::Vector, index: Self::Words) -> Self::Vector;
    /// Four lines of 16 dwords to 16 rows of four dwords; row r goes to place
    /// [`gathered_place`]`(r)`.
    fn gather_rows(self, lines: &[[u32; LANES]; 4], to: &mut [[u32; 4]; LANES]);
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

/// An f16 in memory; a plain `u16` is a bf16.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F16(u16);

// SAFETY: F16 is `repr(transparent)` over u16, and every u16 is an f16.
unsafe impl TransparentWrapper<u16> for F16 {}

/// What lies in memory as a float.
pub trait Element: Copy + Default {
    /// True if weights are multiplied with a scale per 128 columns.
    const SCALED: bool = false;
    /// Loads and widens 16 of them, exactly.
    fn load<S: Simd>(cpu: S, from: &[Self; LANES]) -> S::Vector;
    /// Scale number `index` of a row that starts with its scales.
    fn scale(_scale: ScaleType, _row: &[Self], _index: usize) -> f32 {
        1.0
    }
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

impl Element for F16 {
    #[inline(always)]
    fn load<S: Simd>(cpu: S, from: &[F16; LANES]) -> S::Vector {
        cpu.load_f16(&from.map(|half| half.0))
    }
}

/// A byte is an fp8 E4M3 code.
impl Element for u8 {
    const SCALED: bool = true;
    #[inline(always)]
    fn load<S: Simd>(cpu: S, from: &[u8; LANES]) -> S::Vector {
        cpu.load_fp8(from)
    }
    #[inline(always)]
    fn scale(scale: ScaleType, row: &[u8], index: usize) -> f32 {
        scale.read(row, index)
    }
}

/// Where [`Simd::gather_rows`] puts a row.
#[inline(always)]
const fn gathered_place(row: usize) -> usize {
    row % 4 * 4 + row / 4
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

/// The same into the first-level cache, for what is used next.
#[inline(always)]
fn prefetch_near<T>(values: &[T], index: usize) {
    let place = values.as_ptr().wrapping_add(index);
    // SAFETY:
    // - x86-64 always has the instruction (SSE).
    // - it is a hint: it reads nothing into the program and never faults, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
}
