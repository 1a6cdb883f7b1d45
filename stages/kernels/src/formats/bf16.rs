//! bf16: the upper half of a single, row by row; widening is exact.

use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "bf16",
    file_bits: 16,
    activations: ActivationKind::F32,
    code_max: 0,
    colibri_name: None,
};

/// Widens a bf16 weight; exact.
#[inline(always)]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Rounds to bf16, half to even; NaN stays NaN (made quiet). Converters use it.
pub const fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_survives_widen_and_round() {
        for bits in 0..=u16::MAX {
            let value = bf16_to_f32(bits);
            if value.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(value)).is_nan());
            } else {
                assert_eq!(f32_to_bf16(value), bits);
            }
        }
    }

    #[test]
    fn bf16_rounds_half_to_even() {
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
    }
}
