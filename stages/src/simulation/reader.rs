//! Readers of a [`RandomModel`]: one that always delivers, one that misbehaves by seed.

use super::model::RandomModel;
use super::random::Random;
use crate::load::{ReadDone, ReadRequest, Reader};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::sync::Arc;

/// Delivers every read at once and whole.
pub struct MemoryReader {
    model: Arc<RandomModel>,
    queue: VecDeque<ReadRequest>,
}

impl MemoryReader {
    /// A reader of a model; `reads_max` bounds its queue.
    pub fn new(model: Arc<RandomModel>, reads_max: usize) -> MemoryReader {
        MemoryReader { model, queue: VecDeque::with_capacity(reads_max) }
    }
}

impl Reader for MemoryReader {
    fn submit(&mut self, request: ReadRequest) {
        self.queue.push_back(request);
    }

    fn poll(&mut self) -> Option<ReadDone> {
        let mut request = self.queue.pop_front()?;
        let range = request.range.clone();
        let got = self.model.read_at(request.offset, &mut request.staging.bytes_mut()[range]);
        Some(ReadDone { request, outcome: Ok(got) })
    }

    fn pending(&self) -> usize {
        self.queue.len()
    }
}

/// How a [`FaultyReader`] misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    /// Delays, reorders, interrupts and shortens, and delivers everything in the end.
    Slow,
    /// As `Slow`, and one read in this many fails for good.
    FailsOneIn(usize),
}

/// Delays, reorders, interrupts, shortens and, if told so, fails.
pub struct FaultyReader {
    model: Arc<RandomModel>,
    random: Random,
    manners: Manners,
    pending: Vec<ReadRequest>,
}

impl FaultyReader {
    /// A reader of a model whose misbehaviour comes from a seed.
    pub fn new(model: Arc<RandomModel>, manners: Manners, seed: u64) -> FaultyReader {
        FaultyReader { model, random: Random::new(seed), manners, pending: vec![] }
    }
}

impl Reader for FaultyReader {
    fn submit(&mut self, request: ReadRequest) {
        self.pending.push(request);
    }

    fn poll(&mut self) -> Option<ReadDone> {
        if self.pending.is_empty() || self.random.one_in(2) {
            return None;
        }
        let chosen = self.random.below(self.pending.len());
        let mut request = self.pending.swap_remove(chosen);
        if self.random.one_in(8) {
            let error =
                if self.random.one_in(2) { ErrorKind::Interrupted } else { ErrorKind::WouldBlock };
            return Some(ReadDone { request, outcome: Err(Error::from(error)) });
        }
        if let Manners::FailsOneIn(share) = self.manners
            && self.random.one_in(share)
        {
            let truncated = self.random.one_in(2);
            let outcome = if truncated { Ok(0) } else { Err(Error::from_raw_os_error(libc_eio())) };
            return Some(ReadDone { request, outcome });
        }
        let mut range = request.range.clone();
        if range.len() > 1 && self.random.one_in(3) {
            range.end = range.start + 1 + self.random.below(range.len() - 1);
        }
        let got = self.model.read_at(request.offset, &mut request.staging.bytes_mut()[range]);
        Some(ReadDone { request, outcome: Ok(got) })
    }

    fn pending(&self) -> usize {
        self.pending.len()
    }
}

/// EIO of Linux.
fn libc_eio() -> i32 {
    5
}
