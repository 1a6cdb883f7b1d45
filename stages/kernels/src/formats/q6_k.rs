//! q6_k: ggml's super-blocks of 256 codes of six bits, sixteen parts with signed bytes as scales.
//! Value = (code - 32) * (scale * part's scale).
//!
//! A ggml block is 128 bytes of low nibbles, 64 of high bits, 16 parts' scales, and the f16 scale.
//! Each half of it, 128 columns, has 64 and 32 of these bytes: nibble byte j holds column j and column
//! j + 64, and the four pairs of bits of byte j are those of columns j, j + 32, j + 64 and j + 96.
//!
//! In the compute layout a step is 16 columns in three lines: two of nibbles (as int4 has them), then
//! one of high bits: bits 2i and 2i + 1 of byte j of a row's dword belong to byte j of quad i.

use super::block::{BlockCode, LINE_BYTES, Order, dword};
use super::codes::{CODES_MAX, pack_nibbles};
use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, add_bits, bytes_at, half_at, put_nibbles};
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "q6_k",
    file_bits: 6,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// Six bits, the value plus 32.
pub struct Int6;

/// The byte and the first bit of a column of a step in its line of high bits.
const fn high_place(column: usize) -> (usize, usize) {
    (column % 8 / 2, 2 * (column / 8 * 2 + column % 2))
}

impl BlockCode for Int6 {
    const STEP_COLUMNS: usize = 16;
    const STEP_LINES: usize = 3;
    const ORDER: Order = Order::Pairs;
    const ZERO_CODE: u8 = 32;
    const OFFSET: i32 = 32;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn get(step: &[u8], row: usize, column: usize) -> u8 {
        let (byte, bit) = high_place(column);
        let low = step[column / 8 * LINE_BYTES + dword(row) + column % 8 / 2];
        let high = step[2 * LINE_BYTES + dword(row) + byte] >> bit & 3;
        low >> (column % 2 * 4) & 15 | high << 4
    }
    #[inline(always)]
    fn put(step: &mut [u8], row: usize, column: usize, code: u8) {
        let (byte, bit) = high_place(column);
        let low = &mut step[column / 8 * LINE_BYTES + dword(row) + column % 8 / 2];
        *low |= (code & 15) << (column % 2 * 4);
        step[2 * LINE_BYTES + dword(row) + byte] |= (code >> 4) << bit;
    }
    #[inline(always)]
    fn value(code: u8) -> i32 {
        i32::from(code) - 32
    }
    #[inline(always)]
    fn pack(codes: &[u8], dwords: &mut [u8]) {
        // All nibbles and all high bits at first: long loops become vectors.
        let (mut low, mut high) = ([0; CODES_MAX / 2], [0; CODES_MAX / 2]);
        pack_nibbles(codes, &mut low[..codes.len() / 2]);
        for (pair, high) in codes.as_chunks::<2>().0.iter().zip(&mut high) {
            let pair = u16::from_le_bytes(*pair);
            *high = (pair >> 4 & 3 | pair >> 10 & 12) as u8;
        }
        let planes = low.as_chunks::<8>().0.iter().zip(high.as_chunks::<8>().0);
        for (out, (low, high)) in dwords.as_chunks_mut::<12>().0.iter_mut().zip(planes) {
            let high = u64::from_le_bytes(*high);
            out[..8].copy_from_slice(low);
            out[8..].copy_from_slice(&((high | high >> 28) as u32).to_le_bytes());
        }
    }
}

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Int6;
    const KIND: GgmlType = GgmlType::Q6K;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        for (half, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            put_nibbles::<64>(bytes_at(block, 64 * half), codes);
            let high = bytes_at(block, 128 + 32 * half);
            for (pair, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                add_bits(&high, 2 * pair as u32, 3, 4, codes);
            }
        }
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        BlockScales {
            scale: half_at(block, 208),
            parts: bytes_at(block, 192),
            ..BlockScales::default()
        }
    }
}
