//! int4-g64 and its like: nibbles, one scale per group of 32 to 256 columns of a row.
//!
//! Value = (nibble - 8) * scale. Byte b of a row holds column 2b in its low nibble and column
//! 2b + 1 in its high one; a row takes whole bytes.
//!
//! In groups of 32 with f16 scales it is ggml's q4_0, whose block is the scale, then 16 bytes: byte j
//! holds column j in its low nibble and column j + 16 in its high one.

use super::block::{BlockCode, FileCode, Order, dword};
use super::codes::pack_nibbles;
use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, half_at, put_nibbles};
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "int4-gN",
    file_bits: 4,
    activations: ActivationKind::Int8,
    code_max: 7,
    colibri_name: Some("int4-grouped"),
};

/// Nibbles, the value plus 8.
pub struct Int4;

impl BlockCode for Int4 {
    const STEP_COLUMNS: usize = 8;
    const STEP_LINES: usize = 1;
    const ORDER: Order = Order::Pairs;
    const ZERO_CODE: u8 = 8;
    const OFFSET: i32 = 8;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn get(step: &[u8], row: usize, column: usize) -> u8 {
        Self::file_get(&step[dword(row)..], column)
    }
    #[inline(always)]
    fn put(step: &mut [u8], row: usize, column: usize, code: u8) {
        Self::file_put(&mut step[dword(row)..], column, code);
    }
    #[inline(always)]
    fn value(code: u8) -> i32 {
        i32::from(code) - 8
    }
    #[inline(always)]
    fn pack(codes: &[u8], dwords: &mut [u8]) {
        pack_nibbles(codes, dwords);
    }
}

impl FileCode for Int4 {
    #[inline(always)]
    fn file_get(row: &[u8], column: usize) -> u8 {
        row[column / 2] >> (column % 2 * 4) & 15
    }
    #[inline(always)]
    fn file_put(row: &mut [u8], column: usize, code: u8) {
        row[column / 2] |= code << (column % 2 * 4);
    }
    #[inline(always)]
    fn code(value: i32) -> u8 {
        (value + 8) as u8
    }
}

/// A block of ggml's q4_0.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Int4;
    const KIND: GgmlType = GgmlType::Q4_0;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        put_nibbles::<16>(bytes_at(block, 2), codes);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        BlockScales { scale: half_at(block, 0), ..BlockScales::default() }
    }
}
