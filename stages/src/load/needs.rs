//! What the loaders of a model need: which layers' experts go into their slots as they lie in the
//! files, and how much room a job must have for the others.
//!
//! Made once at start from the source, the plan's nodes and the reader's alignment.

use super::ExpertShape;
use super::job::{JobRoom, bounce_bytes};
use super::progress::Geometry;
use crate::ids::{ExpertId, LayerId};
use crate::spec::ModelSpec;
use crate::weights::{Extent, WeightSource};

/// How a model's experts are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadNeeds {
    /// By layer: experts are read into their slots as they are. False for dense layers.
    pub straight: Vec<bool>,
    /// Room of a job, large enough for any expert.
    pub room: JobRoom,
}

impl ReadNeeds {
    /// The needs of a model on so many nodes.
    pub fn new(
        spec: &ModelSpec,
        source: &dyn WeightSource,
        nodes: usize,
        geometry: Geometry,
    ) -> ReadNeeds {
        let mut needs =
            ReadNeeds { straight: vec![false; spec.layers.len()], room: JobRoom::default() };
        for (index, layer) in spec.layers.iter().enumerate() {
            let Some(moe) = layer.moe() else { continue };
            let id = LayerId(index as u32);
            let shape = ExpertShape::new(spec.hidden, moe, spec.slices, source.expert_formats(id));
            let experts = (0..moe.experts as u32).map(|e| source.expert_extents(id, ExpertId(e)));
            let straight = source.is_slot_layout(id)
                && experts.clone().all(|extents| fits_slot(extents, &shape, geometry));
            needs.straight[index] = straight;
            experts.for_each(|extents| needs.count(extents, straight, nodes, geometry));
        }
        needs
    }

    fn count(&mut self, extents: &[Extent], straight: bool, nodes: usize, geometry: Geometry) {
        let pieces = if straight { nodes } else { extents.len() };
        let bytes: usize = extents.iter().map(|extent| extent.bytes).sum();
        // A piece's first and last chunk may be short, and alignment may add a block at either end.
        let chunks = bytes / geometry.chunk_bytes + 3 * pieces;
        let room = &mut self.room;
        room.pieces_max = room.pieces_max.max(pieces);
        room.chunks_max = room.chunks_max.max(chunks);
        if !straight {
            let bytes = bounce_bytes(extents, geometry.align_bytes);
            room.bounce_bytes = room.bounce_bytes.max(bytes);
        }
    }

    /// Some layer's experts are read into their slots as they are.
    pub fn any_straight(&self) -> bool {
        self.straight.contains(&true)
    }

    /// Every expert is read into its slot as it is.
    pub fn all_straight(&self) -> bool {
        self.room.bounce_bytes == 0
    }
}

/// An expert that lies as its slot does, cut and placed as the reader needs it.
fn fits_slot(extents: &[Extent], shape: &ExpertShape, geometry: Geometry) -> bool {
    let [extent] = extents else { return false };
    extent.bytes == shape.expert_bytes()
        && extent.offset.is_multiple_of(geometry.align_bytes as u64)
        && shape.slice_bytes().is_multiple_of(geometry.align_bytes)
}
