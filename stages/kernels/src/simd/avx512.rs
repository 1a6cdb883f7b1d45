//! [`Simd`] with AVX-512 F and VL: 16 lanes are one register.
//!
//! VL is asked for because without it the registers 16-31 can't take part in narrower operations
//! such as the tree, and the compiler then keeps accumulators out of them.
//! Each method is one or a few instructions; the bodies in `ops` and `matmul` inline them.

#![allow(unsafe_code)]

use super::avx2::fp8_as_halves;
use super::integers::IntegerOperation;
use super::integers512::Integers512;
use super::{Avx2, FP8_HALVES_FACTOR, LANES, Operation, Simd};
use crate::math::exp_steps::MAGIC;
use std::arch::x86_64::*;

/// Proof that this CPU has AVX-512 F and VL (and AVX2, FMA and F16C, which they include).
#[derive(Clone, Copy, Debug)]
pub struct Avx512 {
    avx2: Avx2,
    /// True if BW and VNNI are there and used: integers in 512 bits, else as AVX2 does them.
    vnni: bool,
}

impl Avx512 {
    /// The proof, if the CPU and the operating system have it.
    pub fn detect() -> Option<Avx512> {
        let found = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        let vnni = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni");
        if found { Avx2::detect().map(|avx2| Avx512 { avx2, vnni }) } else { None }
    }

    /// The same with integers as AVX2 does them.
    pub fn without_vnni(self) -> Avx512 {
        Avx512 { vnni: false, ..self }
    }

    /// The same with the other way of calling weights from memory.
    pub fn with_other_walk(self) -> Avx512 {
        Avx512 { avx2: self.avx2.with_other_walk(), ..self }
    }

    /// True if BW and VNNI are there and used.
    pub fn has_vnni(self) -> bool {
        self.vnni
    }
}

/// An operation becomes one function of its own: tiles keep the registers to themselves.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
fn run_here<O: Operation>(cpu: Avx512, operation: O) -> O::Output {
    operation.run(cpu)
}

impl Simd for Avx512 {
    type Vector = __m512;
    type Words = __m512i;
    const WIDE: bool = true;

    #[inline(always)]
    fn run<O: Operation>(self, operation: O) -> O::Output {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { run_here(self, operation) }
    }

    #[inline(always)]
    fn run_integers<O: IntegerOperation>(self, operation: O) {
        match Integers512::new(self) {
            Some(cpu) => operation.run(cpu),
            None => self.avx2.run_integers(operation),
        }
    }

    #[inline(always)]
    fn avx2(self) -> Avx2 {
        self.avx2
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY:
        // - avx512f exists: `self` comes from `detect`.
        // - 16 f32 are readable: `from` is a reference to them. No alignment is needed.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> __m512 {
        // SAFETY:
        // - avx512f exists: `self` comes from `detect`.
        // - 16 u16 are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let halves = _mm256_loadu_si256(from.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> __m512 {
        // SAFETY:
        // - avx512f exists: `self` comes from `detect`.
        // - 16 u16 are readable: `from` is a reference to them. No alignment is needed.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_fp8(self, from: &[u8; LANES]) -> __m512 {
        // SAFETY:
        // - avx512f and avx2 exist: `self` comes from `detect`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let halves = fp8_as_halves(_mm_loadu_si128(from.as_ptr().cast()));
            _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(FP8_HALVES_FACTOR))
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> __m512 {
        // SAFETY:
        // - avx512f exists: `self` comes from `detect`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
        }
    }

    #[inline(always)]
    fn load_words(self, from: &[u32; LANES]) -> __m512i {
        // SAFETY:
        // - avx512f exists: `self` comes from `detect`.
        // - 16 words are readable: `from` is a reference to them. No alignment is needed.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn words(self, low: u32, high: u32) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe {
            let low = _mm512_set1_epi32(low.cast_signed());
            _mm512_mask_set1_epi32(low, 0xff00, high.cast_signed())
        }
    }

    #[inline(always)]
    fn shift_right(self, words: __m512i, bits: __m512i) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_srlv_epi32(words, bits) }
    }

    #[inline(always)]
    fn shift_left_2(self, words: __m512i) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_slli_epi32::<2>(words) }
    }

    #[inline(always)]
    fn join_2(self, low: __m512i, high: __m512i) -> __m512i {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe {
            // Bits of the mask, low, high: 0xca is mask ? low : high.
            _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi32(3), low, high)
        }
    }

    #[inline(always)]
    fn lookup(self, table: __m512, index: __m512i) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_permutexvar_ps(index, table) }
    }

    #[inline(always)]
    fn gather_rows(self, lines: &[[u32; LANES]; 4], to: &mut [[u32; 4]; LANES]) {
        // SAFETY:
        // - avx512f exists: `self` comes from `detect`.
        // - 16 words of each line are readable: `line` is a reference to them. `to` has four times
        //   64 bytes that are ours to write. No alignment is needed.
        unsafe {
            let [a, b, c, d] =
                [0, 1, 2, 3].map(|line: usize| _mm512_loadu_si512(lines[line].as_ptr().cast()));
            let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let to: *mut __m512i = to.as_mut_ptr().cast();
            _mm512_storeu_si512(to, _mm512_unpacklo_epi64(ab_low, cd_low));
            _mm512_storeu_si512(to.add(1), _mm512_unpackhi_epi64(ab_low, cd_low));
            _mm512_storeu_si512(to.add(2), _mm512_unpacklo_epi64(ab_high, cd_high));
            _mm512_storeu_si512(to.add(3), _mm512_unpackhi_epi64(ab_high, cd_high));
        }
    }

    #[inline(always)]
    fn store(self, value: __m512, to: &mut [f32; LANES]) {
        // SAFETY:
        // - avx512f exists: `self` comes from `detect`.
        // - 16 f32 are ours to write: `to` is an exclusive reference. No alignment is needed.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn tree_sum(self, lanes: __m512) -> f32 {
        // SAFETY: avx512f (which includes avx2 and sse) exists: `self` comes from `detect`.
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(lanes)));
            let a = _mm256_add_ps(_mm512_castps512_ps256(lanes), high);
            let b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let c = _mm_add_ps(b, _mm_movehl_ps(b, b));
            _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)))
        }
    }

    #[inline(always)]
    fn scale_by_power(self, value: __m512, shifted: __m512) -> __m512 {
        // SAFETY: avx512f exists: `self` comes from `detect`.
        unsafe {
            let magic = _mm512_set1_epi32(MAGIC.to_bits().cast_signed());
            let bias = _mm512_set1_epi32(127);
            let n = _mm512_sub_epi32(_mm512_castps_si512(shifted), magic);
            let half = _mm512_srai_epi32::<1>(n);
            let rest = _mm512_sub_epi32(n, half);
            let first = _mm512_slli_epi32::<23>(_mm512_add_epi32(half, bias));
            let second = _mm512_slli_epi32::<23>(_mm512_add_epi32(rest, bias));
            let value = _mm512_mul_ps(value, _mm512_castsi512_ps(first));
            _mm512_mul_ps(value, _mm512_castsi512_ps(second))
        }
    }
}
