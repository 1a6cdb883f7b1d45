//! Prefetcher(L): the slot table of a layer, its one writer.
//!
//! A wave comes in with its routing. Its experts are taken in ascending id, in chunks that fit the
//! slots and the wave's room for results; the leases of a chunk are granted together, waves first
//! come first served. A hit is a read lease at once, a miss is a demand to the loader, and the
//! wave goes on to matmul while its misses arrive there one by one. The prefetcher keeps the waves
//! that wait for each slot: two waves that miss the same expert share one read, and a failed read
//! fails the rows of both. Hints fill slots that nobody needs and never touch a leased slot or a
//! read in flight.

pub mod eviction;
mod policy;
mod slots;

pub use policy::{LOOKAHEADS, Lookahead, Residency};
pub use slots::{SlotState, SlotTable};

use crate::gauge::StageTimer;
use crate::ids::{ExpertId, LayerId, Tag};
use crate::limits::Limits;
use crate::load::{LoadClass, LoadOrder, ReadFault};
use crate::queue::faults::{self, Fault};
use crate::spec::MoeSpec;
use crate::stage::{ActorId, Arrival, Message, Outbox, SeatContext, Stage, StageKind};
use crate::uses::UseCounts;
use crate::wave::{ExpertRows, Wave};
use eviction::Habits;
use millstream_topology::arena::{LayerArena, ReadLease};
use slots::Waiter;
use std::collections::VecDeque;
use std::sync::Arc;

/// The slot table of one layer and the waves that wait for it.
pub struct Prefetcher {
    layer: LayerId,
    /// The next layer that has a prefetcher.
    next: Option<LayerId>,
    top_k: usize,
    result_rows_max: usize,
    lookahead: Lookahead,
    uses: Arc<UseCounts>,
    arena: Arc<LayerArena>,
    table: SlotTable,
    /// Waves whose next chunk isn't granted yet, first come first served.
    queue: VecDeque<Box<Wave>>,
    /// Experts of the last wave, what [`Lookahead::Repeat`] guesses.
    last_union: Vec<ExpertId>,
}

impl Prefetcher {
    /// The actor of one layer; its arena has `limits.slots[layer]` slots.
    pub fn new(
        layer: LayerId,
        next: Option<LayerId>,
        hidden: usize,
        moe: &MoeSpec,
        limits: &Limits,
        residency: &Residency,
        arena: Arc<LayerArena>,
    ) -> Prefetcher {
        let slots = limits.slots[layer.index()];
        let Residency { lookahead, eviction, ref uses } = *residency;
        let learned = uses.of_layer(layer);
        let habits = Habits { experts: moe.experts, top_k: moe.top_k, learned: &learned };
        Prefetcher {
            layer,
            next,
            top_k: moe.top_k,
            result_rows_max: limits.partial_bytes_max / 4 / hidden,
            lookahead,
            uses: uses.clone(),
            arena,
            table: SlotTable::new(slots, limits.waves_max, eviction, &habits),
            queue: VecDeque::with_capacity(limits.waves_max),
            last_union: Vec::with_capacity(moe.experts),
        }
    }

    fn take_wave(&mut self, wave: Box<Wave>, seat: &mut SeatContext) {
        if wave.chunk.end == 0 {
            self.last_union.clear();
            self.last_union.extend(wave.routing.union.iter().map(|rows| rows.expert));
            if let (Some(next), Lookahead::Repeat) = (self.next, self.lookahead) {
                seat.outbox.send(next, StageKind::Prefetch, wave.tag, Message::Guess);
            }
        }
        self.queue.push_back(wave);
        self.grant_chunks(seat);
    }

    /// Grants chunks to the waves in the queue, in order, as long as slots allow.
    fn grant_chunks(&mut self, seat: &mut SeatContext) {
        while let Some(wave) = self.queue.front_mut() {
            if wave.chunk.end == wave.chunk.start || wave.computed.len() == wave.chunk.len() {
                let first = wave.chunk.end;
                wave.chunk = first..next_end(wave, first, self.table.cap(), self.result_rows_max);
                wave.computed.clear();
                wave.arrivals_pending = 0;
            }
            // The cap may have been lowered while the chunk waited.
            wave.chunk.end = wave.chunk.end.min(wave.chunk.start + self.table.cap());
            let (union, chunk) = (&wave.routing.union, wave.chunk.clone());
            let experts = union[chunk].iter().map(|rows| rows.expert);
            if !self.table.can_grant(experts) {
                return;
            }
            let mut wave = self.queue.pop_front().expect("the front was looked at");
            self.grant(&mut wave, seat);
            seat.outbox.send_wave(self.layer, StageKind::Matmul, wave);
            self.send_orders(seat);
        }
    }

    /// Leases for the hits of a chunk, waiting places for its misses.
    fn grant(&mut self, wave: &mut Wave, seat: &mut SeatContext) {
        let class = if wave.is_decode() { LoadClass::Decode } else { LoadClass::Prefill };
        self.table.begin_chunk(if wave.chunk.start == 0 { wave.rows.len() } else { 0 });
        for union_index in wave.chunk.clone() {
            let ExpertRows { expert, count, .. } = wave.routing.union[union_index];
            self.table.want(expert, count as usize);
            self.uses.add(self.layer, expert, count);
        }
        for union_index in wave.chunk.clone() {
            let expert = wave.routing.union[union_index].expert;
            let waiter = Waiter { wave: wave.tag, union_index: union_index as u32 };
            match self.table.slot_of(expert) {
                Some(slot) => match self.table.state(slot) {
                    SlotState::Ready => {
                        seat.gauges.expert_hit();
                        let lease = lease(&mut self.table, &self.arena, slot);
                        wave.leases.push((union_index as u32, lease));
                    }
                    SlotState::Filling => {
                        seat.gauges.expert_miss();
                        wave.arrivals_pending += 1;
                        // A prompt's read may be under way for a stream that waits from now on.
                        if self.table.wait(slot, waiter) || class == LoadClass::Decode {
                            let tag = self.table.tag(slot);
                            let message = Message::Promote { slot: tag, class };
                            seat.outbox.send(self.layer, StageKind::Load, tag, message);
                        }
                    }
                    SlotState::Empty | SlotState::Retired => {
                        unreachable!("a slot without content has no expert")
                    }
                },
                None => {
                    seat.gauges.expert_miss();
                    wave.arrivals_pending += 1;
                    let slot = self.table.victim().expect("can_grant counted the victims");
                    self.start_fill(slot, expert, class, None);
                    self.table.wait(slot, waiter);
                }
            }
        }
    }

    /// Takes the slot's fill lease; the order goes out with [`Prefetcher::send_orders`].
    fn start_fill(&mut self, slot: u32, expert: ExpertId, class: LoadClass, hint: Option<f64>) {
        let lease = self.arena.begin_fill(slot).expect("a victim has no lease out");
        self.table.fill(slot, expert, lease.generation(), hint);
        self.table.orders.push(LoadOrder { expert, lease, class });
    }

    /// Orders follow the wave, so that matmul has the wave before an expert arrives.
    fn send_orders(&mut self, seat: &mut SeatContext) {
        for order in self.table.orders.drain(..) {
            let tag = order.tag();
            seat.outbox.send(self.layer, StageKind::Load, tag, Message::Demand(order));
        }
    }

    fn take_loaded(
        &mut self,
        tag: Tag,
        outcome: Result<(), Arc<ReadFault>>,
        seat: &mut SeatContext,
    ) {
        let slot = tag.index;
        assert_eq!(self.table.tag(slot), tag, "a completion for another life of its slot");
        match outcome {
            Ok(()) => {
                self.table.filled(slot);
                while let Some(waiter) = self.table.next_waiter(slot) {
                    let lease = lease(&mut self.table, &self.arena, slot);
                    self.arrive(waiter, Ok(lease), &mut seat.outbox);
                }
            }
            Err(fault) => {
                seat.gauges.read_failed();
                self.table.failed(slot);
                while let Some(waiter) = self.table.next_waiter(slot) {
                    self.arrive(waiter, Err(fault.clone()), &mut seat.outbox);
                    if faults::active(Fault::FailedReadShared) {
                        self.table.forget_waiters(slot);
                    }
                }
            }
        }
        self.grant_chunks(seat);
    }

    fn arrive(
        &self,
        waiter: Waiter,
        outcome: Result<ReadLease, Arc<ReadFault>>,
        outbox: &mut Outbox,
    ) {
        let Waiter { wave, union_index } = waiter;
        let arrival = Arrival { wave, union_index, outcome };
        outbox.send(self.layer, StageKind::Matmul, wave, Message::Arrived(arrival));
    }

    fn take_back(&mut self, lease: ReadLease, seat: &mut SeatContext) {
        let slot = lease.slot();
        drop(lease);
        self.table.returned(slot);
        self.grant_chunks(seat);
    }

    /// Hints: loads the experts that the last wave used and that have gone since.
    fn guess(&mut self, seat: &mut SeatContext) {
        for index in 0..self.last_union.len() {
            let expert = self.last_union[index];
            self.hint(expert, seat);
        }
        self.send_orders(seat);
    }

    /// Loads an expert as a guess, if there is room for guesses and a slot worth less.
    fn hint(&mut self, expert: ExpertId, seat: &mut SeatContext) {
        let room = self.table.cap().saturating_sub(self.top_k);
        if self.table.slot_of(expert).is_some() || self.table.hints() >= room {
            return;
        }
        let worth = self.table.worth(expert);
        if let Some(slot) = self.table.victim_for_hint(worth) {
            self.start_fill(slot, expert, LoadClass::Hint, Some(worth));
            seat.gauges.hint();
        }
    }
}

/// A read lease on a ready slot, counted.
fn lease(table: &mut SlotTable, arena: &Arc<LayerArena>, slot: u32) -> ReadLease {
    let tag = table.tag(slot);
    table.leased(slot);
    arena.read(slot, tag.generation).expect("the table says that the slot is ready")
}

/// Where the chunk that starts at `first` ends: as many experts as slots and result rows allow.
fn next_end(wave: &Wave, first: usize, slots: usize, result_rows_max: usize) -> usize {
    let union = &wave.routing.union;
    let mut rows = 0;
    let mut end = first;
    while end < union.len() && end - first < slots {
        rows += union[end].count as usize;
        if end > first && rows > result_rows_max {
            break;
        }
        end += 1;
    }
    end
}

impl Stage for Prefetcher {
    fn id(&self) -> ActorId {
        ActorId { layer: self.layer, stage: StageKind::Prefetch }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        let timer = StageTimer::start();
        match message {
            Message::Wave(wave) => self.take_wave(wave, seat),
            Message::Loaded { slot, outcome } => self.take_loaded(slot, outcome, seat),
            Message::Returned(lease) => self.take_back(lease, seat),
            Message::Guess => self.guess(seat),
            Message::Hint(expert) => {
                self.hint(expert, seat);
                self.send_orders(seat);
            }
            other => panic!("a prefetcher takes waves, leases and loads, not {other:?}"),
        }
        timer.stop(&seat.gauges, StageKind::Prefetch);
    }
}
