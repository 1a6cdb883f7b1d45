//! f16: IEEE 754 halves, row by row; widening is exact, subnormals included.

use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "f16",
    file_bits: 16,
    activations: ActivationKind::F32,
    code_max: 0,
    colibri_name: None,
};

/// Widens an IEEE 754 half; exact. NaN keeps sign and payload and becomes quiet, as the CPUs'
/// conversion has it.
pub const fn f16_to_f32(half: u16) -> f32 {
    let sign = (half as u32 >> 15) << 31;
    let magnitude = half as u32 & 0x7fff;
    let bits = if magnitude > 0x7c00 {
        // NaN: the largest exponent, the quiet bit, the mantissa moved up.
        0x7fc0_0000 | (magnitude & 0x3ff) << 13
    } else if magnitude == 0x7c00 {
        0x7f80_0000
    } else if magnitude >= 0x400 {
        (magnitude << 13) + ((127 - 15) << 23)
    } else {
        // Subnormal or zero: multiples of 2^-24.
        (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits()
    };
    f32::from_bits(sign | bits)
}

/// Rounds to IEEE 754 half, half to even; overflow gives infinity, NaN stays NaN (made quiet).
pub const fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        // 65536 and more.
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Below 2^-14: a multiple of 2^-24. Adding 0.5 leaves that multiple, rounded half to even,
        // in the low bits of the sum.
        let shifted = (f32::from_bits(magnitude) + 0.5).to_bits();
        return sign | (shifted - 0.5f32.to_bits()) as u16;
    }
    let rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    sign | ((rounded - ((127 - 15) << 23)) >> 13) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_widen_and_round() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if value.is_nan() {
                assert!(f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(f32_to_f16(value), bits, "{value}");
            }
        }
    }

    #[test]
    fn half_rounds_to_the_nearest_and_ties_to_even() {
        for bits in 0..0x7bffu16 {
            let (low, high) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            let even = if bits % 2 == 0 { bits } else { bits + 1 };
            assert_eq!(f32_to_f16(middle), even, "{middle}");
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), bits + 1);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), bits);
        }
        assert_eq!(f32_to_f16(65519.0), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(-1e30), 0xfc00);
    }
}
