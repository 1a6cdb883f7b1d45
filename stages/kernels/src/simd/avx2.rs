//! [`Simd`] with AVX2, FMA and F16C: 16 lanes are two registers, lanes 0-7 and 8-15.
//!
//! Each method is one or a few instructions per register; the bodies in `ops` and `matmul` inline
//! them.

#![allow(unsafe_code)]

use super::half_dots::{Maddubs, VnniEvex, VnniVex};
use super::integers::IntegerOperation;
use super::integers256::Integers256;
use super::walk::Walk;
use super::{FP8_HALVES_FACTOR, LANES, Operation, Simd};
use crate::math::exp_steps::MAGIC;
use std::arch::x86_64::*;

/// Proof that this CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2 {
    dots: Dots,
    walk: Walk,
}

/// The instructions for dots of bytes; a variant of VNNI holds the proof that they exist.
#[derive(Clone, Copy, Debug)]
enum Dots {
    Maddubs,
    Vex(VnniVex),
    Evex(VnniEvex),
}

impl Avx2 {
    /// The proof, if the CPU and the operating system have them.
    pub fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then(|| Avx2 { dots: Dots::Maddubs, walk: Walk::of_this_cpu() })
    }

    /// The same and AVX-VNNI for dots of bytes.
    pub fn detect_vnni() -> Option<Avx2> {
        let dots = Dots::Vex(VnniVex::detect()?);
        Avx2::detect().map(|cpu| Avx2 { dots, ..cpu })
    }

    /// The same with the 256-bit form of AVX-512 VNNI instead.
    pub fn detect_vnni_evex() -> Option<Avx2> {
        let dots = Dots::Evex(VnniEvex::detect()?);
        Avx2::detect().map(|cpu| Avx2 { dots, ..cpu })
    }

    /// How weights are called from memory.
    #[inline(always)]
    pub fn walk(self) -> Walk {
        self.walk
    }

    /// The same with the other way of calling weights from memory.
    pub fn with_other_walk(self) -> Avx2 {
        Avx2 { walk: self.walk.other(), ..self }
    }
}

/// Lanes 0-7 and 8-15.
#[derive(Clone, Copy, Debug)]
pub struct Pair(pub __m256, pub __m256);

/// Words 0-7 and 8-15.
#[derive(Clone, Copy, Debug)]
pub struct WordPair(__m256i, __m256i);

/// An operation becomes one function of its own: tiles keep the registers to themselves.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_here<O: Operation>(cpu: Avx2, operation: O) -> O::Output {
    operation.run(cpu)
}

/// value * 2^n on 8 lanes; see [`Simd::scale_by_power`].
#[inline]
#[target_feature(enable = "avx2,fma")]
fn scale_half_by_power(value: __m256, shifted: __m256) -> __m256 {
    let magic = _mm256_set1_epi32(MAGIC.to_bits().cast_signed());
    let bias = _mm256_set1_epi32(127);
    let n = _mm256_sub_epi32(_mm256_castps_si256(shifted), magic);
    let half = _mm256_srai_epi32::<1>(n);
    let rest = _mm256_sub_epi32(n, half);
    let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
    let second = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
    let value = _mm256_mul_ps(value, _mm256_castsi256_ps(first));
    _mm256_mul_ps(value, _mm256_castsi256_ps(second))
}

/// Widens 8 bf16.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub fn widen_half(halves: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

/// fp8 E4M3 codes as f16 of 2^-8 times their value; see [`FP8_HALVES_FACTOR`].
#[inline]
#[target_feature(enable = "avx2")]
pub fn fp8_as_halves(codes: __m128i) -> __m256i {
    // Sign, then 0, then the code's other seven bits at the upper end: an f16 has five exponent
    // bits with a bias that is 8 larger, and subnormals count in the same steps.
    let signed = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
    let halves = _mm256_and_si256(signed, _mm256_set1_epi16(0xbf80_u16.cast_signed()));
    // Codes 0x7f and 0xff get all bits: NaN.
    let negative = _mm256_or_si256(signed, _mm256_set1_epi16(0xc000_u16.cast_signed()));
    let nan = _mm256_cmpeq_epi16(negative, _mm256_set1_epi16(0xff80_u16.cast_signed()));
    _mm256_or_si256(halves, nan)
}

/// The lanes of a table that the low four bits of eight words name: the table's halves are looked
/// up by three bits, the fourth one chooses.
#[inline]
#[target_feature(enable = "avx2")]
fn lookup_half(table: Pair, index: __m256i) -> __m256 {
    let low = _mm256_permutevar8x32_ps(table.0, index);
    let high = _mm256_permutevar8x32_ps(table.1, index);
    _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
}

/// Eight rows of four lines of dwords: rows i and 4 + i for i = 0, 1, 2, 3.
#[inline]
#[target_feature(enable = "avx2")]
fn gather_half([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

impl Simd for Avx2 {
    type Vector = Pair;
    type Words = WordPair;
    const WIDE: bool = false;

    #[inline(always)]
    fn run<O: Operation>(self, operation: O) -> O::Output {
        // SAFETY: avx2 and fma exist: `self` comes from `detect`.
        unsafe { run_here(self, operation) }
    }

    #[inline(always)]
    fn run_integers<O: IntegerOperation>(self, operation: O) {
        match self.dots {
            Dots::Maddubs => operation.run(Integers256::new(self, Maddubs)),
            Dots::Vex(dots) => operation.run(Integers256::new(self, dots)),
            Dots::Evex(dots) => operation.run(Integers256::new(self, dots)),
        }
    }

    #[inline(always)]
    fn avx2(self) -> Avx2 {
        self
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Pair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { Pair(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Pair {
        let from = from.as_ptr();
        // SAFETY:
        // - avx2 exists: `self` comes from `detect`.
        // - 16 f32 are readable: the pointer was a reference to them. No alignment is needed.
        unsafe { Pair(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Pair {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY:
        // - avx2 exists: `self` comes from `detect`.
        // - 16 u16 are readable: the pointer was a reference to them. No alignment is needed.
        unsafe { Pair(widen_half(_mm_loadu_si128(from)), widen_half(_mm_loadu_si128(from.add(1)))) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Pair {
        let from: *const __m128i = from.as_ptr().cast();
        // SAFETY:
        // - f16c exists: `self` comes from `detect`.
        // - 16 u16 are readable: the pointer was a reference to them. No alignment is needed.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            Pair(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    fn load_fp8(self, from: &[u8; LANES]) -> Pair {
        // SAFETY:
        // - avx2 and f16c exist: `self` comes from `detect`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let halves = fp8_as_halves(_mm_loadu_si128(from.as_ptr().cast()));
            let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
            let high = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves));
            let factor = _mm256_set1_ps(FP8_HALVES_FACTOR);
            Pair(_mm256_mul_ps(low, factor), _mm256_mul_ps(high, factor))
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Pair {
        // SAFETY:
        // - avx2 exists: `self` comes from `detect`.
        // - 16 bytes are readable: `from` is a reference to them. No alignment is needed.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let low = _mm256_cvtepi8_epi32(bytes);
            let high = _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(bytes, bytes));
            Pair(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    fn load_words(self, from: &[u32; LANES]) -> WordPair {
        let from: *const __m256i = from.as_ptr().cast();
        // SAFETY:
        // - avx2 exists: `self` comes from `detect`.
        // - 16 words are readable: the pointer was a reference to them. No alignment is needed.
        unsafe { WordPair(_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))) }
    }

    #[inline(always)]
    fn words(self, low: u32, high: u32) -> WordPair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe {
            let (low, high) = (low.cast_signed(), high.cast_signed());
            WordPair(_mm256_set1_epi32(low), _mm256_set1_epi32(high))
        }
    }

    #[inline(always)]
    fn shift_right(self, words: WordPair, bits: WordPair) -> WordPair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { WordPair(_mm256_srlv_epi32(words.0, bits.0), _mm256_srlv_epi32(words.1, bits.1)) }
    }

    #[inline(always)]
    fn shift_left_2(self, words: WordPair) -> WordPair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { WordPair(_mm256_slli_epi32::<2>(words.0), _mm256_slli_epi32::<2>(words.1)) }
    }

    #[inline(always)]
    fn join_2(self, low: WordPair, high: WordPair) -> WordPair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe {
            let mask = _mm256_set1_epi32(3);
            let join = |low: __m256i, high: __m256i| {
                _mm256_or_si256(_mm256_and_si256(mask, low), _mm256_andnot_si256(mask, high))
            };
            WordPair(join(low.0, high.0), join(low.1, high.1))
        }
    }

    #[inline(always)]
    fn lookup(self, table: Pair, index: WordPair) -> Pair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { Pair(lookup_half(table, index.0), lookup_half(table, index.1)) }
    }

    #[inline(always)]
    fn gather_rows(self, lines: &[[u32; LANES]; 4], to: &mut [[u32; 4]; LANES]) {
        let to: *mut __m256i = to.as_mut_ptr().cast();
        for half in 0..2 {
            // SAFETY:
            // - avx2 exists: `self` comes from `detect`.
            // - words 8 half .. 8 half + 8 of each line are readable: `lines` is a reference to 16.
            // - `to` has 256 bytes that are ours to write: eight times 32. No alignment is needed.
            unsafe {
                let load = |line: usize| {
                    let line: *const __m256i = lines[line].as_ptr().cast();
                    _mm256_loadu_si256(line.add(half))
                };
                let rows = gather_half([load(0), load(1), load(2), load(3)]);
                for (i, rows) in rows.into_iter().enumerate() {
                    _mm256_storeu_si256(to.add(2 * i + half), rows);
                }
            }
        }
    }

    #[inline(always)]
    fn store(self, value: Pair, to: &mut [f32; LANES]) {
        let to = to.as_mut_ptr();
        // SAFETY:
        // - avx2 exists: `self` comes from `detect`.
        // - 16 f32 are ours to write: the pointer was an exclusive reference. No alignment is needed.
        unsafe {
            _mm256_storeu_ps(to, value.0);
            _mm256_storeu_ps(to.add(8), value.1);
        }
    }

    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { Pair(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { Pair(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: fma exists: `self` comes from `detect`.
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }

    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { Pair(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: avx2 exists: `self` comes from `detect`.
        unsafe { Pair(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn tree_sum(self, lanes: Pair) -> f32 {
        // SAFETY: avx2 (which includes sse3) exists: `self` comes from `detect`.
        unsafe {
            let a = _mm256_add_ps(lanes.0, lanes.1);
            let b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let c = _mm_add_ps(b, _mm_movehl_ps(b, b));
            _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)))
        }
    }

    #[inline(always)]
    fn scale_by_power(self, value: Pair, shifted: Pair) -> Pair {
        // SAFETY: avx2 and fma exist: `self` comes from `detect`.
        unsafe {
            Pair(scale_half_by_power(value.0, shifted.0), scale_half_by_power(value.1, shifted.1))
        }
    }
}
