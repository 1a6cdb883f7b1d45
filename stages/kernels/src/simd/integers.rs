//! What the integer kernels ask of a CPU: lines of a block, dots of bytes, scales of 16 rows.
//!
//! [`IntegerSimd`] is to integer formats what [`Simd`] is to floats: a token that proves the
//! instructions, and what can be done with them. `integers512` and `integers256` implement it;
//! `codes` and `quantised` are safe code over it. A float token knows the integer token that goes
//! with it ([`Simd::run_integers`]).

use super::Simd;
use crate::formats::ScaleType;
use crate::formats::block::{BLOCK_ROWS, LINE_BYTES};

/// A line of a block: four bytes of each of 16 rows.
pub type LineBytes = [u8; LINE_BYTES];

/// Quads of a strip.
pub const STRIP_QUADS: usize = 4;

/// Columns of a strip.
pub const STRIP_COLUMNS: usize = 4 * STRIP_QUADS;

/// The activation codes of a strip, quad after quad.
pub type Strip = [i8; STRIP_COLUMNS];

/// An integer operation with its arguments.
pub trait IntegerOperation {
    /// Does it; must be `#[inline(always)]` to be compiled with the CPU's instructions.
    fn run<S: IntegerSimd>(self, cpu: S);
}

/// Sixteen dwords, one per row of a block, on a CPU that is known to have the instructions.
pub trait IntegerSimd: Copy {
    /// The token for float operations on 16 rows.
    type Float: Simd;
    /// The dwords: weight bytes (four of each row), or one i32 of each row.
    type Line: Copy;
    /// What [`IntegerSimd::signed_bytes`] adds to each byte.
    const SIGNED_OFFSET: i32;
    /// True if sums, weights and accumulators of eight tokens fit the registers, false if those of
    /// four do.
    const WIDE: bool;
    /// The work per line (see `codes`) that leaves the CPU waiting for the memory; with more it
    /// computes most of the time.
    const LIGHT_WORK: usize;

    /// The float token.
    fn float(self) -> Self::Float;
    /// Runs an operation in a function compiled for this CPU.
    fn run<O: IntegerOperation>(self, operation: O);
    /// Reads lines in their order for no other reason than to have them in the first-level cache.
    fn touch(self, lines: &[LineBytes]);
    /// A line from memory. Lines are loaded in address order.
    fn load(self, from: &LineBytes) -> Self::Line;
    /// The same i32 for every row.
    fn splat(self, value: i32) -> Self::Line;
    /// The bits that both have.
    fn and(self, a: Self::Line, b: Self::Line) -> Self::Line;
    /// The bits that either has.
    fn or(self, a: Self::Line, b: Self::Line) -> Self::Line;
    /// Dwords moved `bits` towards their low end; bits pass from byte to byte.
    fn shift_right(self, a: Self::Line, bits: u32) -> Self::Line;
    /// Dwords moved `bits` towards their high end; bits pass from byte to byte.
    fn shift_left(self, a: Self::Line, bits: u32) -> Self::Line;
    /// The entry of the table for every byte; the bytes are 0 to 15.
    fn lookup(self, table: &[u8; 16], indices: Self::Line) -> Self::Line;
    /// i32 sums.
    fn add(self, a: Self::Line, b: Self::Line) -> Self::Line;
    /// Signed bytes in the form that [`IntegerSimd::dot_signed`] takes.
    fn signed_bytes(self, bytes: Self::Line) -> Self::Line;
    /// Adds the dots of a strip's quads to the sums: unsigned weight bytes of at most 31 with
    /// activation codes of -127 to 127. Which chain takes which quad doesn't matter, as integer
    /// sums are exact.
    fn dot_unsigned<const CHAINS: usize>(
        self,
        sums: &mut [Self::Line; CHAINS],
        weights: &[Self::Line; STRIP_QUADS],
        x: &Strip,
    );
    /// The same with weight bytes of at most 63.
    fn dot_six<const CHAINS: usize>(
        self,
        sums: &mut [Self::Line; CHAINS],
        weights: &[Self::Line; STRIP_QUADS],
        x: &Strip,
    );
    /// The same with what [`IntegerSimd::signed_bytes`] made of weight bytes.
    fn dot_signed<const CHAINS: usize>(
        self,
        sums: &mut [Self::Line; CHAINS],
        weights: &[Self::Line; STRIP_QUADS],
        x: &Strip,
    );
    /// Sixteen bytes as i32.
    fn load_u8(self, from: &[u8; BLOCK_ROWS]) -> Self::Line;
    /// Sixteen signed bytes as i32.
    fn load_i8(self, from: &[u8; BLOCK_ROWS]) -> Self::Line;
    /// i32 to f32.
    fn to_float(self, a: Self::Line) -> <Self::Float as Simd>::Vector;
    /// Sixteen f32.
    fn load_f32(self, from: &[u8; 4 * BLOCK_ROWS]) -> <Self::Float as Simd>::Vector;
    /// Sixteen f16, widened exactly.
    fn load_f16(self, from: &[u8; 2 * BLOCK_ROWS]) -> <Self::Float as Simd>::Vector;
    /// Sixteen bf16, widened exactly.
    fn load_bf16(self, from: &[u8; 2 * BLOCK_ROWS]) -> <Self::Float as Simd>::Vector;
    /// Sixteen powers of two by their biased exponents, as
    /// [`ue8m0_to_f32`](crate::formats::scale::ue8m0_to_f32) widens them.
    fn load_ue8m0(self, from: &[u8; BLOCK_ROWS]) -> <Self::Float as Simd>::Vector;
}

/// The four activation codes of a strip's quad, as the dword that goes to every row.
#[inline(always)]
pub fn quad(x: &Strip, index: usize) -> i32 {
    let codes = &x[4 * index..4 * index + 4];
    i32::from_le_bytes([codes[0] as u8, codes[1] as u8, codes[2] as u8, codes[3] as u8])
}

/// Bits that make the powers of two of codes 0 and 255 what they are, beside the exponent: the
/// subnormal 2^-127 and NaN.
pub const UE8M0_ENDS: u32 = 0x0040_0000;

/// The scales of 16 rows: the first of `from`.
///
/// # Panics
/// If there are fewer.
#[inline(always)]
pub fn load_scales<S: IntegerSimd>(
    cpu: S,
    scale: ScaleType,
    from: &[u8],
) -> <S::Float as Simd>::Vector {
    const WHOLE: &str = "a block holds a scale of each of its 16 rows";
    match scale {
        ScaleType::F32 => cpu.load_f32(from.first_chunk().expect(WHOLE)),
        ScaleType::F16 => cpu.load_f16(from.first_chunk().expect(WHOLE)),
        ScaleType::Bf16 => cpu.load_bf16(from.first_chunk().expect(WHOLE)),
        ScaleType::Ue8m0 => cpu.load_ue8m0(from.first_chunk().expect(WHOLE)),
    }
}
