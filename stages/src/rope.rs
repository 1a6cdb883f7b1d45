//! Rotary frequencies, plain and stretched, and the angles of positions.
//!
//! A wave has one [`RopeTable`] for each way of turning that its model has: frequencies are made
//! when the wave is made, cosines and sines once for each step, by the first layer that asks.
//! Frequencies follow Hugging Face transformers step by step in f32 (`modeling_rope_utils.py`); they
//! are constants of the model as its weights are, and the straight-line pass takes the same.

use crate::spec::{ModelSpec, RopeScaling, RopeSpec};
use crate::wave::Row;
use millstream_kernels::math;
use std::f64::consts::PI;

impl RopeSpec {
    /// The frequencies of a head with `dim` turned elements, `dim / 2` of them, the highest first.
    ///
    /// # Panics
    /// If `dim` is odd.
    pub fn inverse_frequencies(&self, dim: usize) -> Vec<f32> {
        assert!(dim.is_multiple_of(2), "rope dimension {dim} is odd");
        let powers = (0..dim / 2).map(|j| math::pow(self.theta, (2 * j) as f32 / dim as f32));
        match self.scaling {
            RopeScaling::None => powers.map(|power| 1.0 / power).collect(),
            RopeScaling::Linear { factor } => powers.map(|power| 1.0 / power / factor).collect(),
            RopeScaling::Yarn { factor, context, beta_fast, beta_slow, truncate, .. } => {
                let border = |turns| self.dimension_of(turns, context, dim);
                let (low, high) = (border(beta_fast), border(beta_slow));
                let (low, high) = match truncate {
                    true => (libm::floor(low), libm::ceil(high)),
                    false => (low, high),
                };
                let (low, high) = (low.max(0.0), high.min((dim - 1) as f64));
                // Borders that are one would divide by zero.
                let high = if low == high { high + 0.001 } else { high };
                let blended = |(j, power): (usize, f32)| {
                    let ramp = (j as f32 - low as f32) / (high - low) as f32;
                    let kept = 1.0 - ramp.clamp(0.0, 1.0);
                    let (divided, whole) = (1.0 / (factor * power), 1.0 / power);
                    divided * (1.0 - kept) + whole * kept
                };
                powers.enumerate().map(blended).collect()
            }
        }
    }

    /// The dimension (a fraction, as a place among the frequencies) that makes so many turns within
    /// the context of training.
    fn dimension_of(&self, turns: f32, context: f32, dim: usize) -> f64 {
        let turn = f64::from(context) / (f64::from(turns) * 2.0 * PI);
        dim as f64 * libm::log(turn) / (2.0 * libm::log(f64::from(self.theta)))
    }

    /// Factor on cosines and sines.
    pub fn magnitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { magnitude, .. } => magnitude,
            RopeScaling::None | RopeScaling::Linear { .. } => 1.0,
        }
    }
}

/// cos and sin of the angles of a wave's rows, for one way of turning.
#[derive(Debug)]
pub struct RopeTable {
    rope: RopeSpec,
    frequencies: Vec<f32>,
    magnitude: f32,
    /// The rows at hand have their angles.
    made: bool,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Room for `rows` rows, for each way of turning that a model has.
    pub fn of_model(spec: &ModelSpec, rows: usize) -> Vec<RopeTable> {
        let table = |(rope, dim): (RopeSpec, usize)| RopeTable {
            rope,
            frequencies: rope.inverse_frequencies(dim),
            magnitude: rope.magnitude(),
            made: false,
            cos: vec![0.0; rows * (dim / 2)],
            sin: vec![0.0; rows * (dim / 2)],
        };
        ropes(spec).into_iter().map(table).collect()
    }

    /// Bytes of [`RopeTable::of_model`].
    pub fn bytes(spec: &ModelSpec, rows: usize) -> usize {
        let table =
            |(_, dim): &(RopeSpec, usize)| size_of::<RopeTable>() + 4 * (2 * rows + 1) * (dim / 2);
        ropes(spec).iter().map(table).sum()
    }

    /// Forgets the rows.
    pub fn clear(&mut self) {
        self.made = false;
    }

    /// True for the table of this way of turning.
    pub fn is_of(&self, rope: &RopeSpec, dim: usize) -> bool {
        self.rope == *rope && self.frequencies.len() == dim / 2
    }

    /// Makes the angles of the rows, unless they are there.
    pub fn make(&mut self, rows: &[Row]) {
        if self.made {
            return;
        }
        let half = self.frequencies.len();
        for (index, row) in rows.iter().enumerate() {
            let range = index * half..(index + 1) * half;
            let (cos, sin) = (&mut self.cos[range.clone()], &mut self.sin[range]);
            math::rope_angles(&self.frequencies, row.position, cos, sin);
            if self.magnitude != 1.0 {
                cos.iter_mut().chain(sin).for_each(|value| *value *= self.magnitude);
            }
        }
        self.made = true;
    }

    /// Cosines and sines of a row.
    pub fn of(&self, row: usize) -> (&[f32], &[f32]) {
        let half = self.frequencies.len();
        let range = row * half..(row + 1) * half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Every way of turning of a model, once: which, and of how many elements.
fn ropes(spec: &ModelSpec) -> Vec<(RopeSpec, usize)> {
    let mut ropes: Vec<(RopeSpec, usize)> = vec![];
    for rope in spec.layers.iter().map(|layer| layer.attention.rope()) {
        if !ropes.contains(&rope) {
            ropes.push(rope);
        }
    }
    ropes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yarn(context: f32, truncate: bool) -> RopeScaling {
        let (beta_fast, beta_slow, magnitude) = (32.0, 1.0, 1.25);
        RopeScaling::Yarn { factor: 32.0, context, beta_fast, beta_slow, truncate, magnitude }
    }

    fn close(scaling: RopeScaling, expected: &[f64]) {
        let rope = RopeSpec { theta: 150_000.0, interleaved: false, scaling };
        let found = rope.inverse_frequencies(2 * expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let off = (f64::from(*found) - expected).abs() / expected;
            assert!(off < 1e-6, "{found} for {expected} of {scaling:?}");
        }
    }

    /// Values of the formulas of the YaRN paper in another language, in double precision.
    #[test]
    fn yarn_blends_between_the_two_borders() {
        let top = [1.0, 0.225_418_000_202_870_8, 0.050_813_274_815_461_475];
        let low = [1.818_833_668_168_956e-5, 4.099_978_481_802_98e-6, 9.242_089_502_428_301e-7];
        let whole = [7.755_466_057_530_362e-3, 9.144_544_011_878_624e-4];
        let between = [6.794_959_489_732_219e-3, 4.564_839_192_232_408_6e-4];
        close(yarn(4096.0, true), &[&top[..], &whole, &low].concat());
        close(yarn(4096.0, false), &[&top[..], &between, &low].concat());
    }

    #[test]
    fn borders_that_are_one_divide_nothing_by_zero() {
        let rope = RopeSpec { theta: 10_000.0, interleaved: false, scaling: yarn(4.0, true) };
        let found = rope.inverse_frequencies(8);
        assert!(found.iter().all(|f| f.is_finite()), "{found:?}");
        assert_eq!(found[0].to_bits(), 1f32.to_bits());
    }

    #[test]
    fn linear_divides_every_frequency() {
        let scaling = RopeScaling::Linear { factor: 4.0 };
        close(scaling, &[0.25, 0.25 / 150_000f64.sqrt()]);
    }

    #[test]
    fn a_model_has_each_way_of_turning_once_and_its_magnitude() {
        let mut spec = crate::simulation::small_spec();
        assert_eq!(ropes(&spec).len(), 1);
        let crate::spec::AttentionSpec::Mla(mla) = &mut spec.layers[2].attention else {
            panic!("the small model has latent attention")
        };
        mla.rope.scaling = yarn(4096.0, true);
        let mut tables = RopeTable::of_model(&spec, 1);
        assert_eq!(tables.len(), 2);
        let row = Row {
            token: 0,
            position: 0,
            sequence: crate::ids::SequenceId(0),
            pages_first: 0,
            wants_logits: false,
            prefill: false,
            fault: None,
        };
        tables.iter_mut().for_each(|table| table.make(std::slice::from_ref(&row)));
        assert_eq!(tables[0].of(0), (&[1.0, 1.0][..], &[0.0, 0.0][..]));
        assert_eq!(tables[1].of(0).0, [1.25, 1.25]);
    }
}
