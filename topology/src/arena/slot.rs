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

#![cfg_attr(all(test, loom), allow(unsafe_code))]

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

/// Models that loom runs through every interleaving:
/// `RUSTFLAGS="--cfg loom" cargo test -p millstream-topology --no-default-features --release loom`
#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// A slot with one number for contents; loom's cell panics when a write overlaps a read.
    struct Slot {
        state: SlotState,
        contents: UnsafeCell<u32>,
    }

    impl Slot {
        fn new() -> Arc<Slot> {
            Arc::new(Slot { state: SlotState::new(), contents: UnsafeCell::new(0) })
        }

        /// One fill, if granted: first nonsense, then the generation, then finished or not.
        fn fill(&self, finish: bool) -> Option<u32> {
            let generation = self.state.begin_fill()?;
            for number in [u32::MAX, generation] {
                // SAFETY:
                // - `begin_fill` granted the exclusive right; loom's cell checks exactly this.
                self.contents.with_mut(|contents| unsafe { *contents = number });
            }
            match finish {
                true => self.state.finish(generation),
                false => self.state.abandon(generation),
            }
            Some(generation)
        }

        /// One read, if granted: the contents must be that generation's.
        fn read(&self, generation: u32) -> bool {
            if !self.state.read(generation) {
                return false;
            }
            // SAFETY:
            // - `read` granted a share; loom's cell checks that no write overlaps.
            let contents = self.contents.with(|contents| unsafe { *contents });
            assert_eq!(contents, generation, "contents of another life");
            self.state.end_read();
            true
        }
    }

    #[test]
    fn loom_fill_and_two_reads_never_overlap() {
        loom::model(|| {
            let slot = Slot::new();
            assert_eq!(slot.fill(true), Some(1));
            let readers = [(); 2].map(|()| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || slot.read(1))
            });
            slot.fill(true);
            for reader in readers {
                reader.join().unwrap();
            }
            assert!(slot.state.is_idle());
        });
    }

    #[test]
    fn loom_reader_of_the_current_generation_sees_all_of_it() {
        loom::model(|| {
            let slot = Slot::new();
            let other = Arc::clone(&slot);
            let reader = thread::spawn(move || other.read(other.state.generation()));
            slot.fill(true);
            slot.fill(true);
            reader.join().unwrap();
            assert!(slot.state.is_idle());
        });
    }

    #[test]
    fn loom_two_fillers_never_overlap() {
        loom::model(|| {
            let slot = Slot::new();
            let other = Arc::clone(&slot);
            let filler = thread::spawn(move || other.fill(true));
            let ours = slot.fill(true);
            let theirs = filler.join().unwrap();
            assert!(ours.is_some() || theirs.is_some());
            assert_ne!(ours, theirs, "two fills had one generation");
            let last = ours.max(theirs).unwrap();
            assert_eq!(slot.state.generation(), last);
            assert!(slot.read(last));
        });
    }

    #[test]
    fn loom_stale_generation_never_reads() {
        loom::model(|| {
            let slot = Slot::new();
            slot.fill(true);
            let other = Arc::clone(&slot);
            let filler = thread::spawn(move || other.fill(true));
            slot.read(1);
            let second = filler.join().unwrap();
            assert_eq!(slot.read(1), second.is_none());
            assert_eq!(slot.read(2), second.is_some());
        });
    }

    #[test]
    fn loom_dropped_fill_leaves_the_slot_empty() {
        loom::model(|| {
            let slot = Slot::new();
            let other = Arc::clone(&slot);
            let filler = thread::spawn(move || other.fill(false));
            for generation in 0..2 {
                assert!(!slot.read(generation), "nothing was ever finished");
            }
            assert_eq!(filler.join().unwrap(), Some(1));
            assert!(slot.state.is_idle() && !slot.state.is_ready());
            assert_eq!(slot.fill(true), Some(2));
            assert!(slot.read(2));
        });
    }
}
