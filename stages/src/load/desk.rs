//! The I/O seat's desk: who may read next, and the reader.
//!
//! Owned by the I/O seat and lent to its loaders. A loader asks for a job; the desk grants one as a
//! message, decode demands before prefill demands before hints, first come first served within a
//! class. Jobs come back when an expert is in its slot or has failed. There are two kinds: those
//! that read into slots cost nothing and are many; those with a bounce buffer are few.

use super::job::{JobRoom, ReadJob};
use super::needs::ReadNeeds;
use super::progress::Geometry;
use super::{LoadClass, Reader};
use crate::ids::{LayerId, Tag};
use crate::limits::Limits;
use crate::stage::{ActorId, Envelope, Message, StageKind};
use millstream_topology::arena::ArenaError;
use millstream_topology::cpuset::NodeId;
use std::collections::VecDeque;
use std::time::Duration;

/// Deals jobs and owns the reader.
pub struct LoadDesk {
    reader: Box<dyn Reader>,
    /// Idle jobs: those that read into slots, those with a buffer.
    #[expect(clippy::vec_box, reason = "a job's box goes through messages and readers")]
    free: [Vec<Box<ReadJob>>; 2],
    waiting: VecDeque<Waiting>,
}

/// A load that waits for a job.
struct Waiting {
    class: LoadClass,
    layer: LayerId,
    slot: Tag,
    /// Which kind of job it needs.
    bounced: bool,
}

impl LoadDesk {
    /// A desk with as many jobs as `limits` allows, made for these needs; buffers lie near the drive.
    ///
    /// # Errors
    /// When a bounce buffer can't be had.
    pub fn new(
        mut reader: Box<dyn Reader>,
        limits: &Limits,
        needs: &ReadNeeds,
        drive_node: Option<NodeId>,
    ) -> Result<LoadDesk, ArenaError> {
        let jobs = |count: usize, bounce_bytes: usize| {
            let room = JobRoom { bounce_bytes, ..needs.room };
            let job = |_| ReadJob::near(room, drive_node).map(Box::new);
            (0..count).map(job).collect::<Result<Vec<_>, _>>()
        };
        let straight = if needs.any_straight() { limits.reads_straight_max } else { 0 };
        let bounced = if needs.room.bounce_bytes > 0 { limits.reads_bounced_max } else { 0 };
        reader.reserve(straight + bounced);
        Ok(LoadDesk {
            reader,
            free: [jobs(straight, 0)?, jobs(bounced, needs.room.bounce_bytes)?],
            waiting: VecDeque::with_capacity(limits.slots.iter().sum::<usize>() + 1),
        })
    }

    /// What reads are made of.
    pub fn geometry(&self) -> Geometry {
        self.reader.geometry()
    }

    /// Asks for a job; it comes as [`Message::Job`].
    pub fn ask(&mut self, class: LoadClass, layer: LayerId, slot: Tag, bounced: bool) {
        assert!(self.waiting.len() < self.waiting.capacity(), "more loads than slots");
        self.waiting.push_back(Waiting { class, layer, slot, bounced });
    }

    /// Raises the class of a load, whether it waits for its job or is being read.
    pub fn promote(&mut self, layer: LayerId, slot: Tag, class: LoadClass) {
        let mine = |entry: &&mut Waiting| entry.layer == layer && entry.slot == slot;
        match self.waiting.iter_mut().find(mine) {
            Some(entry) => entry.class = entry.class.min(class),
            None => self.reader.promote(layer, slot, class),
        }
    }

    /// Takes a job back.
    pub fn give_back(&mut self, job: Box<ReadJob>) {
        self.free[usize::from(job.is_bounced())].push(job);
    }

    /// The first of the most urgent loads for which there is a job.
    fn next(&self) -> Option<usize> {
        let can = |index: &usize| !self.free[usize::from(self.waiting[*index].bounced)].is_empty();
        (0..self.waiting.len()).filter(can).min_by_key(|&index| self.waiting[index].class)
    }

    /// The next grant, if somebody waits and there is a job.
    pub fn grant(&mut self) -> Option<Envelope> {
        let index = self.next()?;
        let Waiting { layer, slot, bounced, .. } = self.waiting.remove(index)?;
        let job = self.free[usize::from(bounced)].pop()?;
        let to = ActorId { layer, stage: StageKind::Load };
        Some(Envelope { to, message: Message::Job { slot, job }, sent_ns: 0 })
    }

    /// Hands a job to the reader.
    pub fn submit(&mut self, job: Box<ReadJob>) {
        self.reader.submit(job);
    }

    /// The copy of the files to try after `copy` failed, if there is another.
    pub fn other_copy(&self, copy: usize) -> Option<usize> {
        let copies = self.reader.copies();
        (copies > 1).then(|| (copy + 1) % copies)
    }

    /// The copy of the files that an expert is read from.
    pub fn copy_of(&self, layer: LayerId, expert: crate::ids::ExpertId) -> usize {
        self.reader.copy_of(layer, expert)
    }

    /// A job whose reads are over, if there is one.
    pub fn poll(&mut self) -> Option<Box<ReadJob>> {
        if self.reader.pending() == 0 { None } else { self.reader.poll() }
    }

    /// Jobs are at the reader.
    pub fn is_reading(&self) -> bool {
        self.reader.pending() > 0
    }

    /// Whether the desk has something to do now: a job to grant, or news from the reader.
    pub fn is_ready(&mut self) -> bool {
        self.next().is_some() || self.is_reading() && self.reader.is_ready()
    }

    /// Sleeps until the reader has news, or for so long.
    pub fn wait(&mut self, timeout: Duration) {
        self.reader.wait(timeout);
    }

    /// True when a job can be granted or the reader has something to do sooner or later.
    pub fn is_busy(&self) -> bool {
        self.is_reading() || self.next().is_some()
    }
}
