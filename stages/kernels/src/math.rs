//! Scalar f32 functions with one definition each, the same bits on every CPU.
//!
//! The C library picks its versions by CPU, so it may not be used (clippy.toml forbids it). `exp`
//! is written here in plain f32 operations, so that the vector kernels can run exactly the same
//! steps; the rest is taken in f64 from the pure-Rust `libm` crate and rounded once to f32, which
//! is the correctly rounded result but for rare ties. Norms, softmax, gates and rope use these; all
//! are pure functions of their arguments.

/// e^x, at most 1.011 ulp from the true value (the worst of all x with 2^-8 <= |x| <= 104).
///
/// Overflow gives +inf, underflow rounds through the subnormals to +0, NaN gives NaN.
///
/// x = n ln2 + r with n = round(x / ln2) by the magic-number trick and ln2 in two parts (Cody and
/// Waite), a polynomial for e^r on |r| <= ln2/2 (coefficients of Cephes `expf`, S. Moshier),
/// and two exact powers of two, so that only the last multiplication rounds in the subnormals.
#[inline]
pub fn exp(x: f32) -> f32 {
    // Both comparisons are false for NaN, which so passes through.
    let x = if exp_steps::X_MAX < x { exp_steps::X_MAX } else { x };
    let x = if exp_steps::X_MIN > x { exp_steps::X_MIN } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, exp_steps::MAGIC);
    let n = shifted - exp_steps::MAGIC;
    let r = n.mul_add(exp_steps::LN2_HIGH_NEGATED, x);
    let r = n.mul_add(exp_steps::LN2_LOW_NEGATED, r);
    let mut q = exp_steps::COEFFICIENTS[0];
    for c in &exp_steps::COEFFICIENTS[1..] {
        q = q.mul_add(r, *c);
    }
    let value = q.mul_add(r * r, r) + 1.0;
    // n as an integer, in two halves; wrapping because NaN leaves arbitrary bits here.
    let n = (shifted.to_bits() as i32).wrapping_sub(exp_steps::MAGIC.to_bits() as i32);
    let half = n >> 1;
    (value * power_of_two(half)) * power_of_two(n.wrapping_sub(half))
}

/// 2^n for -126 <= n <= 127.
#[inline]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// The constants of [`exp`], shared with the vector bodies.
pub(crate) mod exp_steps {
    /// Above it e^x overflows; clamping here still gives +inf.
    pub const X_MAX: f32 = 89.0;
    /// Below it e^x is under half the smallest subnormal; clamping here still gives 0.
    pub const X_MIN: f32 = -104.0;
    /// 1.5 * 2^23: adding it rounds to an integer that then sits in the low bits.
    pub const MAGIC: f32 = 12_582_912.0;
    /// -ln2, upper part: 9 bits, so that n times it is exact.
    pub const LN2_HIGH_NEGATED: f32 = -355.0 / 512.0;
    /// -ln2, the rest.
    pub const LN2_LOW_NEGATED: f32 = 2.121_944_4e-4;
    /// (e^r - 1 - r) / r^2, highest power first.
    pub const COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
}

/// 1 / (1 + e^-x) in f32 steps, as the vector kernels do it. 0 below about -88.7, 1 above 17;
/// between them about 2.2 ulp at most.
#[inline]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x * sigmoid(x), about 2.5 ulp at most; NaN at -inf, as x / (1 + e^-x) is.
#[inline]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// ln(1 + e^x), through f64.
pub fn softplus(x: f32) -> f32 {
    let x = f64::from(x);
    // Where e^x is too large for f64 the 1 has long vanished.
    if x > 700.0 { x as f32 } else { libm::log1p(libm::exp(x)) as f32 }
}

/// Hyperbolic tangent, through f64.
pub fn tanh(x: f32) -> f32 {
    libm::tanh(f64::from(x)) as f32
}

/// Natural logarithm, through f64: -inf at zero, NaN below.
pub fn log(x: f32) -> f32 {
    libm::log(f64::from(x)) as f32
}

/// x^y, through f64; the special cases are those of IEEE 754 `pow`.
pub fn pow(x: f32, y: f32) -> f32 {
    libm::pow(f64::from(x), f64::from(y)) as f32
}

/// Sine of an angle in radians, through f64 with full argument reduction.
pub fn sin(x: f32) -> f32 {
    libm::sin(f64::from(x)) as f32
}

/// Cosine of an angle in radians, through f64 with full argument reduction.
pub fn cos(x: f32) -> f32 {
    libm::cos(f64::from(x)) as f32
}

/// Cosines and sines of the rotary angles of one position, one for each frequency.
///
/// As Hugging Face transformers computes them in float32: the angle position * frequency is rounded
/// to f32, then cos and sin.
///
/// # Panics
/// If `cos` or `sin` isn't as long as `frequencies`.
pub fn rope_angles(frequencies: &[f32], position: u32, cos: &mut [f32], sin: &mut [f32]) {
    assert_eq!(cos.len(), frequencies.len(), "cosines");
    assert_eq!(sin.len(), frequencies.len(), "sines");
    for (frequency, (c, s)) in frequencies.iter().zip(cos.iter_mut().zip(sin)) {
        let angle = position as f32 * frequency;
        *c = self::cos(angle);
        *s = self::sin(angle);
    }
}
