//! What is in a block: the codes of its columns and its scales, one ggml type a time.
//!
//! [`GgmlBlock`] is implemented beside each format's table line. `lay_out` asks a block for its codes,
//! one a byte in the order of columns, and for its scales as the head of a compute block takes them
//! ([`super::super::head`]).

use super::GgmlType;
use crate::formats::BlockCode;

/// The most columns of a block.
pub const COLUMNS_MAX: usize = 256;

/// The most parts of a block that have a scale of their own.
pub const PARTS_MAX: usize = 16;

/// A block's scales.
#[derive(Clone, Copy, Default, Debug)]
pub struct BlockScales {
    /// The scale, little-endian; of one byte in the first.
    pub scale: [u8; 2],
    /// The minimum's scale, or the minimum: an f16 that is *added*.
    pub minimum: [u8; 2],
    /// The parts' scales, relative to the block's.
    pub parts: [u8; PARTS_MAX],
    /// The parts' minima, relative to the block's.
    pub minima: [u8; PARTS_MAX],
}

/// A block type of ggml.
pub trait GgmlBlock {
    /// The codes in the compute layout.
    type Codes: BlockCode;
    /// Number, name and sizes.
    const KIND: GgmlType;

    /// The code of every column, in order. `block` is [`GgmlType::block_bytes`] long, `codes`
    /// [`GgmlType::block_columns`].
    fn codes(block: &[u8], codes: &mut [u8]);
    /// The scales.
    fn scales(block: &[u8]) -> BlockScales;

    /// Where a run of columns from here on ends at the latest: with its block, or 256 columns on where
    /// blocks are short.
    #[inline(always)]
    fn run_end(column: usize) -> usize {
        match Self::KIND.block_columns() {
            COLUMNS_MAX => (column / COLUMNS_MAX + 1) * COLUMNS_MAX,
            _ => column + COLUMNS_MAX,
        }
    }
}

/// Column j and column j + 16 are the low and the high nibble of byte j: 32 columns.
#[inline(always)]
pub fn nibbles_of_halves(nibbles: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((byte, low), high) in nibbles[..16].iter().zip(low).zip(&mut high[..16]) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// The two bytes at a place.
#[inline(always)]
pub fn half_at(block: &[u8], place: usize) -> [u8; 2] {
    [block[place], block[place + 1]]
}

/// The four bytes at a place as a number.
#[inline(always)]
pub fn word_at(block: &[u8], place: usize) -> u32 {
    u32::from_le_bytes([block[place], block[place + 1], block[place + 2], block[place + 3]])
}
