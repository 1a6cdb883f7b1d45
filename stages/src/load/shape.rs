//! What lies where in an expert's slot.
//!
//! A slot's part on a node holds the slices of that node one after the other; a slice is its gate
//! rows, its up rows and its down columns, each starting at a multiple of 64 bytes.

use crate::placed::SliceMap;
use crate::spec::MoeSpec;
use crate::weights::ExpertParts;
use millstream_kernels::WeightFormat;
use millstream_topology::arena::FillLease;
use std::ops::Range;

const ALIGN_BYTES: usize = 64;

/// Dimensions and format of a layer's routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of gate and up.
    pub intermediate: usize,
    /// Format in the slot.
    pub format: WeightFormat,
}

/// A zeroed buffer of at least `bytes` bytes that may be viewed as any kernel format.
pub fn aligned_buffer(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(8)]
}

impl ExpertShape {
    /// The shape of the experts of a mixture.
    pub fn new(hidden: usize, moe: &MoeSpec, format: WeightFormat) -> ExpertShape {
        ExpertShape { hidden, intermediate: moe.intermediate, format }
    }

    /// Rows of gate and up in a slice.
    pub fn slice_width(&self, map: &SliceMap) -> usize {
        self.intermediate / map.slices
    }

    /// Bytes of one whole matrix.
    pub fn matrix_bytes(&self) -> usize {
        self.intermediate * self.hidden * self.format.bytes_per_weight()
    }

    /// Bytes of a slot's part on a node.
    pub fn part_bytes(&self, map: &SliceMap, node: usize) -> usize {
        map.slices_of(node).len() * 3 * self.room(map)
    }

    /// Where in its node's part a slice's gate (0), up (1) or down (2) lies.
    pub fn range(&self, map: &SliceMap, slice: usize, which: usize) -> Range<usize> {
        let first_slice = map.slices_of(map.node_of(slice)).start;
        let first = ((slice - first_slice) * 3 + which) * self.room(map);
        first..first + self.matrix_bytes() / map.slices
    }

    fn room(&self, map: &SliceMap) -> usize {
        (self.matrix_bytes() / map.slices).next_multiple_of(ALIGN_BYTES)
    }

    /// Whole matrices for [`crate::weights::WeightSource::unpack_expert`] in one buffer.
    pub fn parts<'a>(&self, unpacked: &'a mut [u8]) -> ExpertParts<'a> {
        let bytes = self.matrix_bytes();
        let (gate, rest) = unpacked.split_at_mut(bytes);
        let (up, rest) = rest.split_at_mut(bytes);
        ExpertParts { gate, up, down: &mut rest[..bytes] }
    }

    /// Deals whole matrices (as [`ExpertShape::parts`] cuts them) into the slot's slices.
    pub fn deal(&self, map: &SliceMap, unpacked: &[u8], lease: &mut FillLease) {
        let bytes = self.matrix_bytes();
        let (gate, rest) = unpacked.split_at(bytes);
        let (up, rest) = rest.split_at(bytes);
        let down = &rest[..bytes];
        for slice in 0..map.slices {
            let part = lease.part_mut(map.node_of(slice));
            let rows = slice * bytes / map.slices..(slice + 1) * bytes / map.slices;
            part[self.range(map, slice, 0)].copy_from_slice(&gate[rows.clone()]);
            part[self.range(map, slice, 1)].copy_from_slice(&up[rows]);
            let whole_row = self.intermediate * self.format.bytes_per_weight();
            let slice_row = whole_row / map.slices;
            let into = part[self.range(map, slice, 2)].chunks_exact_mut(slice_row);
            for (into, from) in into.zip(down.chunks_exact(whole_row)) {
                into.copy_from_slice(&from[slice * slice_row..][..slice_row]);
            }
        }
    }
}
