//! The largest of many floats: one instruction per register that is read.
//!
//! Nothing in the engine needs it. It is the plain read that benches hold kernels against, so it
//! can be told how to walk: in how many places at once, and how far ahead to ask for lines.

use super::{Operation, Simd, prefetch};
use crate::kernels::ReadOrder;
use crate::scalar::{LANES, maximum};

/// Chunks of 16 that each place takes before the next one's turn, and registers that hold them.
const RUN: usize = 4;

/// See [`crate::Kernels::maximum`].
pub struct Maximum<'a> {
    pub x: &'a [f32],
    pub order: ReadOrder,
}

impl Operation for Maximum<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) -> f32 {
        let (runs, rest) = self.x.as_chunks::<{ RUN * LANES }>();
        let largest = match self.order.places {
            1 => in_places::<S, 1>(cpu, runs, self.order.ahead_bytes),
            2 => in_places::<S, 2>(cpu, runs, self.order.ahead_bytes),
            _ => in_places::<S, 4>(cpu, runs, self.order.ahead_bytes),
        };
        maximum(largest, rest)
    }
}

/// Walks `P` equal parts side by side, then what is left.
#[inline(always)]
fn in_places<S: Simd, const P: usize>(
    cpu: S,
    runs: &[[f32; RUN * LANES]],
    ahead_bytes: usize,
) -> f32 {
    let mut largest = [[cpu.splat(f32::NEG_INFINITY); RUN]; P];
    let part = runs.len() / P;
    for i in 0..part {
        for p in 0..P {
            take(cpu, &runs[p * part + i], &mut largest[p], ahead_bytes);
        }
    }
    for run in &runs[P * part..] {
        take(cpu, run, &mut largest[0], ahead_bytes);
    }
    let mut max = f32::NEG_INFINITY;
    for largest in largest.as_flattened() {
        let mut lanes = [0.0; LANES];
        cpu.store(*largest, &mut lanes);
        max = maximum(max, &lanes);
    }
    max
}

#[inline(always)]
fn take<S: Simd>(
    cpu: S,
    run: &[f32; RUN * LANES],
    largest: &mut [S::Vector; RUN],
    ahead_bytes: usize,
) {
    for (i, chunk) in run.as_chunks::<LANES>().0.iter().enumerate() {
        if ahead_bytes > 0 {
            prefetch(chunk, ahead_bytes / size_of::<f32>());
        }
        largest[i] = cpu.max(cpu.load(chunk), largest[i]);
    }
}
