//! Every instruction set gives the bits of the scalar definition, for every operation.
//!
//! Lengths run over all short ones (so every tail) and some long ones; values are random or drawn
//! from the awkward ones (zeros of both signs, subnormals, huge, infinities, NaN). NaN is compared
//! as "is NaN": which NaN comes out of an operation is not defined.

use millstream_kernels::isa::ISAS;
use millstream_kernels::{Activations, Isa, Kernels, Weights};

/// A small generator (SplitMix64), so that a failure repeats.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -4 .. 4.
    fn ordinary(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 21) as f32 - 4.0
    }

    /// An awkward value half the time.
    fn awkward(&mut self) -> f32 {
        const VALUES: [f32; 20] = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f32::MIN_POSITIVE,
            -f32::MIN_POSITIVE,
            1e-45,
            -1e-45,
            3e-39,
            f32::MAX,
            f32::MIN,
            88.722_84,
            -103.9,
            -87.4,
            1e19,
            -1e19,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            16_777_216.0,
        ];
        match self.bits() % 3 {
            0 => VALUES[(self.bits() % VALUES.len() as u64) as usize],
            1 => f32::from_bits(self.bits() as u32),
            _ => self.ordinary(),
        }
    }

    fn vector(&mut self, kind: Kind, length: usize) -> Vec<f32> {
        (0..length)
            .map(|_| match kind {
                Kind::Ordinary => self.ordinary(),
                Kind::Awkward => self.awkward(),
                Kind::Zeros => [0.0, -0.0][(self.bits() & 1) as usize],
            })
            .collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Ordinary,
    Awkward,
    Zeros,
}

const KINDS: [Kind; 3] = [Kind::Ordinary, Kind::Awkward, Kind::Zeros];

fn lengths() -> impl Iterator<Item = usize> {
    (0..=70).chain([255, 512, 1000, 4096, 4097])
}

fn scalar() -> Kernels {
    Kernels::new(Isa::Scalar).expect("scalar runs everywhere")
}

/// The vector instruction sets of this machine; names the ones that can't be compared here.
fn vector_kernels() -> Vec<Kernels> {
    for isa in ISAS.iter().filter(|isa| !isa.is_available()) {
        use std::io::Write;
        writeln!(std::io::stderr(), "NOT COMPARED: this machine has no {isa}")
            .expect("stderr is open");
    }
    ISAS.iter().filter(|isa| **isa != Isa::Scalar).filter_map(|isa| Kernels::new(*isa)).collect()
}

fn canonical(value: f32) -> u32 {
    if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
}

#[track_caller]
fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(canonical(*got), canonical(*want), "{what}, element {i}: {got:e} not {want:e}");
    }
}

/// Runs `operation` with scalar and with every vector set, over kinds and lengths, and compares
/// what it returns.
fn compare(name: &str, operation: impl Fn(Kernels, Kind, usize, &mut Random) -> Vec<f32>) {
    for kernels in vector_kernels() {
        for kind in KINDS {
            for length in lengths() {
                let seed = length as u64 + 1;
                let want = operation(scalar(), kind, length, &mut Random(seed));
                let got = operation(kernels, kind, length, &mut Random(seed));
                let what = format!("{name} on {}, {kind:?}, length {length}", kernels.isa());
                assert_same(&got, &want, &what);
            }
        }
    }
}

fn to_bf16(values: &[f32]) -> Vec<u16> {
    values.iter().map(|v| (v.to_bits() >> 16) as u16).collect()
}

#[test]
fn dot_f32() {
    compare("dot f32", |k, kind, n, random| {
        let (w, x) = (random.vector(kind, n), random.vector(kind, n));
        vec![k.dot(Weights::F32(&w), &x)]
    });
}

#[test]
fn dot_bf16() {
    compare("dot bf16", |k, kind, n, random| {
        let (w, x) = (to_bf16(&random.vector(kind, n)), random.vector(kind, n));
        vec![k.dot(Weights::Bf16(&w), &x)]
    });
}

#[test]
fn sum() {
    compare("sum", |k, kind, n, random| vec![k.sum(&random.vector(kind, n))]);
}

#[test]
fn axpy() {
    compare("axpy", |k, kind, n, random| {
        let (x, mut y) = (random.vector(kind, n), random.vector(kind, n));
        k.axpy(random.ordinary(), &x, &mut y);
        y
    });
}

#[test]
fn axpy_weights_bf16() {
    compare("axpy_weights bf16", |k, kind, n, random| {
        let (w, mut y) = (to_bf16(&random.vector(kind, n)), random.vector(kind, n));
        k.axpy_weights(random.ordinary(), Weights::Bf16(&w), &mut y);
        y
    });
}

#[test]
fn add_and_scale() {
    compare("add, scale", |k, kind, n, random| {
        let (x, mut y) = (random.vector(kind, n), random.vector(kind, n));
        k.add(&x, &mut y);
        k.scale(random.ordinary(), &mut y);
        y
    });
}

#[test]
fn rms_norm() {
    compare("rms_norm", |k, kind, n, random| {
        let (x, w, mut out) = (random.vector(kind, n), random.vector(kind, n), vec![7.0; n]);
        k.rms_norm(&x, &w, 1e-5, &mut out);
        out
    });
}

#[test]
fn layer_norm() {
    compare("layer_norm", |k, kind, n, random| {
        let (x, w) = (random.vector(kind, n), random.vector(kind, n));
        let (b, mut out) = (random.vector(kind, n), vec![7.0; n]);
        k.layer_norm(&x, &w, &b, 1e-5, &mut out);
        out
    });
}

#[test]
fn softmax_block() {
    compare("softmax_block", |k, kind, n, random| {
        let mut scores = random.vector(kind, n);
        let (max, sum) = k.softmax_block(&mut scores);
        scores.extend([max, sum]);
        scores
    });
}

#[test]
fn silu_mul() {
    compare("silu_mul", |k, kind, n, random| {
        let (gate, up, mut out) = (random.vector(kind, n), random.vector(kind, n), vec![7.0; n]);
        k.silu_mul(&gate, &up, &mut out);
        out
    });
}

#[test]
fn sigmoid_and_exp() {
    compare("sigmoid, exp", |k, kind, n, random| {
        let (mut a, mut b) = (random.vector(kind, n), random.vector(kind, n));
        k.sigmoid(&mut a);
        k.exp(&mut b);
        [a, b].concat()
    });
}

#[test]
fn rope() {
    compare("rope", |k, kind, n, random| {
        let (cos, sin) = (random.vector(kind, n), random.vector(kind, n));
        let (x, mut a, mut b) = (random.vector(kind, 2 * n), vec![7.0; 2 * n], vec![7.0; 2 * n]);
        k.rope(&x, &cos, &sin, false, &mut a);
        k.rope(&x, &cos, &sin, true, &mut b);
        [a, b].concat()
    });
}

/// exp and sigmoid over a comb through all f32: every 251st bit pattern.
#[test]
fn exp_and_sigmoid_over_all_magnitudes() {
    const STEP: usize = 251;
    const BATCH: usize = 64;
    for kernels in vector_kernels() {
        for first in (0..=u32::MAX).step_by(STEP * BATCH) {
            let x: [f32; BATCH] =
                std::array::from_fn(|i| f32::from_bits(first.saturating_add((STEP * i) as u32)));
            for operation in [Kernels::exp, Kernels::sigmoid] {
                let (mut got, mut want) = (x, x);
                operation(&kernels, &mut got);
                operation(&scalar(), &mut want);
                assert_same(&got, &want, &format!("from bits {first:#x}"));
            }
        }
    }
}

const TOKENS: [usize; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 12, 16, 33, 48, 100];
const COLS: [usize; 12] = [1, 2, 15, 16, 17, 31, 48, 100, 512, 513, 528, 1041];

/// A matmul's operands: the weights as f32 bits and bf16 bits, activations with gaps between rows.
struct Operands {
    singles: Vec<f32>,
    halves: Vec<u16>,
    data: Vec<f32>,
    stride: usize,
    chosen: Vec<u32>,
}

fn operands(rows: usize, cols: usize, tokens: usize, kind: Kind) -> Operands {
    let mut random = Random((rows * 1_000_003 + cols * 1009 + tokens) as u64);
    let stride = cols + 3;
    let held = tokens + 2;
    let singles = random.vector(kind, rows * cols);
    Operands {
        halves: to_bf16(&singles),
        singles,
        // The last row ends with its columns: a row needs no room up to the stride.
        data: random.vector(kind, (held - 1) * stride + cols),
        stride,
        chosen: (0..tokens).map(|_| (random.bits() % held as u64) as u32).collect(),
    }
}

/// Compares a matmul with scalar dots, one by one.
fn compare_matmul(kernels: Kernels, rows: usize, cols: usize, tokens: usize, kind: Kind) {
    let o = operands(rows, cols, tokens, kind);
    let x = Activations { data: &o.data, stride: o.stride, rows: &o.chosen };
    for w in [Weights::F32(&o.singles), Weights::Bf16(&o.halves)] {
        let mut got = vec![7.0; tokens * rows];
        kernels.matmul(w, cols, x, &mut got);
        let mut want = Vec::new();
        for row in &o.chosen {
            let token = &o.data[*row as usize * o.stride..][..cols];
            for r in 0..rows {
                want.push(scalar().dot(w.slice(r * cols..(r + 1) * cols), token));
            }
        }
        let what = format!(
            "matmul {} on {}, {rows} rows, {cols} cols, {tokens} tokens, {kind:?}",
            w.format().name(),
            kernels.isa()
        );
        assert_same(&got, &want, &what);
    }
}

#[test]
fn matmul_outputs_are_dots() {
    for kernels in vector_kernels().into_iter().chain([scalar()]) {
        for rows in 1..=9 {
            for tokens in TOKENS {
                for cols in COLS {
                    compare_matmul(kernels, rows, cols, tokens, Kind::Ordinary);
                }
                compare_matmul(kernels, rows, 37, tokens, Kind::Awkward);
                compare_matmul(kernels, rows, 37, tokens, Kind::Zeros);
            }
        }
    }
}

#[test]
fn matmul_of_long_rows() {
    for kernels in vector_kernels() {
        for tokens in [1, 3, 7, 49] {
            compare_matmul(kernels, 5, 4096, tokens, Kind::Ordinary);
            compare_matmul(kernels, 5, 4097, tokens, Kind::Awkward);
        }
    }
}

#[test]
fn matmul_without_rows_or_tokens_does_nothing() {
    for kernels in vector_kernels().into_iter().chain([scalar()]) {
        let none = Activations { data: &[], stride: 16, rows: &[] };
        kernels.matmul(Weights::F32(&[1.0; 32]), 16, none, &mut []);
        let two = Activations { data: &[1.0; 32], stride: 16, rows: &[0, 1] };
        kernels.matmul(Weights::Bf16(&[]), 16, two, &mut []);
    }
}

#[test]
#[should_panic(expected = "matmul: output")]
fn matmul_refuses_an_output_of_the_wrong_size() {
    let x = Activations { data: &[1.0; 16], stride: 16, rows: &[0] };
    scalar().matmul(Weights::F32(&[1.0; 32]), 16, x, &mut [0.0; 3]);
}

#[test]
#[should_panic]
fn matmul_refuses_a_row_outside_the_data() {
    let best = Kernels::new(Isa::best()).expect("best is available");
    let x = Activations { data: &[1.0; 31], stride: 16, rows: &[1] };
    best.matmul(Weights::F32(&[1.0; 16]), 16, x, &mut [0.0]);
}
