//! The scalar definition does the arithmetic that its documentation states: hand-worked cases that
//! another order of summation, another padding or another epsilon would fail.

use millstream_kernels::{Floats, Isa, Kernels, math, scalar};

fn kernels() -> Kernels {
    Kernels::new(Isa::Scalar).expect("scalar runs everywhere")
}

/// 2^24 swallows a lone 1; which ones survive tells the order.
const BIG: f32 = 16_777_216.0;

#[test]
fn lane_sixteen_apart_meet_first() {
    let mut x = [0.0; 32];
    (x[0], x[16], x[1]) = (BIG, 1.0, 1.0);
    // Lane 0 is BIG + 1 = BIG before lane 1's one arrives in the tree, which is lost as well.
    assert_eq!(kernels().sum(&x), BIG);
    let mut y = [0.0; 32];
    (y[1], y[17], y[0]) = (1.0, 1.0, BIG);
    // Lane 1 is 2 before it meets BIG.
    assert_eq!(kernels().sum(&y), BIG + 2.0);
}

#[test]
fn tree_pairs_are_8_4_2_1_apart() {
    for distance in [8, 4, 2, 1] {
        // Two ones that meet each other before BIG survive; BIG sits where it meets them last.
        let mut lanes = [0.0; 16];
        let (a, big) = if distance == 1 { (2, 0) } else { (1, 0) };
        let partner = a + distance;
        lanes[a] = 1.0;
        lanes[partner] = 1.0;
        lanes[big] = BIG;
        let met = scalar::tree_sum(lanes);
        let expected = match distance {
            // 1 and 9, 1 and 5, 1 and 3 meet on their way down; lane 0 joins at the last step.
            8 | 4 | 2 => BIG + 2.0,
            // 2 meets 0 two steps before lane 3 does: both ones are lost one at a time.
            _ => BIG,
        };
        assert_eq!(met, expected, "distance {distance}");
    }
}

#[test]
fn products_are_fused() {
    let x = 1.0 + f32::EPSILON;
    // x * x rounds to 1 + 2 eps; fused, the eps^2 survives next to -(1 + 2 eps).
    let mut w = [0.0; 17];
    let mut y = [0.0; 17];
    (w[0], y[0]) = (-1.0, 1.0 + 2.0 * f32::EPSILON);
    (w[16], y[16]) = (x, x);
    assert_eq!(kernels().dot(Floats::F32(&w), &y), f32::EPSILON * f32::EPSILON);
}

#[test]
fn padding_turns_minus_zero_into_plus_zero() {
    let dot = kernels().dot(Floats::F32(&[-0.0]), &[1.0]);
    assert_eq!(dot.to_bits(), 0);
    assert_eq!(kernels().dot(Floats::F32(&[]), &[]).to_bits(), 0);
}

#[test]
fn norms_match_their_formulas_in_f64() {
    let x: Vec<f32> = (0..100).map(|i| (i as f32 * 0.37).rem_euclid(2.5) - 1.0).collect();
    let w: Vec<f32> = (0..100).map(|i| 1.0 + i as f32 / 64.0).collect();
    let b: Vec<f32> = (0..100).map(|i| i as f32 / 32.0 - 1.0).collect();
    let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let mean = wide.iter().sum::<f64>() / 100.0;
    let square = wide.iter().map(|x| x * x).sum::<f64>() / 100.0;
    let variance = wide.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 100.0;
    let (mut rms, mut layer) = (vec![0.0; 100], vec![0.0; 100]);
    kernels().rms_norm(&x, &w, 0.25, &mut rms);
    kernels().layer_norm(&x, &w, &b, 0.25, &mut layer);
    for i in 0..100 {
        let (w, b) = (f64::from(w[i]), f64::from(b[i]));
        let expected = wide[i] / (square + 0.25).sqrt() * w;
        assert!((f64::from(rms[i]) - expected).abs() < 1e-6, "rms {i}");
        let expected = (wide[i] - mean) / (variance + 0.25).sqrt() * w + b;
        assert!((f64::from(layer[i]) - expected).abs() < 2e-6, "layer {i}");
    }
}

#[test]
fn softmax_of_nothing_and_of_masked_scores() {
    let infinity = f32::NEG_INFINITY;
    assert_eq!(kernels().softmax_block(&mut []), (infinity, 0.0));
    let mut masked = [infinity; 3];
    assert_eq!(kernels().softmax_block(&mut masked), (infinity, 0.0));
    assert_eq!(masked, [0.0; 3]);
    let mut some = [infinity, 2.0, 2.0];
    assert_eq!(kernels().softmax_block(&mut some), (2.0, 2.0));
    assert_eq!(some, [0.0, 1.0, 1.0]);
    let (max, _) = kernels().softmax_block(&mut [-0.0, -1.0]);
    assert_eq!(max.to_bits(), 0);
}

#[test]
fn silu_mul_is_gate_times_sigmoid_times_up() {
    let mut out = [0.0; 2];
    kernels().silu_mul(&[0.5, -3.0], &[2.0, 0.1], &mut out);
    assert_eq!(out, [0.5 * math::sigmoid(0.5) * 2.0, -3.0 * math::sigmoid(-3.0) * 0.1]);
    assert!((out[0] - 0.622_459_33).abs() < 1e-6);
}

#[test]
fn rope_reads_both_layouts_and_writes_half_split() {
    let (cos, sin) = ([0.5, 2.0], [3.0, 5.0]);
    let mut out = [0.0; 4];
    kernels().rope(&[1.0, 10.0, 100.0, 1000.0], &cos, &sin, true, &mut out);
    assert_eq!(out, [0.5 - 30.0, 200.0 - 5000.0, 5.0 + 3.0, 2000.0 + 500.0]);
    kernels().rope(&[1.0, 100.0, 10.0, 1000.0], &cos, &sin, false, &mut out);
    assert_eq!(out, [0.5 - 30.0, 200.0 - 5000.0, 5.0 + 3.0, 2000.0 + 500.0]);
}

#[test]
fn rope_angles_turn_by_position_over_frequency() {
    let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
    let frequencies = [1.0, 0.1, 0.01, 0.001];
    math::rope_angles(&frequencies, 3, &mut cos, &mut sin);
    for j in 0..4 {
        let angle = 3.0 / libm::pow(10_000.0, 2.0 * j as f64 / 8.0);
        assert!((f64::from(cos[j]) - libm::cos(angle)).abs() < 2e-7, "cos {j}");
        assert!((f64::from(sin[j]) - libm::sin(angle)).abs() < 2e-7, "sin {j}");
    }
    math::rope_angles(&frequencies, 0, &mut cos, &mut sin);
    assert_eq!((cos, sin), ([1.0; 4], [0.0; 4]));
}
