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

/// The bytes at a place, copied: loops over a copy become vectors, as nothing else can change it.
#[inline(always)]
pub fn bytes_at<const N: usize>(block: &[u8], place: usize) -> [u8; N] {
    *block[place..].first_chunk().expect("a whole block")
}

/// Column j and column j + `N` are the low and the high nibble of byte j.
#[inline(always)]
pub fn put_nibbles<const N: usize>(bytes: [u8; N], codes: &mut [u8]) {
    let (mut low, mut high) = ([0; N], [0; N]);
    for j in 0..N {
        low[j] = bytes[j] & 15;
        high[j] = bytes[j] >> 4;
    }
    codes[..N].copy_from_slice(&low);
    codes[N..2 * N].copy_from_slice(&high);
}

/// Adds bits to 32 codes: those of `high` from bit `from` on that are in `mask`, moved to bit `to`.
#[inline(always)]
pub fn add_bits(high: &[u8; 32], from: u32, mask: u8, to: u32, codes: &mut [u8]) {
    let mut sum = [0; 32];
    sum.copy_from_slice(&codes[..32]);
    for j in 0..32 {
        sum[j] |= (high[j] >> from & mask) << to;
    }
    codes[..32].copy_from_slice(&sum);
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
