//! q4_1: ggml's blocks of 32 nibbles with a scale and a minimum. Value = code * scale + minimum.
//!
//! A block is an f16 scale, an f16 minimum, then 16 bytes: byte j holds column j in its low nibble
//! and column j + 16 in its high one.

use super::block::{BlockCode, Order};
use super::codes::pack_nibbles;
use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, half_at, put_nibbles};
use super::int4_group::Int4;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "q4_1",
    file_bits: 4,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// Nibbles that are their own value.
pub struct Uint4;

impl BlockCode for Uint4 {
    const STEP_COLUMNS: usize = 8;
    const STEP_LINES: usize = 1;
    const ORDER: Order = Order::Pairs;
    const ZERO_CODE: u8 = 0;
    const OFFSET: i32 = 0;
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
        i32::from(code)
    }
    #[inline(always)]
    fn pack(codes: &[u8], out: &mut [u8]) {
        pack_nibbles(codes, out);
    }
}

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Uint4;
    const KIND: GgmlType = GgmlType::Q4_1;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        put_nibbles::<16>(bytes_at(block, 4), codes);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        BlockScales { scale, minimum, ..BlockScales::default() }
    }
}
