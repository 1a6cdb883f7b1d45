//! The I/O seat's desk: who gets a staging buffer next, and the reader.
//!
//! Owned by the I/O seat and lent to its loaders. A loader asks for a buffer; the desk grants it
//! as a message, decode demands before prefill demands before hints, first come first served
//! within a class. Buffers come back when an expert is unpacked or has failed.

use super::{LoadClass, ReadDone, ReadRequest, Reader, Staging};
use crate::ids::{LayerId, Tag};
use crate::limits::Limits;
use crate::stage::{Envelope, Message, StageKind};
use std::collections::VecDeque;

/// Deals staging buffers and owns the reader.
pub struct LoadDesk {
    reader: Box<dyn Reader>,
    free: Vec<Staging>,
    waiting: VecDeque<(LoadClass, LayerId, Tag)>,
}

impl LoadDesk {
    /// A desk with `limits.reads_max` buffers.
    pub fn new(reader: Box<dyn Reader>, limits: &Limits) -> LoadDesk {
        let buffer = || Staging::new(limits.expert_bytes_max);
        LoadDesk {
            reader,
            free: (0..limits.reads_max).map(|_| buffer()).collect(),
            waiting: VecDeque::with_capacity(limits.slots.iter().sum::<usize>() + 1),
        }
    }

    /// Asks for a buffer; it comes as [`Message::Buffer`].
    pub fn ask(&mut self, class: LoadClass, layer: LayerId, slot: Tag) {
        assert!(self.waiting.len() < self.waiting.capacity(), "more loads than slots");
        self.waiting.push_back((class, layer, slot));
    }

    /// Raises the class of a load that still waits for its buffer.
    pub fn promote(&mut self, layer: LayerId, slot: Tag, class: LoadClass) {
        let mine = |entry: &&mut (LoadClass, LayerId, Tag)| entry.1 == layer && entry.2 == slot;
        if let Some(entry) = self.waiting.iter_mut().find(mine) {
            entry.0 = entry.0.min(class);
        }
    }

    /// Takes a buffer back.
    pub fn give_back(&mut self, staging: Staging) {
        self.free.push(staging);
    }

    /// The next grant, if a buffer is free and somebody waits.
    pub fn grant(&mut self) -> Option<Envelope> {
        if self.free.is_empty() {
            return None;
        }
        let first = (0..self.waiting.len()).min_by_key(|&index| self.waiting[index].0)?;
        let (_, layer, slot) = self.waiting.remove(first)?;
        let staging = self.free.pop()?;
        let to = crate::stage::ActorId { layer, stage: StageKind::Load };
        Some(Envelope { to, message: Message::Buffer { slot, staging } })
    }

    /// Hands a read to the reader.
    pub fn submit(&mut self, request: ReadRequest) {
        self.reader.submit(request);
    }

    /// A finished read, if there is one.
    pub fn poll(&mut self) -> Option<ReadDone> {
        self.reader.poll()
    }

    /// True when a buffer can be granted or the reader has something to do.
    pub fn is_busy(&self) -> bool {
        self.reader.pending() > 0 || !self.free.is_empty() && !self.waiting.is_empty()
    }
}
