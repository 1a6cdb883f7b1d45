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
use crate::spec::{Activation, ModelSpec};
use crate::stage::{ActorId, Arrival, Message, Outbox, SeatContext, Stage, StageKind};
use crate::unit::{ExpertBiases, LeasedUnit, ResidentUnit};
use crate::wave::Wave;
use millstream_topology::arena::{LayerArena, ReadLease};
use std::sync::Arc;

/// Rows of a wave up to which the experts that are there are computed in one batch of jobs. With more
/// rows an expert is enough work by itself, and several would outgrow the buffers.
const GROUPED_ROWS_MAX: usize = 32;

/// What a layer's units need beside the experts in their slots, placed.
pub struct LayerUnits {
    /// The shared expert, or the whole of a dense layer.
    pub resident: Option<PlacedUnit>,
    /// Of the routed experts.
    pub biases: Option<ExpertBiases>,
}

/// The experts of one layer, or its dense unit.
pub struct Matmul {
    layer: LayerId,
    hidden: usize,
    /// The shared expert, or the whole of a dense layer.
    resident: Option<PlacedUnit>,
    /// It has the experts' shape and can be computed with them in one batch.
    resident_joins: bool,
    /// What joins gate and up, of experts and of the resident unit.
    activation: Activation,
    shape: Option<ExpertShape>,
    biases: Option<ExpertBiases>,
    arena: Arc<LayerArena>,
    /// Waves whose chunk isn't complete, by wave index.
    waiting: Vec<Option<Box<Wave>>>,
}

impl Matmul {
    /// The actor of one layer. `shape` is that of the layer's routed experts, none if dense.
    pub fn new(
        layer: LayerId,
        spec: &ModelSpec,
        limits: &Limits,
        LayerUnits { resident, biases }: LayerUnits,
        shape: Option<ExpertShape>,
        arena: Arc<LayerArena>,
    ) -> Matmul {
        let moe = spec.layers[layer.index()].moe();
        let activation = moe.map_or(Activation::Silu, |moe| moe.activation);
        let hidden = spec.hidden;
        let waiting = (0..limits.waves_max).map(|_| None).collect();
        let resident_joins = resident.as_ref().zip(shape.as_ref()).is_some_and(|(unit, shape)| {
            let formats = [unit.gate(&arena, 0), unit.up(&arena, 0), unit.down(&arena, 0)];
            unit.slice_width == shape.slice_width() && formats.map(|w| w.format()) == shape.formats
        });
        Matmul {
            layer,
            hidden,
            resident,
            resident_joins,
            activation,
            shape,
            biases,
            arena,
            waiting,
        }
    }

    /// Bytes of what waits in one layer.
    pub fn bytes(limits: &Limits) -> usize {
        size_of::<Matmul>() + limits.waves_max * size_of::<Option<Box<Wave>>>()
    }

    fn take_wave(&mut self, mut wave: Box<Wave>, seat: &mut SeatContext) {
        let (compute, outbox) = seat.compute();
        wave.computed.clear();
        // The lowest expert first: leases were granted in ascending order.
        let mut leases = std::mem::take(&mut wave.leases);
        let few_rows = wave.rows.len() <= GROUPED_ROWS_MAX;
        let mut with_resident = wave.chunk.start == 0;
        if with_resident && !(self.resident_joins && few_rows && !leases.is_empty()) {
            self.resident_unit(&mut wave, compute);
            with_resident = false;
        }
        let at_once = if few_rows { UNITS_MAX - 1 } else { 1 };
        for group in leases.chunks(at_once) {
            let resident = if with_resident { self.resident.as_ref() } else { None };
            self.experts(&mut wave, resident, group, compute);
            with_resident = false;
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
                self.experts(&mut wave, None, std::slice::from_ref(&here), compute);
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
            let activation = self.activation;
            let unit = ResidentUnit { arena: &self.arena, unit, activation };
            let units = [GatedUnit { weights: &unit, rows: ChosenRows::First(wave.rows.len()) }];
            let Wave { h, shared, .. } = wave;
            compute.gated_units(&units, h, self.hidden, &mut |_, result| {
                shared[..result.len()].copy_from_slice(result);
            });
        }
    }

    /// The experts behind some leases, each for the rows that chose it; and before them the shared expert for all
    /// rows, if it is given.
    fn experts(
        &self,
        wave: &mut Wave,
        resident: Option<&PlacedUnit>,
        leases: &[(u32, ReadLease)],
        compute: &mut Compute,
    ) {
        let shape = self.shape.as_ref().expect("a layer with leases has experts");
        let map = compute.map.clone();
        // Places past the last lease repeat it; nothing looks at them.
        let at = |index: usize| &leases[index.min(leases.len() - 1)];
        let activation = self.activation;
        let Wave { rows, routing, results, h, computed, chunk, shared, .. } = wave;
        let leased: [LeasedUnit<'_>; UNITS_MAX] = std::array::from_fn(|index| {
            let (union_index, lease) = at(index);
            let expert = routing.union[*union_index as usize].expert;
            let biases = self.biases.as_ref().map(|biases| biases.of(expert, shape));
            LeasedUnit { lease, shape, map: &map, activation, biases }
        });
        let resident = resident.map(|unit| ResidentUnit { arena: &self.arena, unit, activation });
        let before = usize::from(resident.is_some());
        let units: [GatedUnit<'_>; UNITS_MAX] = std::array::from_fn(|index| match &resident {
            Some(weights) if index == 0 => {
                GatedUnit { weights, rows: ChosenRows::First(rows.len()) }
            }
            _ => {
                let index = index - before;
                let rows = routing.union[at(index).0 as usize];
                let listed = rows.first as usize..(rows.first + rows.count) as usize;
                let rows = ChosenRows::Listed(&routing.rows[listed]);
                GatedUnit { weights: &leased[index], rows }
            }
        });
        let hidden = self.hidden;
        let units = &units[..before + leases.len()];
        compute.gated_units(units, h, hidden, &mut |index, result| {
            let Some(index) = index.checked_sub(before) else {
                shared[..result.len()].copy_from_slice(result);
                return;
            };
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
