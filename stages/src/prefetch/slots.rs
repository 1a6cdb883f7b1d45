//! The slot table: which expert is in which slot, who waits for it, who reads it.
//!
//! Owned by one prefetcher, so it needs no lock; the arena's own slot word guards the bytes, and
//! the two must agree (a fill lease that isn't granted is a bug here). The victim is the ready
//! slot that was used longest ago.

use crate::ids::{ExpertId, Tag};
use crate::load::LoadOrder;
use crate::queue::faults::{self, Fault};

/// What is going on in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// Nothing in it.
    Empty,
    /// A read is on its way.
    Filling,
    /// An expert is in it.
    Ready,
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
    /// The chunk that used it last.
    used: u64,
    waiters: Vec<Waiter>,
}

/// The slots of one layer.
pub struct SlotTable {
    slots: Vec<Slot>,
    /// By expert.
    slot_of: Vec<Option<u32>>,
    /// By expert: the chunk that used it last, also when it has gone.
    used: Vec<u64>,
    /// Counts chunks.
    clock: u64,
    /// Orders that are to be sent.
    pub orders: Vec<LoadOrder>,
}

impl SlotTable {
    /// Empty slots.
    pub fn new(slots: usize, experts: usize, waves_max: usize) -> SlotTable {
        let slot = |_| Slot {
            expert: None,
            state: SlotState::Empty,
            generation: 0,
            leases: 0,
            hint: false,
            used: 0,
            waiters: Vec::with_capacity(waves_max),
        };
        SlotTable {
            slots: (0..slots).map(slot).collect(),
            slot_of: vec![None; experts],
            used: vec![0; experts],
            clock: 0,
            orders: Vec::with_capacity(slots),
        }
    }

    /// Slots in all.
    pub fn len(&self) -> usize {
        self.slots.len()
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

    /// True when every expert of a chunk can have a slot now: it has one, or there is a victim
    /// for it that the chunk itself doesn't need.
    pub fn can_grant(&self, experts: impl Iterator<Item = ExpertId>) -> bool {
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

    /// Begins a chunk: its experts are marked with [`SlotTable::want`] and are no victims.
    pub fn begin_chunk(&mut self) {
        self.clock += 1;
    }

    /// Marks an expert as used by the present chunk.
    pub fn want(&mut self, expert: ExpertId) {
        self.used[expert.index()] = self.clock;
        if let Some(slot) = self.slot_of(expert) {
            self.slots[slot as usize].used = self.clock;
        }
    }

    fn is_victim(&self, slot: &Slot) -> bool {
        match slot.state {
            SlotState::Empty => true,
            SlotState::Filling => false,
            SlotState::Ready => slot.leases == 0,
        }
    }

    /// An empty slot, or the one that was used longest ago and that the present chunk doesn't
    /// need.
    pub fn victim(&self) -> Option<u32> {
        let candidates = self.slots.iter().enumerate();
        candidates
            .filter(|(_, slot)| {
                self.is_victim(slot) && (slot.expert.is_none() || slot.used < self.clock)
            })
            .min_by_key(|(_, slot)| (slot.expert.is_some(), slot.used))
            .map(|(index, _)| index as u32)
    }

    /// As [`SlotTable::victim`], for a guess: only a free slot, or one whose expert was used less
    /// recently than the guessed one.
    pub fn victim_for_hint(&self, guess: ExpertId) -> Option<u32> {
        let worth = self.used[guess.index()];
        let evict_leased = faults::active(Fault::HintEvictsLeased);
        let candidates = self.slots.iter().enumerate();
        candidates
            .filter(|(_, slot)| {
                self.is_victim(slot) && (slot.expert.is_none() || slot.used < worth)
                    || evict_leased && slot.state == SlotState::Ready
            })
            .min_by_key(|(_, slot)| (slot.expert.is_some(), slot.used))
            .map(|(index, _)| index as u32)
    }

    /// As [`SlotTable::victim`], for a read ahead of a wave: an empty slot, or of those that nobody
    /// reads and whose expert isn't `wanted` soon the one that was used longest ago.
    pub fn victim_ahead(&self, wanted: impl Fn(ExpertId) -> bool) -> Option<u32> {
        let candidates = self.slots.iter().enumerate();
        candidates
            .filter(|(_, slot)| self.is_victim(slot) && !slot.expert.is_some_and(&wanted))
            .min_by_key(|(_, slot)| (slot.expert.is_some(), slot.used))
            .map(|(index, _)| index as u32)
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
        entry.used = self.used[expert.index()];
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
mod tests {
    use super::*;

    fn ready(table: &mut SlotTable, slot: u32, expert: u32) {
        table.fill(slot, ExpertId(expert), 1, false);
        table.filled(slot);
    }

    fn chunk(table: &mut SlotTable, experts: &[u32]) {
        table.begin_chunk();
        experts.iter().for_each(|&expert| table.want(ExpertId(expert)));
    }

    #[test]
    fn victim_is_used_longest_ago_and_never_leased() {
        let mut table = SlotTable::new(3, 8, 2);
        chunk(&mut table, &[0, 1, 2]);
        (0..3).for_each(|slot| ready(&mut table, slot, slot));
        chunk(&mut table, &[0]);
        table.leased(1);
        chunk(&mut table, &[5]);
        assert_eq!(table.victim(), Some(2));
        table.leased(2);
        assert_eq!(table.victim(), Some(0));
        table.leased(0);
        assert_eq!(table.victim(), None);
    }

    #[test]
    fn experts_of_the_chunk_are_no_victims() {
        let mut table = SlotTable::new(2, 8, 2);
        chunk(&mut table, &[0, 1]);
        (0..2).for_each(|slot| ready(&mut table, slot, slot));
        let experts = [0, 1, 2].map(ExpertId);
        assert!(!table.can_grant(experts.into_iter()), "two slots can't hold three experts");
        assert!(table.can_grant([ExpertId(1), ExpertId(7)].into_iter()));
        chunk(&mut table, &[1, 7]);
        assert_eq!(table.victim(), Some(0));
    }

    #[test]
    fn a_hint_takes_no_slot_that_is_worth_more() {
        let mut table = SlotTable::new(1, 8, 2);
        chunk(&mut table, &[3]);
        chunk(&mut table, &[0]);
        ready(&mut table, 0, 0);
        assert_eq!(table.victim_for_hint(ExpertId(3)), None);
        chunk(&mut table, &[3]);
        assert_eq!(table.victim_for_hint(ExpertId(3)), Some(0));
        table.leased(0);
        assert_eq!(table.victim_for_hint(ExpertId(3)), None);
    }

    #[test]
    fn failed_fill_leaves_the_slot_empty() {
        let mut table = SlotTable::new(1, 8, 2);
        table.fill(0, ExpertId(4), 1, false);
        table.failed(0);
        assert_eq!(table.state(0), SlotState::Empty);
        assert_eq!(table.slot_of(ExpertId(4)), None);
    }
}
