//! Readers of a [`RandomModel`]: one that always delivers, one that misbehaves by seed.

use super::injector::EIO;
use super::model::RandomModel;
use super::random::Random;
use crate::ids::{ExpertId, LayerId, Tag};
use crate::load::{ChunkRead, Geometry, LoadClass, ReadJob, Reader};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

/// Delivers every job at once and whole.
pub struct MemoryReader {
    model: Arc<RandomModel>,
    queue: VecDeque<Box<ReadJob>>,
}

impl MemoryReader {
    /// A reader of a model.
    pub fn new(model: Arc<RandomModel>) -> MemoryReader {
        MemoryReader { model, queue: VecDeque::new() }
    }
}

impl Reader for MemoryReader {
    fn geometry(&self) -> Geometry {
        Geometry { align_bytes: 1, chunk_bytes: 1 << 20 }
    }

    fn reserve(&mut self, jobs_max: usize) {
        self.queue.reserve(jobs_max);
    }

    fn submit(&mut self, job: Box<ReadJob>) {
        self.queue.push_back(job);
    }

    fn promote(&mut self, _: LayerId, _: Tag, _: LoadClass) {}

    fn poll(&mut self) -> Option<Box<ReadJob>> {
        let mut job = self.queue.pop_front()?;
        while let Some(read) = job.progress.next_chunk() {
            let got = self.model.read_at(read.offset, job.room_mut(&read));
            job.progress.done(read.chunk, Ok(got));
        }
        Some(job)
    }

    fn is_ready(&mut self) -> bool {
        !self.queue.is_empty()
    }

    fn wait(&mut self, _: Duration) {}

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

/// Delays, reorders, interrupts, shortens and, if told so, fails. Its alignment, the length of its
/// reads, their number at once and the number of copies are drawn.
pub struct FaultyReader {
    model: Arc<RandomModel>,
    random: Random,
    manners: Manners,
    geometry: Geometry,
    copies: usize,
    depth: usize,
    #[expect(clippy::vec_box, reason = "a job's box goes through messages and readers")]
    jobs: Vec<Box<ReadJob>>,
    /// Whose chunk is being read, and which.
    flying: Vec<((LayerId, Tag), ChunkRead)>,
}

impl FaultyReader {
    /// A reader of a model whose misbehaviour comes from a seed.
    pub fn new(model: Arc<RandomModel>, manners: Manners, seed: u64) -> FaultyReader {
        let mut random = Random::new(seed);
        let align_bytes = if random.one_in(2) { 64 } else { 1 };
        let chunk_bytes = 64 * (1 + random.below(12));
        FaultyReader {
            model,
            manners,
            geometry: Geometry { align_bytes, chunk_bytes },
            copies: if random.one_in(4) { 2 } else { 1 },
            depth: 1 + random.below(6),
            jobs: vec![],
            flying: vec![],
            random,
        }
    }

    /// Starts a chunk of a drawn job, if that has one.
    fn start(&mut self) {
        let drawn = self.random.below(self.jobs.len());
        let job = &mut self.jobs[drawn];
        if let Some(read) = job.progress.next_chunk() {
            self.flying.push(((job.layer, job.slot), read));
        }
    }

    /// Ends a drawn chunk in a drawn way.
    fn end(&mut self) {
        let ((layer, slot), read) = self.flying.swap_remove(self.random.below(self.flying.len()));
        let mut jobs = self.jobs.iter_mut();
        let job = jobs.find(|job| job.layer == layer && job.slot == slot).expect("its job waits");
        if self.random.one_in(8) {
            let error =
                if self.random.one_in(2) { ErrorKind::Interrupted } else { ErrorKind::WouldBlock };
            return job.progress.done(read.chunk, Err(Error::from(error)));
        }
        if let Manners::FailsOneIn(share) = self.manners
            && self.random.one_in(share)
        {
            let truncated = self.random.one_in(2);
            let outcome = if truncated { Ok(0) } else { Err(Error::from_raw_os_error(EIO)) };
            return job.progress.done(read.chunk, outcome);
        }
        let mut bytes = read.bytes;
        // What is shorter than a block comes whole, as from a drive.
        if bytes > self.geometry.align_bytes && self.random.one_in(3) {
            bytes -= 1 + self.random.below(bytes - self.geometry.align_bytes);
        }
        let got = self.model.read_at(read.offset, &mut job.room_mut(&read)[..bytes]);
        job.progress.done(read.chunk, Ok(got));
    }
}

impl Reader for FaultyReader {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn copies(&self) -> usize {
        self.copies
    }

    fn copy_of(&self, layer: LayerId, expert: ExpertId) -> usize {
        (layer.index() + expert.index()) % self.copies
    }

    fn reserve(&mut self, _: usize) {}

    fn submit(&mut self, job: Box<ReadJob>) {
        self.jobs.push(job);
    }

    fn promote(&mut self, layer: LayerId, slot: Tag, class: LoadClass) {
        let mut jobs = self.jobs.iter_mut();
        if let Some(job) = jobs.find(|job| job.layer == layer && job.slot == slot) {
            job.class = job.class.min(class);
        }
    }

    fn poll(&mut self) -> Option<Box<ReadJob>> {
        if self.jobs.is_empty() || self.random.one_in(3) {
            return None;
        }
        for _ in 0..1 + self.random.below(4) {
            match self.flying.is_empty() || self.flying.len() < self.depth && self.random.one_in(2)
            {
                true => self.start(),
                false => self.end(),
            }
        }
        let over = self.jobs.iter().position(|job| job.progress.is_over())?;
        Some(self.jobs.swap_remove(over))
    }

    fn is_ready(&mut self) -> bool {
        !self.jobs.is_empty()
    }

    fn wait(&mut self, _: Duration) {}

    fn pending(&self) -> usize {
        self.jobs.len()
    }
}
