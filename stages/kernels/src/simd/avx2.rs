//! [`Simd`] with AVX2 and FMA: 16 lanes are two registers, lanes 0-7 and 8-15.
//!
//! Each method is one or a few instructions per register; the bodies in `ops` and `matmul` inline
//! them.

#![allow(unsafe_code)]

use super::{LANES, Operation, Simd};
use crate::math::exp_steps::MAGIC;
use std::arch::x86_64::*;

/// Proof that this CPU has AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The proof, if the CPU and the operating system have them.
    pub fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        found.then_some(Avx2(()))
    }
}

/// Lanes 0-7 and 8-15.
#[derive(Clone, Copy, Debug)]
pub struct Pair(__m256, __m256);

/// An operation becomes one function of its own: tiles keep the registers to themselves.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
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
fn widen_half(halves: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

impl Simd for Avx2 {
    type Vector = Pair;
    const WIDE: bool = false;

    #[inline(always)]
    fn run<O: Operation>(self, operation: O) -> O::Output {
        // SAFETY: avx2 and fma exist: `self` comes from `detect`.
        unsafe { run_here(self, operation) }
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
