//! ggml's blocks mean what ggml says, to the bit, and can be cut between their parts.
//!
//! `data/ggml_blocks.bin` has blocks and the values that the `gguf` package dequantises them to; the script
//! beside it makes it again. `specified` is the definition column by column, for blocks of any shape.

mod specified;

use millstream_kernels::{FileLayout, FileMatrix, GgmlType, WeightFormat, Weights};
use std::ops::Range;

/// Blocks and their values.
struct Fixture {
    kind: GgmlType,
    rows: usize,
    cols: usize,
    blocks: &'static [u8],
    values: Vec<f32>,
}

fn fixtures() -> Vec<Fixture> {
    let mut bytes: &[u8] = include_bytes!("../data/ggml_blocks.bin");
    let mut all = vec![];
    while !bytes.is_empty() {
        let number = |i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("4"));
        let kind = GgmlType::from_id(number(0)).expect("a type of ggml");
        let (rows, cols) = (number(1) as usize, number(2) as usize);
        let length = rows * kind.row_bytes(cols).expect("whole blocks");
        let (blocks, rest) = bytes[12..].split_at(length);
        let (values, rest) = rest.split_at(4 * rows * cols);
        let values = values.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect();
        all.push(Fixture { kind, rows, cols, blocks, values });
        bytes = rest;
    }
    all
}

/// Every weight of a rectangle, by way of the compute layout.
fn decoded(file: &FileMatrix, rows: Range<usize>, cols: Range<usize>) -> Vec<f32> {
    let (format, count) = (file.format, rows.len());
    let length = format.matrix_bytes(count, cols.len());
    let mut words = vec![u128::MAX; length.div_ceil(16)];
    let bytes = &mut bytemuck::cast_slice_mut(&mut words)[..length];
    file.lay_out(rows, cols.clone(), bytes);
    let weights = Weights::new(format, count, cols.len(), bytes);
    let mut out = vec![7.0; count * cols.len()];
    for (row, out) in out.chunks_exact_mut(cols.len()).enumerate() {
        weights.decode_row(row, out);
    }
    out
}

fn blocks(kind: GgmlType, rows: usize, cols: usize, weights: &[u8]) -> FileMatrix<'_> {
    let format = kind.format().expect("a type that is read");
    FileMatrix { format, layout: FileLayout::Ggml, rows, cols, weights, scales: &[] }
}

#[test]
fn weights_are_those_of_the_gguf_package() {
    let fixtures = fixtures();
    for fixture in &fixtures {
        let Fixture { kind, rows, cols, blocks: bytes, ref values } = *fixture;
        let got = decoded(&blocks(kind, rows, cols, bytes), 0..rows, 0..cols);
        let row_bytes = kind.row_bytes(cols).expect("whole blocks");
        for (i, (got, want)) in got.iter().zip(values).enumerate() {
            let name = kind.name();
            assert_eq!(got.to_bits(), want.to_bits(), "{name} {i}: {got:e} not {want:e}");
            let row = &bytes[i / cols * row_bytes..][..row_bytes];
            let said = specified::weight(kind, row, i % cols);
            assert_eq!(said.to_bits(), want.to_bits(), "{name} {i}: said {said:e}");
        }
    }
    for format in WeightFormat::EACH {
        let kind = GgmlType::of(format);
        let floats = matches!(format, WeightFormat::F32 | WeightFormat::Bf16);
        if let Some(kind) = kind.filter(|_| !floats) {
            assert!(fixtures.iter().any(|fixture| fixture.kind == kind), "no {format}");
        }
    }
    for kind in [GgmlType::Q4_0, GgmlType::Q8_0] {
        assert!(fixtures.iter().any(|fixture| fixture.kind == kind), "no {}", kind.name());
    }
}

/// Every row of a type in one matrix of 768 columns, as wide as the experts of real models.
#[test]
fn equal_cuts_of_columns_are_parts_of_the_whole() {
    for fixture in fixtures() {
        let kind = fixture.kind;
        let row_bytes = kind.row_bytes(768).expect("whole blocks");
        let bytes: Vec<u8> = fixture.blocks.iter().copied().cycle().take(5 * row_bytes).collect();
        let file = blocks(kind, 5, 768, &bytes);
        let whole = decoded(&file, 0..5, 0..768);
        for slices in [2, 4, 8] {
            let width = 768 / slices;
            for slice in 0..slices {
                let part = decoded(&file, 0..5, slice * width..(slice + 1) * width);
                for (row, part) in part.chunks_exact(width).enumerate() {
                    let want = &whole[row * 768 + slice * width..][..width];
                    let same = part.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{}, slice {slice} of {slices}, row {row}", kind.name());
                }
            }
        }
    }
}

#[test]
fn a_layout_has_the_bytes_of_the_file() {
    for fixture in fixtures() {
        let Fixture { kind, rows, cols, blocks, .. } = fixture;
        let format = kind.format().expect("a type that is read");
        let layout = FileLayout::Ggml;
        assert_eq!(layout.weight_bytes(format, rows, cols), Some(blocks.len()), "{}", kind.name());
        assert_eq!(layout.scale_bytes(format, rows, cols), Some(0), "{}", kind.name());
        if kind.block_columns() > 1 {
            assert_eq!(layout.weight_bytes(format, rows, cols + 1), None, "{}", kind.name());
        }
    }
    assert_eq!(FileLayout::Apart.weight_bytes(WeightFormat::Q4K, 1, 256), None);
    let row: WeightFormat = "int8-row".parse().expect("a format");
    assert_eq!(FileLayout::Ggml.weight_bytes(row, 1, 256), None);
    assert_eq!(FileLayout::Apart.scale_bytes(row, 3, 256), Some(12));
}

#[test]
#[should_panic(expected = "columns cut within a group")]
fn a_cut_that_would_join_parts_of_two_super_blocks_is_refused() {
    let bytes = vec![0; 2 * 144];
    let mut out = vec![0; WeightFormat::Q4K.matrix_bytes(1, 256)];
    blocks(GgmlType::Q4K, 1, 512, &bytes).lay_out(0..1, 32..288, &mut out);
}
