//! The loader of one layer: one expert's way from order to filled slot.
//!
//! State is one entry a slot: order, buffer, extent, bytes so far. EINTR and EAGAIN are tried
//! again, a short read goes on where it stopped, the end of the file and every other error fail
//! the load: the fill lease is dropped, so the slot is empty.

use super::{LoadOrder, ReadDone, ReadFault, ReadRequest, Staging};
use crate::gauge::StageTimer;
use crate::ids::{LayerId, Tag};
use crate::load::ExpertShape;
use crate::placed::SliceMap;
use crate::queue::faults::{self, Fault};
use crate::stage::{ActorId, Message, SeatContext, Stage, StageKind};
use crate::weights::{Extent, WeightSource};
use std::io::ErrorKind;
use std::sync::Arc;

/// How often one read is tried again after EINTR or EAGAIN before it counts as failed.
pub const RETRIES_MAX: u32 = 1000;

/// The loader of one layer.
pub struct Loader {
    layer: LayerId,
    source: Arc<dyn WeightSource>,
    shape: ExpertShape,
    map: Arc<SliceMap>,
    /// By slot.
    loads: Vec<Option<Load>>,
}

/// A load in progress.
struct Load {
    order: LoadOrder,
    /// Which extent is being read.
    extent: usize,
    /// Bytes of it that have come.
    got: usize,
    /// Where it starts in the staging buffer.
    first: usize,
    retries: u32,
}

impl Loader {
    /// The actor of one layer with `slots` slots.
    pub fn new(
        layer: LayerId,
        slots: usize,
        source: Arc<dyn WeightSource>,
        shape: ExpertShape,
        map: Arc<SliceMap>,
    ) -> Loader {
        Loader { layer, source, shape, map, loads: (0..slots).map(|_| None).collect() }
    }

    fn take_order(&mut self, order: LoadOrder, seat: &mut SeatContext) {
        let tag = order.tag();
        let place = &mut self.loads[tag.index as usize];
        assert!(place.is_none(), "a slot has one fill at a time");
        desk(seat).ask(order.class, self.layer, tag);
        *place = Some(Load { order, extent: 0, got: 0, first: 0, retries: 0 });
    }

    fn promote(&mut self, slot: Tag, class: super::LoadClass, seat: &mut SeatContext) {
        if let Some(load) = &mut self.loads[slot.index as usize]
            && load.order.tag() == slot
        {
            load.order.class = load.order.class.min(class);
            desk(seat).promote(self.layer, slot, class);
        }
    }

    fn load_mut(&mut self, slot: Tag) -> &mut Load {
        let load = self.loads[slot.index as usize].as_mut().expect("a load for the slot");
        assert_eq!(load.order.tag(), slot, "a completion for another life of its slot");
        load
    }

    /// Asks the reader for what is left of the present extent.
    fn read_on(&mut self, slot: Tag, staging: Staging, seat: &mut SeatContext) {
        let layer = self.layer;
        let source = self.source.clone();
        let load = self.load_mut(slot);
        let Extent { file, offset, bytes } =
            source.expert_extents(layer, load.order.expert)[load.extent];
        desk(seat).submit(ReadRequest {
            layer,
            slot,
            class: load.order.class,
            file,
            offset: offset + load.got as u64,
            range: load.first + load.got..load.first + bytes,
            staging,
        });
    }

    fn take_read(&mut self, done: ReadDone, seat: &mut SeatContext) {
        let ReadDone { request, outcome } = done;
        let slot = request.slot;
        let wanted = request.range.len();
        let source = self.source.clone();
        let layer = self.layer;
        let load = self.load_mut(slot);
        match outcome {
            Ok(0) => self.fail(slot, request.staging, None, seat),
            Ok(got) => {
                assert!(got <= wanted, "the reader gave more than was asked for");
                seat.gauges.bytes_read(got as u64);
                load.retries = 0;
                load.got += if faults::active(Fault::ShortReadTakenAsFull) { wanted } else { got };
                let extents = source.expert_extents(layer, load.order.expert);
                if load.got == extents[load.extent].bytes {
                    load.first += load.got;
                    load.got = 0;
                    load.extent += 1;
                }
                match load.extent == extents.len() {
                    true => self.unpack(slot, request.staging, seat),
                    false => self.read_on(slot, request.staging, seat),
                }
            }
            Err(error) => {
                load.retries += 1;
                let passing =
                    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock);
                match passing && load.retries <= RETRIES_MAX {
                    true => self.read_on(slot, request.staging, seat),
                    false => self.fail(slot, request.staging, Some(error), seat),
                }
            }
        }
    }

    /// All bytes are there: into the slot's slices, and the prefetcher is told.
    fn unpack(&mut self, slot: Tag, staging: Staging, seat: &mut SeatContext) {
        let load = self.loads[slot.index as usize].as_ref().expect("checked by load_mut");
        let (expert, bytes) = (load.order.expert, load.first);
        if let Err(damage) = self.source.verify(self.layer, expert, &staging.bytes()[..bytes]) {
            let error = std::io::Error::new(ErrorKind::InvalidData, damage.to_string());
            return self.fail(slot, staging, Some(error), seat);
        }
        let load = self.loads[slot.index as usize].take().expect("checked by load_mut");
        let mut lease = load.order.lease;
        for slice in 0..self.map.slices {
            let part = lease.part_mut(self.map.node_of(slice));
            let out = &mut part[self.shape.slice_range(&self.map, slice)];
            let bytes = &staging.bytes()[..bytes];
            self.source.unpack_slice(self.layer, expert, &self.shape, slice, bytes, out);
        }
        lease.finish();
        desk(seat).give_back(staging);
        self.tell(slot, Ok(()), seat);
    }

    fn fail(
        &mut self,
        slot: Tag,
        staging: Staging,
        error: Option<std::io::Error>,
        seat: &mut SeatContext,
    ) {
        let load = self.loads[slot.index as usize].take().expect("checked by load_mut");
        let expert = load.order.expert;
        let extents = self.source.expert_extents(self.layer, expert);
        // Damage is found when all extents are read.
        let extent = extents[load.extent.min(extents.len() - 1)];
        let fault = ReadFault {
            layer: self.layer,
            expert,
            file: self.source.file_name(extent.file),
            offset: extent.offset,
            wanted: extent.bytes,
            got: load.got,
            error: error.map(|error| error.to_string()),
        };
        drop(load);
        desk(seat).give_back(staging);
        self.tell(slot, Err(Arc::new(fault)), seat);
    }

    fn tell(&self, slot: Tag, outcome: Result<(), Arc<ReadFault>>, seat: &mut SeatContext) {
        let message = Message::Loaded { slot, outcome };
        seat.outbox.send(self.layer, StageKind::Prefetch, slot, message);
    }
}

fn desk(seat: &mut SeatContext) -> &mut super::LoadDesk {
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
            Message::Buffer { slot, staging } => self.read_on(slot, staging, seat),
            Message::Read(done) => self.take_read(done, seat),
            other => panic!("a loader takes orders and reads, not {other:?}"),
        }
        timer.stop(&seat.gauges, StageKind::Load);
    }
}
