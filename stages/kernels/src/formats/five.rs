//! Codes of five bits in two planes: nibbles and high bits.
//!
//! A step is 32 columns in five lines: four of nibbles (as int4 has them), then one of high bits: bit i
//! of byte j of a row's dword belongs to byte j of quad i, so that one shift brings a quad's high bits
//! to their place.

use super::block::{BlockCode, LINE_BYTES, Order, dword};
use super::codes::{CODES_MAX, pack_nibbles, words};

/// Five bits; a value is the code minus `OFFSET`.
pub struct Five<const OFFSET: i32>;

/// Five bits, the value plus 16.
pub type Int5 = Five<16>;

/// Five bits that are their own value.
pub type Uint5 = Five<0>;

/// The byte and the bit of a column of a step in its line of high bits.
const fn high_place(column: usize) -> (usize, usize) {
    (column % 8 / 2, column / 8 * 2 + column % 2)
}

impl<const OFFSET: i32> BlockCode for Five<OFFSET> {
    const STEP_COLUMNS: usize = 32;
    const STEP_LINES: usize = 5;
    const ORDER: Order = Order::Pairs;
    const ZERO_CODE: u8 = OFFSET as u8;
    const OFFSET: i32 = OFFSET;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn get(step: &[u8], row: usize, column: usize) -> u8 {
        let (byte, bit) = high_place(column);
        let low = step[column / 8 * LINE_BYTES + dword(row) + column % 8 / 2];
        let high = step[4 * LINE_BYTES + dword(row) + byte] >> bit & 1;
        low >> (column % 2 * 4) & 15 | high << 4
    }
    #[inline(always)]
    fn put(step: &mut [u8], row: usize, column: usize, code: u8) {
        let (byte, bit) = high_place(column);
        let low = &mut step[column / 8 * LINE_BYTES + dword(row) + column % 8 / 2];
        *low |= (code & 15) << (column % 2 * 4);
        step[4 * LINE_BYTES + dword(row) + byte] |= (code >> 4) << bit;
    }
    #[inline(always)]
    fn value(code: u8) -> i32 {
        i32::from(code) - OFFSET
    }
    #[inline(always)]
    fn pack(codes: &[u8], dwords: &mut [u8]) {
        // All nibbles and all high bits at first: long loops become vectors.
        let (mut low, mut high) = ([0; CODES_MAX / 2], [0; CODES_MAX / 2]);
        pack_nibbles(codes, &mut low[..codes.len() / 2]);
        for (pair, high) in codes.as_chunks::<2>().0.iter().zip(&mut high) {
            let pair = u16::from_le_bytes(*pair);
            *high = (pair >> 4 & 1 | pair >> 11 & 2) as u8;
        }
        let planes = low.as_chunks::<16>().0.iter().zip(high.as_chunks::<16>().0);
        for (out, (low, high)) in dwords.as_chunks_mut::<20>().0.iter_mut().zip(planes) {
            // Byte j of line c's pairs of bits: those of quads 2c and 2c + 1.
            let [a, b, c, d] = words(*high);
            out[..16].copy_from_slice(low);
            out[16..].copy_from_slice(&(a | b << 2 | c << 4 | d << 6).to_le_bytes());
        }
    }
}

/// Spreads the 32 high bits (column j's at bit j) over codes that hold the nibbles.
#[inline(always)]
pub fn add_high_bits(bits: u32, codes: &mut [u8]) {
    for (bits, codes) in bits.to_le_bytes().into_iter().zip(codes.as_chunks_mut::<8>().0) {
        // A copy of the bits in each byte, bit k of byte k kept, and any of them made 0x10.
        let spread = u64::from(bits).wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let ones = (spread + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101;
        *codes = (u64::from_le_bytes(*codes) | ones << 4).to_le_bytes();
    }
}
