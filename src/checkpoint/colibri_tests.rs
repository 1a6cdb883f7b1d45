//! Sizes and the formats they mean: the table of the container's page, written out as arithmetic.

use super::*;

/// Sizes with f32 scales, `scales` of them.
fn sizes([rows, cols]: [usize; 2], weight_bytes: usize, scales: usize) -> Sizes {
    let (weight_bytes, scale_bytes) = (weight_bytes as u64, 4 * scales as u64);
    Sizes { rows, cols, weight_bytes, scale_bytes, scales: ScaleType::F32 }
}

/// Sizes with one byte a scale.
fn byte_scales([rows, cols]: [usize; 2], weight_bytes: usize, scales: usize) -> Sizes {
    let (weight_bytes, scale_bytes) = (weight_bytes as u64, scales as u64);
    Sizes { rows, cols, weight_bytes, scale_bytes, scales: ScaleType::Ue8m0 }
}

fn name(sizes: Sizes, stamp: Option<&str>) -> String {
    resolve_format(sizes, stamp).unwrap_or_else(|fault| panic!("{fault}")).to_string()
}

fn fault(sizes: Sizes, stamp: Option<&str>) -> String {
    resolve_format(sizes, stamp).expect_err("refused").to_string()
}

fn ambiguous(sizes: Sizes, stamp: Option<&str>) -> Vec<String> {
    match resolve_format(sizes, stamp) {
        Err(ColibriFault::Ambiguous { formats, .. }) => formats,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_format_of_a_real_matrix_is_told_from_its_sizes() {
    // An expert's down projection and the gate of GLM-5.2.
    for [rows, cols] in [[6144, 2048], [2048, 6144]] {
        let shape = [rows, cols];
        assert_eq!(name(sizes(shape, rows * cols, rows), None), "int8-row");
        assert_eq!(name(sizes(shape, rows * cols / 2, rows), None), "int4-row");
        assert_eq!(name(sizes(shape, rows * cols / 4, rows), None), "int2-row");
        for group in [32, 64, 128, 256] {
            let found = name(sizes(shape, rows * cols / 2, rows * cols / group), None);
            assert_eq!(found, format!("int4-g{group}"));
        }
        let int3 = sizes(shape, rows * (cols / 64) * 24, rows * cols / 64);
        assert_eq!(name(int3, None), "int3-g64");
        let blocks = rows / 128 * (cols / 128);
        assert_eq!(name(sizes(shape, rows * cols, blocks), None), "fp8-e4m3-b128");
        assert_eq!(name(byte_scales(shape, rows * cols, blocks), None), "fp8-e4m3-b128:ue8m0");
        assert_eq!(name(byte_scales(shape, rows * cols / 2, rows * cols / 32), None), "mxfp4");
    }
}

#[test]
fn one_byte_more_or_less_is_no_format() {
    let whole = sizes([6144, 2048], 6144 * 1024, 6144 * 32);
    for weights in [-1, 0, 1] {
        for scales in [-1, 0, 1] {
            let sizes = Sizes {
                weight_bytes: whole.weight_bytes.strict_add_signed(weights),
                scale_bytes: whole.scale_bytes.strict_add_signed(scales),
                ..whole
            };
            let expected = (weights, scales) == (0, 0);
            assert_eq!(resolve_format(sizes, None).is_ok(), expected, "{sizes:?}");
        }
    }
    assert!(fault(sizes([6144, 2048], 0, 0), None).contains("6144 x 2048"));
}

#[test]
fn groups_that_end_at_other_columns_are_refused_by_name() {
    assert_eq!(
        ambiguous(sizes([8, 96], 8 * 48, 8 * 2), None),
        ["int3-g64", "int4-g48", "int4-g64"]
    );
    assert_eq!(ambiguous(sizes([8, 192], 8 * 96, 8 * 2), None), ["int4-g96", "int4-g128"]);
    assert_eq!(ambiguous(sizes([8, 100], 8 * 50, 8 * 2), None), ["int4-g64", "int4-g96"]);
    let message = fault(sizes([8, 96], 8 * 48, 8 * 2), None);
    assert!(message.contains("int4-g48, int4-g64") && message.contains("colibri.fmt"), "{message}");
}

#[test]
fn groups_longer_than_a_row_are_all_the_same() {
    for stamp in [None, Some("int4-grouped"), Some("int4-g64"), Some("int4-row")] {
        assert_eq!(name(sizes([8, 40], 8 * 20, 8), stamp), "int4-row", "{stamp:?}");
    }
    let longer_than_any = sizes([8, 512], 8 * 256, 8);
    assert_eq!(name(longer_than_any, None), "int4-row");
    assert!(fault(longer_than_any, Some("int4-grouped")).contains("damaged"));
    assert!(fault(sizes([8, 40], 8 * 20, 8), Some("int4-g32")).contains("int4-g32"));
}

#[test]
fn stamp_decides_where_sizes_do_not() {
    let grouped = sizes([8, 96], 8 * 48, 8 * 2);
    assert_eq!(name(grouped, Some("int4-g64")), "int4-g64");
    assert_eq!(name(grouped, Some("int4-g48")), "int4-g48");
    assert_eq!(name(grouped, Some("int3-g64")), "int3-g64");
    // The container's own stamp doesn't say how long groups are.
    assert_eq!(ambiguous(grouped, Some("int4-grouped")), ["int4-g48", "int4-g64"]);
    assert_eq!(ambiguous(sizes([8, 128], 8 * 64, 8 * 2), None), ["int4-g64", "int4-g96"]);
    assert_eq!(name(sizes([8, 256], 8 * 128, 8 * 4), Some("int4-grouped")), "int4-g64");
}

#[test]
fn stamp_that_sizes_contradict_is_refused() {
    let int8 = sizes([64, 256], 64 * 256, 64);
    for stamp in ["int4-row", "int2-row", "int4-grouped", "int3-g64", "mxfp4", "f32", LATTICE] {
        let message = fault(int8, Some(stamp));
        assert!(message.contains(stamp) && message.contains("64 x 256"), "{message}");
    }
    for stamp in ["int8", "1", "", "int4-g17", "int4-g064", "INT8-ROW"] {
        let message = fault(int8, Some(stamp));
        assert!(message.contains("no known format") && message.contains("int8-row"), "{message}");
    }
}

#[test]
fn block_scales_as_many_as_rows_mean_a_row_format() {
    // 48 * 128 blocks = 6144 rows: the attention output of GLM-5.2.
    let output = sizes([6144, 16384], 6144 * 16384, 6144);
    assert_eq!(48 * 128, 6144);
    assert_eq!(name(output, None), "int8-row");
    assert_eq!(name(output, Some("fp8-e4m3-b128")), "fp8-e4m3-b128");
    assert_eq!(name(output, Some("int8-row")), "int8-row");
}

#[test]
fn row_formats_go_before_groups_of_the_same_sizes() {
    // One group of three planes takes 24 bytes: as many as 24 columns of int8, or 48 of int4.
    assert_eq!(name(sizes([8, 24], 8 * 24, 8), None), "int8-row");
    assert_eq!(name(sizes([8, 48], 8 * 24, 8), None), "int4-row");
    assert_eq!(name(sizes([8, 48], 8 * 24, 8), Some("int3-g64")), "int3-g64");
}

#[test]
fn row_formats_that_differ_only_in_bits_are_never_guessed() {
    assert_eq!(ambiguous(sizes([8, 1], 8, 8), None), ["int8-row", "int4-row", "int2-row"]);
    assert_eq!(ambiguous(sizes([8, 2], 8, 8), None), ["int4-row", "int2-row"]);
    assert_eq!(name(sizes([8, 2], 8, 8), Some("int2-row")), "int2-row");
}

#[test]
fn lattice_and_groups_of_16_are_refused_by_name() {
    let lattice = sizes([64, 512], 64 * 2 * 98, 1);
    for stamp in [None, Some(LATTICE)] {
        assert!(fault(lattice, stamp).contains(LATTICE), "{stamp:?}");
    }
    for stamp in [None, Some("int4-grouped"), Some("int4-g16")] {
        assert!(fault(sizes([8, 64], 8 * 32, 8 * 4), stamp).contains("int4-g16"), "{stamp:?}");
    }
}

#[test]
fn lattice_of_one_row_is_told_by_its_stamp_only() {
    let row = sizes([1, 98], 98, 1);
    // One scale block too: 98 columns are fewer than 128.
    assert_eq!(ambiguous(row, None), ["int8-row", LATTICE, "fp8-e4m3-b128"]);
    assert_eq!(name(row, Some("int8-row")), "int8-row");
    assert!(fault(row, Some(LATTICE)).contains("doesn't compute"));
}

#[test]
fn what_is_told_always_has_the_sizes_that_were_given() {
    for rows in [1, 2, 3, 16, 97, 128, 129] {
        for cols in 1..300 {
            for format in WeightFormat::EACH {
                let scale = format.scale_type().unwrap_or(ScaleType::F32);
                let found = Sizes {
                    rows,
                    cols,
                    weight_bytes: format.file_bytes(rows, cols) as u64,
                    scale_bytes: (format.file_scales(rows, cols) * scale.bytes()) as u64,
                    scales: scale,
                };
                if let Ok(told) = resolve_format(found, None) {
                    assert_eq!(told.file_bytes(rows, cols) as u64, found.weight_bytes);
                    let scales = told.file_scales(rows, cols) * scale.bytes();
                    assert_eq!(scales as u64, found.scale_bytes);
                }
                // With its name it is told, or told by the name of one group for a whole row.
                if format.scale_type().is_some() && format.info().colibri_name.is_some() {
                    let stamp = format.to_string();
                    let told = resolve_format(found, Some(&stamp)).expect("its own name");
                    let grouped = matches!(format, WeightFormat::Int4Group(..)) && cols <= 64;
                    assert!(told == format || grouped, "{format} told {told} at {rows} x {cols}");
                }
            }
        }
    }
}

#[test]
fn absurd_shapes_do_not_overflow() {
    let absurd = Sizes {
        rows: usize::MAX,
        cols: usize::MAX,
        weight_bytes: u64::MAX,
        scale_bytes: u64::MAX,
        scales: ScaleType::F32,
    };
    assert!(matches!(resolve_format(absurd, None), Err(ColibriFault::NoFormat { .. })));
}
