//! The loader of one layer: one expert's way from order to filled slot.
//!
//! State is one entry a slot: the order until the desk grants a job, then only the slot's tag, for
//! the job carries the rest. A read that failed is tried once more from another copy of the files,
//! if there is one; then the load has failed: the fill lease is dropped, so the slot is empty.

use super::job::ReadJob;
use super::progress::{Piece, ReadFailure};
use super::{ExpertShape, LoadClass, LoadDesk, LoadOrder, ReadFault};
use crate::gauge::StageTimer;
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
    /// The job is read.
    Reading(Tag),
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
            Load::Waiting(order) if order.tag() == slot => order.class = order.class.min(class),
            Load::Reading(tag) if *tag == slot => {}
            // It has come meanwhile.
            _ => return,
        }
        desk(seat).promote(self.layer, slot, class);
    }

    /// The desk's grant: the order goes into the job, the job to the reader.
    fn take_job(&mut self, slot: Tag, mut job: Box<ReadJob>, seat: &mut SeatContext) {
        let place = &mut self.loads[slot.index as usize];
        let Load::Waiting(order) = std::mem::replace(place, Load::Reading(slot)) else {
            panic!("a job for a slot that nobody asked for");
        };
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
        let known = matches!(place, Load::Reading(tag) if *tag == slot);
        assert!(known, "a completion for another life of its slot");
        seat.gauges.bytes_read(job.progress.bytes_read());
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
        self.loads[slot.index as usize] = Load::None;
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

fn desk(seat: &mut SeatContext) -> &mut LoadDesk {
    seat.desk.as_mut().expect("loaders sit on the I/O seat")
}

impl Stage for Loader {
    fn id(&self) -> ActorId {
        ActorId { layer: self.layer, stage: StageKind::Load }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        let timer = StageTimer::start();
        match message {
            Message::Demand(order) => self.take_order(order, seat),
            Message::Promote { slot, class } => self.promote(slot, class, seat),
            Message::Job { slot, job } => self.take_job(slot, job, seat),
            Message::Read(job) => self.take_read(job, seat),
            other => panic!("a loader takes orders and reads, not {other:?}"),
        }
        timer.stop(&seat.gauges, StageKind::Load);
    }
}
