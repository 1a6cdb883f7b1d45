//! int8-row: signed bytes, one scale per row. Value = code * scale.

use super::block::{BlockCode, FileCode, Order, dword};
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "int8-row",
    file_bits: 8,
    activations: ActivationKind::Int8,
    code_max: 127,
    colibri_name: Some("int8-row"),
};

/// Bytes: the signed value in two's complement, in file and block alike.
pub struct Int8;

impl BlockCode for Int8 {
    const STEP_COLUMNS: usize = 4;
    const STEP_LINES: usize = 1;
    const ORDER: Order = Order::Plain;
    const ZERO_CODE: u8 = 0;
    const OFFSET: i32 = 128;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn get(step: &[u8], row: usize, column: usize) -> u8 {
        step[dword(row) + column]
    }
    #[inline(always)]
    fn put(step: &mut [u8], row: usize, column: usize, code: u8) {
        step[dword(row) + column] = code;
    }
    #[inline(always)]
    fn value(code: u8) -> i32 {
        i32::from(code as i8)
    }
    #[inline(always)]
    fn pack(codes: &[u8], dwords: &mut [u8]) {
        dwords.copy_from_slice(codes);
    }
}

impl FileCode for Int8 {
    #[inline(always)]
    fn file_get(row: &[u8], column: usize) -> u8 {
        row[column]
    }
    #[inline(always)]
    fn file_put(row: &mut [u8], column: usize, code: u8) {
        row[column] = code;
    }
    #[inline(always)]
    fn code(value: i32) -> u8 {
        value as i8 as u8
    }
}
