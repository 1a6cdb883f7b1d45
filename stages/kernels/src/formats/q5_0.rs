//! q5_0: ggml's blocks of 32 codes of five bits with a scale. Value = (code - 16) * scale.
//!
//! A block is an f16 scale, four bytes with the codes' high bits (bit j is column j's), then 16 bytes of
//! nibbles: byte j holds column j in its low nibble and column j + 16 in its high one.

use super::five::{Int5, add_high_bits};
use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, half_at, put_nibbles, word_at};
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "q5_0",
    file_bits: 5,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Int5;
    const KIND: GgmlType = GgmlType::Q5_0;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        put_nibbles::<16>(bytes_at(block, 6), codes);
        add_high_bits(word_at(block, 2), codes);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        BlockScales { scale: half_at(block, 0), ..BlockScales::default() }
    }
}
