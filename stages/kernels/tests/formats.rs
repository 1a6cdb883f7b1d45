//! Weights mean what their formats' specifications say, and laying out loses nothing.
//!
//! The decoder here is written from the specifications (OFP8 1.0, OCP MX 1.0, IEEE 754, the table
//! of the colibri container; of ggml's blocks in `ggml/specified.rs`) over the file layout. The crate's own way goes through the compute
//! layout: [`FileMatrix::lay_out`] of any rectangle, then [`Weights`].

#[path = "ggml/specified.rs"]
mod specified_blocks;

use millstream_kernels::formats::block::{BlockCode, FileCode, LINE_BYTES, code_bytes};
use millstream_kernels::formats::codes::CodeKind;
use millstream_kernels::formats::f16::f16_to_f32;
use millstream_kernels::formats::fp8::fp8_e4m3_to_f32;
use millstream_kernels::formats::scale::ue8m0_to_f32;
use millstream_kernels::formats::{
    five::{Int5, Uint5},
    int2_row::Int2,
    int3_group::Int3,
    int4_group::Int4,
    int8_row::Int8,
    iq4_nl::Iq4,
    mxfp4::E2m1,
    q2_k::Uint2,
    q4_1::Uint4,
    q6_k::Int6,
};
use millstream_kernels::{FileLayout, FileMatrix, GgmlType, ScaleType, WeightFormat, Weights};
use std::ops::Range;

/// Sign, exponent and mantissa of a small float by their definition, in f64. No infinity, no NaN.
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
fn every_ue8m0_code_is_its_power_of_two() {
    for code in 0..255u8 {
        assert_eq!(f64::from(ue8m0_to_f32(code)), 2f64.powi(i32::from(code) - 127), "{code}");
    }
    assert!(ue8m0_to_f32(255).is_nan());
}

/// OCP MX 1.0, table 5: E2M1 without sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The weight at a row and column of the file layout, by the specifications.
fn specified(file: &FileMatrix, row: usize, column: usize) -> f32 {
    let cols = file.cols;
    if let (FileLayout::Ggml, Some(kind)) = (file.layout, GgmlType::of(file.format)) {
        let row_bytes = cols.div_ceil(kind.block_columns()) * kind.block_bytes();
        let value =
            specified_blocks::weight(kind, &file.weights[row * row_bytes..][..row_bytes], column);
        return value;
    }
    let at = row * cols + column;
    let groups = |columns: usize| row * cols.div_ceil(columns) + column / columns;
    let nibble = || {
        let byte = file.weights[row * cols.div_ceil(2) + column / 2];
        if column.is_multiple_of(2) { byte & 15 } else { byte >> 4 }
    };
    let half = || u16::from_le_bytes([file.weights[2 * at], file.weights[2 * at + 1]]);
    match file.format {
        WeightFormat::F32 => {
            let bytes = file.weights[4 * at..4 * at + 4].try_into().expect("four bytes");
            f32::from_le_bytes(bytes)
        }
        WeightFormat::Bf16 => f32::from_bits(u32::from(half()) << 16),
        WeightFormat::F16 => f16_to_f32(half()),
        WeightFormat::Fp8Block128(_) => {
            let block = row / 128 * cols.div_ceil(128) + column / 128;
            fp8_e4m3_to_f32(file.weights[at]) * scale_of(file, block)
        }
        WeightFormat::Int8Row(_) => f32::from(file.weights[at] as i8) * scale_of(file, row),
        WeightFormat::Int4Row(_) => (f32::from(nibble()) - 8.0) * scale_of(file, row),
        WeightFormat::Int4Group(group, _) => {
            (f32::from(nibble()) - 8.0) * scale_of(file, groups(group.columns()))
        }
        WeightFormat::Int2Row(_) => {
            let byte = file.weights[row * cols.div_ceil(4) + column / 4];
            (f32::from(byte >> (column % 4 * 2) & 3) - 2.0) * scale_of(file, row)
        }
        WeightFormat::Int3Group64(_) => {
            let group = &file.weights[groups(64) * 24..][..24];
            let k = column % 64;
            let low = group[k >> 2] >> (2 * (k & 3)) & 3;
            let high = group[16 + (k >> 3)] >> (k & 7) & 1;
            (f32::from(low + 4 * high) - 4.0) * scale_of(file, groups(64))
        }
        WeightFormat::Mxfp4 => {
            let magnitude = E2M1[(nibble() & 7) as usize];
            let value = if nibble() & 8 == 0 { magnitude } else { -magnitude };
            // The crate has one zero, as integers have.
            (value + 0.0) * scale_of(file, groups(32))
        }
        WeightFormat::Int8Group32(_) => {
            f32::from(file.weights[at] as i8) * scale_of(file, groups(32))
        }
        format => panic!("{format} never lies apart"),
    }
}

fn scale_of(file: &FileMatrix, index: usize) -> f32 {
    let s = file.scales;
    match file.format.scale_type().expect("codes have scales") {
        ScaleType::F32 => {
            f32::from_le_bytes(s[4 * index..4 * index + 4].try_into().expect("four bytes"))
        }
        ScaleType::F16 => f16_to_f32(u16::from_le_bytes([s[2 * index], s[2 * index + 1]])),
        ScaleType::Bf16 => {
            f32::from_bits(u32::from_le_bytes([0, 0, s[2 * index], s[2 * index + 1]]))
        }
        ScaleType::Ue8m0 => 2f64.powi(i32::from(s[index]) - 127) as f32,
    }
}

/// Every format, groups that fit in different ways, and every type of scales.
fn formats() -> Vec<WeightFormat> {
    let more = [
        "int4-g32",
        "int4-g48",
        "int4-g96",
        "int4-g128",
        "int4-g256:f16",
        "int4-g64:bf16",
        "int4-g32:ue8m0",
        "int8-row:f16",
        "int4-row:bf16",
        "int2-row:f16",
        "int3-g64:f16",
        "fp8-e4m3-b128:ue8m0",
        "fp8-e4m3-b128:bf16",
        "int8-g32:bf16",
    ];
    let more = more.into_iter().map(|name| name.parse().expect("a format's name"));
    WeightFormat::EACH.into_iter().chain(more).collect()
}

/// Every format in every file layout that holds it.
fn files() -> Vec<(WeightFormat, FileLayout)> {
    let q4_0 = GgmlType::Q4_0.format().expect("a type that is read");
    let mut files: Vec<(WeightFormat, FileLayout)> =
        formats().into_iter().map(|format| (format, format.file_layout())).collect();
    let both = [WeightFormat::F32, WeightFormat::F16, WeightFormat::Mxfp4, q4_0];
    files.extend(both.map(|format| (format, FileLayout::Ggml)));
    files.push((WeightFormat::Int8Group32(ScaleType::F16), FileLayout::Ggml));
    files
}

/// Bytes of a matrix of random bits in the file layout, padding included. Scales are finite.
struct File {
    format: WeightFormat,
    layout: FileLayout,
    rows: usize,
    cols: usize,
    weights: Vec<u8>,
    scales: Vec<u8>,
}

impl File {
    fn random(format: WeightFormat, rows: usize, cols: usize) -> File {
        File::in_layout((format, format.file_layout()), rows, cols)
    }

    fn in_layout((format, layout): (WeightFormat, FileLayout), rows: usize, cols: usize) -> File {
        let mut state = (rows * 1_000_003 + cols) as u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let blocks = match layout {
            FileLayout::Apart => None,
            FileLayout::Ggml => GgmlType::of(format),
        };
        let weight_bytes = match blocks {
            None => format.file_bytes(rows, cols),
            Some(kind) => rows * cols.div_ceil(kind.block_columns()) * kind.block_bytes(),
        };
        let mut weights: Vec<u8> = (0..weight_bytes).map(|_| byte()).collect();
        // The highest bits of an exponent are 01: no infinity, no NaN.
        let finite = |last: &mut u8| *last = *last & 0x9f | 0x20;
        if let Some(kind) = blocks {
            for block in weights.chunks_exact_mut(kind.block_bytes()) {
                kind.half_places().iter().for_each(|place| finite(&mut block[place + 1]));
            }
        }
        let scale_bytes = format.scale_type().map_or(0, ScaleType::bytes);
        let scales = if blocks.is_some() { 0 } else { format.file_scales(rows, cols) };
        let mut scales: Vec<u8> = (0..scales * scale_bytes).map(|_| byte()).collect();
        for scale in scales.chunks_exact_mut(scale_bytes.max(1)) {
            finite(scale.last_mut().expect("a scale has bytes"));
        }
        File { format, layout, rows, cols, weights, scales }
    }

    fn view(&self) -> FileMatrix<'_> {
        let File { format, layout, rows, cols, .. } = *self;
        FileMatrix { format, layout, rows, cols, weights: &self.weights, scales: &self.scales }
    }

    /// The rectangle in the compute layout, in words that are aligned as arenas are.
    fn laid_out(&self, rows: Range<usize>, cols: Range<usize>) -> Vec<u128> {
        let bytes = self.format.matrix_bytes(rows.len(), cols.len());
        let mut words = vec![u128::MAX; bytes.div_ceil(16)];
        self.view().lay_out(rows, cols, &mut bytemuck::cast_slice_mut(&mut words)[..bytes]);
        words
    }
}

fn view(format: WeightFormat, rows: usize, cols: usize, words: &[u128]) -> Weights<'_> {
    let bytes = &bytemuck::cast_slice(words)[..format.matrix_bytes(rows, cols)];
    Weights::new(format, rows, cols, bytes)
}

/// Lays the rectangle out and compares every weight with what the specification says.
#[track_caller]
fn check_rectangle(file: &File, rows: Range<usize>, cols: Range<usize>) {
    let words = file.laid_out(rows.clone(), cols.clone());
    let weights = view(file.format, rows.len(), cols.len(), &words);
    let mut row = vec![7.0; cols.len()];
    for r in 0..rows.len() {
        weights.decode_row(r, &mut row);
        for (c, got) in row.iter().enumerate() {
            let want = specified(&file.view(), rows.start + r, cols.start + c);
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{}, {rows:?} x {cols:?}: {r}, {c}: {got:e} not {want:e}", file.format);
            let alone = weights.weight(r, c);
            assert!(alone.to_bits() == got.to_bits() || alone.is_nan() && got.is_nan());
        }
    }
}

#[test]
fn weights_of_every_format_and_tail_are_as_specified() {
    for of in files() {
        for cols in (1..=67).chain([127, 128, 129, 191, 255, 256, 257, 300]) {
            let rows = [1, 3, 16, 18, 33][cols % 5];
            let file = File::in_layout(of, rows, cols);
            check_rectangle(&file, 0..rows, 0..cols);
        }
        for rows in 1..=50 {
            let file = File::in_layout(of, rows, 40);
            check_rectangle(&file, 0..rows, 0..40);
        }
    }
}

#[test]
fn fp8_blocks_reach_over_rows() {
    let format = WeightFormat::Fp8Block128(ScaleType::F32);
    let file = File::random(format, 300, 300);
    check_rectangle(&file, 0..300, 0..300);
    check_rectangle(&file, 100..270, 128..300);
    check_rectangle(&file, 127..129, 256..257);
}

#[test]
fn any_rectangle_is_the_same_part_of_the_whole() {
    for of in files() {
        let (rows, cols) = (37, 300);
        let file = File::in_layout(of, rows, cols);
        let format = of.0;
        let step = format.group().max(37);
        for (i, first) in (0..cols).step_by(step.next_multiple_of(format.group())).enumerate() {
            for end in [first, first + 1, (first + cols) / 2, cols - 1, cols] {
                if !first.is_multiple_of(format.cut(end - first)) {
                    continue;
                }
                let first_row = [0, 1, 15, 16, 17, 30][(i + end) % 6];
                check_rectangle(&file, first_row..rows, first..end);
                check_rectangle(&file, first_row..first_row + 1, first..end);
                check_rectangle(&file, first_row..first_row, first..end);
            }
        }
    }
}

/// Every code comes back from the compute layout.
fn check_codes<C: FileCode>(format: WeightFormat) {
    for (rows, cols) in [(1, 1), (16, 64), (17, 65), (35, 129), (40, 256)] {
        let file = File::random(format, rows, cols);
        let words = file.laid_out(0..rows, 0..cols);
        let weights = view(format, rows, cols, &words);
        let row_bytes = format.file_bytes(1, cols);
        for r in 0..rows {
            let mut packed = vec![0; row_bytes];
            for c in 0..cols {
                let code = weights.code::<C>(r, c);
                assert_eq!(
                    code,
                    C::file_get(&file.weights[r * row_bytes..], c),
                    "{format} {r} {c}"
                );
                C::file_put(&mut packed, c, code);
            }
            for c in 0..cols {
                assert_eq!(C::file_get(&packed, c), weights.code::<C>(r, c), "{format} {r} {c}");
            }
        }
    }
}

/// Nothing but codes, scales and padding that means zero is in the compute layout.
fn check_padding<C: BlockCode>(of: (WeightFormat, FileLayout)) {
    let format = of.0;
    for (rows, cols) in [(1, 1), (16, 64), (17, 65), (35, 129), (40, 256)] {
        let file = File::in_layout(of, rows, cols);
        let words = file.laid_out(0..rows, 0..cols);
        let weights = view(format, rows, cols, &words);
        let step_bytes = C::STEP_LINES * LINE_BYTES;
        let code_bytes = code_bytes::<C>(cols);
        assert_eq!(code_bytes, cols.div_ceil(C::STEP_COLUMNS) * step_bytes);
        for block in 0..rows.div_ceil(16) {
            let bytes = &weights.bytes()[block * format.block_bytes(cols)..];
            let lines = &bytes[format.block_scale_bytes(cols)..][..code_bytes];
            for r in 0..16 {
                for c in 0..cols.next_multiple_of(C::STEP_COLUMNS) {
                    if block * 16 + r < rows && c < cols {
                        continue;
                    }
                    let step = &lines[c / C::STEP_COLUMNS * step_bytes..][..step_bytes];
                    assert_eq!(
                        C::get(step, r, c % C::STEP_COLUMNS),
                        C::ZERO_CODE,
                        "{format} {r} {c}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_code_comes_back_from_the_compute_layout() {
    for format in formats() {
        match (format.file_layout(), format.codes()) {
            (FileLayout::Apart, Some(CodeKind::Int8)) => check_codes::<Int8>(format),
            (FileLayout::Apart, Some(CodeKind::Int4)) => check_codes::<Int4>(format),
            (FileLayout::Apart, Some(CodeKind::Int2)) => check_codes::<Int2>(format),
            (FileLayout::Apart, Some(CodeKind::Int3)) => check_codes::<Int3>(format),
            (FileLayout::Apart, Some(CodeKind::E2m1)) => check_codes::<E2m1>(format),
            (FileLayout::Apart, other) => assert_eq!(other, None, "{format}"),
            (FileLayout::Ggml, _) => {}
        }
    }
}

#[test]
fn padding_means_zero() {
    for of in files() {
        match of.0.codes() {
            Some(CodeKind::Int8) => check_padding::<Int8>(of),
            Some(CodeKind::Int4) => check_padding::<Int4>(of),
            Some(CodeKind::Int3) => check_padding::<Int3>(of),
            Some(CodeKind::Int2) => check_padding::<Int2>(of),
            Some(CodeKind::E2m1) => check_padding::<E2m1>(of),
            Some(CodeKind::Uint4) => check_padding::<Uint4>(of),
            Some(CodeKind::Iq4) => check_padding::<Iq4>(of),
            Some(CodeKind::Int5) => check_padding::<Int5>(of),
            Some(CodeKind::Uint5) => check_padding::<Uint5>(of),
            Some(CodeKind::Int6) => check_padding::<Int6>(of),
            Some(CodeKind::Uint2) => check_padding::<Uint2>(of),
            None => {}
        }
    }
}

/// Different files of a shape have different bytes: every code and scale has a place of its own.
#[test]
fn laying_out_keeps_every_bit() {
    for of in files() {
        let (format, layout) = of;
        // Whole blocks, and a few rows of a block that isn't whole.
        let (rows, cols) = if layout == FileLayout::Ggml { (3, 256) } else { (18, 64) };
        let mut file = File::in_layout(of, rows, cols);
        let whole = file.laid_out(0..rows, 0..cols);
        for byte in 0..file.weights.len() {
            for bit in 0..8 {
                file.weights[byte] ^= 1 << bit;
                assert_ne!(file.laid_out(0..rows, 0..cols), whole, "{format}: weight byte {byte}");
                file.weights[byte] ^= 1 << bit;
            }
        }
        for byte in 0..file.scales.len() {
            file.scales[byte] ^= 1;
            assert_ne!(file.laid_out(0..rows, 0..cols), whole, "{format}: scale byte {byte}");
            file.scales[byte] ^= 1;
        }
    }
}

#[test]
fn rows_at_block_borders_are_matrices_of_their_own() {
    for format in formats() {
        let (rows, cols) = (50, 70);
        let file = File::random(format, rows, cols);
        let words = file.laid_out(0..rows, 0..cols);
        let weights = view(format, rows, cols, &words);
        for range in [0..16, 16..32, 16..50, 48..50, 0..50] {
            let part = weights.slice(range.clone());
            assert_eq!((part.rows(), part.cols()), (range.len(), cols));
            for (r, row) in range.enumerate() {
                for c in [0, 33, 69] {
                    let (part, whole) = (part.weight(r, c), weights.weight(row, c));
                    assert!(part.to_bits() == whole.to_bits() || part.is_nan() && whole.is_nan());
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "columns cut within a group")]
fn a_cut_within_a_group_is_refused() {
    let file = File::random("int4-g64".parse().expect("a format"), 4, 128);
    file.laid_out(0..4, 32..128);
}

#[test]
#[should_panic(expected = "int8-row: scales")]
fn missing_scales_are_refused() {
    let mut file = File::random(WeightFormat::Int8Row(ScaleType::F32), 2, 3);
    file.scales.pop();
    file.laid_out(0..2, 0..3);
}

#[test]
#[should_panic(expected = "cut a block of 16")]
fn rows_within_a_block_are_no_matrix() {
    let file = File::random("int4-g64".parse().expect("a format"), 40, 64);
    let words = file.laid_out(0..40, 0..64);
    view(file.format, 40, 64, &words).slice(8..40);
}
