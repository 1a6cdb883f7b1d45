//! Rounding to the integer formats: what it promises of errors, scales and codes.

use millstream_kernels::formats::CannotRound;
use millstream_kernels::formats::f16::{f16_to_f32, f32_to_f16};
use millstream_kernels::{
    FileLayout, FileMatrix, GroupSize, ScaleType, WeightFormat, Weights, can_round, round_rows,
};

const F32: ScaleType = ScaleType::F32;
const F16: ScaleType = ScaleType::F16;
const INT4_G64: WeightFormat = WeightFormat::Int4Group(GroupSize::G64, F32);

/// The integer formats with these scales.
fn integers(scale: ScaleType) -> [WeightFormat; 6] {
    let group = |columns| GroupSize::new(columns).expect("a multiple of 16");
    [
        WeightFormat::Int8Row(scale),
        WeightFormat::Int4Row(scale),
        WeightFormat::Int4Group(group(64), scale),
        WeightFormat::Int4Group(group(48), scale),
        WeightFormat::Int2Row(scale),
        WeightFormat::Int3Group64(scale),
    ]
}

/// Numbers that look normally distributed; the sum of 12 uniform ones.
struct Normal(u64);

impl Normal {
    fn next(&mut self) -> f32 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..12).map(|_| uniform()).sum::<f32>() - 6.0
    }
    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// Codes and scales in the file layout.
struct Rounded {
    weights: Vec<u8>,
    scales: Vec<u8>,
}

fn round(values: &[f32], cols: usize, format: WeightFormat) -> Result<Rounded, CannotRound> {
    let rows = values.len() / cols;
    let scale_bytes = format.scale_type().map_or(0, ScaleType::bytes);
    let mut out = Rounded {
        weights: vec![0xaa; format.file_bytes(rows, cols)],
        scales: vec![0xaa; format.file_scales(rows, cols) * scale_bytes],
    };
    round_rows(values, cols, format, &mut out.weights, &mut out.scales)?;
    Ok(out)
}

/// The values as the engine decodes them.
fn decoded(rounded: &Rounded, rows: usize, cols: usize, format: WeightFormat) -> Vec<f32> {
    let Rounded { weights, scales } = rounded;
    let file = FileMatrix { format, layout: format.file_layout(), rows, cols, weights, scales };
    let mut lines = vec![[0u64; 8]; format.matrix_bytes(rows, cols).div_ceil(64) + 1];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
    let skip = bytes.as_ptr().align_offset(64);
    let bytes = &mut bytes[skip..skip + format.matrix_bytes(rows, cols)];
    file.lay_out(0..rows, 0..cols, bytes);
    let laid_out = Weights::new(format, rows, cols, bytes);
    let mut out = vec![0.0; rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        laid_out.decode_row(row, out);
    }
    out
}

fn round_trip(values: &[f32], cols: usize, format: WeightFormat) -> Vec<f32> {
    let rounded = round(values, cols, format).expect("finite values");
    decoded(&rounded, values.len() / cols, cols, format)
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

fn rms(a: &[f32], b: &[f32]) -> f64 {
    (squared_error(a, b) / a.len() as f64).sqrt()
}

/// Rounding by the largest magnitude alone, as a reader of the container's page would write it.
fn absmax_error(values: &[f32], code_max: i32, scale_type: ScaleType) -> f64 {
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let scale = largest / code_max as f32;
    let scale = match scale_type {
        ScaleType::F16 => f16_to_f32(f32_to_f16(scale)),
        _ => scale,
    };
    let code = |v: f32| match scale {
        0.0 => 0.0,
        scale => (v / scale).round_ties_even().clamp(-(code_max + 1) as f32, code_max as f32),
    };
    let miss = |v: f32| f64::from(v) - f64::from(code(v)) * f64::from(scale);
    values.iter().map(|&v| miss(v).powi(2)).sum()
}

fn group_of(format: WeightFormat, cols: usize) -> usize {
    if format.group() == 1 { cols } else { format.group() }
}

#[test]
fn three_bits_in_groups_beat_four_bits_by_rows_where_rows_have_outliers() {
    // As in a real model: a few of each row's 6144 weights are 30 to 50 times the others' spread.
    let (rows, cols) = (16, 6144);
    let mut normal = Normal(7);
    let mut values = normal.values(rows * cols);
    for (row, values) in values.chunks_exact_mut(cols).enumerate() {
        for outlier in 0..4 {
            let sign = if outlier % 2 == 0 { 1.0 } else { -1.0 };
            values[(row * 131 + outlier * 1337) % cols] = sign * (30.0 + 6.0 * outlier as f32);
        }
    }
    for scale in [F32, F16] {
        let by_groups = rms(&values, &round_trip(&values, cols, WeightFormat::Int3Group64(scale)));
        let by_rows = rms(&values, &round_trip(&values, cols, WeightFormat::Int4Row(scale)));
        println!("{scale:?}: int3-g64 {by_groups:.4}, int4-row {by_rows:.4}");
        assert!(by_rows >= 2.5 * by_groups, "int3-g64 {by_groups}, int4-row {by_rows}");
    }
}

#[test]
fn search_is_never_worse_than_the_largest_magnitude_and_mostly_better() {
    let cols = 200;
    let mut normal = Normal(3);
    for scale_type in [F32, F16] {
        for format in integers(scale_type) {
            let (mut better, mut groups) = (0, 0);
            for spread in [1e-3, 0.02, 1.0, 300.0] {
                let values: Vec<f32> = normal.values(6 * cols).iter().map(|v| v * spread).collect();
                let out = round_trip(&values, cols, format);
                for (row, out) in values.chunks_exact(cols).zip(out.chunks_exact(cols)) {
                    let group = group_of(format, cols);
                    for (values, out) in row.chunks(group).zip(out.chunks(group)) {
                        let plain = absmax_error(values, format.info().code_max, scale_type);
                        let ours = squared_error(values, out);
                        // Decoding rounds each product once more.
                        assert!(ours <= plain * (1.0 + 1e-5), "{format}: {ours} > {plain}");
                        better += usize::from(ours < plain * 0.999);
                        groups += 1;
                    }
                }
            }
            assert!(better * 2 > groups, "{format}: {better} of {groups} groups gained");
        }
    }
}

#[test]
fn values_that_the_format_holds_come_back_exactly() {
    let cols = 130;
    for scale_type in [F32, F16] {
        for format in integers(scale_type) {
            let max = format.info().code_max;
            let group = group_of(format, cols);
            let value = |index: usize| {
                // Every group has its largest code, so that its scale is the one it was made with.
                let code = match index % cols % group {
                    0 => max,
                    _ => (index * 7 % (2 * max + 2) as usize) as i32 - max - 1,
                };
                code as f32 * 0.375 * (1 + index / cols % 3) as f32
            };
            let values: Vec<f32> = (0..5 * cols).map(value).collect();
            assert_eq!(round_trip(&values, cols, format), values, "{format}");
        }
    }
    let halves = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let value =
        |index: usize| halves[index * 5 % 8] * if index.is_multiple_of(3) { -4.0 } else { 4.0 };
    let values: Vec<f32> =
        (0..3 * cols).map(value).map(|v| if v == 0.0 { 0.0 } else { v }).collect();
    assert_eq!(round_trip(&values, cols, WeightFormat::Mxfp4), values);
    for format in [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::F16] {
        assert_eq!(round_trip(&values, cols, format), values, "{format}");
    }
}

#[test]
fn mxfp4_is_never_worse_than_the_specifications_scale() {
    let mut normal = Normal(11);
    for spread in [1e-30, 1e-3, 1.0, 1e30] {
        let values: Vec<f32> = normal.values(64 * 32).iter().map(|v| v * spread).collect();
        let out = round_trip(&values, 32, WeightFormat::Mxfp4);
        for (values, out) in values.chunks_exact(32).zip(out.chunks_exact(32)) {
            let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            let scale = f64::from(f32::from_bits(largest.to_bits() & 0x7f80_0000)) / 4.0;
            let grid = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
            let plain: f64 = values
                .iter()
                .map(|v| {
                    let size = f64::from(v.abs());
                    let misses = grid.map(|g| (g * scale - size).powi(2));
                    misses.into_iter().fold(f64::INFINITY, f64::min)
                })
                .sum();
            assert!(squared_error(values, out) <= plain * (1.0 + 1e-9), "spread {spread}");
        }
    }
}

#[test]
fn zeros_and_the_smallest_numbers_give_zeros_and_no_nonsense() {
    for format in integers(F32).into_iter().chain(integers(F16)).chain([WeightFormat::Mxfp4]) {
        assert_eq!(round_trip(&[0.0; 96], 96, format), [0.0; 96], "{format}");
        let tiny = [f32::from_bits(1); 96];
        assert!(round_trip(&tiny, 96, format).iter().all(|v| v.abs() < 1e-38), "{format}");
        let large = [f32::MAX / 4.0, -f32::MAX / 4.0];
        if format.scale_type() != Some(F16) {
            assert!(round_trip(&large, 2, format).iter().all(|v| v.is_finite()), "{format}");
        }
    }
}

#[test]
fn what_cannot_be_held_is_refused_by_place() {
    let formats = integers(F32);
    for format in
        formats.into_iter().chain([WeightFormat::Mxfp4, WeightFormat::F32, WeightFormat::Bf16])
    {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 12];
            values[9] = value;
            let fault = round(&values, 4, format).err().expect("refused");
            assert_eq!((fault.row, fault.column), (2, 1), "{format}");
            assert!(fault.to_string().contains(&format!("{value}")), "{fault}");
        }
    }
    let fault = round(&[1.0, 70_000.0], 2, WeightFormat::F16).err().expect("beyond f16");
    assert_eq!((fault.column, fault.value), (1, 70_000.0));
    let fault = round(&[1.0, 0.0, -1e9, 1.0], 2, WeightFormat::Int8Row(F16)).err();
    let fault = fault.expect("a scale beyond f16");
    assert_eq!((fault.row, fault.column), (1, 0));
}

#[test]
fn only_fp8_ggml_s_own_and_powers_of_two_are_not_made() {
    for format in WeightFormat::EACH {
        let fp8 = matches!(format, WeightFormat::Fp8Block128(_));
        let made = !fp8 && format.file_layout() == FileLayout::Apart;
        assert_eq!(can_round(format), made, "{format}");
    }
    assert!(!can_round(WeightFormat::Int8Row(ScaleType::Ue8m0)));
    assert!(can_round(WeightFormat::Int4Row(ScaleType::Bf16)));
}

/// Padding at the end of a row means zero, so that readers which decode it see nothing.
#[test]
fn padding_is_the_code_that_means_zero() {
    let file = round(&[7.0, 7.0, 7.0], 3, INT4_G64).expect("finite");
    assert_eq!(file.weights, [0xff, 0x8f]);
    let file = round(&[1.0], 1, WeightFormat::Int2Row(F32)).expect("finite");
    assert_eq!(file.weights, [0b1010_1011]);
    let file = round(&[3.0], 1, WeightFormat::Int3Group64(F32)).expect("finite");
    assert_eq!((file.weights[0], &file.weights[1..16]), (3, &[0; 15][..]));
    assert_eq!(file.weights[16..], [0xff; 8]);
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    for format in integers(F32).into_iter().chain(integers(F16)).chain([WeightFormat::Mxfp4]) {
        for cols in [1, 31, 64, 65, 200] {
            let values = Normal(cols as u64).values(7 * cols);
            let all = round(&values, cols, format).expect("finite");
            for (row, values) in values.chunks_exact(cols).enumerate() {
                let one = round(values, cols, format).expect("finite");
                let (bytes, scales) = (one.weights.len(), one.scales.len());
                assert_eq!(all.weights[row * bytes..][..bytes], one.weights, "{format} {cols}");
                assert_eq!(all.scales[row * scales..][..scales], one.scales, "{format} {cols}");
            }
        }
    }
}
