//! The operations, each one call: [`Kernels`] checks shapes and picks the instruction set.
//!
//! Stages hold a `Kernels` by value (it is one byte or two) and call it from crew threads; the
//! straight-line pass calls the same. Inputs are borrowed slices, results go into the caller's
//! slices, nothing is allocated. A length that does not fit is a bug of ours and panics.

use crate::activations::{ActivationLayout, Activations, Quantised, QuantisedRowMut};
use crate::isa::Isa;
use crate::scalar;
#[cfg(target_arch = "x86_64")]
use crate::simd;
use crate::weights::{Floats, Weights};

/// The operations on one instruction set. All sets give the same bits; [`scalar`] defines them.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    body: Body,
}

/// How [`Kernels::maximum`] walks over memory. It changes speed, never the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOrder {
    /// Places to read in side by side: 1, 2 or 4.
    pub places: usize,
    /// How far ahead lines are asked for; 0 leaves it to the CPU.
    pub ahead_bytes: usize,
}

/// The chosen body; a vector variant holds the proof that the CPU has the instructions.
#[derive(Clone, Copy, Debug)]
enum Body {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(simd::Avx2),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(simd::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(simd::Avx512),
}

/// Runs the scalar function or the vector operation of the same name and arguments.
macro_rules! dispatch {
    ($kernels:expr, $scalar:ident, $vector:ident { $($argument:ident),* }) => {
        match $kernels.body {
            Body::Scalar => scalar::$scalar($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Body::Avx2(cpu) | Body::AvxVnni(cpu) => {
                simd::Simd::run(cpu, simd::ops::$vector { $($argument),* })
            }
            #[cfg(target_arch = "x86_64")]
            Body::Avx512(cpu) => simd::Simd::run(cpu, simd::ops::$vector { $($argument),* }),
        }
    };
}

impl Kernels {
    /// Kernels for `isa`, or `None` if this CPU lacks it.
    pub fn new(isa: Isa) -> Option<Kernels> {
        let body = match isa {
            Isa::Scalar => Some(Body::Scalar),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => simd::Avx2::detect().map(Body::Avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => simd::Avx2::detect_vnni().map(Body::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => simd::Avx512::detect().map(Body::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => None,
        };
        body.map(|body| Kernels { body })
    }

    /// Bodies that this CPU can run and no [`Isa`] chooses on it, by name: tests hold them to the
    /// definition too.
    #[doc(hidden)]
    pub fn spare_bodies() -> Vec<(&'static str, Kernels)> {
        #[cfg(not(target_arch = "x86_64"))]
        return Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let vnni = simd::Avx2::detect_vnni_evex().map(Body::AvxVnni);
            let no_vnni = simd::Avx512::detect().map(|cpu| Body::Avx512(cpu.without_vnni()));
            let walk = simd::Avx512::detect().map(|cpu| Body::Avx512(cpu.with_other_walk()));
            let narrow_walk = simd::Avx2::detect().map(|cpu| Body::Avx2(cpu.with_other_walk()));
            [
                ("avx512 with the other way to call weights", walk),
                ("avx2 with the other way to call weights", narrow_walk),
                ("avx-vnni in the encoding of avx512", vnni),
                ("avx512 with the integer dots of avx2", no_vnni),
            ]
            .into_iter()
            .filter_map(|(name, body)| Some((name, Kernels { body: body? })))
            .collect()
        }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        match self.body {
            Body::Scalar => Isa::Scalar,
            #[cfg(target_arch = "x86_64")]
            Body::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "x86_64")]
            Body::AvxVnni(_) => Isa::AvxVnni,
            #[cfg(target_arch = "x86_64")]
            Body::Avx512(_) => Isa::Avx512,
        }
    }

    /// Sum of `w[i] * x[i]` over 16 lanes of fused multiply-adds and the fixed tree
    /// (see [`scalar`]). Empty inputs give +0.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn dot(&self, w: Floats, x: &[f32]) -> f32 {
        assert_eq!(w.len(), x.len(), "dot: weights and activations");
        dispatch!(self, dot, Dot { w, x })
    }

    /// Multiplies every chosen activation row with every weight row, in f32.
    ///
    /// `out` is `[tokens][rows]`, contiguous: `out[t * rows + r]` has the bits of [`Kernels::dot`]
    /// of weight row r, decoded to f32 (codes times their scale, rounded once), and activation row t.
    /// Several tokens share a weight load, never a sum.
    ///
    /// # Panics
    /// If `out` is not tokens * rows long, or if an activation row lies outside its data.
    pub fn matmul(&self, w: Weights, x: Activations, out: &mut [f32]) {
        assert_eq!(out.len(), w.rows() * x.rows.len(), "matmul: output");
        dispatch!(self, matmul, Matmul { w, x, out })
    }

    /// Multiplies every chosen quantised activation row with every weight row.
    ///
    /// `out` is `[tokens][rows]`, contiguous. With `d` the exact integer dot of a unit's codes, the
    /// result is the chain `sum = fma(f32(d), weight scale * activation scale, sum)` over the units
    /// in order, from +0. Several tokens share a weight load, never a sum.
    ///
    /// # Panics
    /// If the layout of `x` isn't that of the format and columns, or a length doesn't fit.
    pub fn matmul_quantised(&self, w: Weights, x: Quantised, out: &mut [f32]) {
        let layout = ActivationLayout::of(w.format(), w.cols());
        assert_eq!(layout, Some(x.layout), "matmul: activations of {}", w.format());
        assert_eq!(out.len(), w.rows() * x.rows.len(), "matmul: output");
        dispatch!(self, matmul_quantised, MatmulQuantised { w, x, out })
    }

    /// Rounds one row of activations to int8 by groups; see [`crate::activations`].
    ///
    /// # Panics
    /// If a length isn't the layout's.
    pub fn quantise(&self, layout: &ActivationLayout, x: &[f32], out: QuantisedRowMut) {
        assert_eq!(x.len(), layout.cols, "quantise: input");
        assert_eq!(out.codes.len(), layout.codes(), "quantise: codes");
        assert_eq!(out.scales.len(), layout.units(), "quantise: scales");
        assert_eq!(out.sums.len(), layout.units(), "quantise: sums");
        dispatch!(self, quantise, Quantise { layout, x, out })
    }

    /// The transposed use: `y[c] = fma(q[r], w[r, c], y[c])` for the rows r in order, weights
    /// decoded to f32.
    ///
    /// # Panics
    /// If `q` isn't as long as there are rows, or `y` as there are columns.
    pub fn transposed(&self, w: Weights, q: &[f32], y: &mut [f32]) {
        assert_eq!(q.len(), w.rows(), "transposed: factors");
        assert_eq!(y.len(), w.cols(), "transposed: output");
        dispatch!(self, transposed, Transposed { w, q, y })
    }

    /// The transposed use of a plain f32 matrix with several vectors of factors: `y[v, c] = fma(q[v, r],
    /// w[r, c], y[v, c])` for the rows r in order. `w` is `[rows, cols]`, `y` `[vectors, cols]`, and
    /// vector v's factors begin at `v * stride` of `q`.
    ///
    /// # Panics
    /// If `w` or `y` is no whole number of rows of `cols`, or `q` is too short.
    pub fn weighted_sums(&self, w: &[f32], q: &[f32], stride: usize, y: &mut [f32], cols: usize) {
        let whole = |len: usize| if cols == 0 { len == 0 } else { len.is_multiple_of(cols) };
        assert!(whole(w.len()) && whole(y.len()), "weighted_sums: rows of {cols}");
        let (rows, vectors) = (w.len() / cols.max(1), y.len() / cols.max(1));
        assert!(vectors == 0 || (vectors - 1) * stride + rows <= q.len(), "weighted_sums: factors");
        dispatch!(self, weighted_sums, WeightedSums { w, q, stride, y, cols })
    }

    /// `y[i] = fma(a, x[i], y[i])`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn axpy(&self, a: f32, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "axpy: input and output");
        dispatch!(self, axpy, Axpy { a, x, y })
    }

    /// `y[i] = y[i] + x[i]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "add: input and output");
        dispatch!(self, add, Add { x, y })
    }

    /// `y[i] = y[i] * a`.
    pub fn scale(&self, a: f32, y: &mut [f32]) {
        dispatch!(self, scale, Scale { a, y })
    }

    /// Sum of the elements over 16 lanes and the fixed tree.
    pub fn sum(&self, x: &[f32]) -> f32 {
        dispatch!(self, sum, Sum { x })
    }

    /// The largest element; NaN is passed over, a zero is +0 whatever its sign, and nothing gives
    /// -inf. A plain read of memory, to hold kernels against: one instruction per register.
    ///
    /// # Panics
    /// If `order` has another number of places than 1, 2 or 4.
    pub fn maximum(&self, x: &[f32], order: ReadOrder) -> f32 {
        assert!(matches!(order.places, 1 | 2 | 4), "maximum: {order:?}");
        dispatch!(self, largest, Maximum { x, order })
    }

    /// `out = (x * (1 / sqrt(dot(x, x) / n + epsilon))) * weight`; division and root are IEEE f32.
    /// (Zhang and Sennrich, arXiv 1910.07467; order of steps as in Hugging Face transformers.)
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        assert_eq!(x.len(), weight.len(), "rms_norm: weight");
        assert_eq!(x.len(), out.len(), "rms_norm: output");
        dispatch!(self, rms_norm, RmsNorm { x, weight, epsilon, out })
    }

    /// `out = ((c * (1 / sqrt(dot(c, c) / n + epsilon))) * weight) + bias` with
    /// `c = x - sum(x) / n`. (Ba et al., arXiv 1607.06450.)
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn layer_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        epsilon: f32,
        out: &mut [f32],
    ) {
        assert_eq!(x.len(), weight.len(), "layer_norm: weight");
        assert_eq!(x.len(), bias.len(), "layer_norm: bias");
        assert_eq!(x.len(), out.len(), "layer_norm: output");
        dispatch!(self, layer_norm, LayerNorm { x, weight, bias, epsilon, out })
    }

    /// Replaces each score by e^(score - max) and returns (max, sum of the new scores).
    ///
    /// The maximum passes over NaN, and is +0 if it is a zero of either sign. No scores, or all
    /// -inf, give max -inf, zeros and sum 0. A NaN score makes the sum NaN.
    pub fn softmax_block(&self, scores: &mut [f32]) -> (f32, f32) {
        dispatch!(self, softmax_block, SoftmaxBlock { scores })
    }

    /// `out = (gate * sigmoid(gate)) * up`, element by element.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert_eq!(gate.len(), up.len(), "silu_mul: gate and up");
        assert_eq!(gate.len(), out.len(), "silu_mul: output");
        dispatch!(self, silu_mul, SiluMul { gate, up, out })
    }

    /// [`math::sigmoid`](crate::math::sigmoid) of every element, in place.
    pub fn sigmoid(&self, x: &mut [f32]) {
        dispatch!(self, sigmoid, Sigmoid { x })
    }

    /// [`math::exp`](crate::math::exp) of every element, in place.
    pub fn exp(&self, x: &mut [f32]) {
        dispatch!(self, exp, Exp { x })
    }

    /// Rotates the pairs of one head by the angles of one position (RoFormer, arXiv 2104.09864).
    ///
    /// With d = 2 * cos.len(), pair j is (a, b) = (x[2j], x[2j+1]) if `interleaved`, else
    /// (x[j], x[j + d/2]). Written half-split: `out[j] = a cos_j - b sin_j` and
    /// `out[j + d/2] = b cos_j + a sin_j`, each product rounded by itself.
    /// Plain Rust on every instruction set: with nothing fused or summed the bits can't differ.
    ///
    /// # Panics
    /// If `sin` is not as long as `cos`, or `x` or `out` is not twice as long.
    pub fn rope(&self, x: &[f32], cos: &[f32], sin: &[f32], interleaved: bool, out: &mut [f32]) {
        assert_eq!(cos.len(), sin.len(), "rope: cosines and sines");
        assert_eq!(x.len(), 2 * cos.len(), "rope: input");
        assert_eq!(out.len(), 2 * cos.len(), "rope: output");
        scalar::rope(x, cos, sin, interleaved, out);
    }
}
