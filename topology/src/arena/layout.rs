//! Who lies where in an arena: pure arithmetic, no memory.
//!
//! ```text
//!   | segment of node 0                      | segment of node 1                      |  2 MiB
//!   | region | region | slot 0 | slot 1 | .. | region | slot 0 | slot 1 | ..          |
//!       64 B              4 KiB  each
//! ```
//!
//! An [`ArenaBuilder`] collects resident regions and the slots' parts per node, says how many
//! bytes that takes (for the memory budget), and builds the [`LayerArena`].

use super::bind::Binding;
use super::mapping::SEGMENT_ALIGN_BYTES;
use super::{ArenaError, LayerArena};

/// Alignment of regions: a cache line, and the widest vector register.
pub const REGION_ALIGN_BYTES: usize = 64;
/// Alignment of a slot's parts: what direct reads need.
pub const SLOT_ALIGN_BYTES: usize = 4096;

/// A run of bytes, counted from the arena's first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// A resident region of the arena that handed it out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegionId(pub(super) u32);

/// Collects what one layer's arena holds.
#[derive(Clone, Debug)]
pub struct ArenaBuilder {
    nodes: Vec<NodeLayout>,
    regions: Vec<Region>,
    slots: u32,
}

/// One node's share.
#[derive(Clone, Debug, Default)]
struct NodeLayout {
    /// Bytes of resident regions so far.
    resident_bytes: usize,
    /// Bytes of each slot's part.
    part_bytes: usize,
}

/// A region before the segments have found their place.
#[derive(Clone, Copy, Debug)]
struct Region {
    node: usize,
    /// From the segment's start.
    offset: usize,
    bytes: usize,
}

/// Where everything lies.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) segments: Vec<Span>,
    /// Per node: bytes of its segment that something lies in.
    pub(super) used_bytes: Vec<usize>,
    pub(super) regions: Vec<Span>,
    /// Per node: slot 0's part.
    pub(super) parts: Vec<Span>,
    pub(super) slots: u32,
}

impl Layout {
    /// A slot's part on a node.
    ///
    /// # Panics
    /// When there is no such slot or node.
    pub(super) fn part(&self, slot: u32, node: usize) -> Span {
        assert!(slot < self.slots, "slot {slot} of an arena of {}", self.slots);
        let first = self.parts[node];
        let stride = first.bytes.next_multiple_of(SLOT_ALIGN_BYTES);
        Span { offset: first.offset + slot as usize * stride, bytes: first.bytes }
    }
}

impl ArenaBuilder {
    /// An arena with one segment for each of `nodes` plan nodes.
    ///
    /// # Panics
    /// When `nodes` is 0.
    pub fn new(nodes: usize) -> ArenaBuilder {
        assert!(nodes > 0, "an arena has at least one node");
        ArenaBuilder { nodes: vec![NodeLayout::default(); nodes], regions: Vec::new(), slots: 0 }
    }

    /// Reserves a resident region of `bytes` on a node (an index into the plan's nodes), aligned
    /// to [`REGION_ALIGN_BYTES`].
    ///
    /// # Panics
    /// When there is no such node, or the bytes overflow an address.
    pub fn region(&mut self, node: usize, bytes: usize) -> RegionId {
        let share = &mut self.nodes[node];
        let offset = share.resident_bytes;
        let end =
            offset.checked_add(bytes).and_then(|e| e.checked_next_multiple_of(REGION_ALIGN_BYTES));
        share.resident_bytes = end.expect("a region fits the address space");
        let id = u32::try_from(self.regions.len()).expect("fewer than 2^32 regions");
        self.regions.push(Region { node, offset, bytes });
        RegionId(id)
    }

    /// Cuts `count` slots; each has a part of `part_bytes[node]` bytes on every node (0: none
    /// there), aligned to [`SLOT_ALIGN_BYTES`].
    ///
    /// # Panics
    /// When `part_bytes` has another length than there are nodes, or slots were cut before.
    pub fn slots(&mut self, count: u32, part_bytes: &[usize]) {
        assert_eq!(part_bytes.len(), self.nodes.len(), "one part size per node");
        assert_eq!(self.slots, 0, "slots are cut once");
        self.slots = count;
        for (share, &bytes) in self.nodes.iter_mut().zip(part_bytes) {
            share.part_bytes = bytes;
        }
    }

    /// Bytes that a node's segment will take, for the memory budget: everything in it, without the
    /// rounding to 2 MiB, which is address space and is never touched.
    ///
    /// # Panics
    /// When there is no such node, or the bytes overflow an address.
    pub fn bytes(&self, node: usize) -> usize {
        self.used_bytes(node).expect("a segment fits the address space")
    }

    fn used_bytes(&self, node: usize) -> Option<usize> {
        let share = &self.nodes[node];
        let stride = share.part_bytes.checked_next_multiple_of(SLOT_ALIGN_BYTES)?;
        slots_offset(share)?.checked_add(stride.checked_mul(self.slots as usize)?)
    }

    /// Maps the arena, binds each segment to its node (if `binding` is on) before anything touches
    /// it, and asks for huge pages. Contents are zero.
    ///
    /// # Errors
    /// When it can't be mapped, or the kernel refuses a binding that the probe found permitted.
    ///
    /// # Panics
    /// When `binding` was probed for another number of nodes.
    pub fn build(self, binding: &Binding) -> Result<LayerArena, ArenaError> {
        let layout = self.layout().ok_or(ArenaError::TooLarge { bytes: usize::MAX })?;
        LayerArena::map(layout, binding)
    }

    /// `None` when the whole doesn't fit an address.
    pub(super) fn layout(&self) -> Option<Layout> {
        let mut segments = Vec::with_capacity(self.nodes.len());
        let mut parts = Vec::with_capacity(self.nodes.len());
        let mut used_bytes = Vec::with_capacity(self.nodes.len());
        let mut offset = 0usize;
        for (node, share) in self.nodes.iter().enumerate() {
            let used = self.used_bytes(node)?;
            let bytes = used.checked_next_multiple_of(SEGMENT_ALIGN_BYTES)?;
            used_bytes.push(used);
            segments.push(Span { offset, bytes });
            let slots_at = offset.checked_add(slots_offset(share)?)?;
            parts.push(Span { offset: slots_at, bytes: share.part_bytes });
            offset = offset.checked_add(bytes)?;
        }
        let place = |region: &Region| Span {
            offset: segments[region.node].offset + region.offset,
            bytes: region.bytes,
        };
        let regions = self.regions.iter().map(place).collect();
        Some(Layout { segments, used_bytes, regions, parts, slots: self.slots })
    }
}

/// Where a segment's slots begin.
fn slots_offset(share: &NodeLayout) -> Option<usize> {
    share.resident_bytes.checked_next_multiple_of(SLOT_ALIGN_BYTES)
}
