//! The weights of a gated unit, wherever they lie: among a layer's resident tensors or in a slot.
//!
//! What [`crate::compute::Compute::gated_unit`] multiplies with; Matmul makes them for the length of
//! one operation.

use crate::ids::ExpertId;
use crate::load::{ExpertMatrix, ExpertShape};
use crate::placed::{PlacedUnit, SliceMap};
use crate::spec::Activation;
use millstream_kernels::{Kernels, Weights};
use millstream_topology::arena::{LayerArena, ReadLease};

/// The three matrices of a gated unit, slice by slice, wherever they lie.
pub trait UnitWeights: Sync {
    /// `[slice_width, hidden]`
    fn gate(&self, slice: usize) -> Weights<'_>;
    /// `[slice_width, hidden]`
    fn up(&self, slice: usize) -> Weights<'_>;
    /// `[hidden, slice_width]`
    fn down(&self, slice: usize) -> Weights<'_>;
    /// Rows of gate and up in a slice.
    fn slice_width(&self) -> usize;
    /// What joins gate and up.
    fn activation(&self) -> Activation;
    /// What is added to the matrices' results, if anything.
    fn biases(&self) -> Option<UnitBiases<'_>>;

    /// Bytes of all three matrices over all slices.
    fn bytes(&self, slices: usize) -> usize {
        let of = |weights: Weights<'_>| weights.bytes().len();
        slices * (of(self.gate(0)) + of(self.up(0)) + of(self.down(0)))
    }
}

/// The biases of a gated unit.
#[derive(Clone, Copy)]
pub struct UnitBiases<'a> {
    /// `[intermediate]`
    pub gate: &'a [f32],
    /// `[intermediate]`
    pub up: &'a [f32],
    /// `[hidden]`
    pub down: &'a [f32],
}

/// The biases of all experts of a layer, outside of their slots.
#[derive(Debug)]
pub struct ExpertBiases {
    /// `[experts, intermediate]`
    pub gate: Vec<f32>,
    /// `[experts, intermediate]`
    pub up: Vec<f32>,
    /// `[experts, hidden]`
    pub down: Vec<f32>,
}

impl ExpertBiases {
    /// Those of one expert.
    pub fn of(&self, expert: ExpertId, shape: &ExpertShape) -> UnitBiases<'_> {
        let ExpertShape { hidden, intermediate, .. } = *shape;
        let index = expert.index();
        UnitBiases {
            gate: &self.gate[index * intermediate..][..intermediate],
            up: &self.up[index * intermediate..][..intermediate],
            down: &self.down[index * hidden..][..hidden],
        }
    }
}

impl Activation {
    /// Joins gate and up, element by element; both may be changed on the way.
    pub fn join(&self, kernels: Kernels, gate: &mut [f32], up: &[f32], out: &mut [f32]) {
        match *self {
            Activation::Silu => kernels.silu_mul(gate, up, out),
            Activation::Clamped { alpha, limit } => {
                // Nothing is fused or summed outside of `sigmoid`, so the bits can't differ.
                for (out, gate) in out.iter_mut().zip(&mut *gate) {
                    // A NaN stays one.
                    *gate = if *gate > limit { limit } else { *gate };
                    *out = *gate * alpha;
                }
                kernels.sigmoid(out);
                for (out, (gate, up)) in out.iter_mut().zip(gate.iter().zip(up)) {
                    *out = (*gate * *out) * (up.clamp(-limit, limit) + 1.0);
                }
            }
        }
    }
}

/// A gated unit among a layer's resident tensors.
pub struct ResidentUnit<'a> {
    /// The arena.
    pub arena: &'a LayerArena,
    /// Where in it.
    pub unit: &'a PlacedUnit,
    /// What joins its gate and up.
    pub activation: Activation,
}

impl UnitWeights for ResidentUnit<'_> {
    fn gate(&self, slice: usize) -> Weights<'_> {
        self.unit.gate(self.arena, slice)
    }
    fn up(&self, slice: usize) -> Weights<'_> {
        self.unit.up(self.arena, slice)
    }
    fn down(&self, slice: usize) -> Weights<'_> {
        self.unit.down(self.arena, slice)
    }
    fn slice_width(&self) -> usize {
        self.unit.slice_width
    }
    fn activation(&self) -> Activation {
        self.activation
    }
    fn biases(&self) -> Option<UnitBiases<'_>> {
        None
    }
}

/// An expert in a leased slot.
pub struct LeasedUnit<'a> {
    /// The right to read.
    pub lease: &'a ReadLease,
    /// What lies where in the slot.
    pub shape: &'a ExpertShape,
    /// Which node holds which slice.
    pub map: &'a SliceMap,
    /// What joins its gate and up.
    pub activation: Activation,
    /// Its biases.
    pub biases: Option<UnitBiases<'a>>,
}

impl LeasedUnit<'_> {
    fn weights(&self, slice: usize, which: ExpertMatrix) -> Weights<'_> {
        let part = self.lease.part(self.map.node_of(slice));
        self.shape.weights(&part[self.shape.slice_range(self.map, slice)], which)
    }
}

impl UnitWeights for LeasedUnit<'_> {
    fn gate(&self, slice: usize) -> Weights<'_> {
        self.weights(slice, ExpertMatrix::Gate)
    }
    fn up(&self, slice: usize) -> Weights<'_> {
        self.weights(slice, ExpertMatrix::Up)
    }
    fn down(&self, slice: usize) -> Weights<'_> {
        self.weights(slice, ExpertMatrix::Down)
    }
    fn slice_width(&self) -> usize {
        self.shape.slice_width()
    }
    fn activation(&self) -> Activation {
        self.activation
    }
    fn biases(&self) -> Option<UnitBiases<'_>> {
        self.biases
    }
}
