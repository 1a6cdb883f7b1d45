//! [`IntegerSimd`] on 256 bits: a line is two registers, rows 0-7 and 8-15.
//!
//! One implementation for every set of instructions for the dots of bytes (`half_dots`). Each
//! method is one or a few instructions per register; `codes` and `quantised` inline them.

#![allow(unsafe_code)]

use super::Avx2;
use super::avx2::{Pair, widen_half};
use super::half_dots::HalfDots;
use super::integers::{
    IntegerOperation, IntegerSimd, LineBytes, STRIP_QUADS, Strip, UE8M0_ENDS, quad,
};
use crate::formats::block::BLOCK_ROWS;
use std::arch::asm;
use std::arch::x86_64::*;

/// Proof that this CPU has AVX2, FMA, F16C and the instructions of `D`.
#[derive(Clone, Copy, Debug)]
pub struct Integers256<D> {
    float: Avx2,
    dots: D,
}

impl<D: HalfDots> Integers256<D> {
    /// Both proofs.
    #[inline(always)]
    pub fn new(float: Avx2, dots: D) -> Integers256<D> {
        Integers256 { float, dots }
    }
}

/// Rows 0-7 and 8-15.
#[derive(Clone, Copy, Debug)]
pub struct Halves(__m256i, __m256i);

/// A strip's quads of activations, each for all rows.
#[inline]
#[target_feature(enable = "avx2")]
fn splat_quads(x: &Strip) -> [__m256i; STRIP_QUADS] {
    let mut quads = [_mm256_setzero_si256(); STRIP_QUADS];
    for (q, splat) in quads.iter_mut().enumerate() {
        *splat = _mm256_set1_epi32(quad(x, q));
    }
    quads
}

/// Powers of two of eight biased exponents.
#[inline]
#[target_feature(enable = "avx2")]
fn powers(codes: __m256i) -> __m256 {
    let low_end = _mm256_cmpeq_epi32(codes, _mm256_setzero_si256());
    let high_end = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
    let bits = _mm256_set1_epi32(UE8M0_ENDS.cast_signed());
    let ends = _mm256_and_si256(_mm256_or_si256(low_end, high_end), bits);
    _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<23>(codes), ends))
}

/// See [`IntegerSimd::touch`].
#[inline]
#[target_feature(enable = "avx2")]
fn touch(lines: &[LineBytes]) {
    let (pairs, rest) = lines.as_chunks::<2>();
    for pair in pairs {
        // SAFETY: 128 bytes are readable: `pair` is a reference to them; nothing else happens.
        unsafe {
            asm!(
                "vmovdqu {half}, [{from}]",
                "vmovdqu {half}, [{from} + 32]",
                "vmovdqu {half}, [{from} + 64]",
                "vmovdqu {half}, [{from} + 96]",
                half = out(ymm_reg) _,
                from = in(reg) pair.as_ptr(),
                options(readonly, nostack, preserves_flags),
            );
        }
    }
    for line in rest {
        // SAFETY: 64 bytes are readable: `line` is a reference to them; nothing else happens.
        unsafe {
            asm!(
                "vmovdqu {half}, [{from}]",
                "vmovdqu {half}, [{from} + 32]",
                half = out(ymm_reg) _,
                from = in(reg) line.as_ptr(),
                options(readonly, nostack, preserves_flags),
            );
        }
    }
}

/// The first rows' and the last rows' parts of some lines.
#[inline(always)]
fn split<const N: usize>(lines: &[Halves; N]) -> [[__m256i; N]; 2] {
    let mut parts = [[lines[0].0; N]; 2];
    for i in 0..N {
        parts[0][i] = lines[i].0;
        parts[1][i] = lines[i].1;
    }
    parts
}

/// The inverse of [`split`].
#[inline(always)]
fn join<const N: usize>(parts: &[[__m256i; N]; 2], lines: &mut [Halves; N]) {
    for i in 0..N {
        lines[i] = Halves(parts[0][i], parts[1][i]);
    }
}

impl<D: HalfDots> IntegerSimd for Integers256<D> {
    type Float = Avx2;
    type Line = Halves;
    const SIGNED_OFFSET: i32 = D::SIGNED_OFFSET;
    const WIDE: bool = false;
    const LIGHT_WORK: usize = D::LIGHT_WORK;

    #[inline(always)]
    fn float(self) -> Avx2 {
        self.float
    }

    #[inline(always)]
    fn run<O: IntegerOperation>(self, operation: O) {
        D::run(self, operation);
    }

    #[inline(always)]
    fn touch(self, lines: &[LineBytes]) {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        unsafe { touch(lines) }
    }

    #[inline(always)]
    fn load(self, from: &LineBytes) -> Halves {
        let from: *const __m256i = from.as_ptr().cast();
        // SAFETY:
        // - avx2 exists: `self` holds an `Avx2`.
        // - 64 bytes are readable: the pointer was a reference to them. No alignment is needed.
        unsafe { Halves(_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))) }
    }

    #[inline(always)]
    fn splat(self, value: i32) -> Halves {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        unsafe { Halves(_mm256_set1_epi32(value), _mm256_set1_epi32(value)) }
    }

    #[inline(always)]
    fn and(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        unsafe { Halves(_mm256_and_si256(a.0, b.0), _mm256_and_si256(a.1, b.1)) }
    }

    #[inline(always)]
    fn or(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        unsafe { Halves(_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1)) }
    }

    #[inline(always)]
    fn shift_right(self, a: Halves, bits: u32) -> Halves {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        unsafe {
            let bits = _mm256_set1_epi32(bits.cast_signed());
            Halves(_mm256_srlv_epi32(a.0, bits), _mm256_srlv_epi32(a.1, bits))
        }
    }

    #[inline(always)]
    fn shift_left(self, a: Halves, bits: u32) -> Halves {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        unsafe {
            let bits = _mm256_set1_epi32(bits.cast_signed());
            Halves(_mm256_sllv_epi32(a.0, bits), _mm256_sllv_epi32(a.1, bits))
        }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: Halves) -> Halves {
        // SAFETY:
        // - avx2 exists: `self` holds an `Avx2`.
        // - 16 bytes are readable: `table` is a reference to them. No alignment is needed.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            Halves(_mm256_shuffle_epi8(table, indices.0), _mm256_shuffle_epi8(table, indices.1))
        }
    }

    #[inline(always)]
    fn add(self, a: Halves, b: Halves) -> Halves {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        unsafe { Halves(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
    }

    #[inline(always)]
    fn signed_bytes(self, bytes: Halves) -> Halves {
        Halves(self.dots.signed_bytes(bytes.0), self.dots.signed_bytes(bytes.1))
    }

    #[inline(always)]
    fn dot_unsigned<const CHAINS: usize>(
        self,
        sums: &mut [Halves; CHAINS],
        weights: &[Halves; STRIP_QUADS],
        x: &Strip,
    ) {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        let x = unsafe { splat_quads(x) };
        let (mut parts, weights) = (split(sums), split(weights));
        for half in 0..2 {
            self.dots.dot_unsigned(&mut parts[half], weights[half], x);
        }
        join(&parts, sums);
    }

    #[inline(always)]
    fn dot_six<const CHAINS: usize>(
        self,
        sums: &mut [Halves; CHAINS],
        weights: &[Halves; STRIP_QUADS],
        x: &Strip,
    ) {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        let x = unsafe { splat_quads(x) };
        let (mut parts, weights) = (split(sums), split(weights));
        for half in 0..2 {
            self.dots.dot_six(&mut parts[half], weights[half], x);
        }
        join(&parts, sums);
    }

    #[inline(always)]
    fn dot_signed<const CHAINS: usize>(
        self,
        sums: &mut [Halves; CHAINS],
        weights: &[Halves; STRIP_QUADS],
        x: &Strip,
    ) {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        let x = unsafe { splat_quads(x) };
        let (mut parts, weights) = (split(sums), split(weights));
        for half in 0..2 {
            self.dots.dot_signed(&mut parts[half], weights[half], x);
        }
        join(&parts, sums);
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; BLOCK_ROWS]) -> Halves {
        // SAFETY:
        // - avx2 exists: `self` holds an `Avx2`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_unpackhi_epi64(bytes, bytes);
            Halves(_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(high))
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; BLOCK_ROWS]) -> Halves {
        // SAFETY:
        // - avx2 exists: `self` holds an `Avx2`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_unpackhi_epi64(bytes, bytes);
            Halves(_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(high))
        }
    }

    #[inline(always)]
    fn to_float(self, a: Halves) -> Pair {
        // SAFETY: avx2 exists: `self` holds an `Avx2`.
        unsafe { Pair(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1)) }
    }

    #[inline(always)]
    fn load_f32(self, from: &[u8; 4 * BLOCK_ROWS]) -> Pair {
        let from: *const f32 = from.as_ptr().cast();
        // SAFETY:
        // - avx2 exists: `self` holds an `Avx2`.
        // - 64 bytes are readable: the pointer was a reference to them. No alignment is needed.
        unsafe { Pair(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 2 * BLOCK_ROWS]) -> Pair {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY:
        // - f16c exists: `self` holds an `Avx2`.
        // - 32 bytes are readable: the pointer was a reference to them. No alignment is needed.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            Pair(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8; 2 * BLOCK_ROWS]) -> Pair {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY:
        // - avx2 exists: `self` holds an `Avx2`.
        // - 32 bytes are readable: the pointer was a reference to them. No alignment is needed.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            Pair(widen_half(low), widen_half(high))
        }
    }

    #[inline(always)]
    fn load_ue8m0(self, from: &[u8; BLOCK_ROWS]) -> Pair {
        // SAFETY:
        // - avx2 exists: `self` holds an `Avx2`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let codes = _mm_loadu_si128(from.as_ptr().cast());
            let high = _mm_unpackhi_epi64(codes, codes);
            Pair(powers(_mm256_cvtepu8_epi32(codes)), powers(_mm256_cvtepu8_epi32(high)))
        }
    }
}
