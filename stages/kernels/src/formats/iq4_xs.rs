//! iq4_xs: ggml's super-blocks of 256 nibbles of iq4_nl's values, eight parts with scales of six bits.
//! Value = iq4_nl's value * (scale * (part's scale - 32)).
//!
//! A block is the f16 scale, two bytes with the high bits of the parts' scales (bits 2p and 2p + 1 are
//! part p's), four bytes with their low nibbles, then the nibbles, each part's as in iq4_nl. The compute
//! layout has the part's scale minus 32.

use super::ggml::blocks::{BlockScales, GgmlBlock, bytes_at, half_at, put_nibbles};
use super::ggml::{GgmlType, PART};
use super::iq4_nl::Iq4;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "iq4_xs",
    file_bits: 4,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Iq4;
    const KIND: GgmlType = GgmlType::Iq4Xs;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        for (part, codes) in codes.as_chunks_mut::<PART>().0.iter_mut().enumerate() {
            put_nibbles::<16>(bytes_at(block, 8 + 16 * part), codes);
        }
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        let high = u16::from_le_bytes(half_at(block, 2));
        let mut out = BlockScales { scale: half_at(block, 0), ..BlockScales::default() };
        for (part, scale) in out.parts[..8].iter_mut().enumerate() {
            let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
            *scale = (low | ((high >> (2 * part) & 3) as u8) << 4).wrapping_sub(32);
        }
        out
    }
}
