//! The slot table by itself: who goes, who never goes, and what the cap does.

use super::super::eviction::EVICTIONS;
use super::*;

fn table_with(policy: &str, slots: usize) -> SlotTable {
    let habits = Habits { experts: 8, top_k: 2, learned: &[] };
    SlotTable::new(slots, 2, EvictionPolicy::named(policy).expect("a policy"), &habits)
}

fn table(slots: usize) -> SlotTable {
    table_with("recency", slots)
}

fn ready(table: &mut SlotTable, slot: u32, expert: u32) {
    table.fill(slot, ExpertId(expert), 1, false);
    table.filled(slot);
}

fn chunk(table: &mut SlotTable, experts: &[u32]) {
    table.begin_chunk(1);
    experts.iter().for_each(|&expert| table.want(ExpertId(expert), 1));
}

/// A table whose slots hold the experts of their own number, all used once.
fn full(slots: u32) -> SlotTable {
    let mut table = table(slots as usize);
    chunk(&mut table, &(0..slots).collect::<Vec<_>>());
    (0..slots).for_each(|slot| ready(&mut table, slot, slot));
    table
}

fn retired(table: &mut SlotTable) -> Vec<u32> {
    std::iter::from_fn(|| table.next_retired()).collect()
}

#[test]
fn victim_is_used_longest_ago_and_never_leased() {
    let mut table = full(3);
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
fn experts_of_the_chunk_are_no_victims_whatever_the_policy() {
    for policy in EVICTIONS {
        let mut table = table_with(policy.name, 2);
        chunk(&mut table, &[0, 1]);
        (0..2).for_each(|slot| ready(&mut table, slot, slot));
        (0..9).for_each(|_| chunk(&mut table, &[0]));
        let experts = [0, 1, 2].map(ExpertId);
        assert!(!table.can_grant(experts.into_iter()), "two slots can't hold three experts");
        assert!(table.can_grant([ExpertId(1), ExpertId(7)].into_iter()));
        chunk(&mut table, &[1, 7]);
        assert_eq!(table.victim(), Some(0), "{policy:?}: 0 is worth more, and 1 is needed");
    }
}

#[test]
fn a_hint_takes_no_slot_that_is_worth_more() {
    let mut table = table(1);
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
    let mut table = table(1);
    table.fill(0, ExpertId(4), 1, false);
    table.failed(0);
    assert_eq!(table.state(0), SlotState::Empty);
    assert_eq!(table.slot_of(ExpertId(4)), None);
}

#[test]
fn lowering_the_cap_retires_empty_slots_then_those_worth_least() {
    let mut table = full(3);
    chunk(&mut table, &[0, 2]);
    table.set_cap(2);
    assert_eq!(retired(&mut table), [1]);
    assert_eq!((table.slot_of(ExpertId(1)), table.state(1)), (None, SlotState::Retired));
    table.failed_fill_of(0);
    table.set_cap(1);
    assert_eq!(retired(&mut table), [0], "the empty one goes before the one that is used");
    assert_eq!(table.slot_of(ExpertId(2)), Some(2));
    assert_eq!((table.cap(), table.next_retired()), (1, None), "each is told once");
}

#[test]
fn lowering_never_takes_a_leased_slot_or_a_read_in_flight() {
    let mut table = full(3);
    table.leased(0);
    table.fill(1, ExpertId(5), 2, false);
    table.leased(2);
    table.set_cap(1);
    assert_eq!(retired(&mut table), [] as [u32; 0], "all are busy");
    assert!(!table.can_grant([ExpertId(7)].into_iter()));
    table.filled(1);
    table.returned(0);
    assert_eq!(retired(&mut table), [1, 0], "what was never used goes first");
    table.returned(2);
    assert_eq!(retired(&mut table), [] as [u32; 0], "one may stay");
    assert!(table.can_grant([ExpertId(7)].into_iter()));
    chunk(&mut table, &[7]);
    assert_eq!(table.victim(), Some(2));
}

#[test]
fn what_comes_free_above_the_cap_is_granted_to_nobody() {
    let mut table = full(2);
    (0..2).for_each(|slot| table.leased(slot));
    chunk(&mut table, &[7]);
    table.set_cap(1);
    table.returned(1);
    assert!(!table.can_grant([ExpertId(7)].into_iter()), "slot 1 retires, slot 0 is leased");
    assert_eq!(table.victim_for_hint(ExpertId(7)), None);
    assert_eq!(table.state(1), SlotState::Retired);
    table.returned(0);
    assert!(table.can_grant([ExpertId(7)].into_iter()));
    assert!(!table.can_grant([ExpertId(6), ExpertId(7)].into_iter()), "one slot, one expert");
}

#[test]
fn raising_the_cap_makes_retired_slots_empty_again() {
    let mut table = full(4);
    table.set_cap(1);
    assert_eq!(table.next_retired(), Some(0));
    table.set_cap(3);
    assert_eq!(table.state(0), SlotState::Empty);
    assert_eq!(retired(&mut table), [2], "two of the three came back before they were asked for");
    table.set_cap(9);
    assert_eq!(table.cap(), 4, "there are no more than there are");
    assert!(table.can_grant((4..8).map(ExpertId)));
    table.set_cap(0);
    assert_eq!(table.cap(), 1, "a layer needs one");
}

impl SlotTable {
    /// Empties a ready slot, as a read that fails would.
    fn failed_fill_of(&mut self, slot: u32) {
        self.fill(slot, ExpertId(7), 9, false);
        self.failed(slot);
    }
}
