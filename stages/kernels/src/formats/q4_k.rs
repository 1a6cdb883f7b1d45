//! q4_k: ggml's super-blocks of 256 nibbles, eight parts with scales and minima of six bits.
//! Value = code * (scale * part's scale) - minimum * part's minimum.
//!
//! A block is an f16 scale, an f16 for the minima, twelve bytes of parts' scales and minima
//! ([`unpack_sixes`]), then 128 bytes: in each run of 32, byte j holds column j of one part in its low
//! nibble and column j of the next part in its high one.

use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, half_at, put_nibbles, word_at};
use super::ggml::{GgmlType, PART};
use super::head::negated;
use super::q4_1::Uint4;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "q4_k",
    file_bits: 4,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Uint4;
    const KIND: GgmlType = GgmlType::Q4K;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        unpack_nibbles(block, 16, codes);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        unpack_sixes(block)
    }
}

/// The nibbles of a block's eight parts, from a place on.
#[inline(always)]
pub fn unpack_nibbles(block: &[u8], place: usize, codes: &mut [u8]) {
    for (pair, codes) in codes.as_chunks_mut::<{ 2 * PART }>().0.iter_mut().enumerate() {
        put_nibbles::<PART>(bytes_at(block, place + PART * pair), codes);
    }
}

/// Scales and minima of a block that starts with two f16 and twelve bytes: four bytes with the scales
/// of parts 0 to 3 in their low six bits, four with their minima, four with the low nibbles of the other
/// parts' scales and minima, whose two high bits are at the top of the first eight bytes.
#[inline(always)]
pub fn unpack_sixes(block: &[u8]) -> BlockScales {
    const SIXES: u32 = 0x3f3f_3f3f;
    const NIBBLES: u32 = 0x0f0f_0f0f;
    const HIGH: u32 = 0x3030_3030;
    let (scales, minima, both) = (word_at(block, 4), word_at(block, 8), word_at(block, 12));
    let mut out = BlockScales {
        scale: half_at(block, 0),
        minimum: negated(half_at(block, 2)),
        ..BlockScales::default()
    };
    out.parts[..4].copy_from_slice(&(scales & SIXES).to_le_bytes());
    out.parts[4..8].copy_from_slice(&(both & NIBBLES | scales >> 2 & HIGH).to_le_bytes());
    out.minima[..4].copy_from_slice(&(minima & SIXES).to_le_bytes());
    out.minima[4..8].copy_from_slice(&(both >> 4 & NIBBLES | minima >> 2 & HIGH).to_le_bytes());
    out
}
