//! Dots, sums, norms and element-wise operations over every length.

use crate::support::{assert_same, compare, scalar, to_bf16, vector_kernels};
use millstream_kernels::formats::f16::f32_to_f16;
use millstream_kernels::kernels::ReadOrder;
use millstream_kernels::{Floats, Kernels};

#[test]
fn dot_f32() {
    compare("dot f32", |k, kind, n, random| {
        let (w, x) = (random.vector(kind, n), random.vector(kind, n));
        vec![k.dot(Floats::F32(&w), &x)]
    });
}

#[test]
fn dot_bf16() {
    compare("dot bf16", |k, kind, n, random| {
        let (w, x) = (to_bf16(&random.vector(kind, n)), random.vector(kind, n));
        vec![k.dot(Floats::Bf16(&w), &x)]
    });
}

#[test]
fn dot_f16() {
    compare("dot f16", |k, kind, n, random| {
        let w: Vec<u16> = random.vector(kind, n).into_iter().map(f32_to_f16).collect();
        vec![k.dot(Floats::F16(&w), &random.vector(kind, n))]
    });
}

/// Every f16, subnormals, infinities and NaN included: each alone in a sum.
#[test]
fn every_f16_widens_as_the_definition_says() {
    for kernels in vector_kernels() {
        for first in (0..=u16::MAX).step_by(8) {
            let halves: [u16; 8] = std::array::from_fn(|i| first + i as u16);
            let dots =
                |kernels: Kernels| halves.map(|w| kernels.dot(Floats::F16(&[w; 17]), &ALONE));
            assert_same(&dots(kernels), &dots(scalar()), &format!("from {first:#x}"));
        }
    }
}

/// One among zeros.
const ALONE: [f32; 17] = {
    let mut values = [0.0; 17];
    values[3] = 1.0;
    values
};

#[test]
fn sum() {
    compare("sum", |k, kind, n, random| vec![k.sum(&random.vector(kind, n))]);
}

#[test]
fn maximum() {
    for places in [1, 2, 4] {
        for ahead_bytes in [0, 1024] {
            let order = ReadOrder { places, ahead_bytes };
            compare("maximum", |k, kind, n, random| {
                vec![k.maximum(&random.vector(kind, n), order)]
            });
        }
    }
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
