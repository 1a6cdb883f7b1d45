//! What lies where in an expert's slot.
//!
//! ```text
//! slot's part on a node   | slice | slice | ..      the node's slices, at a constant stride
//! slice                   | gate rows | up rows | down columns |  each in the compute layout
//! ```
//!
//! The three matrices of a slice begin at multiples of 64 bytes. Slices of 64 KiB and more begin
//! at multiples of 4 KiB, so that a drive can read each by itself. Packs store experts in the same
//! layout, slice after slice.

use crate::placed::SliceMap;
use crate::spec::MoeSpec;
use crate::weights::Rectangle;
use millstream_kernels::{WeightFormat, Weights};
use std::ops::Range;

/// Alignment of matrices within a slice.
const MATRIX_ALIGN_BYTES: usize = 64;
/// Slices at least as long as this are aligned for direct reads.
pub const DIRECT_SLICE_BYTES_MIN: usize = 64 << 10;
/// Alignment of those: what direct reads need.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

/// Dimensions and formats of a layer's routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of gate and up.
    pub intermediate: usize,
    /// S.
    pub slices: usize,
    /// Formats of gate, up and down.
    pub formats: [WeightFormat; 3],
}

/// Which matrix of an expert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpertMatrix {
    /// `[slice_width, hidden]`
    Gate = 0,
    /// `[slice_width, hidden]`
    Up = 1,
    /// `[hidden, slice_width]`
    Down = 2,
}

/// All three, in the order of a slice.
pub const EXPERT_MATRICES: [ExpertMatrix; 3] =
    [ExpertMatrix::Gate, ExpertMatrix::Up, ExpertMatrix::Down];

impl ExpertShape {
    /// The shape of the experts of a mixture.
    pub fn new(
        hidden: usize,
        moe: &MoeSpec,
        slices: usize,
        formats: [WeightFormat; 3],
    ) -> ExpertShape {
        ExpertShape { hidden, intermediate: moe.intermediate, slices, formats }
    }

    /// Rows of gate and up in a slice.
    pub fn slice_width(&self) -> usize {
        self.intermediate / self.slices
    }

    /// Rows and columns of a matrix of a slice.
    pub fn dimensions(&self, which: ExpertMatrix) -> [usize; 2] {
        match which {
            ExpertMatrix::Gate | ExpertMatrix::Up => [self.slice_width(), self.hidden],
            ExpertMatrix::Down => [self.hidden, self.slice_width()],
        }
    }

    /// Which block of the expert's matrix a slice holds.
    pub fn rectangle(&self, which: ExpertMatrix, slice: usize) -> Rectangle {
        let part = slice * self.slice_width()..(slice + 1) * self.slice_width();
        match which {
            ExpertMatrix::Gate | ExpertMatrix::Up => Rectangle { rows: part, cols: 0..self.hidden },
            ExpertMatrix::Down => Rectangle { rows: 0..self.hidden, cols: part },
        }
    }

    /// Where in a slice a matrix lies.
    pub fn range(&self, which: ExpertMatrix) -> Range<usize> {
        let mut first = 0;
        for matrix in EXPERT_MATRICES {
            let [rows, cols] = self.dimensions(matrix);
            let end = first + self.formats[matrix as usize].matrix_bytes(rows, cols);
            if matrix == which {
                return first..end;
            }
            first = end.next_multiple_of(MATRIX_ALIGN_BYTES);
        }
        unreachable!("every matrix is in the table")
    }

    /// Bytes from the start of one slice to that of the next.
    pub fn slice_bytes(&self) -> usize {
        let end = self.range(ExpertMatrix::Down).end;
        let align =
            if end >= DIRECT_SLICE_BYTES_MIN { DIRECT_ALIGN_BYTES } else { MATRIX_ALIGN_BYTES };
        end.next_multiple_of(align)
    }

    /// Bytes of a whole expert.
    pub fn expert_bytes(&self) -> usize {
        self.slices * self.slice_bytes()
    }

    /// Bytes of a slot's part on a node.
    pub fn part_bytes(&self, map: &SliceMap, node: usize) -> usize {
        map.slices_of(node).len() * self.slice_bytes()
    }

    /// Where in its node's part a slice lies.
    pub fn slice_range(&self, map: &SliceMap, slice: usize) -> Range<usize> {
        let first = (slice - map.slices_of(map.node_of(slice)).start) * self.slice_bytes();
        first..first + self.slice_bytes()
    }

    /// A matrix of a slice as a view of the slice's bytes.
    pub fn weights<'a>(&self, slice: &'a [u8], which: ExpertMatrix) -> Weights<'a> {
        let [rows, cols] = self.dimensions(which);
        Weights::new(self.formats[which as usize], rows, cols, &slice[self.range(which)])
    }
}
