//! The right to touch a slot, as a value: exclusive to fill it, shared to read it.
//!
//! Handed out by [`LayerArena`], sent between threads, given back by dropping. Taking, using and
//! dropping a lease allocates nothing (it counts one more owner of the arena). [`super::slot`]
//! argues why a fill lease and a read lease of one slot never exist at the same time; the
//! `unsafe` blocks here rest on that.
#![allow(unsafe_code)]

use super::LayerArena;
use super::layout::{SLOT_ALIGN_BYTES, Span};
use std::sync::Arc;

/// The exclusive right to fill a slot. Dropped unfinished, it leaves the slot empty: what was
/// written is never read.
#[derive(Debug)]
#[must_use = "a fill lease that is dropped leaves its slot empty"]
pub struct FillLease {
    arena: Arc<LayerArena>,
    slot: u32,
    generation: u32,
    finished: bool,
}

impl FillLease {
    /// Asks the arena's state for the right.
    pub(super) fn take(arena: &Arc<LayerArena>, slot: u32) -> Option<FillLease> {
        let generation = arena.state(slot).begin_fill()?;
        Some(FillLease { arena: Arc::clone(arena), slot, generation, finished: false })
    }

    /// The slot that is being filled.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The generation that a finished fill will have.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The slot's bytes on a node, to write. What is in them before is the last fill or zero.
    ///
    /// # Panics
    /// When the arena has no such node.
    pub fn part_mut(&mut self, node: usize) -> &mut [u8] {
        let span = self.arena.layout.part(self.slot, node);
        let pointer = self.arena.mapping.pointer(span);
        // SAFETY:
        // - the span lies in the mapping (`pointer` asserts) and `self.arena` keeps it mapped.
        // - it overlaps no region and no other slot: layout.rs, proven by its proptest.
        // - no read lease and no other fill lease of the slot exists while this one does:
        //   slot.rs, `begin_fill`; `&mut self` makes this the only slice from this lease.
        unsafe { std::slice::from_raw_parts_mut(pointer, span.bytes) }
    }

    /// Where the slot's bytes on a node are, and how many: for a kernel that writes them while
    /// nobody holds a slice. Valid for as long as the lease lives, however it is moved.
    ///
    /// # Panics
    /// When the arena has no such node.
    pub fn part_pointer(&mut self, node: usize) -> (*mut u8, usize) {
        let span = self.arena.layout.part(self.slot, node);
        (self.arena.mapping.pointer(span), span.bytes)
    }

    /// The slot's bytes on every node, in node order, to write.
    pub fn parts_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        let (arena, slot) = (&self.arena, self.slot);
        (0..arena.nodes()).map(move |node| {
            let span = arena.layout.part(slot, node);
            let pointer = arena.mapping.pointer(span);
            // SAFETY:
            // - as in `part_mut`; parts of different nodes lie in different segments, and each
            //   node is visited once.
            // - the iterator holds the `&mut self` for as long as its slices live.
            unsafe { std::slice::from_raw_parts_mut(pointer, span.bytes) }
        })
    }

    /// Gives the slot's memory back to the system: every whole page that lies in the slot alone. Its
    /// bytes are zero then; the next fill gets new pages. Returns how many bytes that is. Huge pages
    /// that reach into a neighbour are split; what is left of them is freed when the kernel gets to it.
    pub fn release_pages(&mut self) -> usize {
        let spans = (0..self.arena.nodes()).map(|node| {
            let Span { offset, bytes } = self.arena.layout.part(self.slot, node);
            // What fills a part up to the next one's start is nobody's.
            Span { offset, bytes: bytes.next_multiple_of(SLOT_ALIGN_BYTES) }
        });
        // SAFETY:
        // - no other lease of the slot exists while this one does (slot.rs, `begin_fill`), and
        //   `&mut self` excludes slices from this one: nobody sees the bytes change.
        // - the spans are the slot's own, filling included, and overlap no other slot and no region:
        //   parts lie at a stride of whole SLOT_ALIGN_BYTES (layout.rs).
        spans.map(|span| unsafe { self.arena.mapping.release(span) }).sum()
    }

    /// Publishes the fill: from now on `read(slot, generation)` is granted. Returns the generation.
    pub fn finish(mut self) -> u32 {
        self.finished = true;
        self.arena.state(self.slot).finish(self.generation);
        self.generation
    }
}

impl Drop for FillLease {
    fn drop(&mut self) {
        if !self.finished {
            self.arena.state(self.slot).abandon(self.generation);
        }
    }
}

/// A share of the right to read a slot; given back by dropping.
#[derive(Debug)]
#[must_use = "a read lease that is dropped lets its slot be filled anew"]
pub struct ReadLease {
    arena: Arc<LayerArena>,
    slot: u32,
    generation: u32,
}

impl ReadLease {
    /// Asks the arena's state for the share.
    pub(super) fn take(arena: &Arc<LayerArena>, slot: u32, generation: u32) -> Option<ReadLease> {
        if !arena.state(slot).read(generation) {
            return None;
        }
        Some(ReadLease { arena: Arc::clone(arena), slot, generation })
    }

    /// The slot that is being read.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The generation that is being read.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The slot's bytes on a node, as the fill of this generation left them.
    ///
    /// # Panics
    /// When the arena has no such node.
    pub fn part(&self, node: usize) -> &[u8] {
        let span = self.arena.layout.part(self.slot, node);
        let pointer = self.arena.mapping.pointer(span);
        // SAFETY:
        // - the span lies in the mapping (`pointer` asserts) and `self.arena` keeps it mapped.
        // - it overlaps no region and no other slot: layout.rs, proven by its proptest.
        // - nobody writes it while this lease exists: slot.rs, `begin_fill` refuses; the fill's
        //   writes happened before: `finish` releases, `read` acquires.
        unsafe { std::slice::from_raw_parts(pointer, span.bytes) }
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        self.arena.state(self.slot).end_read();
    }
}
