//! How a thread that has nothing to do sleeps, and how another wakes it without a lost wake and
//! without a system call when nobody sleeps.
//!
//! One [`Parking`] per waiting thread: a worker of a crew, or a seat. The owner calls
//! [`Parking::park_if`]; whoever gives it work makes the work visible first and then calls
//! [`Parking::wake`]. The proof that no wake is lost is in `README.md`.

use super::faults::{Fault, active};
use super::sync::{AtomicU32, Ordering, Padded, Parker};

/// The bit that says that the owner sleeps or is about to.
const PARKED: u32 = 1;

/// One waiting thread's word and sleeping place.
///
/// All accesses to the word are read-modify-writes with acquire-release order, so they form one
/// chain in which each sees everything that came before the earlier ones.
pub struct Parking {
    word: Padded<AtomicU32>,
    parker: Parker,
}

impl Default for Parking {
    fn default() -> Parking {
        Parking::new()
    }
}

impl Parking {
    /// A parking whose owner is awake.
    pub fn new() -> Parking {
        Parking { word: Padded(AtomicU32::new(0)), parker: Parker::default() }
    }

    /// Sleeps if `still_idle` holds after the intent to sleep is announced; returns whether it slept.
    ///
    /// Returns at once if not idle, and may return without work (a wake that came late): the caller
    /// looks for work again. Only the owner may call it. There is no time-out.
    pub fn park_if(&self, still_idle: impl Fn() -> bool) -> bool {
        self.announce();
        if still_idle() {
            self.block();
            true
        } else {
            self.cancel();
            false
        }
    }

    /// Wakes the owner if it sleeps or is about to; returns whether it had to. To be called after the
    /// work is visible. Costs one atomic swap when the owner is awake.
    pub fn wake(&self) -> bool {
        let parked = self.take();
        if parked {
            self.unpark();
        }
        parked
    }

    /// First half of parking: says that the owner is about to sleep. A look for work must follow.
    pub(super) fn announce(&self) {
        self.word.0.fetch_or(PARKED, Ordering::AcqRel);
    }

    /// Takes the announcement back: there is work. A publisher that saw it leaves a token behind,
    /// which ends the next sleep early: harmless, as sleepers look for work again.
    pub(super) fn cancel(&self) {
        self.word.0.swap(0, Ordering::AcqRel);
    }

    /// First half of waking: clears the word and says whether the owner must be unparked.
    pub(super) fn take(&self) -> bool {
        let parked = self.word.0.swap(0, Ordering::AcqRel) & PARKED != 0;
        parked && !active(Fault::WakeDropped)
    }

    /// Sleeps until [`Parking::unpark`]; returns at once if that came first.
    pub(super) fn block(&self) {
        self.parker.block();
    }

    /// Ends the owner's sleep, or its next one.
    pub(super) fn unpark(&self) {
        self.parker.unpark();
    }

    /// Whether the owner's announcement stands.
    #[cfg(not(loom))]
    pub(super) fn is_announced(&self) -> bool {
        self.word.0.load(Ordering::Acquire) & PARKED != 0
    }
}
