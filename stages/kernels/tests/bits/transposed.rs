//! Columns instead of rows, for weights of every format.

use crate::support::{Kind, Matrix, Random, assert_same, formats, scalar, vector_kernels};
use millstream_kernels::{Kernels, WeightFormat};

fn compare_transposed(
    format: WeightFormat,
    kernels: &[Kernels],
    (rows, cols): (usize, usize),
    kind: Kind,
) {
    let mut random = Random((rows * 1_000_003 + cols * 1009) as u64);
    let matrix = Matrix::random(format, rows, cols, kind, &mut random);
    let (q, y) = (random.vector(kind, rows), random.vector(kind, cols));
    let mut row = vec![7.0; cols];
    let mut want = y.clone();
    for (r, q) in q.iter().enumerate() {
        matrix.view().decode_row(r, &mut row);
        scalar().axpy(*q, &row, &mut want);
    }
    for kernels in kernels {
        let mut got = y.clone();
        kernels.transposed(matrix.view(), &q, &mut got);
        let what = format!("{format} on {}, {rows} x {cols}, {kind:?}", kernels.isa());
        assert_same(&got, &want, &what);
    }
}

/// Every instruction set of this machine, scalar included.
fn all_kernels() -> Vec<Kernels> {
    vector_kernels().into_iter().chain([scalar()]).collect()
}

#[test]
fn every_format_and_tail() {
    let kernels = all_kernels();
    for format in formats() {
        for cols in (0..=132).chain([255, 256, 257, 300, 512, 1041]) {
            for rows in [0, 1, 3, 16, 37] {
                compare_transposed(format, &kernels, (rows, cols), Kind::Ordinary);
            }
            compare_transposed(format, &kernels, (18, cols), Kind::Awkward);
            compare_transposed(format, &kernels, (18, cols), Kind::Zeros);
        }
    }
}

#[test]
fn every_number_of_rows() {
    let kernels = all_kernels();
    for format in formats() {
        for rows in 0..=50 {
            compare_transposed(format, &kernels, (rows, 161), Kind::Ordinary);
        }
    }
}

#[test]
fn several_vectors_are_each_as_alone() {
    let mut random = Random(11);
    for (vectors, rows, cols) in [
        (1, 5, 16),
        (2, 64, 512),
        (3, 7, 70),
        (4, 1, 64),
        (5, 33, 131),
        (8, 64, 96),
        (8, 0, 20),
        (6, 9, 3),
    ] {
        let stride = rows + 3;
        for kind in [Kind::Ordinary, Kind::Awkward, Kind::Zeros] {
            let w = random.vector(kind, rows * cols);
            let (q, y) =
                (random.vector(kind, vectors * stride), random.vector(kind, vectors * cols));
            let mut want = y.clone();
            for (v, y) in want.chunks_mut(cols).enumerate() {
                for r in 0..rows {
                    scalar().axpy(q[v * stride + r], &w[r * cols..][..cols], y);
                }
            }
            for kernels in all_kernels() {
                let mut got = y.clone();
                kernels.weighted_sums(&w, &q, stride, &mut got, cols);
                let what = format!("{} on {vectors} x {rows} x {cols}, {kind:?}", kernels.isa());
                assert_same(&got, &want, &what);
            }
        }
    }
}

#[test]
#[should_panic(expected = "transposed: factors")]
fn factors_of_another_length_are_refused() {
    let matrix = Matrix::random(WeightFormat::F32, 3, 4, Kind::Ordinary, &mut Random(1));
    scalar().transposed(matrix.view(), &[1.0; 2], &mut [0.0; 4]);
}
