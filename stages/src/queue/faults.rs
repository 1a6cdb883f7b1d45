//! Planted faults: switches that make one step of a protocol wrong, so that a test can show that it
//! would notice.
//!
//! Without the cargo feature `faults`, [`active`] is the constant `false` and nothing can be armed.
//! With it, a fault is armed per thread: simulations run on one thread, so tests stay independent
//! while they run side by side. Owned by tests; the data path only asks.

/// One way to be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A claim compares only the number of jobs left, so one from an earlier batch can win.
    GenerationNotCompared,
    /// The leader publishes the cursor before it writes the jobs.
    JobPublishedBeforeWritten,
    /// The publisher clears PARKED and forgets to unpark.
    WakeDropped,
    /// A lease is returned before its last reader has finished.
    LeaseReturnedEarly,
    /// Combine adds expert results as they arrive, not in ascending id.
    SumInArrivalOrder,
    /// A read that came back short is taken as complete.
    ShortReadTakenAsFull,
    /// A failed read that two waves share fails the rows of only one of them.
    FailedReadShared,
    /// A hint takes a slot that is leased.
    HintEvictsLeased,
}

/// Whether `fault` is armed on this thread.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub const fn active(_fault: Fault) -> bool {
    false
}

#[cfg(feature = "faults")]
pub use armed::{Armed, active};

#[cfg(feature = "faults")]
mod armed {
    use super::Fault;
    use std::cell::Cell;
    use std::marker::PhantomData;

    thread_local! {
        static ARMED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Whether `fault` is armed on this thread.
    pub fn active(fault: Fault) -> bool {
        ARMED.get() == Some(fault)
    }

    /// Disarms the fault when dropped; bound to the thread that armed it.
    #[must_use = "the fault is disarmed when this is dropped"]
    pub struct Armed {
        thread_bound: PhantomData<*const ()>,
    }

    impl Drop for Armed {
        fn drop(&mut self) {
            ARMED.set(None);
        }
    }

    impl Fault {
        /// Arms this fault on this thread until the guard is dropped.
        ///
        /// # Panics
        /// If a fault is armed on this thread already.
        pub fn arm(self) -> Armed {
            assert_eq!(ARMED.get(), None, "one fault at a time");
            ARMED.set(Some(self));
            Armed { thread_bound: PhantomData }
        }
    }
}
