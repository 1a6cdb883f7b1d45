//! fp8-e4m3-b128: OCP FP8 E4M3 (no infinities, NaN is 0x7f and 0xff), one scale per 128 x 128 block.
//!
//! A weight's value is the code's times the block's scale, rounded once to f32; sums follow the
//! f32 rule. In the compute layout a row is its scales (one per 128 columns, copied to each of the
//! block's rows: 3 % more bytes, and a row can be cut out anywhere), then its codes, each part
//! filled up with zeros to a multiple of 16 bytes.

use super::{ActivationKind, FormatInfo, ScaleType};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "fp8-e4m3-b128",
    file_bits: 8,
    activations: ActivationKind::F32,
    code_max: 0,
    colibri_name: Some("fp8-e4m3-b128"),
};

/// Rows and columns of a block that shares a scale.
pub const BLOCK: usize = 128;

/// Alignment of the parts of a row.
const PART_BYTES: usize = 16;

/// Bytes of the scales in front of a row.
pub const fn row_scale_bytes(scale: ScaleType, cols: usize) -> usize {
    (cols.div_ceil(BLOCK) * scale.bytes()).next_multiple_of(PART_BYTES)
}

/// Bytes of a row in the compute layout.
pub const fn row_bytes(scale: ScaleType, cols: usize) -> usize {
    row_scale_bytes(scale, cols) + cols.next_multiple_of(PART_BYTES)
}

/// The value of every code.
pub static FP8_VALUES: [f32; 256] = {
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
