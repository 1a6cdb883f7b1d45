//! From f32 to a format's file layout: how converters choose scales and codes.
//!
//! Converters hand in rows of f32 and get codes and scales as files have them
//! ([`super::FileMatrix`] views them). Rounding is symmetric around zero. The first scale of a
//! group is its largest magnitude / the largest code; then a fixed list of other scales and a
//! least-squares fit are tried, and the one with the least squared error stays. The scale is
//! rounded to its stored type first and the codes are chosen for what is stored. Results depend
//! on nothing but the values: no threads, no instruction set.

use super::bf16::f32_to_bf16;
use super::block::FileCode;
use super::f16::f32_to_f16;
use super::{
    ScaleType, Scales, WeightFormat, int2_row::Int2, int3_group::Int3, int4_group::Int4,
    int8_row::Int8, mxfp4,
};

/// A weight that can't be rounded to the format.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[error("row {row}, column {column}: {format} can't hold {value}")]
pub struct CannotRound {
    /// Row of the values given.
    pub row: usize,
    /// Column.
    pub column: usize,
    /// The value: not finite, or beyond the range of the format or of its scales.
    pub value: f32,
    /// The format.
    pub format: WeightFormat,
}

/// Whether [`round_rows`] makes this format: floats, integers with f32, f16 or bf16 scales, mxfp4.
pub const fn can_round(format: WeightFormat) -> bool {
    match format {
        WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::F16 | WeightFormat::Mxfp4 => true,
        WeightFormat::Fp8Block128(_) => false,
        WeightFormat::Int8Row(scale)
        | WeightFormat::Int4Row(scale)
        | WeightFormat::Int4Group(_, scale)
        | WeightFormat::Int2Row(scale)
        | WeightFormat::Int3Group64(scale)
        | WeightFormat::Int8Group32(scale) => !matches!(scale, ScaleType::Ue8m0),
        // ggml's own tools make these; here they only come as they are.
        WeightFormat::Q4_1
        | WeightFormat::Q5_0
        | WeightFormat::Q5_1
        | WeightFormat::Q2K
        | WeightFormat::Q3K
        | WeightFormat::Q4K
        | WeightFormat::Q5K
        | WeightFormat::Q6K
        | WeightFormat::Iq4Nl
        | WeightFormat::Iq4Xs => false,
    }
}

/// Rounds rows of `cols` values into the file layout: `weights` gets
/// [`WeightFormat::file_bytes`] bytes, `scales` the bytes of [`WeightFormat::file_scales`] scales.
///
/// # Errors
/// At the first value that isn't finite or too large; then the outputs hold nonsense.
///
/// # Panics
/// When a length doesn't fit the shape, or the format isn't one of [`can_round`].
pub fn round_rows(
    values: &[f32],
    cols: usize,
    format: WeightFormat,
    weights: &mut [u8],
    scales: &mut [u8],
) -> Result<(), CannotRound> {
    assert!(can_round(format), "{format} is never made from f32");
    assert!(cols > 0 && values.len().is_multiple_of(cols), "{} values, {cols} cols", values.len());
    let rows = values.len() / cols;
    let scale_bytes = format.scale_type().map_or(0, ScaleType::bytes);
    assert_eq!(weights.len(), format.file_bytes(rows, cols), "{format}: weights");
    assert_eq!(scales.len(), format.file_scales(rows, cols) * scale_bytes, "{format}: scales");
    let cannot = |index: usize| {
        let (row, column) = (index / cols, index % cols);
        CannotRound { row, column, value: values[index], format }
    };
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(cannot(index));
    }
    let rounded = match format {
        WeightFormat::F32 => {
            weights.copy_from_slice(bytemuck::cast_slice(values));
            Ok(())
        }
        WeightFormat::Bf16 => halves(values, weights, f32_to_bf16, 0x7f80),
        WeightFormat::F16 => halves(values, weights, f32_to_f16, 0x7c00),
        WeightFormat::Int8Row(_) | WeightFormat::Int8Group32(_) => {
            code_rows::<Int8>(values, cols, format, weights, scales)
        }
        WeightFormat::Int4Row(_) | WeightFormat::Int4Group(..) => {
            code_rows::<Int4>(values, cols, format, weights, scales)
        }
        WeightFormat::Int2Row(_) => code_rows::<Int2>(values, cols, format, weights, scales),
        WeightFormat::Int3Group64(_) => code_rows::<Int3>(values, cols, format, weights, scales),
        WeightFormat::Mxfp4 => {
            mxfp4_rows(values, cols, weights, scales);
            Ok(())
        }
        WeightFormat::Fp8Block128(_)
        | WeightFormat::Q4_1
        | WeightFormat::Q5_0
        | WeightFormat::Q5_1
        | WeightFormat::Q2K
        | WeightFormat::Q3K
        | WeightFormat::Q4K
        | WeightFormat::Q5K
        | WeightFormat::Q6K
        | WeightFormat::Iq4Nl
        | WeightFormat::Iq4Xs => unreachable!("refused above"),
    };
    rounded.map_err(cannot)
}

/// Rounds to halves whose infinity is `infinity`; an error is the index of a value that is too
/// large.
fn halves(
    values: &[f32],
    out: &mut [u8],
    round: impl Fn(f32) -> u16,
    infinity: u16,
) -> Result<(), usize> {
    for (index, (out, &value)) in out.chunks_exact_mut(2).zip(values).enumerate() {
        let half = round(value);
        if half & 0x7fff == infinity {
            return Err(index);
        }
        out.copy_from_slice(&half.to_le_bytes());
    }
    Ok(())
}

/// Rounds rows to integer codes; an error is the index of a value that is too large for a scale.
fn code_rows<C: FileCode>(
    values: &[f32],
    cols: usize,
    format: WeightFormat,
    weights: &mut [u8],
    scales: &mut [u8],
) -> Result<(), usize> {
    let scale_type = format.scale_type().expect("codes have scales");
    let search = ScaleSearch::new(format, scale_type);
    let group = match format.scales() {
        Scales::Group(columns) => columns,
        _ => cols,
    };
    let row_bytes = format.file_bytes(1, cols);
    let room = row_bytes * 8 / format.info().file_bits;
    weights.fill(0);
    let mut scales = scales.chunks_exact_mut(scale_type.bytes());
    for (row, bytes) in weights.chunks_exact_mut(row_bytes).enumerate() {
        let mut column = 0;
        for group in values[row * cols..(row + 1) * cols].chunks(group) {
            let first = row * cols + column;
            let scale = search.best(group).map_err(|index| first + index)?;
            let out = scales.next().expect("one per group");
            out.copy_from_slice(&stored(scale_type, scale)[..scale_type.bytes()]);
            let codes = Codes::new(scale, search.code_max);
            for &value in group {
                C::file_put(bytes, column, C::code(codes.of(value) as i32));
                column += 1;
            }
        }
        (cols..room).for_each(|column| C::file_put(bytes, column, C::ZERO_CODE));
    }
    Ok(())
}

/// The little-endian bytes of a scale, filled up with zeros.
fn stored(scale_type: ScaleType, scale: f32) -> [u8; 4] {
    let half = |bits: u16| [bits.to_le_bytes()[0], bits.to_le_bytes()[1], 0, 0];
    match scale_type {
        ScaleType::F32 => scale.to_le_bytes(),
        ScaleType::F16 => half(f32_to_f16(scale)),
        ScaleType::Bf16 => half(f32_to_bf16(scale)),
        ScaleType::Ue8m0 => unreachable!("no integer format is rounded with these"),
    }
}

/// Codes for one scale.
#[derive(Clone, Copy)]
struct Codes {
    inverse: f32,
    lowest: f32,
    highest: f32,
}

impl Codes {
    fn new(scale: f32, code_max: i32) -> Codes {
        // Below the smallest normal number the inverse overflows; such weights count as zero.
        let inverse = if scale < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale };
        Codes { inverse, lowest: -(code_max + 1) as f32, highest: code_max as f32 }
    }

    /// The code of a value as a float: value / scale, half to even, within the range of codes.
    #[inline(always)]
    fn of(self, value: f32) -> f32 {
        /// 1.5 * 2^23: from there on floats are whole numbers, so adding it rounds.
        const WHOLE: f32 = 12_582_912.0;
        let code = value * self.inverse;
        let code = if code < self.lowest { self.lowest } else { code };
        let code = if code > self.highest { self.highest } else { code };
        (code + WHOLE) - WHOLE
    }
}

/// Factors on the first scale that are tried.
const FACTORS: [f32; 22] = [
    1.05, 1.025, 0.975, 0.95, 0.925, 0.9, 0.875, 0.85, 0.825, 0.8, 0.775, 0.75, 0.725, 0.7, 0.675,
    0.65, 0.625, 0.6, 0.575, 0.55, 0.525, 0.5,
];
/// More of them where a scale serves a whole row: there a few large weights make the first scale
/// far too coarse.
const ROW_FACTORS: [f32; 6] = [0.45, 0.4, 0.35, 0.3, 0.25, 0.2];
/// Most least-squares fits, each to the codes of the scale before it.
const REFITS_MAX: usize = 3;
/// Values whose errors are summed in f32; longer sums are f64.
const RUN: usize = 64;
/// Where two errors are closer than this, they are taken once more in f64 throughout.
const CLOSE: f64 = 0.999;

/// The search for a group's scale.
struct ScaleSearch {
    code_max: i32,
    scale_type: ScaleType,
    whole_rows: bool,
}

/// A scale and what it costs.
#[derive(Clone, Copy)]
struct Candidate {
    scale: f32,
    error: f64,
}

impl ScaleSearch {
    fn new(format: WeightFormat, scale_type: ScaleType) -> ScaleSearch {
        let whole_rows = format.scales() == Scales::Row;
        ScaleSearch { code_max: format.info().code_max, scale_type, whole_rows }
    }

    /// The scale as it will be read.
    fn rounded(&self, scale: f32) -> f32 {
        self.scale_type.read(&stored(self.scale_type, scale), 0)
    }

    /// The best scale found; an error is the index of a value that is too large for any.
    fn best(&self, values: &[f32]) -> Result<f32, usize> {
        let larger = |best: usize, index: usize| {
            if values[index].abs() > values[best].abs() { index } else { best }
        };
        let largest_at = (0..values.len()).fold(0, larger);
        let largest = values[largest_at].abs();
        let first = largest / self.code_max as f32;
        let plain = self.candidate(values, self.rounded(first));
        if !plain.scale.is_finite() {
            return Err(largest_at);
        }
        if plain.scale == 0.0 {
            return Ok(0.0);
        }
        // The range of codes has one more below zero: the scale that uses it.
        let lower = self.rounded(largest / (self.code_max + 1) as f32);
        let mut best = plain.or(self.candidate(values, lower));
        let row_factors: &[f32] = if self.whole_rows { &ROW_FACTORS } else { &[] };
        for factor in FACTORS.iter().chain(row_factors) {
            let scale = self.rounded(first * factor);
            // What the largest value alone costs.
            let cut = f64::from(largest) - f64::from(scale) * f64::from(self.code_max + 1);
            if scale.is_finite() && (cut <= 0.0 || cut * cut < best.error) {
                best = best.or(self.candidate(values, scale));
            }
        }
        for _ in 0..REFITS_MAX {
            let scale = self.rounded(fitted(values, best.scale, self.code_max));
            let before = best.scale;
            if scale.is_finite() {
                best = best.or(self.candidate(values, scale));
            }
            if best.scale == before {
                break;
            }
        }
        let better = best.error < plain.error * CLOSE
            || exact_error(values, best.scale, self.code_max)
                < exact_error(values, plain.scale, self.code_max);
        Ok(if better { best.scale } else { plain.scale })
    }

    fn candidate(&self, values: &[f32], scale: f32) -> Candidate {
        Candidate { scale, error: squared_error(values, scale, self.code_max) }
    }
}

impl Candidate {
    fn or(self, other: Candidate) -> Candidate {
        if other.error < self.error { other } else { self }
    }
}

/// Sum over lanes of `term(lane's value, its code)`; lanes keep the compiler's vectors busy.
#[inline(always)]
fn sum_over(values: &[f32], codes: Codes, term: impl Fn(f32, f32) -> f32) -> f64 {
    let mut total = 0.0;
    for run in values.chunks(RUN) {
        let mut lanes = [0f32; 8];
        let (eights, rest) = run.as_chunks::<8>();
        for eight in eights {
            for (lane, &value) in lanes.iter_mut().zip(eight) {
                *lane += term(value, codes.of(value));
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(rest) {
            *lane += term(value, codes.of(value));
        }
        let [a, b, c, d, e, f, g, h] = lanes;
        total += f64::from(((a + b) + (c + d)) + ((e + f) + (g + h)));
    }
    total
}

fn squared_error(values: &[f32], scale: f32, code_max: i32) -> f64 {
    sum_over(values, Codes::new(scale, code_max), |value, code| {
        let miss = value - code * scale;
        miss * miss
    })
}

fn exact_error(values: &[f32], scale: f32, code_max: i32) -> f64 {
    let codes = Codes::new(scale, code_max);
    let miss = |&value: &f32| f64::from(value) - f64::from(codes.of(value)) * f64::from(scale);
    values.iter().map(|value| miss(value) * miss(value)).sum()
}

/// The scale that is best for the codes of another scale: sum(value * code) / sum(code^2).
fn fitted(values: &[f32], scale: f32, code_max: i32) -> f32 {
    let codes = Codes::new(scale, code_max);
    let squares = sum_over(values, codes, |_, code| code * code);
    if squares == 0.0 {
        return scale;
    }
    (sum_over(values, codes, |value, code| value * code) / squares) as f32
}

/// Rounds rows to mxfp4. The first exponent is that of the largest magnitude less 2, E2M1's own
/// largest (OCP MX specification, section 6.3); its two neighbours are tried as well.
fn mxfp4_rows(values: &[f32], cols: usize, weights: &mut [u8], scales: &mut [u8]) {
    let row_bytes = WeightFormat::Mxfp4.file_bytes(1, cols);
    weights.fill(0);
    let mut scales = scales.iter_mut();
    for (row, bytes) in values.chunks_exact(cols).zip(weights.chunks_exact_mut(row_bytes)) {
        let mut column = 0;
        for group in row.chunks(mxfp4::GROUP) {
            let code = mxfp4_scale(group);
            *scales.next().expect("one per group") = code;
            let inverse = mxfp4_inverse(code);
            for &value in group {
                Int4::file_put(bytes, column, e2m1_nearest(value * inverse));
                column += 1;
            }
        }
    }
}

/// The biased exponent with the least squared error.
fn mxfp4_scale(values: &[f32]) -> u8 {
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    if largest == 0.0 {
        return 127;
    }
    // The biased exponent of the largest value; 0 for subnormal ones.
    let exponent = (largest.to_bits() >> 23) as i32;
    let first = (exponent - 2).clamp(0, 254) as u8;
    let error = |&code: &u8| -> f64 {
        let (scale, inverse) = (super::scale::ue8m0_to_f32(code), mxfp4_inverse(code));
        let miss = |&value: &f32| {
            let halves = mxfp4::HALVES[e2m1_nearest(value * inverse) as usize];
            f64::from(value) - f64::from(halves) * 0.5 * f64::from(scale)
        };
        values.iter().map(|value| miss(value) * miss(value)).sum()
    };
    let others = [first.saturating_sub(1), (first + 1).min(254)];
    others.iter().fold(first, |best, other| if error(other) < error(&best) { *other } else { best })
}

/// 2^(127 - code), exact.
fn mxfp4_inverse(code: u8) -> f32 {
    super::scale::ue8m0_to_f32(254 - code.min(254))
}

/// The nearest E2M1 code; ties go to the code with an even mantissa. Zero has no sign.
fn e2m1_nearest(value: f32) -> u8 {
    let size = value.abs();
    let above =
        [size > 0.25, size >= 0.75, size > 1.25, size >= 1.75, size > 2.5, size >= 3.5, size > 5.0];
    let code: u8 = above.into_iter().map(u8::from).sum();
    if value < 0.0 && code > 0 { code | 8 } else { code }
}
