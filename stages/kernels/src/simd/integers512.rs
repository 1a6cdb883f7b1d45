//! [`IntegerSimd`] with AVX-512 VNNI: a line is one register, a quad of 16 rows one instruction.
//!
//! Beside VNNI it needs BW (byte shuffles of 512 bits). Each method is one or a few instructions;
//! `codes` and `quantised` inline them.

#![allow(unsafe_code)]

use super::Avx512;
use super::integers::{
    IntegerOperation, IntegerSimd, LineBytes, STRIP_QUADS, Strip, UE8M0_ENDS, quad,
};
use crate::formats::block::BLOCK_ROWS;
use std::arch::asm;
use std::arch::x86_64::*;

/// Proof that this CPU has AVX-512 F, VL, BW and VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Integers512(Avx512);

impl Integers512 {
    /// The proof, if the token has it.
    #[inline(always)]
    pub fn new(cpu: Avx512) -> Option<Integers512> {
        cpu.has_vnni().then_some(Integers512(cpu))
    }
}

/// An operation becomes one function of its own: tiles keep the registers to themselves.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512vnni")]
fn run_here<O: IntegerOperation>(cpu: Integers512, operation: O) {
    operation.run(cpu);
}

/// See [`IntegerSimd::touch`]. Whole lines, four a turn: narrower loads, fewer and more are slower
/// (measured on Zen 4).
#[inline]
#[target_feature(enable = "avx512f")]
fn touch(lines: &[LineBytes]) {
    let (fours, rest) = lines.as_chunks::<4>();
    for four in fours {
        // SAFETY: 256 bytes are readable: `four` is a reference to them; nothing else happens.
        unsafe {
            asm!(
                "vmovdqu64 {line}, [{from}]",
                "vmovdqu64 {line}, [{from} + 64]",
                "vmovdqu64 {line}, [{from} + 128]",
                "vmovdqu64 {line}, [{from} + 192]",
                line = out(zmm_reg) _,
                from = in(reg) four.as_ptr(),
                options(readonly, nostack, preserves_flags),
            );
        }
    }
    for line in rest {
        // SAFETY: 64 bytes are readable: `line` is a reference to them; nothing else happens.
        unsafe {
            asm!(
                "vmovdqu64 {line}, [{from}]",
                line = out(zmm_reg) _,
                from = in(reg) line.as_ptr(),
                options(readonly, nostack, preserves_flags),
            );
        }
    }
}

/// See [`IntegerSimd::load`]. Loads stay in the order of the source, which is that of addresses; the
/// compiler would sort them by use, and the CPU's prefetcher lose its way.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(from: &LineBytes) -> __m512i {
    let line;
    // SAFETY: 64 bytes are readable: `from` is a reference to them; nothing else happens.
    unsafe {
        asm!(
            "vmovdqu64 {line}, [{from}]",
            line = out(zmm_reg) line,
            from = in(reg) from.as_ptr(),
            options(readonly, nostack, preserves_flags),
        );
    }
    line
}

impl IntegerSimd for Integers512 {
    type Float = Avx512;
    type Line = __m512i;
    /// Unsigned bytes: 128 more than the signed ones.
    const SIGNED_OFFSET: i32 = 128;
    const WIDE: bool = true;
    const LIGHT_WORK: usize = 2;

    #[inline(always)]
    fn float(self) -> Avx512 {
        self.0
    }

    #[inline(always)]
    fn run<O: IntegerOperation>(self, operation: O) {
        // SAFETY: avx512f, vl, bw and vnni exist: `self` comes from `new`.
        unsafe { run_here(self, operation) }
    }

    #[inline(always)]
    fn touch(self, lines: &[LineBytes]) {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { touch(lines) }
    }

    #[inline(always)]
    fn load(self, from: &LineBytes) -> __m512i {
        // SAFETY:
        // - avx512f exists: `self` comes from `new`.
        // - 64 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe { load(from) }
    }

    #[inline(always)]
    fn splat(self, value: i32) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn shift_right(self, a: __m512i, bits: u32) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { _mm512_srlv_epi32(a, _mm512_set1_epi32(bits.cast_signed())) }
    }

    #[inline(always)]
    fn shift_left(self, a: __m512i, bits: u32) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { _mm512_sllv_epi32(a, _mm512_set1_epi32(bits.cast_signed())) }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: __m512i) -> __m512i {
        // SAFETY:
        // - avx512f and bw exist: `self` comes from `new`.
        // - 16 bytes are readable: `table` is a reference to them. No alignment is needed.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn signed_bytes(self, bytes: __m512i) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { _mm512_xor_si512(bytes, _mm512_set1_epi8(i8::MIN)) }
    }

    #[inline(always)]
    fn dot_unsigned<const CHAINS: usize>(
        self,
        sums: &mut [__m512i; CHAINS],
        weights: &[__m512i; STRIP_QUADS],
        x: &Strip,
    ) {
        for q in 0..STRIP_QUADS {
            let sum = &mut sums[q % CHAINS];
            // SAFETY: avx512f and vnni exist: `self` comes from `new`.
            *sum = unsafe { _mm512_dpbusd_epi32(*sum, weights[q], _mm512_set1_epi32(quad(x, q))) };
        }
    }

    #[inline(always)]
    fn dot_six<const CHAINS: usize>(
        self,
        sums: &mut [__m512i; CHAINS],
        weights: &[__m512i; STRIP_QUADS],
        x: &Strip,
    ) {
        self.dot_unsigned(sums, weights, x);
    }

    #[inline(always)]
    fn dot_signed<const CHAINS: usize>(
        self,
        sums: &mut [__m512i; CHAINS],
        weights: &[__m512i; STRIP_QUADS],
        x: &Strip,
    ) {
        self.dot_unsigned(sums, weights, x);
    }

    #[inline(always)]
    fn load_u8(self, from: &[u8; BLOCK_ROWS]) -> __m512i {
        // SAFETY:
        // - avx512f exists: `self` comes from `new`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; BLOCK_ROWS]) -> __m512i {
        // SAFETY:
        // - avx512f exists: `self` comes from `new`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn to_float(self, a: __m512i) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `new`.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn load_f32(self, from: &[u8; 4 * BLOCK_ROWS]) -> __m512 {
        // SAFETY:
        // - avx512f exists: `self` comes from `new`.
        // - 64 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 2 * BLOCK_ROWS]) -> __m512 {
        // SAFETY:
        // - avx512f exists: `self` comes from `new`.
        // - 32 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8; 2 * BLOCK_ROWS]) -> __m512 {
        // SAFETY:
        // - avx512f exists: `self` comes from `new`.
        // - 32 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let halves = _mm256_loadu_si256(from.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    fn load_ue8m0(self, from: &[u8; BLOCK_ROWS]) -> __m512 {
        // SAFETY:
        // - avx512f exists: `self` comes from `new`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let powers = _mm512_slli_epi32::<23>(codes);
            let ends = _mm512_cmpeq_epi32_mask(codes, _mm512_setzero_si512())
                | _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(255));
            let bits = _mm512_set1_epi32(UE8M0_ENDS.cast_signed());
            _mm512_castsi512_ps(_mm512_mask_or_epi32(powers, ends, powers, bits))
        }
    }
}
