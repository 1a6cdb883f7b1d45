//! int2-row: two bits, one scale per row. Value = (code - 2) * scale.
//!
//! Byte b of a row holds columns 4b to 4b + 3, the lowest bits first.

use super::block::{BlockCode, FileCode, Order, dword};
use super::codes::pack_pairs_of_bits;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "int2-row",
    file_bits: 2,
    activations: ActivationKind::Int8,
    code_max: 1,
    colibri_name: Some("int2-row"),
};

/// Two bits, the value plus 2.
pub struct Int2;

impl BlockCode for Int2 {
    const STEP_COLUMNS: usize = 16;
    const STEP_LINES: usize = 1;
    const ORDER: Order = Order::Fours;
    const ZERO_CODE: u8 = 2;
    const OFFSET: i32 = 2;
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
        i32::from(code) - 2
    }
    #[inline(always)]
    fn pack(codes: &[u8], dwords: &mut [u8]) {
        pack_pairs_of_bits(codes, dwords);
    }
}

impl FileCode for Int2 {
    #[inline(always)]
    fn file_get(row: &[u8], column: usize) -> u8 {
        row[column / 4] >> (column % 4 * 2) & 3
    }
    #[inline(always)]
    fn file_put(row: &mut [u8], column: usize, code: u8) {
        row[column / 4] |= code << (column % 4 * 2);
    }
    #[inline(always)]
    fn code(value: i32) -> u8 {
        (value + 2) as u8
    }
}
