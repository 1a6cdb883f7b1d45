//! The arithmetic of the straight-line pass, once in f32 and once in f64.
//!
//! In f32 every operation is the scalar definition of `millstream-kernels`, so that the pipeline
//! can be held to the straight-line pass bit for bit; integer formats take int8 activations. In
//! f64 the same steps run in double precision over decoded weights; that pass tells how close a
//! choice was.

use millstream_kernels::{
    ActivationLayout, Floats, Isa, Kernels, Quantised, QuantisedRowMut, Weights, math,
};

/// A number that the straight-line pass can run in.
pub trait Real: Copy + PartialOrd + Send + Sync + std::fmt::Debug + 'static {
    /// Zero.
    const ZERO: Self;
    /// From a weight or a constant.
    fn from_f32(value: f32) -> Self;
    /// To f64, for comparisons.
    fn to_f64(self) -> f64;
    /// `self + other`
    fn plus(self, other: Self) -> Self;
    /// `self * other`
    fn times(self, other: Self) -> Self;
    /// `self / other`
    fn over(self, other: Self) -> Self;
    /// `fma(factor, value, self)`
    fn plus_product(self, factor: Self, value: Self) -> Self;
    /// The nearest value between the two.
    fn limited(self, low: f32, high: f32) -> Self;
    /// e to the power of self
    fn exp(self) -> Self;
    /// 1 / (1 + exp(-self))
    fn sigmoid(self) -> Self;
    /// The 16-lane dot product.
    fn dot(weights: &[Self], x: &[Self]) -> Self;
    /// One dot product per row of a matrix as it is stored; none when this number multiplies with
    /// decoded weights.
    fn times_stored(weights: Weights<'_>, x: &[Self]) -> Option<Vec<Self>>;
    /// The 16-lane sum.
    fn sum(x: &[Self]) -> Self;
    /// Root-mean-square norm (arXiv 1910.07467).
    fn rms_norm(x: &[Self], weight: &[Self], epsilon: f32) -> Vec<Self>;
    /// Layer norm with bias (arXiv 1607.06450).
    fn layer_norm(x: &[Self], weight: &[Self], bias: &[Self], epsilon: f32) -> Vec<Self>;
    /// `(gate * sigmoid(gate)) * up`
    fn silu_mul(gate: Self, up: Self) -> Self;
    /// cos and sin of the rotary angles of a position, times the magnitude; one for each frequency.
    fn rope_angles(frequencies: &[f32], magnitude: f32, position: u32) -> (Vec<Self>, Vec<Self>);
}

fn scalar() -> Kernels {
    Kernels::new(Isa::Scalar).expect("the scalar kernels run everywhere")
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    fn from_f32(value: f32) -> Self {
        value
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn times(self, other: Self) -> Self {
        self * other
    }
    fn over(self, other: Self) -> Self {
        self / other
    }
    fn plus_product(self, factor: Self, value: Self) -> Self {
        factor.mul_add(value, self)
    }
    fn limited(self, low: f32, high: f32) -> Self {
        self.clamp(low, high)
    }
    fn exp(self) -> Self {
        math::exp(self)
    }
    fn sigmoid(self) -> Self {
        math::sigmoid(self)
    }
    fn dot(weights: &[Self], x: &[Self]) -> Self {
        scalar().dot(Floats::F32(weights), x)
    }
    fn times_stored(weights: Weights<'_>, x: &[Self]) -> Option<Vec<Self>> {
        let layout = ActivationLayout::of(weights.format(), weights.cols())?;
        let mut codes = vec![0; layout.codes()];
        let mut scales = vec![0.0; layout.units()];
        let mut sums = vec![0; layout.units()];
        let row = QuantisedRowMut { codes: &mut codes, scales: &mut scales, sums: &mut sums };
        scalar().quantise(&layout, x, row);
        let mut out = vec![0.0; weights.rows()];
        let x = Quantised { layout, codes: &codes, scales: &scales, sums: &sums, rows: &[0] };
        scalar().matmul_quantised(weights, x, &mut out);
        Some(out)
    }
    fn sum(x: &[Self]) -> Self {
        scalar().sum(x)
    }
    fn rms_norm(x: &[Self], weight: &[Self], epsilon: f32) -> Vec<Self> {
        let mut out = vec![0.0; x.len()];
        scalar().rms_norm(x, weight, epsilon, &mut out);
        out
    }
    fn layer_norm(x: &[Self], weight: &[Self], bias: &[Self], epsilon: f32) -> Vec<Self> {
        let mut out = vec![0.0; x.len()];
        scalar().layer_norm(x, weight, bias, epsilon, &mut out);
        out
    }
    fn silu_mul(gate: Self, up: Self) -> Self {
        (gate * math::sigmoid(gate)) * up
    }
    fn rope_angles(frequencies: &[f32], magnitude: f32, position: u32) -> (Vec<Self>, Vec<Self>) {
        let (mut cos, mut sin) = (vec![0.0; frequencies.len()], vec![0.0; frequencies.len()]);
        math::rope_angles(frequencies, position, &mut cos, &mut sin);
        cos.iter_mut().chain(&mut sin).for_each(|value| *value *= magnitude);
        (cos, sin)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    fn from_f32(value: f32) -> Self {
        f64::from(value)
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn times(self, other: Self) -> Self {
        self * other
    }
    fn over(self, other: Self) -> Self {
        self / other
    }
    fn plus_product(self, factor: Self, value: Self) -> Self {
        factor.mul_add(value, self)
    }
    fn limited(self, low: f32, high: f32) -> Self {
        self.clamp(f64::from(low), f64::from(high))
    }
    fn exp(self) -> Self {
        libm::exp(self)
    }
    fn sigmoid(self) -> Self {
        1.0 / (1.0 + libm::exp(-self))
    }
    fn dot(weights: &[Self], x: &[Self]) -> Self {
        assert_eq!(weights.len(), x.len());
        weights.iter().zip(x).map(|(w, x)| w * x).sum()
    }
    fn times_stored(_: Weights<'_>, _: &[Self]) -> Option<Vec<Self>> {
        None
    }
    fn sum(x: &[Self]) -> Self {
        x.iter().sum()
    }
    fn rms_norm(x: &[Self], weight: &[Self], epsilon: f32) -> Vec<Self> {
        let mean = Self::dot(x, x) / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
        x.iter().zip(weight).map(|(x, w)| x * factor * w).collect()
    }
    fn layer_norm(x: &[Self], weight: &[Self], bias: &[Self], epsilon: f32) -> Vec<Self> {
        let mean = Self::sum(x) / x.len() as f64;
        let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
        let variance = Self::dot(&centred, &centred) / x.len() as f64;
        let factor = 1.0 / (variance + f64::from(epsilon)).sqrt();
        centred.iter().zip(weight.iter().zip(bias)).map(|(c, (w, b))| c * factor * w + b).collect()
    }
    fn silu_mul(gate: Self, up: Self) -> Self {
        gate * gate.sigmoid() * up
    }
    fn rope_angles(frequencies: &[f32], magnitude: f32, position: u32) -> (Vec<Self>, Vec<Self>) {
        let magnitude = f64::from(magnitude);
        let pair = |frequency: &f32| {
            let angle = f64::from(position) * f64::from(*frequency);
            (libm::cos(angle) * magnitude, libm::sin(angle) * magnitude)
        };
        frequencies.iter().map(pair).unzip()
    }
}
