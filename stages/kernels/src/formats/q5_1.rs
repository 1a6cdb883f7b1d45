//! q5_1: ggml's blocks of 32 codes of five bits with a scale and a minimum. Value = code * scale +
//! minimum.
//!
//! A block is an f16 scale and an f16 minimum, then as in q5_0: four bytes of high bits, 16 of nibbles.

use super::five::{Uint5, add_high_bits};
use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, half_at, put_nibbles, word_at};
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "q5_1",
    file_bits: 5,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Uint5;
    const KIND: GgmlType = GgmlType::Q5_1;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        put_nibbles::<16>(bytes_at(block, 8), codes);
        add_high_bits(word_at(block, 4), codes);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        BlockScales { scale, minimum, ..BlockScales::default() }
    }
}
