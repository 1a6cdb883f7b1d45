//! The memory that passes read: one arena with huge pages, filled with copies of one piece.

use crate::work::Shape;
use millstream_topology::AffinityMask;
use millstream_topology::arena::{ArenaBuilder, Binding, LayerArena, RegionId};
use millstream_topology::cpuset::CpuId;

/// Memory and the CPUs that read it.
pub struct Memory {
    arena: LayerArena,
    region: RegionId,
    /// Where threads are pinned.
    pub cpus: Vec<CpuId>,
}

impl Memory {
    /// So many bytes, all present.
    ///
    /// # Panics
    /// If there is not that much memory.
    pub fn new(bytes: usize) -> Memory {
        let mut builder = ArenaBuilder::new(1);
        let region = builder.region(0, bytes);
        let arena = builder.build(&Binding::off()).expect("memory for the bench");
        if !arena.huge_pages_asked() {
            println!("the kernel has no huge pages: plain reads are slower than they could be");
        }
        // Older kernels make pages present when they are filled, which is as good.
        let _ = arena.populate();
        let cpus = AffinityMask::capture().cpus.as_ref().map(|cpus| cpus.iter().collect());
        Memory { arena, region, cpus: cpus.expect("Linux tells the CPUs") }
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
