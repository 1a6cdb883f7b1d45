//! The slot table: which expert is in which slot, who waits for it, who reads it.
//!
//! Owned by one prefetcher, so it needs no lock; the arena's own slot word guards the bytes, and
//! the two must agree (a fill lease that isn't granted is a bug here). The victim is the ready
//! slot whose expert is worth least by the layer's policy (`eviction/`). Fewer slots than there are
//! may be usable: the cap can be lowered and raised while waves run. Lowering waits for nobody:
//! free slots retire at once, others when they come free, and whoever owns their pages is told. The
//! replay of traces runs this same table, without an arena.

use super::eviction::{EvictionPolicy, Habits};
use crate::ids::{ExpertId, Tag};
use crate::load::LoadOrder;
use crate::prefetch::eviction::Eviction;
use crate::queue::faults::{self, Fault};
use std::collections::VecDeque;

/// What is going on in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// Nothing in it.
    Empty,
    /// A read is on its way.
    Filling,
    /// An expert is in it.
    Ready,
    /// Beyond the cap: nothing in it, and it isn't filled.
    Retired,
}

/// A wave that waits for a slot.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// Which wave.
    pub wave: Tag,
    /// Which of its union.
    pub union_index: u32,
}

struct Slot {
    expert: Option<ExpertId>,
    state: SlotState,
    generation: u32,
    /// Read leases that are out.
    leases: u32,
    /// Loaded, or being loaded, for a guess, and not used since.
    hint: bool,
    waiters: Vec<Waiter>,
}

/// The slots of one layer.
pub struct SlotTable {
    slots: Vec<Slot>,
    /// By expert.
    slot_of: Vec<Option<u32>>,
    /// By expert: the chunk that used it last, also when it has gone.
    wanted: Vec<u64>,
    /// Counts chunks.
    clock: u64,
    policy: Box<dyn Eviction>,
    /// Slots that may be used.
    cap: usize,
    /// Slots that aren't retired; above the cap while leases and reads hold too many.
    usable: usize,
    /// Slots that retired and that nobody has asked for yet.
    retired: VecDeque<u32>,
    /// Orders that are to be sent.
    pub(super) orders: Vec<LoadOrder>,
}

impl SlotTable {
    /// Empty slots.
    pub fn new(
        slots: usize,
        waves_max: usize,
        policy: EvictionPolicy,
        habits: &Habits<'_>,
    ) -> SlotTable {
        let slot = |_| Slot {
            expert: None,
            state: SlotState::Empty,
            generation: 0,
            leases: 0,
            hint: false,
            waiters: Vec::with_capacity(waves_max),
        };
        SlotTable {
            slots: (0..slots).map(slot).collect(),
            slot_of: vec![None; habits.experts],
            wanted: vec![0; habits.experts],
            clock: 0,
            policy: policy.start(habits),
            cap: slots,
            usable: slots,
            retired: VecDeque::with_capacity(slots),
            orders: Vec::with_capacity(slots),
        }
    }

    /// Slots that may be used: no chunk is larger.
    pub fn cap(&self) -> usize {
        self.cap
    }

    /// The slot that holds an expert or is being filled with it.
    pub fn slot_of(&self, expert: ExpertId) -> Option<u32> {
        self.slot_of[expert.index()]
    }

    /// What is going on in a slot.
    pub fn state(&self, slot: u32) -> SlotState {
        self.slots[slot as usize].state
    }

    /// The slot in its present life.
    pub fn tag(&self, slot: u32) -> Tag {
        Tag { index: slot, generation: self.slots[slot as usize].generation }
    }

    /// Slots that hold or fetch a guess.
    pub fn hints(&self) -> usize {
        self.slots.iter().filter(|slot| slot.hint).count()
    }

    /// Lets fewer or more slots be used, at least one. Slots that retire come out of
    /// [`SlotTable::next_retired`], now or when their leases and reads end. Raising makes retired
    /// slots empty again: by then no fill lease of theirs may be out.
    pub fn set_cap(&mut self, cap: usize) {
        self.cap = cap.clamp(1, self.slots.len());
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            if self.usable < self.cap && slot.state == SlotState::Retired {
                slot.state = SlotState::Empty;
                self.usable += 1;
                self.retired.retain(|&retired| retired != index);
            }
        }
        self.settle();
    }

    /// A slot that has retired: its pages may be given back, under its fill lease. Each is told once.
    pub fn next_retired(&mut self) -> Option<u32> {
        self.settle();
        self.retired.pop_front()
    }

    /// Retires free slots, those worth least first, until no more than the cap are usable.
    fn settle(&mut self) {
        while self.usable > self.cap {
            let Some(index) = self.least_worth(|slot| self.is_victim(slot)) else { return };
            let slot = &mut self.slots[index as usize];
            slot.state = SlotState::Retired;
            slot.hint = false;
            if let Some(expert) = slot.expert.take() {
                self.slot_of[expert.index()] = None;
            }
            self.usable -= 1;
            self.retired.push_back(index);
        }
    }

    /// True when every expert of a chunk can have a slot now: it has one, or there is a victim
    /// for it that the chunk itself doesn't need.
    pub fn can_grant(&mut self, experts: impl Iterator<Item = ExpertId>) -> bool {
        self.settle();
        let (mut missing, mut kept) = (0, 0);
        for expert in experts {
            match self.slot_of(expert) {
                Some(slot) => kept += usize::from(self.is_victim(&self.slots[slot as usize])),
                None => missing += 1,
            }
        }
        let victims = self.slots.iter().filter(|slot| self.is_victim(slot)).count();
        missing <= victims - kept
    }

    /// Begins a chunk: its experts are marked with [`SlotTable::want`] and are no victims. A wave's
    /// first chunk brings the wave's tokens with it, the others none.
    pub fn begin_chunk(&mut self, tokens: usize) {
        self.clock += 1;
        self.policy.pass(tokens);
    }

    /// Marks an expert as used by the present chunk, for so many of the wave's tokens.
    pub fn want(&mut self, expert: ExpertId, tokens: usize) {
        self.wanted[expert.index()] = self.clock;
        self.policy.used(expert, tokens);
    }

    fn is_victim(&self, slot: &Slot) -> bool {
        match slot.state {
            SlotState::Empty => true,
            SlotState::Filling | SlotState::Retired => false,
            SlotState::Ready => slot.leases == 0,
        }
    }

    /// Of the slots that qualify an empty one, or the one worth least; the lowest among equals.
    fn least_worth(&self, qualifies: impl Fn(&Slot) -> bool) -> Option<u32> {
        let mut least: Option<(u32, f64)> = None;
        for (index, slot) in self.slots.iter().enumerate().filter(|(_, slot)| qualifies(slot)) {
            if slot.state == SlotState::Empty {
                return Some(index as u32);
            }
            let worth = slot.expert.map_or(0.0, |expert| self.policy.worth(expert));
            if least.is_none_or(|(_, before)| worth < before) {
                least = Some((index as u32, worth));
            }
        }
        least.map(|(index, _)| index)
    }

    /// An empty slot, or the one worth least that the present chunk doesn't need.
    pub fn victim(&self) -> Option<u32> {
        let needed = |expert: ExpertId| self.wanted[expert.index()] == self.clock;
        self.least_worth(|slot| self.is_victim(slot) && !slot.expert.is_some_and(needed))
    }

    /// As [`SlotTable::victim`], for a guess: only a free slot, or one whose expert is worth less
    /// than the guess.
    pub fn victim_for_hint(&mut self, guess: ExpertId) -> Option<u32> {
        self.settle();
        let guess = self.policy.worth(guess);
        let below = |expert| self.policy.worth(expert) < guess;
        let evict_leased = faults::active(Fault::HintEvictsLeased);
        self.least_worth(|slot| {
            self.is_victim(slot) && slot.expert.is_none_or(below)
                || evict_leased && slot.state == SlotState::Ready
        })
    }

    /// As [`SlotTable::victim`], for a read ahead of a wave: an empty slot, or of those that nobody
    /// reads and whose expert isn't `wanted` soon the one worth least.
    pub fn victim_ahead(&mut self, wanted: impl Fn(ExpertId) -> bool) -> Option<u32> {
        self.settle();
        self.least_worth(|slot| self.is_victim(slot) && !slot.expert.is_some_and(&wanted))
    }

    /// A fill begins: what was in the slot is gone.
    pub fn fill(&mut self, slot: u32, expert: ExpertId, generation: u32, hint: bool) {
        let entry = &mut self.slots[slot as usize];
        assert!(entry.waiters.is_empty(), "a slot that is waited for is no victim");
        if let Some(before) = entry.expert.replace(expert) {
            self.slot_of[before.index()] = None;
        }
        self.slot_of[expert.index()] = Some(slot);
        entry.state = SlotState::Filling;
        entry.generation = generation;
        entry.hint = hint;
    }

    /// A wave waits for a slot that is being filled. True when the fill was a hint until now.
    pub fn wait(&mut self, slot: u32, waiter: Waiter) -> bool {
        let entry = &mut self.slots[slot as usize];
        assert!(entry.waiters.len() < entry.waiters.capacity(), "more waiters than waves");
        entry.waiters.push(waiter);
        std::mem::take(&mut entry.hint)
    }

    /// The fill is finished.
    pub fn filled(&mut self, slot: u32) {
        self.slots[slot as usize].state = SlotState::Ready;
    }

    /// The fill failed: the slot is empty.
    pub fn failed(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        let expert = entry.expert.take().expect("a slot that was being filled");
        entry.state = SlotState::Empty;
        entry.hint = false;
        self.slot_of[expert.index()] = None;
    }

    /// The next wave that waits for a slot, first come first served.
    pub fn next_waiter(&mut self, slot: u32) -> Option<Waiter> {
        let waiters = &mut self.slots[slot as usize].waiters;
        if waiters.is_empty() { None } else { Some(waiters.remove(0)) }
    }

    /// Forgets who waits (what the planted fault of a shared failed read does).
    pub fn forget_waiters(&mut self, slot: u32) {
        self.slots[slot as usize].waiters.clear();
    }

    /// A read lease goes out.
    pub fn leased(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.hint = false;
        if !faults::active(Fault::LeaseReturnedEarly) {
            entry.leases += 1;
        }
    }

    /// A read lease came back.
    pub fn returned(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if !faults::active(Fault::LeaseReturnedEarly) {
            entry.leases -= 1;
        }
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
