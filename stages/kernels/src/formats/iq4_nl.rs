//! iq4_nl: ggml's blocks of 32 nibbles that name one of 16 values. Value = [`VALUES`]`[code]` * scale.
//!
//! A block is an f16 scale, then 16 bytes: byte j holds column j in its low nibble and column j + 16 in
//! its high one.

use super::block::{BlockCode, Order};
use super::codes::pack_nibbles;
use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, half_at, put_nibbles};
use super::int4_group::Int4;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "iq4_nl",
    file_bits: 4,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// The value of every nibble.
pub const VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Nibbles that name one of [`VALUES`]. None means zero: what fills up rows and columns is the least.
pub struct Iq4;

impl BlockCode for Iq4 {
    const STEP_COLUMNS: usize = 8;
    const STEP_LINES: usize = 1;
    const ORDER: Order = Order::Pairs;
    const ZERO_CODE: u8 = 8;
    const OFFSET: i32 = 128;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn get(step: &[u8], row: usize, column: usize) -> u8 {
        Int4::get(step, row, column)
    }
    #[inline(always)]
    fn put(step: &mut [u8], row: usize, column: usize, code: u8) {
        Int4::put(step, row, column, code);
    }
    #[inline(always)]
    fn value(code: u8) -> i32 {
        i32::from(VALUES[code as usize])
    }
    #[inline(always)]
    fn pack(codes: &[u8], out: &mut [u8]) {
        pack_nibbles(codes, out);
    }
}

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Iq4;
    const KIND: GgmlType = GgmlType::Iq4Nl;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        put_nibbles::<16>(bytes_at(block, 2), codes);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        BlockScales { scale: half_at(block, 0), ..BlockScales::default() }
    }
}
