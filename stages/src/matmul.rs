//! Matmul(L): the experts of a chunk in order of arrival, the shared expert, dense layers.
//!
//! A wave stays here from the grant of a chunk until its last expert is computed; meanwhile the
//! prefetcher's arrivals come in. Every lease goes back as soon as its expert is done. The order
//! of arrival decides when an expert is computed and never what comes out: results lie by expert,
//! and Combine adds them in ascending id.

use crate::compute::{ChosenRows, Compute, GatedUnit, UNITS_MAX};
use crate::ids::LayerId;
use crate::limits::Limits;
use crate::load::ExpertShape;
use crate::placed::PlacedUnit;
use crate::stage::{ActorId, Arrival, Message, Outbox, SeatContext, Stage, StageKind};
use crate::unit::{LeasedUnit, ResidentUnit};
use crate::wave::Wave;
use millstream_topology::arena::{LayerArena, ReadLease};
use std::sync::Arc;

/// Rows of a wave up to which the experts that are there are computed in one batch of jobs. With more
/// rows an expert is enough work by itself, and several would outgrow the buffers.
const GROUPED_ROWS_MAX: usize = 32;

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
        let at_once = if wave.rows.len() <= GROUPED_ROWS_MAX { UNITS_MAX } else { 1 };
        for group in leases.chunks(at_once) {
            self.experts(&mut wave, group, compute);
        }
        for (_, lease) in leases.drain(..) {
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
                let here = (arrival.union_index, lease);
                self.experts(&mut wave, std::slice::from_ref(&here), compute);
                give_back(self.layer, here.1, outbox);
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
            let units = [GatedUnit { weights: &unit, rows: ChosenRows::First(wave.rows.len()) }];
            let Wave { h, shared, .. } = wave;
            compute.gated_units(&units, h, self.hidden, &mut |_, result| {
                shared[..result.len()].copy_from_slice(result);
            });
        }
    }

    /// The experts behind some leases, each for the rows that chose it.
    fn experts(&self, wave: &mut Wave, leases: &[(u32, ReadLease)], compute: &mut Compute) {
        let shape = self.shape.as_ref().expect("a layer with leases has experts");
        let map = compute.map.clone();
        // Places past the last lease repeat it; nothing looks at them.
        let at = |index: usize| &leases[index.min(leases.len() - 1)];
        let leased: [LeasedUnit<'_>; UNITS_MAX] =
            std::array::from_fn(|index| LeasedUnit { lease: &at(index).1, shape, map: &map });
        let Wave { routing, results, h, computed, chunk, .. } = wave;
        let units: [GatedUnit<'_>; UNITS_MAX] = std::array::from_fn(|index| {
            let rows = routing.union[at(index).0 as usize];
            let listed = rows.first as usize..(rows.first + rows.count) as usize;
            let rows = ChosenRows::Listed(&routing.rows[listed]);
            GatedUnit { weights: &leased[index], rows }
        });
        let hidden = self.hidden;
        compute.gated_units(&units[..leases.len()], h, hidden, &mut |index, result| {
            let place = routing.results_of(chunk.start, leases[index].0 as usize, hidden);
            results[place].copy_from_slice(result);
        });
        computed.extend(leases.iter().map(|(union_index, _)| *union_index));
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
