//! q2_k: ggml's super-blocks of 256 codes of two bits, sixteen parts with scales and minima of four bits.
//! Value = code * (scale * part's scale) - minimum * part's minimum.
//!
//! A block is 16 bytes with a part's scale in the low nibble and its minimum in the high one, 64 bytes of
//! codes, an f16 scale and an f16 for the minima. Each half of the codes, 128 columns, has 32 of the
//! bytes: the pairs of bits of byte j are those of columns j, j + 32, j + 64 and j + 96.

use super::block::{BlockCode, Order};
use super::codes::pack_pairs_of_bits;
use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, half_at};
use super::head::negated;
use super::int2_row::Int2;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "q2_k",
    file_bits: 2,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// Two bits that are their own value.
pub struct Uint2;

impl BlockCode for Uint2 {
    const STEP_COLUMNS: usize = 16;
    const STEP_LINES: usize = 1;
    const ORDER: Order = Order::Fours;
    const ZERO_CODE: u8 = 0;
    const OFFSET: i32 = 0;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn get(step: &[u8], row: usize, column: usize) -> u8 {
        Int2::get(step, row, column)
    }
    #[inline(always)]
    fn put(step: &mut [u8], row: usize, column: usize, code: u8) {
        Int2::put(step, row, column, code);
    }
    #[inline(always)]
    fn value(code: u8) -> i32 {
        i32::from(code)
    }
    #[inline(always)]
    fn pack(codes: &[u8], out: &mut [u8]) {
        pack_pairs_of_bits(codes, out);
    }
}

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Uint2;
    const KIND: GgmlType = GgmlType::Q2K;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        unpack_pairs_of_bits(block, 16, codes);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        BlockScales {
            scale: half_at(block, 80),
            minimum: negated(half_at(block, 82)),
            parts: bytes_at(block, 0),
            ..BlockScales::default()
        }
    }
}

/// The pairs of bits of a block of 256 columns, from a place on.
#[inline(always)]
pub fn unpack_pairs_of_bits(block: &[u8], place: usize, codes: &mut [u8]) {
    for (half, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let bytes: [u8; 32] = bytes_at(block, place + 32 * half);
        for (pair, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let mut out = [0; 32];
            for j in 0..32 {
                out[j] = bytes[j] >> (2 * pair) & 3;
            }
            *codes = out;
        }
    }
}
