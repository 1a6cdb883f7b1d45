//! Scales as files have them, and as the f32 that they stand for.

use super::bf16::bf16_to_f32;
use super::f16::f16_to_f32;

/// The type of stored scales. Each widens exactly to f32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ScaleType {
    /// IEEE 754 single.
    F32,
    /// IEEE 754 half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// A power of two by its biased exponent (OCP MX specification, section 5.4.1).
    Ue8m0,
}

/// Every scale type.
pub const SCALE_TYPES: [ScaleType; 4] =
    [ScaleType::F32, ScaleType::F16, ScaleType::Bf16, ScaleType::Ue8m0];

impl ScaleType {
    /// Bytes of one scale.
    pub const fn bytes(self) -> usize {
        match self {
            ScaleType::F32 => 4,
            ScaleType::F16 | ScaleType::Bf16 => 2,
            ScaleType::Ue8m0 => 1,
        }
    }

    /// The name in format names.
    pub const fn name(self) -> &'static str {
        match self {
            ScaleType::F32 => "f32",
            ScaleType::F16 => "f16",
            ScaleType::Bf16 => "bf16",
            ScaleType::Ue8m0 => "ue8m0",
        }
    }

    /// Scale number `index` of little-endian bytes at any address.
    ///
    /// # Panics
    /// If the bytes end before.
    #[inline]
    pub fn read(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            ScaleType::F32 => {
                let b = &bytes[4 * index..4 * index + 4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
            ScaleType::F16 => f16_to_f32(half(bytes, index)),
            ScaleType::Bf16 => bf16_to_f32(half(bytes, index)),
            ScaleType::Ue8m0 => ue8m0_to_f32(bytes[index]),
        }
    }
}

fn half(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])
}

/// 2^(code - 127); 255 is NaN. (OCP MX specification, section 5.4.1.)
pub const fn ue8m0_to_f32(code: u8) -> f32 {
    match code {
        // 2^-127 is subnormal in f32.
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits((code as u32) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_exact() {
        assert_eq!(ue8m0_to_f32(127), 1.0);
        assert_eq!(ue8m0_to_f32(0) * 2.0, ue8m0_to_f32(1));
        assert_eq!(ue8m0_to_f32(254), f32::from_bits(0x7f00_0000));
        assert!(ue8m0_to_f32(255).is_nan());
    }
}
