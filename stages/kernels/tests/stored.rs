//! Stored formats widen to the values that their specifications give, and the table is whole.

use millstream_kernels::stored::{f16_to_f32, fp8_e4m3_to_f32};
use millstream_kernels::{STORED_FORMATS, StoredFormat, WeightFormat, round_int8_row};

/// sign * mantissa * 2^exponent by the definition of a small float, in f64.
fn small_float(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let magnitude = if exponent == 0 {
        mantissa * 2f64.powi(1 - bias)
    } else {
        (1.0 + mantissa) * 2f64.powi(exponent as i32 - bias)
    };
    if code >> (exponent_bits + mantissa_bits) == 1 { -magnitude } else { magnitude }
}

#[test]
fn every_fp8_code_has_its_value() {
    for code in 0..=255u8 {
        let value = fp8_e4m3_to_f32(code);
        if code & 0x7f == 0x7f {
            assert!(value.is_nan(), "{code:#x}");
        } else {
            let expected = small_float(u32::from(code), 4, 3) as f32;
            assert_eq!(value.to_bits(), expected.to_bits(), "{code:#x}");
        }
    }
    assert_eq!(fp8_e4m3_to_f32(0x7e), 448.0);
}

#[test]
fn every_f16_code_has_its_value() {
    for code in 0..=u16::MAX {
        let value = f16_to_f32(code);
        let expected = match (code & 0x7c00 == 0x7c00, code & 0x3ff) {
            (true, 0) if code >> 15 == 0 => f32::INFINITY,
            (true, 0) => f32::NEG_INFINITY,
            (true, _) => {
                assert!(value.is_nan(), "{code:#x}");
                continue;
            }
            _ => small_float(u32::from(code), 5, 10) as f32,
        };
        assert_eq!(value.to_bits(), expected.to_bits(), "{code:#x}");
    }
}

#[test]
fn fp8_blocks_take_the_scale_of_their_row_and_column() {
    let (rows, cols) = (130, 300);
    let bytes: Vec<u8> = (0..rows * cols).map(|i| (i % 127) as u8).collect();
    let scales = [1.0, 2.0, 0.3, 5.0, 7.0, 11.0];
    let mut out = vec![0.0; rows * cols];
    StoredFormat::Fp8E4M3Block128.widen(&bytes, &scales, rows, cols, &mut out);
    for r in 0..rows {
        for c in 0..cols {
            let expected = fp8_e4m3_to_f32(bytes[r * cols + c]) * scales[r / 128 * 3 + c / 128];
            assert_eq!(out[r * cols + c], expected, "row {r}, column {c}");
        }
    }
}

#[test]
fn int8_rows_take_their_own_scale() {
    let mut out = [0.0; 6];
    let bytes = [1, 2, 0xff, 0x80, 0, 127];
    StoredFormat::Int8Row.widen(&bytes, &[0.5, 0.1], 2, 3, &mut out);
    assert_eq!(out, [0.5, 1.0, -0.5, -128.0 * 0.1, 0.0, 127.0 * 0.1]);
}

#[test]
fn unaligned_bytes_widen() {
    let mut bytes = vec![9u8];
    for value in [1.5f32, -2.25] {
        bytes.extend(value.to_le_bytes());
    }
    let mut out = [0.0; 2];
    StoredFormat::F32.widen(&bytes[1..], &[], 1, 2, &mut out);
    assert_eq!(out, [1.5, -2.25]);
    let bytes = [9, 0x80, 0x3f, 0x00, 0xc0];
    StoredFormat::Bf16.widen(&bytes[1..], &[], 2, 1, &mut out);
    assert_eq!(out, [1.0, -2.0]);
    let bytes = [9, 0x00, 0x3c, 0x00, 0xc0];
    StoredFormat::F16.widen(&bytes[1..], &[], 2, 1, &mut out);
    assert_eq!(out, [1.0, -2.0]);
}

#[test]
fn every_format_of_the_table_widens_an_empty_and_a_full_matrix() {
    assert_eq!(STORED_FORMATS.len(), 5);
    for format in STORED_FORMATS {
        for (rows, cols) in [(0, 4), (4, 0), (3, 129)] {
            let bytes = vec![0; rows * cols * format.bytes_per_weight()];
            let scales = vec![1.0; format.scale_count(rows, cols)];
            let mut out = vec![7.0; rows * cols];
            format.widen(&bytes, &scales, rows, cols, &mut out);
            assert!(out.iter().all(|v| *v == 0.0), "{} {rows} x {cols}", format.name());
        }
        let kept = *format == StoredFormat::Bf16;
        let expected = if kept { WeightFormat::Bf16 } else { WeightFormat::F32 };
        assert_eq!(format.kernel_format(), expected);
    }
}

#[test]
#[should_panic(expected = "int8-row: scales")]
fn missing_scales_are_refused() {
    StoredFormat::Int8Row.widen(&[0; 6], &[1.0], 2, 3, &mut [0.0; 6]);
}

#[test]
fn int8_rounding_is_half_to_even_within_127() {
    let row = [127.0, -127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 3.51];
    let (codes, scale) = round_int8_row(&row);
    assert_eq!(scale, 1.0);
    assert_eq!(codes, [127, -127, 0, 2, 2, 0, -2, 0, 4]);
}

#[test]
fn int8_row_of_zeros_has_scale_zero() {
    assert_eq!(round_int8_row(&[0.0, -0.0]), (vec![0, 0], 0.0));
    assert_eq!(round_int8_row(&[]), (vec![], 0.0));
    // So small that the scale rounds to zero.
    assert_eq!(round_int8_row(&[1e-45]), (vec![0], 0.0));
    // So small that the scale is a coarse subnormal: the codes stay within 127.
    let (codes, _) = round_int8_row(&[f32::from_bits(180), -f32::from_bits(180)]);
    assert_eq!(codes, [127, -127]);
}
