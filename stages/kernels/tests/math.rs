//! The functions of `math` are accurate over all f32 and right at the extremes.
//!
//! The truth is the same function of the `libm` crate in f64. Errors are counted in units in the
//! last place of the f32 result, over a comb through all f32 bit patterns.

use millstream_kernels::math;

/// Error of `got` in units in the last place of the f32 nearest to `truth`.
fn error_ulp(got: f32, truth: f64) -> f64 {
    let nearest = truth as f32;
    if got == nearest || (got.is_nan() && truth.is_nan()) {
        // Equal infinities have no distance; equal finite values are within half a unit.
        return if truth.is_finite() && nearest.is_finite() { distance(got, truth) } else { 0.0 };
    }
    if got.is_nan() || truth.is_nan() || got.is_infinite() || nearest.is_infinite() {
        return f64::INFINITY;
    }
    distance(got, truth)
}

fn distance(got: f32, truth: f64) -> f64 {
    let exponent = (truth.abs().to_bits() >> 52) as i32 - 1023;
    let unit = 2f64.powi(exponent.clamp(-126, 127) - 23);
    (f64::from(got) - truth).abs() / unit
}

/// The largest error over every `step`-th f32, and where it is.
fn worst(step: u32, function: fn(f32) -> f32, truth: fn(f64) -> f64) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    let mut bits = 0u32;
    loop {
        let x = f32::from_bits(bits);
        let error = error_ulp(function(x), truth(f64::from(x)));
        if error > worst.0 {
            worst = (error, x);
        }
        match bits.checked_add(step) {
            Some(next) => bits = next,
            None => return worst,
        }
    }
}

#[track_caller]
fn assert_accurate(name: &str, limit: f64, f: fn(f32) -> f32, truth: fn(f64) -> f64) {
    let (error, x) = worst(1009, f, truth);
    println!("{name}: {error:.4} ulp at {x:e}");
    assert!(error <= limit, "{name}({x:e}): {error} ulp, allowed {limit}");
}

#[test]
fn exp_is_accurate() {
    assert_accurate("exp", 1.011, math::exp, libm::exp);
}

#[test]
fn sigmoid_and_silu_are_accurate() {
    assert_accurate(
        "sigmoid",
        3.0,
        |x| math::sigmoid(x.max(-80.0)),
        |x| 1.0 / (1.0 + libm::exp(-x.max(-80.0))),
    );
    assert_accurate(
        "silu",
        4.0,
        |x| math::silu(x.max(-80.0)),
        |x| {
            let x = x.max(-80.0);
            x / (1.0 + libm::exp(-x))
        },
    );
}

#[test]
fn functions_through_f64_round_correctly() {
    let limit = 0.500_001;
    assert_accurate("log", limit, math::log, libm::log);
    assert_accurate("tanh", limit, math::tanh, libm::tanh);
    assert_accurate("sin", limit, math::sin, libm::sin);
    assert_accurate("cos", limit, math::cos, libm::cos);
    assert_accurate("softplus", limit, math::softplus, |x| {
        if x > 700.0 { x } else { libm::log1p(libm::exp(x)) }
    });
    assert_accurate("pow", limit, |x| math::pow(x, 0.75), |x| libm::pow(x, 0.75));
}

#[test]
fn exp_at_the_extremes() {
    assert_eq!(math::exp(0.0), 1.0);
    assert_eq!(math::exp(-0.0), 1.0);
    assert_eq!(math::exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(math::exp(88.722_84), f32::INFINITY);
    assert!(math::exp(88.722_83).is_finite());
    assert_eq!(math::exp(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(math::exp(-103.98).to_bits(), 0);
    assert_eq!(math::exp(-103.97).to_bits(), 1);
    assert!(math::exp(-95.0).is_subnormal());
    assert!(math::exp(f32::NAN).is_nan());
    assert!(math::exp(-f32::NAN).is_nan());
}

#[test]
fn sigmoid_at_the_extremes() {
    assert_eq!(math::sigmoid(f32::INFINITY), 1.0);
    assert_eq!(math::sigmoid(f32::NEG_INFINITY), 0.0);
    assert_eq!(math::sigmoid(0.0), 0.5);
    assert!(math::sigmoid(f32::NAN).is_nan());
    assert_eq!(math::silu(0.0), 0.0);
    assert_eq!(math::silu(200.0), 200.0);
}

#[test]
fn wrapped_functions_at_the_extremes() {
    assert_eq!(math::log(0.0), f32::NEG_INFINITY);
    assert!(math::log(-1.0).is_nan());
    assert_eq!(math::softplus(1000.0), 1000.0);
    assert_eq!(math::softplus(f32::INFINITY), f32::INFINITY);
    assert_eq!(math::softplus(-1000.0), 0.0);
    assert_eq!(math::softplus(0.0), std::f32::consts::LN_2);
    assert_eq!(math::tanh(f32::NEG_INFINITY), -1.0);
    assert_eq!(math::pow(10_000.0, 0.5), 100.0);
    for function in [math::softplus, math::tanh, math::log, math::sin, math::cos] {
        assert!(function(f32::NAN).is_nan());
    }
}
