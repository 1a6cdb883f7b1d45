//! Dots of bytes in 256-bit registers, by three sets of instructions.
//!
//! `integers256` is generic over them: plain AVX2 ([`Maddubs`]), AVX-VNNI ([`VnniVex`]), and the
//! 256-bit form of AVX-512 VNNI ([`VnniEvex`]): the same instruction in another encoding, which
//! tests run on CPUs without AVX-VNNI. All of them give exact integer sums.

#![allow(unsafe_code)]

use super::integers::{IntegerOperation, STRIP_QUADS};
use super::integers256::Integers256;
use std::arch::x86_64::*;

/// Dots of the bytes of eight dwords, on a CPU that is known to have the instructions.
pub trait HalfDots: Copy {
    /// What [`HalfDots::signed_bytes`] adds to each byte.
    const SIGNED_OFFSET: i32;
    /// See [`IntegerSimd::LIGHT_WORK`](super::integers::IntegerSimd::LIGHT_WORK).
    const LIGHT_WORK: usize;

    /// Runs an operation in a function compiled for AVX2, FMA, F16C and these instructions.
    fn run<O: IntegerOperation>(cpu: Integers256<Self>, operation: O);
    /// See [`IntegerSimd::signed_bytes`](super::integers::IntegerSimd::signed_bytes).
    fn signed_bytes(self, bytes: __m256i) -> __m256i;
    /// Adds the dots of a strip to one or more of the sums: unsigned weight bytes of at most 31
    /// with activation codes of -127 to 127.
    fn dot_unsigned<const CHAINS: usize>(
        self,
        sums: &mut [__m256i; CHAINS],
        weights: [__m256i; STRIP_QUADS],
        x: [__m256i; STRIP_QUADS],
    );
    /// The same with weight bytes of at most 63.
    fn dot_six<const CHAINS: usize>(
        self,
        sums: &mut [__m256i; CHAINS],
        weights: [__m256i; STRIP_QUADS],
        x: [__m256i; STRIP_QUADS],
    );
    /// The same with what [`HalfDots::signed_bytes`] made of weight bytes.
    fn dot_signed<const CHAINS: usize>(
        self,
        sums: &mut [__m256i; CHAINS],
        weights: [__m256i; STRIP_QUADS],
        x: [__m256i; STRIP_QUADS],
    );
}

/// Multiply and add pairs of bytes to 16 bits, then pairs of those to 32. Needs AVX2, which an
/// [`Integers256`] proves.
#[derive(Clone, Copy, Debug)]
pub struct Maddubs;

/// An operation becomes one function of its own: tiles keep the registers to themselves.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_maddubs<O: IntegerOperation>(cpu: Integers256<Maddubs>, operation: O) {
    operation.run(cpu);
}

impl HalfDots for Maddubs {
    /// Signs go to the activations instead.
    const SIGNED_OFFSET: i32 = 0;
    const LIGHT_WORK: usize = 1;

    #[inline(always)]
    fn run<O: IntegerOperation>(cpu: Integers256<Maddubs>, operation: O) {
        // SAFETY: avx2, fma and f16c exist: `cpu` holds an `Avx2`.
        unsafe { run_maddubs(cpu, operation) }
    }

    #[inline(always)]
    fn signed_bytes(self, bytes: __m256i) -> __m256i {
        bytes
    }

    /// Exact: a pair of products is at most 2 * 31 * 127 = 7,874, four pairs are at most 31,496,
    /// and 16 bits hold 32,767.
    #[inline(always)]
    fn dot_unsigned<const CHAINS: usize>(
        self,
        sums: &mut [__m256i; CHAINS],
        weights: [__m256i; STRIP_QUADS],
        x: [__m256i; STRIP_QUADS],
    ) {
        // SAFETY: avx2 exists: `Integers256` holds an `Avx2`, and only it calls this.
        unsafe {
            let mut pairs = _mm256_maddubs_epi16(weights[0], x[0]);
            for q in 1..STRIP_QUADS {
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(weights[q], x[q]));
            }
            let dots = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            sums[0] = _mm256_add_epi32(sums[0], dots);
        }
    }

    /// Exact: a pair of products is at most 2 * 63 * 127 = 16,002, two pairs are at most 32,004, and 16
    /// bits hold 32,767.
    #[inline(always)]
    fn dot_six<const CHAINS: usize>(
        self,
        sums: &mut [__m256i; CHAINS],
        weights: [__m256i; STRIP_QUADS],
        x: [__m256i; STRIP_QUADS],
    ) {
        // SAFETY: avx2 exists: `Integers256` holds an `Avx2`, and only it calls this.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            for q in [0, 2] {
                let first = _mm256_maddubs_epi16(weights[q], x[q]);
                let second = _mm256_maddubs_epi16(weights[q + 1], x[q + 1]);
                let dots = _mm256_madd_epi16(_mm256_add_epi16(first, second), ones);
                sums[0] = _mm256_add_epi32(sums[0], dots);
            }
        }
    }

    /// Exact: the weight's magnitude (at most 128, an unsigned byte) times the activation with
    /// the weight's sign (never -128, so that negating it is exact); a pair of products is at most
    /// 2 * 128 * 127 = 32,512, and 16 bits hold 32,767.
    #[inline(always)]
    fn dot_signed<const CHAINS: usize>(
        self,
        sums: &mut [__m256i; CHAINS],
        weights: [__m256i; STRIP_QUADS],
        x: [__m256i; STRIP_QUADS],
    ) {
        // SAFETY: avx2 exists: `Integers256` holds an `Avx2`, and only it calls this.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            for q in 0..STRIP_QUADS {
                let signed = _mm256_sign_epi8(x[q], weights[q]);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights[q]), signed);
                sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(pairs, ones));
            }
        }
    }
}

/// What the two encodings of the VNNI instruction differ in: names and CPU features.
macro_rules! vnni {
    ($name:ident, $run:ident, $dpbusd:ident, $features:literal, $detected:expr, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $name(());

        impl $name {
            /// The proof, if the CPU and the operating system have it.
            pub fn detect() -> Option<$name> {
                $detected.then_some($name(()))
            }
        }

        /// An operation becomes one function of its own: tiles keep the registers to themselves.
        #[inline(never)]
        #[target_feature(enable = $features)]
        fn $run<O: IntegerOperation>(cpu: Integers256<$name>, operation: O) {
            operation.run(cpu);
        }

        impl HalfDots for $name {
            /// Unsigned bytes: 128 more than the signed ones.
            const SIGNED_OFFSET: i32 = 128;
            const LIGHT_WORK: usize = 2;

            #[inline(always)]
            fn run<O: IntegerOperation>(cpu: Integers256<$name>, operation: O) {
                // SAFETY:
                // - avx2, fma and f16c exist: `cpu` holds an `Avx2`.
                // - the dot's features exist: `cpu` holds what `detect` gave.
                unsafe { $run(cpu, operation) }
            }

            #[inline(always)]
            fn signed_bytes(self, bytes: __m256i) -> __m256i {
                // SAFETY: avx2 exists: `Integers256` holds an `Avx2`, and only it calls this.
                unsafe { _mm256_xor_si256(bytes, _mm256_set1_epi8(i8::MIN)) }
            }

            #[inline(always)]
            fn dot_unsigned<const CHAINS: usize>(
                self,
                sums: &mut [__m256i; CHAINS],
                weights: [__m256i; STRIP_QUADS],
                x: [__m256i; STRIP_QUADS],
            ) {
                for q in 0..STRIP_QUADS {
                    let sum = &mut sums[q % CHAINS];
                    // SAFETY: the dot's features exist: `self` comes from `detect`.
                    *sum = unsafe { $dpbusd(*sum, weights[q], x[q]) };
                }
            }

            #[inline(always)]
            fn dot_six<const CHAINS: usize>(
                self,
                sums: &mut [__m256i; CHAINS],
                weights: [__m256i; STRIP_QUADS],
                x: [__m256i; STRIP_QUADS],
            ) {
                self.dot_unsigned(sums, weights, x);
            }

            #[inline(always)]
            fn dot_signed<const CHAINS: usize>(
                self,
                sums: &mut [__m256i; CHAINS],
                weights: [__m256i; STRIP_QUADS],
                x: [__m256i; STRIP_QUADS],
            ) {
                self.dot_unsigned(sums, weights, x);
            }
        }
    };
}

vnni!(
    VnniVex,
    run_vnni_vex,
    _mm256_dpbusd_avx_epi32,
    "avx2,fma,f16c,avxvnni",
    is_x86_feature_detected!("avxvnni"),
    "Proof that this CPU has AVX-VNNI."
);

vnni!(
    VnniEvex,
    run_vnni_evex,
    _mm256_dpbusd_epi32,
    "avx2,fma,f16c,avx512vl,avx512vnni",
    is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vnni"),
    "Proof that this CPU has AVX-512 VNNI and VL."
);
