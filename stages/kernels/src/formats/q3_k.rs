//! q3_k: ggml's super-blocks of 256 codes of three bits, sixteen parts with scales of six bits.
//! Value = (code - 4) * (scale * (part's scale - 32)).
//!
//! A block is 32 bytes of high bits (bit p of byte j is that of column 32p + j), 64 bytes of low bits as
//! q2_k has them, twelve bytes of parts' scales, and the f16 scale. Eight of the twelve bytes hold the
//! low nibbles, first of parts 0 to 7, above them of parts 8 to 15; the pairs of bits of byte j of the
//! last four are the high bits of parts j, j + 4, j + 8 and j + 12. The compute layout has the part's scale
//! minus 32, and codes as int3 has them.

use super::ggml::GgmlType;
use super::ggml::blocks::{BlockScales, GgmlBlock, add_bits, bytes_at, half_at, word_at};
use super::int3_group::Int3;
use super::q2_k::unpack_pairs_of_bits;
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "q3_k",
    file_bits: 3,
    activations: ActivationKind::Int8,
    code_max: 0,
    colibri_name: None,
};

/// A block.
pub struct Block;

impl GgmlBlock for Block {
    type Codes = Int3;
    const KIND: GgmlType = GgmlType::Q3K;

    #[inline(always)]
    fn codes(block: &[u8], codes: &mut [u8]) {
        unpack_pairs_of_bits(block, 32, codes);
        let high = bytes_at(block, 0);
        for (run, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            add_bits(&high, run as u32, 1, 2, codes);
        }
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> BlockScales {
        let (first, second, high) = (word_at(block, 96), word_at(block, 100), word_at(block, 104));
        let mut parts = [0; 16];
        let low = [first, second, first >> 4, second >> 4];
        for (i, (low, parts)) in low.into_iter().zip(parts.as_chunks_mut::<4>().0).enumerate() {
            let six = low & 0x0f0f_0f0f | (high >> (2 * i) & 0x0303_0303) << 4;
            *parts = six.to_le_bytes().map(|scale| scale.wrapping_sub(32));
        }
        BlockScales { scale: half_at(block, 108), parts, ..BlockScales::default() }
    }
}
