//! mxfp4: OCP Microscaling FP4. E2M1 nibbles, one power of two per 32 columns of a row.
//!
//! A nibble is 1 sign, 2 exponent bits with bias 1, 1 mantissa bit (OCP MX specification, section
//! 5.3.3): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Kernels count in halves, so that values
//! are small integers; the scale is halved for it, exactly. Nibbles lie as those of int4 do.
//!
//! ggml's block is the power of two, then 16 bytes: byte j holds column j in its low nibble and column
//! j + 16 in its high one. Code 255 is NaN, as the specification has it, where ggml has 2^127.

use super::block::{BlockCode, FileCode, Order};
use super::codes::pack_nibbles;
use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, put_nibbles};
use super::int4_group::Int4;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "mxfp4",
    file_bits: 4,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: Some("mxfp4"),
};

/// Columns that share a scale.
pub const GROUP: usize = 32;

/// Twice the value of every nibble.
pub const HALVES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// E2M1 nibbles.
pub struct E2m1;

impl BlockCode for E2m1 {
    const STEP_COLUMNS: usize = 8;
    const STEP_LINES: usize = 1;
    const ORDER: Order = Order::Pairs;
    const ZERO_CODE: u8 = 0;
    const OFFSET: i32 = 12;
    const FACTOR: f32 = 0.5;

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
        i32::from(HALVES[code as usize])
    }
    #[inline(always)]
    fn pack(codes: &[u8], dwords: &mut [u8]) {
        pack_nibbles(codes, dwords);
    }
}

impl FileCode for E2m1 {
    #[inline(always)]
    fn file_get(row: &[u8], column: usize) -> u8 {
        Int4::file_get(row, column)
    }
    #[inline(always)]
    fn file_put(row: &mut [u8], column: usize, code: u8) {
        Int4::file_put(row, column, code);
    }
    /// The nearest code of a number of halves; ties go to the smaller magnitude.
    #[inline(always)]
    fn code(value: i32) -> u8 {
        let nearest = (0..8u8).min_by_key(|&code| (Self::value(code) - value.abs()).abs());
        let code = nearest.unwrap_or(0);
        if value < 0 && code > 0 { code | 8 } else { code }
    }
}

/// A block of ggml's mxfp4.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = E2m1;
    const KIND: GgmlType = GgmlType::Mxfp4;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        put_nibbles::<16>(bytes_at(block, 1), codes);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        BlockScales { scale: [block[0], 0], ..BlockScales::default() }
    }
}
