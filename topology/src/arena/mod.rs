//! The memory of one layer: one mapping, one segment per NUMA node, bound once, cut into resident
//! regions and expert slots.
//!
//! Owned by the layer's pipeline as an `Arc<LayerArena>`. In flow: the plan's nodes and the sizes
//! of the layer ([`ArenaBuilder`]), resident tensors (written once, while the arena is unique),
//! experts (written through a [`FillLease`]). Out flow: `&[u8]` of regions and, through a
//! [`ReadLease`], of slots. Arenas know bytes only: no formats, no models, no files.
//!
//! ```
//! use millstream_topology::arena::{ArenaBuilder, Binding};
//! use std::sync::Arc;
//! let mut builder = ArenaBuilder::new(2);
//! let norm = builder.region(0, 64);
//! builder.slots(3, &[8192, 8192]);
//! let mut arena = builder.build(&Binding::off())?;
//! arena.region_mut(norm).fill(1);
//! let arena = Arc::new(arena);
//! let mut fill = arena.begin_fill(0).expect("no lease of slot 0 is out");
//! fill.part_mut(1).fill(7);
//! let generation = fill.finish();
//! let lease = arena.read(0, generation).expect("just filled");
//! assert_eq!(lease.part(1)[0], 7);
//! # Ok::<(), millstream_topology::arena::ArenaError>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `layout` | who lies where: pure arithmetic, and the builder |
//! | `mapping` | the anonymous mapping, 2 MiB aligned |
//! | `bind` | may memory be bound to nodes here, and which policy each segment gets |
//! | `calls` | the kernel's calls for that, and the one that says where pages are |
//! | `pages` | on which node the pages of an arena really are |
//! | `slot` | the state of a slot in one word, model-checked with loom |
//! | `lease` | the right to fill or read a slot, as a value |
//! | `bounce` | memory for reads that can't go into a slot as they are |
#![allow(unsafe_code)]

mod bind;
mod bounce;
mod calls;
mod layout;
mod lease;
mod mapping;
mod pages;
mod slot;
mod sync;

pub use bind::Binding;
pub use bounce::Bounce;
pub use layout::{ArenaBuilder, REGION_ALIGN_BYTES, RegionId, SLOT_ALIGN_BYTES};
pub use lease::{FillLease, ReadLease};
pub use mapping::SEGMENT_ALIGN_BYTES;
pub use pages::{HugePages, PageShares};

use crate::cpuset::NodeId;
use layout::{Layout, Span};
use mapping::Mapping;
use slot::SlotState;
use std::sync::Arc;

/// Why an arena can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The kernel gave no mapping.
    #[error(
        "can't map {bytes} bytes for a layer: {source}; lower --memory or --experts-per-layer, \
         or raise `ulimit -v` and vm.max_map_count"
    )]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The layer's bytes don't fit an address.
    #[error("a layer of {bytes} bytes doesn't fit the address space; lower --experts-per-layer")]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The kernel refused a binding for another reason than permission.
    #[error(
        "can't bind memory to NUMA node {node}: {source}; the plan names a node that the kernel \
         doesn't know, which is a bug in the plan: `--topology spread` runs without binding"
    )]
    Bind {
        /// The operating system's id of the node.
        node: NodeId,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// The memory of one layer.
#[derive(Debug)]
pub struct LayerArena {
    mapping: Mapping,
    layout: Layout,
    slots: Vec<SlotState>,
    binding: Binding,
    huge_pages_asked: bool,
}

impl LayerArena {
    /// Called by [`ArenaBuilder::build`].
    fn map(layout: Layout, binding: &Binding) -> Result<LayerArena, ArenaError> {
        let last = layout.segments.last().expect("the builder has at least one node");
        let mapping = Mapping::new(last.offset + last.bytes)?;
        binding.apply(&mapping, &layout.segments)?;
        let huge_pages_asked = mapping.ask_huge_pages();
        let slots = (0..layout.slots).map(|_| SlotState::new()).collect();
        let binding = binding.clone();
        Ok(LayerArena { mapping, layout, slots, binding, huge_pages_asked })
    }

    /// Segments: one per plan node.
    pub fn nodes(&self) -> usize {
        self.layout.segments.len()
    }

    /// Expert slots.
    pub fn slots(&self) -> u32 {
        self.layout.slots
    }

    /// Bytes of a slot's part on a node.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn part_bytes(&self, node: usize) -> usize {
        self.layout.parts[node].bytes
    }

    /// The kernel was told where the pages of every segment come from.
    pub fn is_bound(&self) -> bool {
        self.binding.is_on()
    }

    /// Clears other memory and deals its whole pages over the nodes that this arena is bound to, if
    /// they are several; else does nothing. For what all nodes read alike, such as KV that is empty.
    ///
    /// # Errors
    /// When the kernel refuses; then pages come from where they are touched first.
    pub fn deal_over_nodes(&self, memory: &mut [u8]) -> std::io::Result<()> {
        self.binding.deal(memory)
    }

    /// Ends the time in which the arena's pages come in: pages that are touched later (slots that
    /// gave theirs back) prefer their node, and come from another when it is full.
    ///
    /// # Errors
    /// When the kernel refuses, which it didn't when the arena was bound.
    pub fn settle(&self) -> Result<(), ArenaError> {
        self.binding.relax(&self.mapping, &self.layout.segments)
    }

    /// The kernel took the request for huge pages (it may still grant none).
    pub fn huge_pages_asked(&self) -> bool {
        self.huge_pages_asked
    }

    /// Makes all memory present now, on its node, so that first touches cost nothing later.
    ///
    /// # Errors
    /// When memory runs out, or the kernel is older than 5.14; then pages come on first touch.
    pub fn populate(&self) -> std::io::Result<()> {
        let segments = self.layout.segments.iter().zip(&self.layout.used_bytes);
        segments
            .filter(|&(_, &bytes)| bytes > 0)
            .try_for_each(|(s, &bytes)| self.mapping.populate(Span { offset: s.offset, bytes }))
    }

    /// A resident region.
    ///
    /// # Panics
    /// When the id comes from an arena with more regions.
    pub fn region(&self, id: RegionId) -> &[u8] {
        let span = self.layout.regions[id.0 as usize];
        let pointer = self.mapping.pointer(span);
        // SAFETY:
        // - the span lies in the mapping (`pointer` asserts), which `self` keeps mapped.
        // - it overlaps no other region and no slot: layout.rs, proven by its proptest.
        // - writes need `&mut self` (`region_mut`), so none happens while this slice lives.
        unsafe { std::slice::from_raw_parts(pointer, span.bytes) }
    }

    /// A resident region, to write while the arena has one owner.
    ///
    /// # Panics
    /// When the id comes from an arena with more regions.
    pub fn region_mut(&mut self, id: RegionId) -> &mut [u8] {
        let span = self.layout.regions[id.0 as usize];
        let pointer = self.mapping.pointer(span);
        // SAFETY:
        // - the span lies in the mapping (`pointer` asserts), which `self` keeps mapped.
        // - `&mut self`: no other slice of a region lives; leases only reach slots.
        unsafe { std::slice::from_raw_parts_mut(pointer, span.bytes) }
    }

    /// The exclusive right to fill a slot; `None` while any lease of it is out. Starts a new
    /// generation: read leases of the old one are granted no more.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn begin_fill(self: &Arc<Self>, slot: u32) -> Option<FillLease> {
        FillLease::take(self, slot)
    }

    /// A share of the right to read a slot; `None` unless a finished fill of exactly this
    /// generation is in it.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn read(self: &Arc<Self>, slot: u32, generation: u32) -> Option<ReadLease> {
        ReadLease::take(self, slot, generation)
    }

    /// The generation of what is in a slot, or of the fill in progress; 0 before the first fill.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn generation(&self, slot: u32) -> u32 {
        self.state(slot).generation()
    }

    /// No lease of the slot is out: a fill would be granted, unless somebody else comes first.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn is_idle(&self, slot: u32) -> bool {
        self.state(slot).is_idle()
    }

    /// A finished fill is in the slot.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn is_ready(&self, slot: u32) -> bool {
        self.state(slot).is_ready()
    }

    fn state(&self, slot: u32) -> &SlotState {
        &self.slots[slot as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
