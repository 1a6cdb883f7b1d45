//! The state machine of one expert slot, in one atomic word.
//!
//! ```text
//!   word = generation << 32 | EMPTY | FILLING | READY + readers
//!
//!   EMPTY ----begin_fill (generation + 1)----> FILLING ----finish----> READY + 0
//!   READY + 0 ----begin_fill (generation + 1)----^   |
//!   EMPTY <-----------------abandon------------------+
//!   READY + n <----read / end_read----> READY + n + 1
//! ```
//!
//! Owned by [`super::LayerArena`], driven by its leases. Why a fill and a read never overlap:
//!
//! - `begin_fill` succeeds only from EMPTY or from READY with no reader, by one compare-and-swap,
//!   so no read lease exists at that moment; while the word says FILLING, `read` and `begin_fill`
//!   both refuse, so the filler is alone until `finish` or `abandon`.
//! - Bytes written before `finish` are seen by whoever `read`s: `finish` stores with release,
//!   `read` swaps with acquire. The readers' swaps in between continue the release sequence.
//! - Bytes read before `end_read` are read before the next fill writes: `end_read` subtracts with
//!   release, `begin_fill` swaps with acquire.

use super::sync::{AtomicU64, Ordering};

/// Low half of the word: nothing readable.
const EMPTY: u32 = 0;
/// Low half of the word: one fill lease is out.
const FILLING: u32 = 1 << 31;
/// Low half of the word: readable; the bits below count the read leases.
const READY: u32 = 1 << 30;
/// Read leases that fit the word; far beyond the threads of any machine.
const READERS_MAX: u32 = READY - 1;

fn pack(generation: u32, state: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(state)
}

fn generation_of(word: u64) -> u32 {
    (word >> 32) as u32
}

fn state_of(word: u64) -> u32 {
    word as u32
}

fn is_idle(state: u32) -> bool {
    state == EMPTY || state == READY
}

/// The state of one slot. Starts empty in generation 0, which no fill ever publishes first.
#[derive(Debug)]
pub(super) struct SlotState(AtomicU64);

impl SlotState {
    pub(super) fn new() -> SlotState {
        SlotState(AtomicU64::new(pack(0, EMPTY)))
    }

    /// Takes the exclusive right to fill; the new generation, or `None` while leases are out.
    pub(super) fn begin_fill(&self) -> Option<u32> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if !is_idle(state_of(word)) {
                return None;
            }
            let generation = generation_of(word).wrapping_add(1);
            let next = pack(generation, FILLING);
            match self.0.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(generation),
                Err(now) => word = now,
            }
        }
    }

    /// Publishes a fill. Only the holder of that fill may call it.
    ///
    /// # Panics
    /// When no fill of this generation is out.
    pub(super) fn finish(&self, generation: u32) {
        self.end_fill(generation, READY);
    }

    /// Ends a fill that failed: the slot is empty. Only the holder of that fill may call it.
    ///
    /// # Panics
    /// When no fill of this generation is out.
    pub(super) fn abandon(&self, generation: u32) {
        self.end_fill(generation, EMPTY);
    }

    fn end_fill(&self, generation: u32, state: u32) {
        let filling = pack(generation, FILLING);
        let next = pack(generation, state);
        let swapped = self.0.compare_exchange(filling, next, Ordering::Release, Ordering::Relaxed);
        assert!(swapped.is_ok(), "a fill ended that was not out (generation {generation})");
    }

    /// Takes a share of the right to read this generation; false if it isn't readable (any more).
    ///
    /// # Panics
    /// When a thousand million read leases of the slot are out.
    pub(super) fn read(&self, generation: u32) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let state = state_of(word);
            if generation_of(word) != generation || state & READY == 0 {
                return false;
            }
            assert!(state - READY < READERS_MAX, "read leases of a slot are leaking");
            match self.0.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Gives a share of the right to read back. Only the holder of such a share may call it.
    pub(super) fn end_read(&self) {
        let word = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!(state_of(word) > READY && state_of(word) < FILLING, "no read was out");
    }

    /// The current generation: of what is in the slot, or of the fill in progress.
    pub(super) fn generation(&self) -> u32 {
        generation_of(self.0.load(Ordering::Acquire))
    }

    /// No lease is out: a fill would be granted, unless somebody else comes first.
    pub(super) fn is_idle(&self) -> bool {
        is_idle(state_of(self.0.load(Ordering::Acquire)))
    }

    /// A whole fill is in the slot.
    pub(super) fn is_ready(&self) -> bool {
        state_of(self.0.load(Ordering::Acquire)) & READY != 0
    }
}
