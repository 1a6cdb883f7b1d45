//! From the lines of each integer format to quads of unsigned (or signed) bytes.
//!
//! `quantised` takes a block's lines in *chunks*, the fewest lines that are whole strips of 16
//! columns, and asks for one strip's quads at a time. What a quad holds is told in
//! [`formats::block`](crate::formats::block) and in the formats' files; here it is shifts and masks.

use super::integers::{IntegerSimd, LineBytes, STRIP_QUADS};
use crate::formats::block::BlockCode;
use crate::formats::{
    five::Five,
    int2_row::Int2,
    int3_group::Int3,
    int4_group::Int4,
    int8_row::Int8,
    iq4_nl::{Iq4, VALUES},
    mxfp4::{E2m1, HALVES},
    q2_k::Uint2,
    q4_1::Uint4,
    q6_k::Int6,
};

/// Four quads of weights.
type Quads<S> = [<S as IntegerSimd>::Line; STRIP_QUADS];

/// What the bytes of a quad are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuadBytes {
    /// Values plus [`BlockCode::OFFSET`], at most 31.
    Small,
    /// Values plus [`BlockCode::OFFSET`], at most 63.
    Six,
    /// Signed, as [`IntegerSimd::signed_bytes`] makes them.
    Signed,
}

/// A format's lines as quads.
pub trait Lines: BlockCode {
    /// Lines of a chunk.
    const CHUNK_LINES: usize;
    /// Strips of a chunk.
    const CHUNK_STRIPS: usize;
    /// What there is to compute per line and token, roughly, in quads.
    const LINE_WORK: usize;
    /// What the bytes of a quad are.
    const BYTES: QuadBytes = QuadBytes::Small;

    /// The quads of a strip of a chunk.
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], strip: usize) -> Quads<S>;
}

/// The same byte everywhere.
#[inline(always)]
fn bytes<S: IntegerSimd>(cpu: S, byte: u8) -> S::Line {
    cpu.splat(i32::from_le_bytes([byte; 4]))
}

/// The low and the high nibbles of two lines.
#[inline(always)]
fn nibbles<S: IntegerSimd>(cpu: S, chunk: &[LineBytes]) -> Quads<S> {
    let mask = bytes(cpu, 15);
    let (a, b) = (cpu.load(&chunk[0]), cpu.load(&chunk[1]));
    [
        cpu.and(a, mask),
        cpu.and(cpu.shift_right(a, 4), mask),
        cpu.and(b, mask),
        cpu.and(cpu.shift_right(b, 4), mask),
    ]
}

/// The pairs of bits of one line.
#[inline(always)]
fn pairs<S: IntegerSimd>(cpu: S, line: S::Line) -> Quads<S> {
    let mask = bytes(cpu, 3);
    [
        cpu.and(line, mask),
        cpu.and(cpu.shift_right(line, 2), mask),
        cpu.and(cpu.shift_right(line, 4), mask),
        cpu.and(cpu.shift_right(line, 6), mask),
    ]
}

impl Lines for Int8 {
    const CHUNK_LINES: usize = 4;
    const CHUNK_STRIPS: usize = 1;
    const LINE_WORK: usize = 1;
    const BYTES: QuadBytes = QuadBytes::Signed;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], _strip: usize) -> Quads<S> {
        [
            cpu.signed_bytes(cpu.load(&chunk[0])),
            cpu.signed_bytes(cpu.load(&chunk[1])),
            cpu.signed_bytes(cpu.load(&chunk[2])),
            cpu.signed_bytes(cpu.load(&chunk[3])),
        ]
    }
}

impl Lines for Int4 {
    const CHUNK_LINES: usize = 2;
    const CHUNK_STRIPS: usize = 1;
    const LINE_WORK: usize = 2;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], _strip: usize) -> Quads<S> {
        nibbles(cpu, chunk)
    }
}

/// [`HALVES`] plus the offset, by nibble.
const HALVES_UNSIGNED: [u8; 16] = {
    let mut table = [0; 16];
    let mut nibble = 0;
    while nibble < 16 {
        table[nibble] = (HALVES[nibble] as i32 + E2m1::OFFSET) as u8;
        nibble += 1;
    }
    table
};

impl Lines for E2m1 {
    const CHUNK_LINES: usize = 2;
    const CHUNK_STRIPS: usize = 1;
    const LINE_WORK: usize = 3;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], _strip: usize) -> Quads<S> {
        let mut quads = nibbles(cpu, chunk);
        for quad in &mut quads {
            *quad = cpu.lookup(&HALVES_UNSIGNED, *quad);
        }
        quads
    }
}

impl Lines for Int2 {
    const CHUNK_LINES: usize = 1;
    const CHUNK_STRIPS: usize = 1;
    const LINE_WORK: usize = 4;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], _strip: usize) -> Quads<S> {
        pairs(cpu, cpu.load(&chunk[0]))
    }
}

impl Lines for Int3 {
    const CHUNK_LINES: usize = 3;
    const CHUNK_STRIPS: usize = 2;
    const LINE_WORK: usize = 3;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], strip: usize) -> Quads<S> {
        let low = pairs(cpu, cpu.load(&chunk[strip]));
        // Bit k of each byte's half that belongs to the strip goes to bit 2, beside the low ones.
        let high = cpu.shift_right(cpu.load(&chunk[2]), 4 * strip as u32);
        let mask = bytes(cpu, 4);
        [
            cpu.or(low[0], cpu.and(cpu.shift_left(high, 2), mask)),
            cpu.or(low[1], cpu.and(cpu.shift_left(high, 1), mask)),
            cpu.or(low[2], cpu.and(high, mask)),
            cpu.or(low[3], cpu.and(cpu.shift_right(high, 1), mask)),
        ]
    }
}

impl Lines for Uint4 {
    const CHUNK_LINES: usize = 2;
    const CHUNK_STRIPS: usize = 1;
    const LINE_WORK: usize = 3;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], _strip: usize) -> Quads<S> {
        nibbles(cpu, chunk)
    }
}

/// [`VALUES`] plus an offset, by nibble.
const fn values_plus(offset: i32) -> [u8; 16] {
    let mut table = [0; 16];
    let mut nibble = 0;
    while nibble < 16 {
        table[nibble] = (VALUES[nibble] as i32 + offset) as u8;
        nibble += 1;
    }
    table
}

impl Lines for Iq4 {
    const CHUNK_LINES: usize = 2;
    const CHUNK_STRIPS: usize = 1;
    const LINE_WORK: usize = 3;
    const BYTES: QuadBytes = QuadBytes::Signed;

    /// The table has the bytes as the CPU's dots of signed bytes take them.
    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], _strip: usize) -> Quads<S> {
        let mut quads = nibbles(cpu, chunk);
        for quad in &mut quads {
            *quad = cpu.lookup(&const { values_plus(S::SIGNED_OFFSET) }, *quad);
        }
        quads
    }
}

impl<const OFFSET: i32> Lines for Five<OFFSET> {
    const CHUNK_LINES: usize = 5;
    const CHUNK_STRIPS: usize = 2;
    const LINE_WORK: usize = 3;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], strip: usize) -> Quads<S> {
        let low = nibbles(cpu, &chunk[2 * strip..2 * strip + 2]);
        let high = cpu.load(&chunk[4]);
        let mask = bytes(cpu, 16);
        // Bit 4 * strip + i of each byte goes to bit 4 of quad i.
        let high = match strip {
            0 => [4, 3, 2, 1].map(|bits| cpu.shift_left(high, bits)),
            _ => [0, 1, 2, 3].map(|bits| cpu.shift_right(high, bits)),
        };
        [
            cpu.or(low[0], cpu.and(high[0], mask)),
            cpu.or(low[1], cpu.and(high[1], mask)),
            cpu.or(low[2], cpu.and(high[2], mask)),
            cpu.or(low[3], cpu.and(high[3], mask)),
        ]
    }
}

impl Lines for Int6 {
    const CHUNK_LINES: usize = 3;
    const CHUNK_STRIPS: usize = 1;
    const LINE_WORK: usize = 3;
    const BYTES: QuadBytes = QuadBytes::Six;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], _strip: usize) -> Quads<S> {
        let low = nibbles(cpu, chunk);
        let high = cpu.load(&chunk[2]);
        let mask = bytes(cpu, 0x30);
        [
            cpu.or(low[0], cpu.and(cpu.shift_left(high, 4), mask)),
            cpu.or(low[1], cpu.and(cpu.shift_left(high, 2), mask)),
            cpu.or(low[2], cpu.and(high, mask)),
            cpu.or(low[3], cpu.and(cpu.shift_right(high, 2), mask)),
        ]
    }
}

impl Lines for Uint2 {
    const CHUNK_LINES: usize = 1;
    const CHUNK_STRIPS: usize = 1;
    const LINE_WORK: usize = 4;

    #[inline(always)]
    fn quads<S: IntegerSimd>(cpu: S, chunk: &[LineBytes], _strip: usize) -> Quads<S> {
        pairs(cpu, cpu.load(&chunk[0]))
    }
}
