//! The weight formats that kernels compute on.
//!
//! A format is a variant of [`WeightFormat`], a line in [`WEIGHT_FORMATS`] and a variant of the
//! borrowed view [`Weights`]. Loaders size arenas with [`WeightFormat::bytes_per_weight`]; stages
//! turn a slot's bytes into a [`Weights`] and hand it to a kernel. Nothing here owns memory.

use std::ops::Range;

/// A format that kernels compute on. Row-major, one f32 accumulator lane per weight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightFormat {
    /// IEEE 754 single.
    F32,
    /// The upper 16 bits of an IEEE 754 single; widens exactly.
    Bf16,
}

/// Every [`WeightFormat`], for tables, plans and tests that walk all of them.
pub const WEIGHT_FORMATS: &[WeightFormat] = &[WeightFormat::F32, WeightFormat::Bf16];

impl WeightFormat {
    /// Bytes of one weight; also the alignment that [`Weights::from_bytes`] asks for.
    pub const fn bytes_per_weight(self) -> usize {
        match self {
            WeightFormat::F32 => 4,
            WeightFormat::Bf16 => 2,
        }
    }

    /// Weights that share a scale: a matrix may be cut along its columns only at multiples of it.
    pub const fn group(self) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 => 1,
        }
    }

    /// The name in options, reports and file headers.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::F32 => "f32",
            WeightFormat::Bf16 => "bf16",
        }
    }
}

/// A borrowed, row-major run of weights. The view knows no shape: kernels are told the columns.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// IEEE 754 singles.
    F32(&'a [f32]),
    /// Upper halves of singles.
    Bf16(&'a [u16]),
}

impl<'a> Weights<'a> {
    /// Views little-endian bytes as weights.
    ///
    /// # Panics
    /// If the bytes are not aligned to [`WeightFormat::bytes_per_weight`] or not a whole number of
    /// weights: arenas align their tensors, so either is a bug of ours.
    pub fn from_bytes(format: WeightFormat, bytes: &'a [u8]) -> Weights<'a> {
        match format {
            WeightFormat::F32 => Weights::F32(bytemuck::cast_slice(bytes)),
            WeightFormat::Bf16 => Weights::Bf16(bytemuck::cast_slice(bytes)),
        }
    }

    /// The format of the view.
    pub const fn format(&self) -> WeightFormat {
        match self {
            Weights::F32(_) => WeightFormat::F32,
            Weights::Bf16(_) => WeightFormat::Bf16,
        }
    }

    /// Number of weights.
    pub const fn len(&self) -> usize {
        match self {
            Weights::F32(values) => values.len(),
            Weights::Bf16(values) => values.len(),
        }
    }

    /// True if there are no weights.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The weights of `range`, counted in weights.
    ///
    /// # Panics
    /// If the range does not lie inside the view.
    pub fn slice(&self, range: Range<usize>) -> Weights<'a> {
        match self {
            Weights::F32(values) => Weights::F32(&values[range]),
            Weights::Bf16(values) => Weights::Bf16(&values[range]),
        }
    }
}

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
    fn table_holds_every_format_once() {
        for (i, format) in WEIGHT_FORMATS.iter().enumerate() {
            let index = match format {
                WeightFormat::F32 => 0,
                WeightFormat::Bf16 => 1,
            };
            assert_eq!(index, i);
        }
        assert_eq!(WEIGHT_FORMATS.len(), 2);
    }

    #[test]
    fn view_counts_weights_not_bytes() {
        let words = [0x3f80_0000u32, 0x4000_0000];
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        let singles = Weights::from_bytes(WeightFormat::F32, bytes);
        let halves = Weights::from_bytes(WeightFormat::Bf16, bytes);
        assert_eq!((singles.len(), halves.len()), (2, 4));
        assert!(matches!(singles.slice(1..2), Weights::F32([2.0])));
        assert!(matches!(halves.slice(1..4), Weights::Bf16([0x3f80, 0, 0x4000])));
    }

    #[test]
    #[should_panic]
    fn misaligned_bytes_panic() {
        let words = [0u32; 3];
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        Weights::from_bytes(WeightFormat::F32, &bytes[2..10]);
    }

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
