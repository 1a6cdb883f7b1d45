//! The vector body of the integer matmul: which blocks and tokens meet, in what order.
//!
//! A tile is a block of 16 weight rows by one to eight tokens (`quantised_tile` computes it).
//! Weights come from memory once: all tokens pass over a group of blocks that fits the second-level
//! cache before the next group is touched. Tokens of a tile share the expanded weights.
//! [`scalar::matmul_quantised`](crate::scalar::matmul_quantised) is the definition.

use super::codes::Lines;
use super::heads::{Heads, Minima, Nested, NestedMinima, NestedNibbles, Scales};
use super::integers::{IntegerOperation, IntegerSimd};
use super::quantised_tile::{Shape, Tokens, tile};
use super::{Operation, Simd, Weights, store_first};
use crate::activations::Quantised;
use crate::formats::{
    BLOCK_ROWS, WeightFormat,
    five::{Int5, Uint5},
    int2_row::Int2,
    int3_group::Int3,
    int4_group::Int4,
    int8_row::Int8,
    iq4_nl::Iq4,
    mxfp4::E2m1,
    q2_k::Uint2,
    q4_1::Uint4,
    q6_k::Int6,
};
use std::marker::PhantomData;

/// Weight bytes that all tokens pass over before the next are touched: a part of the smallest
/// second-level cache (512 KiB) of the CPUs in question, with room left for activations.
const GROUP_BYTES: usize = 256 << 10;

/// Every quantised row times every weight row; see [`crate::Kernels::matmul_quantised`].
pub struct MatmulQuantised<'a> {
    pub w: Weights<'a>,
    pub x: Quantised<'a>,
    pub out: &'a mut [f32],
}

impl Operation for MatmulQuantised<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        cpu.run_integers(self);
    }
}

impl IntegerOperation for MatmulQuantised<'_> {
    #[inline(always)]
    fn run<S: IntegerSimd>(self, cpu: S) {
        let MatmulQuantised { w, x, out } = self;
        match (w.format(), x.layout.unit) {
            (WeightFormat::Int8Row(_), _) => all_groups::<S, Int8, Scales, 4>(cpu, w, x, out),
            (WeightFormat::Int8Group32(_), _) => all_groups::<S, Int8, Scales, 2>(cpu, w, x, out),
            (WeightFormat::Int4Row(_) | WeightFormat::Int4Group(..), unit) => match unit {
                64 => all_groups::<S, Int4, Scales, 4>(cpu, w, x, out),
                32 => all_groups::<S, Int4, Scales, 2>(cpu, w, x, out),
                _ => all_groups::<S, Int4, Scales, 1>(cpu, w, x, out),
            },
            (WeightFormat::Int2Row(_), _) => all_groups::<S, Int2, Scales, 4>(cpu, w, x, out),
            (WeightFormat::Int3Group64(_), _) => all_groups::<S, Int3, Scales, 4>(cpu, w, x, out),
            (WeightFormat::Mxfp4, _) => all_groups::<S, E2m1, Scales, 2>(cpu, w, x, out),
            (WeightFormat::Q4_1, _) => all_groups::<S, Uint4, Minima, 2>(cpu, w, x, out),
            (WeightFormat::Q5_0, _) => all_groups::<S, Int5, Scales, 2>(cpu, w, x, out),
            (WeightFormat::Q5_1, _) => all_groups::<S, Uint5, Minima, 2>(cpu, w, x, out),
            (WeightFormat::Q2K, _) => all_groups::<S, Uint2, NestedNibbles, 1>(cpu, w, x, out),
            (WeightFormat::Q3K, _) => all_groups::<S, Int3, Nested, 1>(cpu, w, x, out),
            (WeightFormat::Q4K, _) => all_groups::<S, Uint4, NestedMinima, 2>(cpu, w, x, out),
            (WeightFormat::Q5K, _) => all_groups::<S, Uint5, NestedMinima, 2>(cpu, w, x, out),
            (WeightFormat::Q6K, _) => all_groups::<S, Int6, Nested, 1>(cpu, w, x, out),
            (WeightFormat::Iq4Nl, _) => all_groups::<S, Iq4, Scales, 2>(cpu, w, x, out),
            (WeightFormat::Iq4Xs, _) => all_groups::<S, Iq4, Nested, 2>(cpu, w, x, out),
            (
                WeightFormat::F32
                | WeightFormat::Bf16
                | WeightFormat::F16
                | WeightFormat::Fp8Block128(_),
                _,
            ) => unreachable!("floats take f32 activations"),
        }
    }
}

/// Group by group, and in each the tokens in tiles as large as the registers allow. `C` is the
/// format's codes, `H` its heads; a unit is `STRIPS` strips.
#[inline(always)]
fn all_groups<S: IntegerSimd, C: Lines, H: Heads, const STRIPS: usize>(
    cpu: S,
    w: Weights,
    x: Quantised,
    out: &mut [f32],
) {
    let shape = Shape::of::<STRIPS>(w);
    let rows = w.rows();
    let group_rows = (GROUP_BYTES / shape.block_bytes.max(1)).max(1) * BLOCK_ROWS;
    let tokens_max = if S::WIDE { 8 } else { 4 };
    for first_row in (0..rows).step_by(group_rows) {
        let end = rows.min(first_row + group_rows);
        let mut t = 0;
        while t < x.rows.len() {
            let tokens = tokens_max.min(x.rows.len() - t);
            let bytes = &w.bytes()[first_row / BLOCK_ROWS * shape.block_bytes..];
            let x = Quantised { rows: &x.rows[t..t + tokens], ..x };
            let out = &mut out[t * rows..(t + tokens) * rows];
            let job = Job { shape, bytes, x, out, rows, first_row, end, fetch: t == 0 };
            run_tiles::<S, C, H, STRIPS>(cpu, job);
            t += tokens;
        }
    }
}

/// Some blocks times a few tokens.
struct Job<'a> {
    shape: Shape,
    /// The blocks from row `first_row` on; those after row `end` are not used yet.
    bytes: &'a [u8],
    x: Quantised<'a>,
    /// The tokens' outputs, `rows` of each.
    out: &'a mut [f32],
    rows: usize,
    first_row: usize,
    end: usize,
    /// Whether these tokens are the first to pass over the blocks.
    fetch: bool,
}

/// Picks the tiles for the job's tokens: with enough chains of dots that a multiplier rarely waits
/// for its last result, and few enough that all fits the registers.
#[inline(always)]
fn run_tiles<S: IntegerSimd, C: Lines, H: Heads, const STRIPS: usize>(cpu: S, job: Job) {
    match (S::WIDE, job.x.rows.len()) {
        (true, 1) => cpu.run(Tiles::<C, H, STRIPS, 1, 4>::new(job)),
        (true, 2) => cpu.run(Tiles::<C, H, STRIPS, 2, 2>::new(job)),
        (true, 3) => cpu.run(Tiles::<C, H, STRIPS, 3, 2>::new(job)),
        (true, 4) => cpu.run(Tiles::<C, H, STRIPS, 4, 1>::new(job)),
        (true, 5) => cpu.run(Tiles::<C, H, STRIPS, 5, 1>::new(job)),
        (true, 6) => cpu.run(Tiles::<C, H, STRIPS, 6, 1>::new(job)),
        (true, 7) => cpu.run(Tiles::<C, H, STRIPS, 7, 1>::new(job)),
        (true, _) => cpu.run(Tiles::<C, H, STRIPS, 8, 1>::new(job)),
        (false, 1) => cpu.run(Tiles::<C, H, STRIPS, 1, 2>::new(job)),
        (false, 2) => cpu.run(Tiles::<C, H, STRIPS, 2, 1>::new(job)),
        (false, 3) => cpu.run(Tiles::<C, H, STRIPS, 3, 1>::new(job)),
        (false, _) => cpu.run(Tiles::<C, H, STRIPS, 4, 1>::new(job)),
    }
}

/// A job for exactly N tokens, with so many chains of dots each.
struct Tiles<'a, C, H, const STRIPS: usize, const N: usize, const CHAINS: usize>(
    Job<'a>,
    PhantomData<(C, H)>,
);

impl<'a, C, H, const STRIPS: usize, const N: usize, const CHAINS: usize>
    Tiles<'a, C, H, STRIPS, N, CHAINS>
{
    fn new(job: Job<'a>) -> Self {
        Tiles(job, PhantomData)
    }
}

impl<C: Lines, H: Heads, const STRIPS: usize, const N: usize, const CHAINS: usize> IntegerOperation
    for Tiles<'_, C, H, STRIPS, N, CHAINS>
{
    #[inline(always)]
    fn run<S: IntegerSimd>(self, cpu: S) {
        let Job { shape, mut bytes, x, out, rows, first_row, end, fetch } = self.0;
        let tokens = Tokens::<STRIPS, N>::of(x);
        for row in (first_row..end).step_by(BLOCK_ROWS) {
            let sums = tile::<S, C, H, STRIPS, N, CHAINS>(cpu, &shape, bytes, &tokens, fetch);
            for t in 0..N {
                let out = &mut out[t * rows + row..t * rows + end.min(row + BLOCK_ROWS)];
                match out.as_mut_array() {
                    Some(out) => cpu.float().store(sums[t], out),
                    None => store_first(cpu.float(), sums[t], out),
                }
            }
            bytes = &bytes[shape.block_bytes..];
        }
    }
}
