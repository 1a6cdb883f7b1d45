//! int3-g64: three bits in two planes, one scale per 64 columns of a row. Value = (code - 4) * scale.
//!
//! In a file, 64 columns of a row are 24 bytes: 16 with the two low bits of each code (as int2
//! has them), then 8 with the high bits, bit k of byte b being column 8b + k. The last group is
//! whole, its rest filled up with code 4.
//!
//! In a block, a step is 32 columns in three lines: two of low bits (columns 0 to 15 and 16 to 31,
//! laid out as int2), then one of high bits: bit 4m + k of byte j of a row's dword belongs to column
//! 16m + 4j + k, so that the same shift brings a quad's high bits beside its low ones.

use super::block::{BlockCode, FileCode, LINE_BYTES, Order, dword};
use super::codes::{CODES_MAX, pack_pairs_of_bits};
use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "int3-g64",
    file_bits: 3,
    activations: ActivationKind::Int8,
    code_max: 3,
    colibri_name: Some("int3-g64"),
};

/// Columns that share a scale.
pub const GROUP: usize = 64;

/// Bytes of a group in the file layout.
const FILE_GROUP_BYTES: usize = 24;

/// Three bits, the value plus 4.
pub struct Int3;

impl BlockCode for Int3 {
    const STEP_COLUMNS: usize = 32;
    const STEP_LINES: usize = 3;
    const ORDER: Order = Order::Fours;
    const ZERO_CODE: u8 = 4;
    const OFFSET: i32 = 4;
    const FACTOR: f32 = 1.0;

    #[inline(always)]
    fn get(step: &[u8], row: usize, column: usize) -> u8 {
        let (m, j, k) = (column / 16, column % 16 / 4, column % 4);
        let low = step[m * LINE_BYTES + dword(row) + j] >> (2 * k) & 3;
        let high = step[2 * LINE_BYTES + dword(row) + j] >> (4 * m + k) & 1;
        high << 2 | low
    }
    #[inline(always)]
    fn put(step: &mut [u8], row: usize, column: usize, code: u8) {
        let (m, j, k) = (column / 16, column % 16 / 4, column % 4);
        step[m * LINE_BYTES + dword(row) + j] |= (code & 3) << (2 * k);
        step[2 * LINE_BYTES + dword(row) + j] |= (code >> 2) << (4 * m + k);
    }
    #[inline(always)]
    fn value(code: u8) -> i32 {
        i32::from(code) - 4
    }
    #[inline(always)]
    fn pack(codes: &[u8], dwords: &mut [u8]) {
        // All low and all high bits at first: long loops become vectors.
        let (mut low, mut high) = ([0; CODES_MAX / 4], [0; CODES_MAX / 4]);
        pack_pairs_of_bits(codes, &mut low[..codes.len() / 4]);
        for (four, high) in codes.as_chunks::<4>().0.iter().zip(&mut high) {
            let four = u32::from_le_bytes(*four);
            *high = (four >> 2 & 1 | four >> 9 & 2 | four >> 16 & 4 | four >> 23 & 8) as u8;
        }
        let planes = low.as_chunks::<8>().0.iter().zip(high.as_chunks::<8>().0);
        for (out, (low, high)) in dwords.as_chunks_mut::<12>().0.iter_mut().zip(planes) {
            let high = u64::from_le_bytes(*high);
            out[..8].copy_from_slice(low);
            out[8..].copy_from_slice(&((high | high >> 28) as u32).to_le_bytes());
        }
    }
}

impl FileCode for Int3 {
    #[inline(always)]
    fn file_get(row: &[u8], column: usize) -> u8 {
        let (group, k) = (&row[column / GROUP * FILE_GROUP_BYTES..], column % GROUP);
        let low = group[k / 4] >> (k % 4 * 2) & 3;
        let high = group[16 + k / 8] >> (k % 8) & 1;
        high << 2 | low
    }
    #[inline(always)]
    fn file_put(row: &mut [u8], column: usize, code: u8) {
        let (group, k) = (&mut row[column / GROUP * FILE_GROUP_BYTES..], column % GROUP);
        group[k / 4] |= (code & 3) << (k % 4 * 2);
        group[16 + k / 8] |= (code >> 2) << (k % 8);
    }
    #[inline(always)]
    fn code(value: i32) -> u8 {
        (value + 4) as u8
    }
}
