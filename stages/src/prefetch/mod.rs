//! Prefetcher(L): the slot table of a layer, its one writer.
//!
//! A wave comes in with its routing. Its experts are taken in ascending id, in chunks that fit the
//! slots and the wave's room for results; the leases of a chunk are granted together, waves first
//! come first served. A hit is a read lease at once, a miss is a demand to the loader, and the
//! wave goes on to matmul while its misses arrive there one by one. The prefetcher keeps the waves
//! that wait for each slot: two waves that miss the same expert share one read, and a failed read
//! fails the rows of both. Reads ahead (`ahead`: later chunks of a wave that is here, and guesses) fill
//! slots that nobody needs and never touch a leased slot or a read in flight.

mod ahead;
pub mod eviction;
mod governor;
mod policy;
mod slots;

pub use policy::{LOOKAHEADS, Lookahead, Residency};
pub use slots::{SlotState, SlotTable};

use crate::foresight::Guess;
use crate::gauge::{HintOutcome, now_ns};
use crate::ids::{ExpertId, LayerId, Tag};
use crate::limits::Limits;
use crate::load::{LoadClass, LoadOrder, ReadFault};
use crate::queue::faults::{self, Fault};
use crate::spec::MoeSpec;
use crate::stage::{ActorId, Arrival, Message, Outbox, SeatContext, Stage, StageKind};
use crate::uses::UseCounts;
use crate::wave::{ExpertRows, Wave};
use ahead::{Ahead, Reason};
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
    /// The layer's router guesses for later layers when it is asked.
    foresees: bool,
    uses: Arc<UseCounts>,
    arena: Arc<LayerArena>,
    table: SlotTable,
    ahead: Ahead,
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
        residency: Residency,
        arena: Arc<LayerArena>,
    ) -> Prefetcher {
        let slots = limits.slots[layer.index()];
        let Residency { lookahead, foresees, eviction, uses } = residency;
        let learned = uses.of_layer(layer);
        let habits = Habits { experts: moe.experts, top_k: moe.top_k, learned: &learned };
        let always = lookahead != Lookahead::Auto;
        Prefetcher {
            layer,
            next,
            top_k: moe.top_k,
            result_rows_max: limits.partial_bytes_max / 4 / hidden,
            lookahead,
            foresees,
            uses,
            arena,
            table: SlotTable::new(slots, limits.waves_max, eviction, &habits),
            ahead: Ahead::new(slots, moe.experts, limits.waves_max, always),
            queue: VecDeque::with_capacity(limits.waves_max),
            last_union: Vec::with_capacity(moe.experts),
        }
    }

    fn take_wave(&mut self, wave: Box<Wave>, seat: &mut SeatContext) {
        if wave.chunk.end == 0 {
            self.ahead.arrived(wave.tag);
            self.last_union.clear();
            self.last_union.extend(wave.routing.union.iter().map(|rows| rows.expert));
            if let (Some(next), Lookahead::Repeat) = (self.next, self.lookahead) {
                seat.outbox.send(next, StageKind::Prefetch, wave.tag, Message::Repeat(wave.tag));
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
            let later = wave.routing.union[wave.chunk.end..].iter().map(|rows| rows.expert);
            self.ahead.granted(wave.tag, later.take(self.table.cap()));
            self.send_orders(seat);
            if self.foresees && wave.chunk.start == 0 && wave.is_decode() {
                let message = Message::Foresee(wave.tag);
                seat.outbox.send(self.layer, StageKind::Router, wave.tag, message);
            }
            seat.outbox.send_wave(self.layer, StageKind::Matmul, wave);
        }
        self.read_ahead(seat);
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
                        self.count_use(slot, true, seat);
                        let lease = lease(&mut self.table, &self.arena, slot);
                        wave.leases.push((union_index as u32, lease));
                    }
                    SlotState::Filling => {
                        self.count_use(slot, false, seat);
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
                    self.start_fill(slot, expert, class, seat);
                    if let Some(order) = self.table.orders.last_mut() {
                        order.wanted_ns = now_ns();
                    }
                    self.table.wait(slot, waiter);
                }
            }
        }
    }

    /// A wave finds an expert in its slot, or on its way there.
    fn count_use(&mut self, slot: u32, ready: bool, seat: &SeatContext) {
        let reason = self.ahead.used(slot);
        // A later chunk's expert was read because this wave missed it.
        match ready && reason != Some(Reason::LaterChunk) {
            true => seat.gauges.expert_hit(),
            false => seat.gauges.expert_miss(),
        }
        if reason == Some(Reason::Guess) {
            let outcome = if ready { HintOutcome::Useful } else { HintOutcome::Late };
            seat.gauges.hint_ended(outcome, self.expert_bytes());
        }
    }

    /// Bytes of an expert in its slot.
    fn expert_bytes(&self) -> u64 {
        (0..self.arena.nodes()).map(|node| self.arena.part_bytes(node) as u64).sum()
    }

    /// Takes the slot's fill lease; the order goes out with [`Prefetcher::send_orders`].
    fn start_fill(&mut self, slot: u32, expert: ExpertId, class: LoadClass, seat: &SeatContext) {
        if self.ahead.replaced(slot) {
            seat.gauges.hint_ended(HintOutcome::Wasted, self.expert_bytes());
        }
        let lease = self.arena.begin_fill(slot).expect("a victim has no lease out");
        self.table.fill(slot, expert, lease.generation(), class == LoadClass::Hint);
        self.table.orders.push(LoadOrder { expert, lease, class, wanted_ns: 0 });
    }

    /// Reads go out before the wave: an expert can't overtake it, because it arrives at matmul
    /// through this prefetcher, after the wave.
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
        self.ahead.ended(slot, outcome.is_err());
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

    /// The guess that the next wave wants what the last one used.
    fn repeat(&mut self, wave: Tag, seat: &mut SeatContext) {
        let mut guess = Guess::new(wave);
        self.last_union.iter().for_each(|&expert| guess.add(expert));
        self.take_guess(&guess, seat);
    }

    fn take_guess(&mut self, guess: &Guess, seat: &mut SeatContext) {
        self.ahead.guessed(guess);
        self.read_ahead(seat);
    }

    /// Starts reads ahead while there is room for them and no wave waits for slots.
    fn read_ahead(&mut self, seat: &mut SeatContext) {
        if !self.queue.is_empty() {
            return;
        }
        let slots = self.table.cap();
        // Wrong guesses into slots that a row needs cost it what it has. A recording isn't wrong.
        let room = match self.lookahead {
            Lookahead::Recorded => slots.saturating_sub(self.top_k).max(slots / 2),
            _ => slots.saturating_sub(self.top_k),
        };
        loop {
            let next = self.ahead.next(|expert| self.table.slot_of(expert).is_some());
            let Some((expert, reason)) = next else { break };
            let by_worth = reason == Reason::Guess && self.lookahead == Lookahead::Repeat;
            let victim = match reason {
                Reason::Guess if self.table.hints() >= room => None,
                Reason::Guess if by_worth => self.table.victim_for_hint(expert),
                _ => self.table.victim_ahead(|expert| self.ahead.is_wanted(expert)),
            };
            let Some(slot) = victim else {
                if by_worth {
                    self.ahead.forget(expert);
                    continue;
                }
                break;
            };
            let class = match reason {
                Reason::Guess => LoadClass::Hint,
                Reason::LaterChunk => LoadClass::Prefill,
            };
            self.start_fill(slot, expert, class, seat);
            self.ahead.started(slot, reason);
            if reason == Reason::Guess {
                seat.gauges.hint();
            }
        }
        self.send_orders(seat);
    }

    /// So many slots may be used from now on.
    fn take_cap(&mut self, slots: usize, seat: &mut SeatContext) {
        self.table.set_cap(slots);
        // Before anybody else can have them: a slot that comes back is filled under a lease of its own.
        self.give_pages_back(seat);
        self.grant_chunks(seat);
        seat.gauges.cap_taken();
    }

    /// Gives the system the pages of slots that have retired, each under its fill lease: nobody reads
    /// the slot, and no read into it is under way.
    fn give_pages_back(&mut self, seat: &SeatContext) {
        while let Some(slot) = self.table.next_retired() {
            if self.ahead.replaced(slot) {
                seat.gauges.hint_ended(HintOutcome::Wasted, self.expert_bytes());
            }
            let mut lease =
                self.arena.begin_fill(slot).expect("a victim has no lease out: it has retired");
            seat.gauges.bytes_given_back(lease.release_pages() as u64);
        }
    }

    /// Loads an expert for nobody in particular, if there is room for guesses and a slot worth less.
    fn hint(&mut self, expert: ExpertId, seat: &mut SeatContext) {
        let room = self.table.cap().saturating_sub(self.top_k);
        if self.table.slot_of(expert).is_some() || self.table.hints() >= room {
            return;
        }
        if let Some(slot) = self.table.victim_for_hint(expert) {
            self.start_fill(slot, expert, LoadClass::Hint, seat);
            seat.gauges.hint();
        }
        self.send_orders(seat);
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
        match message {
            Message::Wave(wave) => self.take_wave(wave, seat),
            Message::Loaded { slot, outcome } => self.take_loaded(slot, outcome, seat),
            Message::Returned(lease) => self.take_back(lease, seat),
            Message::Repeat(wave) => self.repeat(wave, seat),
            Message::Guessed(guess) => self.take_guess(&guess, seat),
            Message::Hint(expert) => self.hint(expert, seat),
            Message::Cap(slots) => self.take_cap(slots, seat),
            other => panic!("a prefetcher takes waves, leases and loads, not {other:?}"),
        }
        self.give_pages_back(seat);
    }
}
