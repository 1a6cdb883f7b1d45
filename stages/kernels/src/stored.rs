//! The weight formats found in files, and how they widen to f32 when they are loaded.
//!
//! A checkpoint reader names the [`StoredFormat`] of a tensor, and the loader or the converter
//! widens its bytes. F32 and bf16 are computed on as they are; the rest becomes f32. Bytes are
//! little-endian and may lie at any address. To add a format: a variant, a line in
//! [`STORED_FORMATS`], and what the compiler then asks for.

use crate::format::{WeightFormat, bf16_to_f32};

/// How a tensor's weights lie in a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoredFormat {
    /// IEEE 754 single.
    F32,
    /// IEEE 754 half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// OCP FP8 E4M3 (no infinities, NaN is 0x7f and 0xff), one f32 scale per 128 x 128 block.
    Fp8E4M3Block128,
    /// Signed bytes, one f32 scale per row.
    Int8Row,
}

/// Every [`StoredFormat`].
pub const STORED_FORMATS: &[StoredFormat] = &[
    StoredFormat::F32,
    StoredFormat::F16,
    StoredFormat::Bf16,
    StoredFormat::Fp8E4M3Block128,
    StoredFormat::Int8Row,
];

/// Rows and columns of an fp8 block that shares a scale.
const FP8_BLOCK: usize = 128;

impl StoredFormat {
    /// Bytes of one weight, scales not counted.
    pub const fn bytes_per_weight(self) -> usize {
        match self {
            StoredFormat::F32 => 4,
            StoredFormat::F16 | StoredFormat::Bf16 => 2,
            StoredFormat::Fp8E4M3Block128 | StoredFormat::Int8Row => 1,
        }
    }

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            StoredFormat::F32 => "f32",
            StoredFormat::F16 => "f16",
            StoredFormat::Bf16 => "bf16",
            StoredFormat::Fp8E4M3Block128 => "fp8-e4m3-block128",
            StoredFormat::Int8Row => "int8-row",
        }
    }

    /// The format that kernels compute on once it is loaded.
    pub const fn kernel_format(self) -> WeightFormat {
        match self {
            StoredFormat::Bf16 => WeightFormat::Bf16,
            StoredFormat::F32
            | StoredFormat::F16
            | StoredFormat::Fp8E4M3Block128
            | StoredFormat::Int8Row => WeightFormat::F32,
        }
    }

    /// How many f32 scales a `rows` x `cols` matrix comes with.
    pub const fn scale_count(self, rows: usize, cols: usize) -> usize {
        match self {
            StoredFormat::F32 | StoredFormat::F16 | StoredFormat::Bf16 => 0,
            StoredFormat::Fp8E4M3Block128 => rows.div_ceil(FP8_BLOCK) * cols.div_ceil(FP8_BLOCK),
            StoredFormat::Int8Row => rows,
        }
    }

    /// Widens a row-major `rows` x `cols` matrix to f32.
    ///
    /// F32, f16 and bf16 are exact (f16 with its subnormals, infinities and NaN). Fp8 is the exact
    /// value times `scales[(r / 128) * ceil(cols / 128) + c / 128]`, int8 is the byte times
    /// `scales[r]`, each rounded once to f32.
    ///
    /// # Panics
    /// If `bytes`, `scales` or `out` does not have the length that the shape asks for; readers
    /// check a file's shapes before they come here.
    pub fn widen(self, bytes: &[u8], scales: &[f32], rows: usize, cols: usize, out: &mut [f32]) {
        assert_eq!(out.len(), rows * cols, "{}: output of {rows} x {cols}", self.name());
        assert_eq!(bytes.len(), out.len() * self.bytes_per_weight(), "{}: bytes", self.name());
        assert_eq!(scales.len(), self.scale_count(rows, cols), "{}: scales", self.name());
        match self {
            StoredFormat::F32 => widen_each(bytes, out, f32::from_le_bytes),
            StoredFormat::F16 => widen_each(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
            StoredFormat::Bf16 => widen_each(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
            StoredFormat::Fp8E4M3Block128 => widen_fp8(bytes, scales, cols, out),
            StoredFormat::Int8Row => widen_int8(bytes, scales, cols, out),
        }
    }
}

fn widen_each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (weights, _) = bytes.as_chunks::<N>();
    for (out, weight) in out.iter_mut().zip(weights) {
        *out = value(*weight);
    }
}

fn widen_fp8(bytes: &[u8], scales: &[f32], cols: usize, out: &mut [f32]) {
    if cols == 0 {
        return;
    }
    let blocks = cols.div_ceil(FP8_BLOCK);
    for (r, (out, bytes)) in out.chunks_mut(cols).zip(bytes.chunks(cols)).enumerate() {
        let scales = &scales[r / FP8_BLOCK * blocks..][..blocks];
        let parts = out.chunks_mut(FP8_BLOCK).zip(bytes.chunks(FP8_BLOCK));
        for ((out, bytes), scale) in parts.zip(scales) {
            for (out, byte) in out.iter_mut().zip(bytes) {
                *out = FP8_VALUES[*byte as usize] * scale;
            }
        }
    }
}

fn widen_int8(bytes: &[u8], scales: &[f32], cols: usize, out: &mut [f32]) {
    if cols == 0 {
        return;
    }
    for ((out, bytes), scale) in out.chunks_mut(cols).zip(bytes.chunks(cols)).zip(scales) {
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = f32::from(*byte as i8) * scale;
        }
    }
}

/// The value of every fp8 code.
static FP8_VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = fp8_e4m3_to_f32(code as u8);
        code += 1;
    }
    values
};

/// Widens an OCP FP8 E4M3 code (1 sign, 4 exponent bits with bias 7, 3 mantissa bits); exact.
/// No infinities; 0x7f and 0xff are NaN. (OFP8 specification, revision 1.0, section 5.)
pub const fn fp8_e4m3_to_f32(code: u8) -> f32 {
    let sign = (code as u32 >> 7) << 31;
    let magnitude = code as u32 & 0x7f;
    if magnitude == 0x7f {
        return f32::from_bits(sign | 0x7fc0_0000);
    }
    let value = if magnitude < 8 {
        // Subnormal: multiples of 2^-9.
        magnitude as f32 * (1.0 / 512.0)
    } else {
        f32::from_bits((magnitude << 20) + ((127 - 7) << 23))
    };
    f32::from_bits(sign | value.to_bits())
}

/// Widens an IEEE 754 half; exact, NaN keeps sign and payload.
pub const fn f16_to_f32(half: u16) -> f32 {
    let sign = (half as u32 >> 15) << 31;
    let magnitude = half as u32 & 0x7fff;
    let bits = if magnitude >= 0x7c00 {
        // Infinity or NaN: the largest exponent, the mantissa moved up.
        0x7f80_0000 | (magnitude & 0x3ff) << 13
    } else if magnitude >= 0x400 {
        (magnitude << 13) + ((127 - 15) << 23)
    } else {
        // Subnormal or zero: multiples of 2^-24.
        (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits()
    };
    f32::from_bits(sign | bits)
}

/// Rounds a row to int8: (codes, scale) with `scale = max |x| / 127` and codes `x / scale`
/// rounded half to even, within ±127. A row of zeros (or one so small that the scale rounds to 0)
/// gives scale 0 and zeros. The values must be finite.
pub fn round_int8_row(row: &[f32]) -> (Vec<i8>, f32) {
    let largest = row.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let scale = largest / 127.0;
    if scale == 0.0 {
        return (vec![0; row.len()], 0.0);
    }
    let code = |x: &f32| (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
    (row.iter().map(code).collect(), scale)
}
