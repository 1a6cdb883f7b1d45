//! Weights of ggml's blocks, written column by column after ggml's own dequantisation
//! (`dequantize_row_*` in `ggml-quants.c`). Shared by the tests that lay blocks out.

use millstream_kernels::GgmlType;
use millstream_kernels::formats::f16::f16_to_f32;

/// The values of IQ4_NL's and IQ4_XS's nibbles.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of MXFP4's nibbles; half of its power of two goes with them.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn half(block: &[u8], place: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[place], block[place + 1]]))
}

/// Nibble of column j of 32: the low one of byte j, then the high one of byte j - 16.
fn nibble(bytes: &[u8], j: usize) -> u8 {
    if j < 16 { bytes[j] & 15 } else { bytes[j - 16] >> 4 }
}

/// Nibble of column j of 256, in runs of 64: the low ones of 32 bytes, then their high ones.
fn nibble_of_run(bytes: &[u8], j: usize) -> u8 {
    let byte = bytes[j / 64 * 32 + j % 32];
    if j % 64 < 32 { byte & 15 } else { byte >> 4 }
}

/// `get_scale_min_k4`.
fn six_bits(q: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        ((q[j + 4] & 15) | ((q[j - 4] >> 6) << 4), (q[j + 4] >> 4) | ((q[j] >> 6) << 4))
    }
}

/// The weight at a column of a row of blocks.
pub fn weight(kind: GgmlType, row: &[u8], column: usize) -> f32 {
    let (block, j) = (column / kind.block_columns(), column % kind.block_columns());
    let x = &row[block * kind.block_bytes()..][..kind.block_bytes()];
    let fifth = |from: usize, bit: usize| x[from + bit / 8] >> (bit % 8) & 1;
    match kind {
        GgmlType::Q4_0 => (f32::from(nibble(&x[2..], j)) - 8.0) * half(x, 0),
        GgmlType::Q4_1 => f32::from(nibble(&x[4..], j)) * half(x, 0) + half(x, 2),
        GgmlType::Q5_0 => (f32::from(nibble(&x[6..], j) | fifth(2, j) << 4) - 16.0) * half(x, 0),
        GgmlType::Q5_1 => {
            f32::from(nibble(&x[8..], j) | fifth(4, j) << 4) * half(x, 0) + half(x, 2)
        }
        GgmlType::Q8_0 => f32::from(x[2 + j] as i8) * half(x, 0),
        GgmlType::Q2K => {
            let (scale, q) = (x[j / 16], x[16 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3);
            half(x, 80) * f32::from(scale & 15) * f32::from(q) - half(x, 82) * f32::from(scale >> 4)
        }
        GgmlType::Q3K => {
            let (s, part) = (&x[96..108], j / 16);
            let low = if part < 8 { s[part] & 15 } else { s[part - 8] >> 4 };
            let scale = i32::from(low | (s[8 + part % 4] >> (part / 4 * 2) & 3) << 4) - 32;
            let q = i32::from(x[32 + j / 128 * 32 + j % 32] >> (j % 128 / 32 * 2) & 3);
            let missing = if x[j % 32] >> (j / 32) & 1 == 0 { 4 } else { 0 };
            half(x, 108) * scale as f32 * (q - missing) as f32
        }
        GgmlType::Q4K => {
            let (scale, minimum) = six_bits(&x[4..16], j / 32);
            let q = nibble_of_run(&x[16..], j);
            half(x, 0) * f32::from(scale) * f32::from(q) - half(x, 2) * f32::from(minimum)
        }
        GgmlType::Q5K => {
            let (scale, minimum) = six_bits(&x[4..16], j / 32);
            let q = nibble_of_run(&x[48..], j) + 16 * (x[16 + j % 32] >> (j / 32) & 1);
            half(x, 0) * f32::from(scale) * f32::from(q) - half(x, 2) * f32::from(minimum)
        }
        GgmlType::Q6K => {
            let (run, k) = (j / 128, j % 128);
            let byte = x[64 * run + k % 64];
            let low = if k < 64 { byte & 15 } else { byte >> 4 };
            let high = x[128 + 32 * run + k % 32] >> (k / 32 * 2) & 3;
            let q = i32::from(low | high << 4) - 32;
            half(x, 208) * f32::from(x[192 + j / 16] as i8) * q as f32
        }
        GgmlType::Iq4Nl => half(x, 0) * f32::from(IQ4[nibble(&x[2..], j) as usize]),
        GgmlType::Iq4Xs => {
            let part = j / 32;
            let low = x[4 + part / 2] >> (part % 2 * 4) & 15;
            let high = u16::from_le_bytes([x[2], x[3]]) >> (2 * part) & 3;
            let scale = i32::from(low) + 16 * i32::from(high) - 32;
            let value = IQ4[nibble(&x[8 + 16 * part..], j % 32) as usize];
            half(x, 0) * scale as f32 * f32::from(value)
        }
        GgmlType::Mxfp4 => {
            let power = if x[0] == 255 { f64::NAN } else { 2f64.powi(i32::from(x[0]) - 128) };
            f32::from(E2M1[nibble(&x[1..], j) as usize]) * power as f32
        }
        GgmlType::F32 => {
            let bytes = row[4 * column..4 * column + 4].try_into().expect("four bytes");
            f32::from_le_bytes(bytes)
        }
        GgmlType::F16 => half(row, 2 * column),
        GgmlType::Bf16 => {
            f32::from_bits(u32::from_le_bytes([0, 0, row[2 * column], row[2 * column + 1]]))
        }
        _ => panic!("{} isn't read", kind.name()),
    }
}
