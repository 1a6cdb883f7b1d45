//! The loader of one layer: one expert's way from order to filled slot.
//!
//! State is one entry a slot: the order until the desk grants a job, then only the slot's tag, for
//! the job carries the rest. A read that failed is tried once more from another copy of the files,
//! if there is one; then the load has failed: the fill lease is dropped, so the slot is empty.

use super::job::ReadJob;
use super::progress::{Piece, ReadFailure};
use super::{ExpertShape, LoadClass, LoadDesk, LoadOrder, ReadFault};
use crate::gauge::{Series, now_ns};
use crate::ids::{ExpertId, LayerId, Tag};
use crate::placed::SliceMap;
use crate::stage::{ActorId, Message, SeatContext, Stage, StageKind};
use crate::weights::WeightSource;
use std::io::{Error, ErrorKind};
use std::sync::Arc;

/// The loader of one layer.
pub struct Loader {
    layer: LayerId,
    source: Arc<dyn WeightSource>,
    shape: ExpertShape,
    map: Arc<SliceMap>,
    /// Experts are read into their slots as they lie in the files.
    straight: bool,
    /// By slot.
    loads: Vec<Load>,
}

/// What is under way for a slot.
enum Load {
    None,
    /// The order waits for a job.
    Waiting(LoadOrder),
    /// The job is read; since when a wave waits for it, 0 if none does.
    Reading {
        slot: Tag,
        wanted_ns: u64,
    },
}

impl Loader {
    /// The actor of one layer with `slots` slots.
    pub fn new(
        layer: LayerId,
        slots: usize,
        source: Arc<dyn WeightSource>,
        shape: ExpertShape,
        map: Arc<SliceMap>,
        straight: bool,
    ) -> Loader {
        let loads = (0..slots).map(|_| Load::None).collect();
        Loader { layer, source, shape, map, straight, loads }
    }

    fn take_order(&mut self, order: LoadOrder, seat: &mut SeatContext) {
        let tag = order.tag();
        let place = &mut self.loads[tag.index as usize];
        assert!(matches!(place, Load::None), "a slot has one fill at a time");
        desk(seat).ask(order.class, self.layer, tag, !self.straight);
        *place = Load::Waiting(order);
    }

    fn promote(&mut self, slot: Tag, class: LoadClass, seat: &mut SeatContext) {
        match &mut self.loads[slot.index as usize] {
            Load::Waiting(order) if order.tag() == slot => {
                order.class = order.class.min(class);
                wanted_from_now(&mut order.wanted_ns);
            }
            Load::Reading { slot: read, wanted_ns } if *read == slot => wanted_from_now(wanted_ns),
            // It has come meanwhile.
            _ => return,
        }
        desk(seat).promote(self.layer, slot, class);
    }

    /// The desk's grant: the order goes into the job, the job to the reader.
    fn take_job(&mut self, slot: Tag, mut job: Box<ReadJob>, seat: &mut SeatContext) {
        let place = &mut self.loads[slot.index as usize];
        let Load::Waiting(order) = std::mem::replace(place, Load::None) else {
            panic!("a job for a slot that nobody asked for");
        };
        *place = Load::Reading { slot, wanted_ns: order.wanted_ns };
        assert_eq!(order.tag(), slot, "a job for another life of its slot");
        let desk = desk(seat);
        let geometry = desk.geometry();
        let expert = order.expert;
        job.take(self.layer, order);
        job.copy = desk.copy_of(self.layer, expert);
        let extents = self.source.expert_extents(self.layer, expert);
        match self.straight {
            true => job.read_into_slot(self.slot_pieces(expert), geometry),
            false => job.read_through_bounce(extents, geometry),
        }
        desk.submit(job);
    }

    /// An expert that lies as its slot does: for each node one run.
    fn slot_pieces(&self, expert: ExpertId) -> impl Iterator<Item = Piece> {
        let extent = self.source.expert_extents(self.layer, expert)[0];
        let bytes = self.shape.slice_bytes();
        let piece = move |node: usize| {
            let slices = self.map.slices_of(node);
            let offset = extent.offset + (slices.start * bytes) as u64;
            let wanted = slices.len() * bytes;
            (wanted > 0).then_some(Piece {
                file: extent.file,
                offset,
                lead: 0,
                wanted,
                node,
                at: 0,
            })
        };
        (0..self.map.nodes).filter_map(piece)
    }

    fn take_read(&mut self, mut job: Box<ReadJob>, seat: &mut SeatContext) {
        let slot = job.slot;
        let place = &self.loads[slot.index as usize];
        let known = matches!(place, Load::Reading { slot: read, .. } if *read == slot);
        assert!(known, "a completion for another life of its slot");
        seat.gauges.bytes_read(job.progress.bytes_read());
        for (_, started_ns, ended_ns) in job.progress.times_ns() {
            seat.recorder.read(job.copy, started_ns, ended_ns);
        }
        if job.progress.failure().is_none()
            && let Err(damage) = self.unpack(&mut job)
        {
            job.progress.fail(usize::MAX, Some(Error::new(ErrorKind::InvalidData, damage)));
        }
        if job.progress.failure().is_some()
            && !job.retried
            && let Some(copy) = desk(seat).other_copy(job.copy)
        {
            (job.copy, job.retried) = (copy, true);
            job.progress.restart();
            seat.gauges.read_retried();
            return desk(seat).submit(job);
        }
        self.end(job, seat);
    }

    /// Bytes that went through a buffer are put in place; all are checked if the user asked for it.
    fn unpack(&self, job: &mut ReadJob) -> Result<(), String> {
        let expert = job.expert;
        let (staged, lease) = job.unpacking();
        for slice in 0..self.map.slices {
            let part = lease.part_mut(self.map.node_of(slice));
            let out = &mut part[self.shape.slice_range(&self.map, slice)];
            if let Some(staged) = staged {
                self.source.unpack_slice(self.layer, expert, &self.shape, slice, staged, out);
            }
            let outcome = self.source.verify_slice(self.layer, expert, slice, out);
            outcome.map_err(|damage| damage.to_string())?;
        }
        Ok(())
    }

    /// The slot is ready or empty, and the prefetcher is told.
    fn end(&mut self, mut job: Box<ReadJob>, seat: &mut SeatContext) {
        let slot = job.slot;
        let load = std::mem::replace(&mut self.loads[slot.index as usize], Load::None);
        if let Load::Reading { wanted_ns: wanted_ns @ 1.., .. } = load {
            self.record_wait(&job, wanted_ns, seat);
        }
        let lease = job.end();
        let outcome = match job.progress.failure() {
            None => {
                lease.finish();
                Ok(())
            }
            Some(failure) => {
                // Before the prefetcher hears of it: it may fill the slot anew at once.
                drop(lease);
                Err(Arc::new(self.fault(job.expert, failure)))
            }
        };
        desk(seat).give_back(job);
        let message = Message::Loaded { slot, outcome };
        seat.outbox.send(self.layer, StageKind::Prefetch, slot, message);
    }

    /// How long a wave has waited for each node's part; what went through a buffer is there at once.
    fn record_wait(&self, job: &ReadJob, wanted_ns: u64, seat: &mut SeatContext) {
        for node in (0..self.map.nodes).filter(|&node| !self.map.slices_of(node).is_empty()) {
            let ended = job.progress.times_ns().filter(|(of, _, _)| *of == node);
            let ended_ns = match job.is_bounced() {
                true => Some(now_ns()),
                false => ended.map(|(_, _, ended_ns)| ended_ns).max(),
            };
            if let Some(ended_ns) = ended_ns {
                let waited_ns = ended_ns.saturating_sub(wanted_ns);
                seat.recorder.record(Series::ExpertWait { node }, waited_ns);
            }
        }
    }

    fn fault(&self, expert: ExpertId, failure: &ReadFailure) -> ReadFault {
        ReadFault {
            layer: self.layer,
            expert,
            file: self.source.file_name(failure.file),
            offset: failure.offset,
            wanted: failure.wanted,
            got: failure.got,
            error: failure.error.as_ref().map(|error| error.to_string()),
        }
    }
}

/// A wave waits from now on, if none did.
fn wanted_from_now(wanted_ns: &mut u64) {
    if *wanted_ns == 0 {
        *wanted_ns = now_ns();
    }
}

fn desk(seat: &mut SeatContext) -> &mut LoadDesk {
    seat.desk.as_mut().expect("loaders sit on the I/O seat")
}

impl Stage for Loader {
    fn id(&self) -> ActorId {
        ActorId { layer: self.layer, stage: StageKind::Load }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        match message {
            Message::Demand(order) => self.take_order(order, seat),
            Message::Promote { slot, class } => self.promote(slot, class, seat),
            Message::Job { slot, job } => self.take_job(slot, job, seat),
            Message::Read(job) => self.take_read(job, seat),
            other => panic!("a loader takes orders and reads, not {other:?}"),
        }
    }
}
