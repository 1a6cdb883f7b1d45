//! The memory that passes read: one arena with huge pages, filled with copies of one piece.

use super::work::Shape;
use millstream_topology::arena::{ArenaBuilder, ArenaError, Binding, LayerArena, RegionId};
use millstream_topology::cpuset::CpuId;

/// Memory and the CPUs that read it.
pub struct Memory {
    arena: LayerArena,
    region: RegionId,
    /// Where threads are pinned.
    pub cpus: Vec<CpuId>,
}

impl Memory {
    /// So many bytes, all present, for threads on these CPUs.
    ///
    /// # Errors
    /// When there is not that much memory.
    pub fn new(bytes: usize, cpus: Vec<CpuId>) -> Result<Memory, ArenaError> {
        let mut builder = ArenaBuilder::new(1);
        let region = builder.region(0, bytes);
        let arena = builder.build(&Binding::off())?;
        // Older kernels make pages present when they are filled, which is as good.
        let _ = arena.populate();
        Ok(Memory { arena, region, cpus })
    }

    /// The kernel was asked for huge pages; without them plain reads are slower than they could be.
    pub fn is_huge(&self) -> bool {
        self.arena.huge_pages_asked()
    }

    /// Whole pieces of a shape that fit.
    pub fn pieces(&self, shape: &Shape) -> usize {
        self.arena.region(self.region).len() / shape.bytes()
    }

    /// The piece with a number.
    pub fn piece(&self, shape: &Shape, index: usize) -> &[u8] {
        &self.arena.region(self.region)[index * shape.bytes()..][..shape.bytes()]
    }

    /// Fills all of it with copies of a random matrix of the shape.
    pub fn fill(&mut self, shape: &Shape) {
        let piece = shape.random_matrix();
        for copy in self.arena.region_mut(self.region).chunks_exact_mut(piece.len()) {
            copy.copy_from_slice(&piece);
        }
    }
}
