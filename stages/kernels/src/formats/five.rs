//! Codes of five bits in two planes: nibbles and high bits.
//!
//! A step is 32 columns in five lines: four of nibbles (as int4 has them), then one of high bits: bit i
//! of byte j of a row's dword belongs to byte j of quad i, so that one shift brings a quad's high bits
//! to their place.

use super::block::{BlockCode, LINE_BYTES, Order, dword};
use super::codes::{eight, low_bytes, pack_nibbles};

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
    fn pack(codes: &[u8], out: &mut [u8]) {
        let steps = codes.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<20>().0);
        for (codes, out) in steps {
            let (low, high) = out.split_at_mut(16);
            pack_nibbles(codes, low);
            let mut bits = 0;
            for (line, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
                // Bit 0 of byte 2j, then bit 0 of byte 2j + 1, beside each other in 16-bit lane j.
                let single = eight(codes, 4) & 0x0101_0101_0101_0101;
                bits |= low_bytes((single | single >> 7) & 0x0003_0003_0003_0003) << (2 * line);
            }
            high.copy_from_slice(&bits.to_le_bytes());
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
