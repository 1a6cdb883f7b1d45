//! The weights of a gated unit, wherever they lie: among a layer's resident tensors or in a slot.
//!
//! What [`crate::compute::Compute::gated_unit`] multiplies with; Matmul makes them for the length of
//! one operation.

use crate::load::{ExpertMatrix, ExpertShape};
use crate::placed::{PlacedUnit, SliceMap};
use millstream_kernels::Weights;
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

    /// Bytes of all three matrices over all slices.
    fn bytes(&self, slices: usize) -> usize {
        let of = |weights: Weights<'_>| weights.bytes().len();
        slices * (of(self.gate(0)) + of(self.up(0)) + of(self.down(0)))
    }
}

/// A gated unit among a layer's resident tensors.
pub struct ResidentUnit<'a> {
    /// The arena.
    pub arena: &'a LayerArena,
    /// Where in it.
    pub unit: &'a PlacedUnit,
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
}

/// An expert in a leased slot.
pub struct LeasedUnit<'a> {
    /// The right to read.
    pub lease: &'a ReadLease,
    /// What lies where in the slot.
    pub shape: &'a ExpertShape,
    /// Which node holds which slice.
    pub map: &'a SliceMap,
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
}
