//! Weights of every format times f32 activations: each output is the scalar dot of its row and
//! token, whatever is computed beside it.

use crate::support::{Kind, Matrix, Random, assert_same, formats, scalar, vector_kernels};
use millstream_kernels::{Activations, FileMatrix, Floats, Isa, Kernels, WeightFormat, Weights};

const TOKENS: [usize; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 12, 16, 33, 48, 100];
const COLS: [usize; 12] = [1, 2, 15, 16, 17, 31, 48, 100, 512, 513, 528, 1041];

/// A matmul's shape.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    cols: usize,
    tokens: usize,
}

/// Compares a matmul with dots of decoded rows, one by one. Activation rows have gaps between them
/// and are chosen out of order.
fn compare_matmul(format: WeightFormat, kernels: &[Kernels], shape: Shape, kind: Kind) {
    let Shape { rows, cols, tokens } = shape;
    let mut random = Random((rows * 1_000_003 + cols * 1009 + tokens) as u64);
    let matrix = Matrix::random(format, rows, cols, kind, &mut random);
    let (stride, held) = (cols + 3, tokens + 2);
    // The last row ends with its columns: a row needs no room up to the stride.
    let data = random.vector(kind, (held - 1) * stride + cols);
    let chosen: Vec<u32> = (0..tokens).map(|_| (random.bits() % held as u64) as u32).collect();
    let x = Activations { data: &data, stride, rows: &chosen };
    let (mut want, mut row) = (vec![7.0; tokens * rows], vec![7.0; cols]);
    for r in 0..rows {
        matrix.view().decode_row(r, &mut row);
        for (t, token) in chosen.iter().enumerate() {
            let token = &data[*token as usize * stride..][..cols];
            want[t * rows + r] = scalar().dot(Floats::F32(&row), token);
        }
    }
    for kernels in kernels {
        let mut got = vec![7.0; tokens * rows];
        kernels.matmul(matrix.view(), x, &mut got);
        assert_same(&got, &want, &format!("{format} on {}, {shape:?}, {kind:?}", kernels.isa()));
    }
}

/// Every instruction set of this machine, scalar included.
fn all_kernels() -> Vec<Kernels> {
    vector_kernels().into_iter().chain([scalar()]).collect()
}

#[test]
fn outputs_of_plain_floats_are_dots() {
    let kernels = all_kernels();
    for format in [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::F16] {
        for rows in 1..=9 {
            for tokens in TOKENS {
                for cols in COLS {
                    compare_matmul(format, &kernels, Shape { rows, cols, tokens }, Kind::Ordinary);
                }
                let shape = Shape { rows, cols: 37, tokens };
                compare_matmul(format, &kernels, shape, Kind::Awkward);
                compare_matmul(format, &kernels, shape, Kind::Zeros);
            }
        }
    }
}

#[test]
fn outputs_of_every_format_are_dots_of_decoded_rows() {
    let kernels = all_kernels();
    for format in formats() {
        for cols in (1..=70).chain([127, 128, 129, 255, 256, 257, 300, 1041]) {
            for rows in [1, 5, 16, 35] {
                let tokens = 1 + (rows + cols) % 9;
                let shape = Shape { rows, cols, tokens };
                compare_matmul(format, &kernels, shape, Kind::Ordinary);
            }
            let shape = Shape { rows: 18, cols, tokens: 1 + cols % 5 };
            compare_matmul(format, &kernels, shape, Kind::Awkward);
            compare_matmul(format, &kernels, shape, Kind::Zeros);
        }
    }
}

#[test]
fn every_number_of_tokens_and_rows() {
    let kernels = all_kernels();
    for format in formats() {
        for tokens in 0..=17 {
            compare_matmul(format, &kernels, Shape { rows: 19, cols: 200, tokens }, Kind::Ordinary);
        }
        for rows in 1..=40 {
            compare_matmul(format, &kernels, Shape { rows, cols: 161, tokens: 3 }, Kind::Ordinary);
        }
    }
}

#[test]
fn long_rows() {
    let kernels = vector_kernels();
    for format in formats() {
        for tokens in [1, 7] {
            for cols in [4096, 4097, 4136] {
                compare_matmul(format, &kernels, Shape { rows: 5, cols, tokens }, Kind::Ordinary);
            }
        }
        compare_matmul(format, &kernels, Shape { rows: 5, cols: 4097, tokens: 2 }, Kind::Awkward);
    }
}

/// More rows than are passed over at once, and than share a scale.
#[test]
fn many_rows() {
    let kernels = vector_kernels();
    for format in formats() {
        compare_matmul(format, &kernels, Shape { rows: 270, cols: 161, tokens: 1 }, Kind::Ordinary);
        compare_matmul(
            format,
            &kernels,
            Shape { rows: 270, cols: 1041, tokens: 2 },
            Kind::Ordinary,
        );
    }
}

/// Products so small that every lane is -0: the lanes that have no column in the last chunk become
/// +0 by their `fma(0, 0, lane)`, also where the zero of padding has a negative scale.
#[test]
fn padding_is_plus_zero_whatever_the_scale() {
    const COLS: usize = 17;
    for (format, byte) in [("fp8-e4m3-b128", 0x38), ("int8-row", 1), ("int4-g64", 0x99)] {
        let format: WeightFormat = format.parse().expect("a format's name");
        let weights = vec![byte; format.file_bytes(1, COLS)];
        let scale = (-1e-30f32).to_le_bytes();
        let file = FileMatrix {
            format,
            layout: format.file_layout(),
            rows: 1,
            cols: COLS,
            weights: &weights,
            scales: &scale,
        };
        let matrix = Matrix::from_file(&file);
        for kernels in all_kernels() {
            let x = Activations { data: &[1e-30; COLS], stride: COLS, rows: &[0] };
            let mut out = [7.0];
            kernels.matmul(matrix.view(), x, &mut out);
            assert_eq!(out[0].to_bits(), 0, "{format} on {}", kernels.isa());
        }
    }
}

#[test]
fn nothing_without_rows_or_tokens() {
    for kernels in all_kernels() {
        let none = Activations { data: &[], stride: 16, rows: &[] };
        let two = Activations { data: &[1.0; 32], stride: 16, rows: &[0, 1] };
        for format in formats() {
            let matrix = Matrix::random(format, 2, 16, Kind::Ordinary, &mut Random(1));
            kernels.matmul(matrix.view(), none, &mut []);
            kernels.matmul(Weights::new(format, 0, 16, &[]), two, &mut []);
        }
    }
}

#[test]
fn rows_without_columns_are_zero() {
    let x = Activations { data: &[], stride: 0, rows: &[0] };
    for kernels in all_kernels() {
        for format in formats() {
            let matrix = Matrix::random(format, 3, 0, Kind::Ordinary, &mut Random(1));
            let mut out = [7.0; 3];
            kernels.matmul(matrix.view(), x, &mut out);
            assert_eq!(out.map(f32::to_bits), [0; 3], "{format}");
        }
    }
}

#[test]
#[should_panic(expected = "matmul: output")]
fn an_output_of_the_wrong_size_is_refused() {
    let x = Activations { data: &[1.0; 16], stride: 16, rows: &[0] };
    scalar().matmul(Weights::from_f32(&[1.0; 32], 16), x, &mut [0.0; 3]);
}

#[test]
#[should_panic]
fn a_row_outside_the_data_is_refused() {
    let best = Kernels::new(Isa::best()).expect("best is available");
    let x = Activations { data: &[1.0; 31], stride: 16, rows: &[1] };
    best.matmul(Weights::from_f32(&[1.0; 16], 16), x, &mut [0.0]);
}
