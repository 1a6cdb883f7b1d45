//! q5_k: ggml's super-blocks of 256 codes of five bits, eight parts as in q4_k.
//! Value = code * (scale * part's scale) - minimum * part's minimum.
//!
//! A block starts as one of q4_k; then come 32 bytes of high bits, bit p of byte j being that of part
//! p's column j, and the nibbles as q4_k has them.

use super::five::Uint5;
use super::ggml::blocks::{BlockScales, GgmlBlock, add_bits, bytes_at};
use super::ggml::{GgmlType, PART};
use super::q4_k::{unpack_nibbles, unpack_sixes};
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "q5_k",
    file_bits: 5,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Uint5;
    const KIND: GgmlType = GgmlType::Q5K;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        unpack_nibbles(block, 48, codes);
        let high = bytes_at(block, 16);
        for (part, codes) in codes.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
            add_bits(&high, part as u32, 1, 4, codes);
        }
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        unpack_sixes(block)
    }
}
