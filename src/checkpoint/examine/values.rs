//! Values that no sound tensor has: a count of them over a run of bytes, and what that means.
//!
//! Floats and fp8 codes must be finite numbers; scales must also be above zero, as every quantiser
//! makes them. A run of bytes is looked at value by value only when it has something bad in it.
//! Bytes in, a [`Tally`] out; tallies of a tensor's runs add up.

use super::finding::{Finding, Place, Severity};
use millstream_kernels::ScaleType;
use millstream_kernels::formats::bf16::bf16_to_f32;
use millstream_kernels::formats::f16::f16_to_f32;
use millstream_kernels::formats::fp8::fp8_e4m3_to_f32;
use millstream_kernels::formats::scale::ue8m0_to_f32;

/// What the bytes of a tensor mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// IEEE 754 doubles.
    F64,
    /// IEEE 754 singles.
    F32,
    /// Upper halves of singles.
    Bf16,
    /// IEEE 754 halves.
    F16,
    /// Codes of OCP FP8 E4M3.
    Fp8,
    /// Scales.
    Scales(ScaleType),
    /// Integers and integer codes: nothing that they hold is wrong by itself.
    Integers,
}

/// What was counted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    nan: u64,
    infinite: u64,
    negative: u64,
    zero: u64,
    /// The first of them, by its number in the tensor.
    first: Option<u64>,
}

impl Values {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Values::F64 => 8,
            Values::F32 => 4,
            Values::Bf16 | Values::F16 => 2,
            Values::Scales(scale) => scale.bytes(),
            Values::Fp8 | Values::Integers => 1,
        }
    }

    /// Counts what is bad in bytes that start at value number `first`.
    pub fn tally(self, bytes: &[u8], first: u64) -> Tally {
        // Infinities and NaN have all bits of the exponent; e4m3 has no infinities.
        let double = |b| u64::from_le_bytes(b) & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000;
        let single = |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000;
        let brain = |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80;
        let half = |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00;
        match self {
            Values::F64 => count(bytes, first, double, f64::from_le_bytes),
            Values::F32 => count(bytes, first, single, of_single),
            Values::Bf16 => count(bytes, first, brain, of_brain),
            Values::F16 => count(bytes, first, half, of_half),
            Values::Fp8 => count(bytes, first, |[code]| code & 0x7f == 0x7f, of_fp8),
            Values::Scales(ScaleType::F32) => count_scales(bytes, first, of_single),
            Values::Scales(ScaleType::Bf16) => count_scales(bytes, first, of_brain),
            Values::Scales(ScaleType::F16) => count_scales(bytes, first, of_half),
            Values::Scales(ScaleType::Ue8m0) => count_scales(bytes, first, of_ue8m0),
            Values::Integers => Tally::default(),
        }
    }
}

fn of_single(bytes: [u8; 4]) -> f64 {
    f64::from(f32::from_le_bytes(bytes))
}

fn of_brain(bytes: [u8; 2]) -> f64 {
    f64::from(bf16_to_f32(u16::from_le_bytes(bytes)))
}

fn of_half(bytes: [u8; 2]) -> f64 {
    f64::from(f16_to_f32(u16::from_le_bytes(bytes)))
}

fn of_fp8([code]: [u8; 1]) -> f64 {
    f64::from(fp8_e4m3_to_f32(code))
}

fn of_ue8m0([code]: [u8; 1]) -> f64 {
    f64::from(ue8m0_to_f32(code))
}

fn count_scales<const N: usize>(bytes: &[u8], first: u64, value: impl Fn([u8; N]) -> f64) -> Tally {
    // NaN compares as false.
    let is_bad = |bytes| !(value(bytes) > 0.0 && value(bytes) < f64::INFINITY);
    count(bytes, first, is_bad, &value)
}

/// Counts over values of `N` bytes.
fn count<const N: usize>(
    bytes: &[u8],
    first: u64,
    is_bad: impl Fn([u8; N]) -> bool,
    value: impl Fn([u8; N]) -> f64,
) -> Tally {
    let mut tally = Tally::default();
    let values = bytes.as_chunks::<N>().0;
    // Without a branch for each.
    if !values.iter().fold(false, |any, &bytes| any | is_bad(bytes)) {
        return tally;
    }
    for (index, &bytes) in (first..).zip(values).filter(|(_, bytes)| is_bad(**bytes)) {
        tally.first.get_or_insert(index);
        let value = value(bytes);
        let counter = match value {
            _ if value.is_nan() => &mut tally.nan,
            _ if value.is_infinite() => &mut tally.infinite,
            _ if value < 0.0 => &mut tally.negative,
            _ => &mut tally.zero,
        };
        *counter += 1;
    }
    tally
}

impl Tally {
    /// Adds what was counted in a later run of the same tensor.
    pub fn add(&mut self, later: &Tally) {
        self.nan += later.nan;
        self.infinite += later.infinite;
        self.negative += later.negative;
        self.zero += later.zero;
        self.first = self.first.or(later.first);
    }

    /// What it means for a tensor of this shape at `place`. Bad values of one that isn't `used`
    /// are a warning.
    pub fn finding(&self, place: &Place, shape: &[u64], used: bool) -> Option<Finding> {
        let counts = [
            (self.nan, "NaN"),
            (self.infinite, "infinite"),
            (self.negative, "below zero"),
            (self.zero, "zero"),
        ];
        let bad: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, name)| format!("{count} {name}"))
            .collect();
        let first = self.first?;
        let values: u64 = shape.iter().product();
        let finding =
            format!("of {values} values {}, the first at {:?}", bad.join(", "), at(first, shape));
        let only_zero = self.nan + self.infinite + self.negative == 0;
        Some(match only_zero {
            true => {
                let remedy = "the weights under these scales all become zero: if the original \
                              model's aren't, convert it again";
                Finding::warning(place.clone(), finding, remedy)
            }
            false => {
                let remedy = "get this file again from where it came; if the source has the same \
                              values, the model itself is broken: use another copy of it";
                let severity = if used { Severity::Error } else { Severity::Warning };
                Finding::new(severity, place.clone(), finding, remedy)
            }
        })
    }
}

/// Where the value with a number is in a tensor of this shape.
fn at(mut index: u64, shape: &[u64]) -> Vec<u64> {
    let mut place = vec![];
    for &length in shape.iter().rev() {
        place.push(index % length.max(1));
        index /= length.max(1);
    }
    place.reverse();
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_bad_value_is_counted_in_every_type() {
        let halves = |values: [u16; 4]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let singles: Vec<u8> =
            [1.0, f32::NAN, f32::NEG_INFINITY, -0.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let doubles: Vec<u8> =
            [1.0, f64::NAN, f64::INFINITY, -0.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let of_floats = Tally { nan: 1, infinite: 1, first: Some(11), ..Tally::default() };
        let of_scales = Tally { zero: 1, ..of_floats };
        for (values, bytes) in [
            (Values::F64, doubles),
            (Values::F32, singles.clone()),
            (Values::Bf16, halves([0x3f80, 0x7fc0, 0xff80, 0x8000])),
            (Values::F16, halves([0x3c00, 0x7e00, 0xfc00, 0x8000])),
        ] {
            assert_eq!(values.tally(&bytes, 10), of_floats, "{values:?}");
        }
        for (scale, bytes) in [
            (ScaleType::F32, singles),
            (ScaleType::Bf16, halves([0x3f80, 0x7fc0, 0x7f80, 0])),
            (ScaleType::F16, halves([0x3c00, 0x7e00, 0x7c00, 0])),
        ] {
            assert_eq!(Values::Scales(scale).tally(&bytes, 10), of_scales, "{scale:?}");
        }
        let negative = Values::Scales(ScaleType::F32).tally(&(-2f32).to_le_bytes(), 0);
        assert_eq!(negative, Tally { negative: 1, first: Some(0), ..Tally::default() });
        let nan = Tally { nan: 2, first: Some(1), ..Tally::default() };
        assert_eq!(Values::Fp8.tally(&[0x7e, 0x7f, 0xff], 0), nan);
        let scales = Values::Scales(ScaleType::Ue8m0).tally(&[0, 254, 255], 0);
        assert_eq!(scales, Tally { nan: 1, first: Some(2), ..Tally::default() });
        assert_eq!(Values::Integers.tally(&[0x7f, 0xff], 0), Tally::default());
    }

    #[test]
    fn runs_add_up_and_the_first_value_is_named_by_its_place() {
        let mut tally = Values::F32.tally(&1f32.to_le_bytes(), 0);
        assert_eq!(tally.finding(&Place::default(), &[3, 4], true), None);
        tally.add(&Values::F32.tally(&f32::NAN.to_le_bytes(), 7));
        tally.add(&Values::F32.tally(&f32::NAN.to_le_bytes(), 9));
        let finding = tally.finding(&Place::file("f"), &[3, 4], true).expect("bad values");
        assert_eq!(finding.finding, "of 12 values 2 NaN, the first at [1, 3]");
        assert_eq!(finding.severity, Severity::Error);
        let unused = tally.finding(&Place::file("f"), &[3, 4], false).expect("bad values");
        assert_eq!(unused.severity, Severity::Warning);
        let zero = Values::Scales(ScaleType::F32).tally(&0f32.to_le_bytes(), 0);
        let finding = zero.finding(&Place::file("f"), &[1], true).expect("a zero scale");
        assert_eq!(finding.severity, Severity::Warning);
    }
}
