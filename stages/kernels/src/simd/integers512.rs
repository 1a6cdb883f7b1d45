//! [`IntegerSimd`] with AVX-512 VNNI: a line is one register, a quad of 16 rows one instruction.
//!
//! Beside VNNI it needs BW (byte shuffles of 512 bits); a CPU without them computes floats with
//! AVX-512 and integers with AVX2.

#![allow(unsafe_code)]

use super::Avx512;
use super::integers::{
    IntegerOperation, IntegerSimd, LineBytes, STRIP_QUADS, Strip, UE8M0_ENDS, quad,
};
use crate::formats::block::BLOCK_ROWS;
use std::arch::x86_64::*;

/// Proof that this CPU has AVX-512 F, VL, BW and VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Vnni512(Avx512);

impl Vnni512 {
    /// The proof, if the CPU and the operating system have them.
    pub fn detect(cpu: Avx512) -> Option<Vnni512> {
        let found = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni");
        found.then_some(Vnni512(cpu))
    }
}

/// An operation becomes one function of its own: tiles keep the registers to themselves.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512vnni")]
fn run_here<O: IntegerOperation>(cpu: Vnni512, operation: O) {
    operation.run(cpu);
}
