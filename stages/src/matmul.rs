//! Matmul(L): the experts of a chunk in order of arrival, the shared expert, dense layers.
//!
//! A wave stays here from the grant of a chunk until its last expert is computed; meanwhile the
//! prefetcher's arrivals come in. Every lease goes back as soon as its expert is done. The order
//! of arrival decides when an expert is computed and never what comes out: results lie by expert,
//! and Combine adds them in ascending id.

use crate::compute::{ChosenRows, Compute};
use crate::ids::LayerId;
use crate::limits::Limits;
use crate::load::ExpertShape;
use crate::placed::PlacedUnit;
use crate::stage::{ActorId, Arrival, Message, Outbox, SeatContext, Stage, StageKind};
use crate::unit::{LeasedUnit, ResidentUnit};
use crate::wave::Wave;
use millstream_topology::arena::{LayerArena, ReadLease};
use std::sync::Arc;

/// The experts of one layer, or its dense unit.
pub struct Matmul {
    layer: LayerId,
    hidden: usize,
    /// The shared expert, or the whole of a dense layer.
    resident: Option<PlacedUnit>,
    shape: Option<ExpertShape>,
    arena: Arc<LayerArena>,
    /// Waves whose chunk isn't complete, by wave index.
    waiting: Vec<Option<Box<Wave>>>,
}

impl Matmul {
    /// The actor of one layer. `shape` is that of the layer's routed experts, none if dense.
    pub fn new(
        layer: LayerId,
        hidden: usize,
        limits: &Limits,
        resident: Option<PlacedUnit>,
        shape: Option<ExpertShape>,
        arena: Arc<LayerArena>,
    ) -> Matmul {
        let waiting = (0..limits.waves_max).map(|_| None).collect();
        Matmul { layer, hidden, resident, shape, arena, waiting }
    }

    /// Bytes of what waits in one layer.
    pub fn bytes(limits: &Limits) -> usize {
        size_of::<Matmul>() + limits.waves_max * size_of::<Option<Box<Wave>>>()
    }

    fn take_wave(&mut self, mut wave: Box<Wave>, seat: &mut SeatContext) {
        let (compute, outbox) = seat.compute();
        if wave.chunk.start == 0 {
            self.resident_unit(&mut wave, compute);
        }
        wave.computed.clear();
        // The lowest expert first: leases were granted in ascending order.
        let mut leases = std::mem::take(&mut wave.leases);
        for (union_index, lease) in leases.drain(..) {
            self.expert(&mut wave, &lease, union_index, compute);
            give_back(self.layer, lease, outbox);
        }
        wave.leases = leases;
        self.go_on(wave, outbox);
    }

    fn take_arrival(&mut self, arrival: Arrival, seat: &mut SeatContext) {
        let (compute, outbox) = seat.compute();
        let place = &mut self.waiting[arrival.wave.index as usize];
        let mut wave = place.take().expect("an arrival follows its wave");
        assert_eq!(wave.tag, arrival.wave, "an arrival for another life of its wave");
        match arrival.outcome {
            Ok(lease) => {
                self.expert(&mut wave, &lease, arrival.union_index, compute);
                give_back(self.layer, lease, outbox);
            }
            Err(fault) => {
                let range = wave.results_of(arrival.union_index as usize, self.hidden);
                wave.results[range].fill(0.0);
                wave.computed.push(arrival.union_index);
                wave.fail_rows(arrival.union_index as usize, &fault);
            }
        }
        wave.arrivals_pending -= 1;
        self.go_on(wave, outbox);
    }

    /// On to Combine, or back to waiting.
    fn go_on(&mut self, wave: Box<Wave>, outbox: &mut Outbox) {
        if wave.arrivals_pending == 0 {
            outbox.send_wave(self.layer, StageKind::Combine, wave);
        } else {
            let index = wave.tag.index as usize;
            assert!(self.waiting[index].is_none(), "a wave is in one place at a time");
            self.waiting[index] = Some(wave);
        }
    }

    /// The shared expert or the dense unit, for all rows.
    fn resident_unit(&self, wave: &mut Wave, compute: &mut Compute) {
        if let Some(unit) = &self.resident {
            let unit = ResidentUnit { arena: &self.arena, unit };
            let rows = ChosenRows::First(wave.rows.len());
            compute.gated_unit(&unit, &wave.h, self.hidden, rows, &mut wave.shared);
        }
    }

    /// The expert behind a lease, for the rows that chose it.
    fn expert(&self, wave: &mut Wave, lease: &ReadLease, union_index: u32, compute: &mut Compute) {
        let shape = self.shape.as_ref().expect("a layer with leases has experts");
        let rows = wave.routing.union[union_index as usize];
        let listed = rows.first as usize..(rows.first + rows.count) as usize;
        let range = wave.results_of(union_index as usize, self.hidden);
        let Wave { routing, results, h, computed, .. } = wave;
        let map = compute.map.clone();
        let unit = LeasedUnit { lease, shape, map: &map };
        let rows = ChosenRows::Listed(&routing.rows[listed]);
        compute.gated_unit(&unit, h, self.hidden, rows, &mut results[range]);
        computed.push(union_index);
    }
}

fn give_back(layer: LayerId, lease: ReadLease, outbox: &mut Outbox) {
    let tag = crate::ids::Tag { index: lease.slot(), generation: lease.generation() };
    outbox.send(layer, StageKind::Prefetch, tag, Message::Returned(lease));
}

impl Stage for Matmul {
    fn id(&self) -> ActorId {
        ActorId { layer: self.layer, stage: StageKind::Matmul }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        match message {
            Message::Wave(wave) => self.take_wave(wave, seat),
            Message::Arrived(arrival) => self.take_arrival(arrival, seat),
            other => panic!("matmul takes waves and arrivals, not {other:?}"),
        }
    }
}
