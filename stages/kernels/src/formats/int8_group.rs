//! int8-g32: signed bytes, one scale per 32 columns of a row. Value = code * scale.
//!
//! With f16 scales it is ggml's q8_0, whose block is the scale, then the 32 bytes.

use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, half_at};
use super::int8_row::Int8;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "int8-g32",
    file_bits: 8,
    activations: ActivationKind::Int8,
    code_max: 127,
    colibri_name: None,
};

/// Columns that share a scale.
pub const GROUP: usize = 32;

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Int8;
    const KIND: GgmlType = GgmlType::Q8_0;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        codes[..GROUP].copy_from_slice(&block[2..2 + GROUP]);
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        BlockScales { scale: half_at(block, 0), ..BlockScales::default() }
    }
}
