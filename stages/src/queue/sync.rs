//! The shim between the queues and the memory model they run on: std and parking_lot in a real
//! build, loom's checked copies under `--cfg loom`.
//!
//! Owned by nobody; only the queue folder uses it. Nothing here is clever: every name has the same
//! meaning in both builds.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};
#[cfg(not(loom))]
pub use real::UnsafeCell;
#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

/// A value on cache lines of its own: 128 bytes, because x86 prefetches lines in pairs.
#[repr(align(128))]
#[derive(Default)]
pub struct Padded<T>(pub T);

/// A sleeping place for one thread: a token under a lock. A token given before the sleep is kept.
#[derive(Default)]
pub struct Parker {
    token: Mutex<bool>,
    signal: Condvar,
}

impl Parker {
    /// Sleeps until there is a token, and takes it. No time-out.
    pub fn block(&self) {
        let mut token = self.token.lock();
        while !*token {
            token = self.signal.wait(token);
        }
        *token = false;
    }

    /// Leaves a token and wakes the sleeper, if any.
    pub fn unpark(&self) {
        *self.token.lock() = true;
        self.signal.notify_one();
    }
}

/// Tells the CPU that this thread is spinning (under loom: lets another thread run).
pub fn spin_hint() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Gives the CPU to another thread.
pub fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(not(loom))]
pub use real::{Condvar, Mutex, prepare_thread};

#[cfg(loom)]
pub use model::{Condvar, Mutex};

#[cfg(not(loom))]
mod real {
    pub use parking_lot::Mutex;
    use parking_lot::MutexGuard;

    /// parking_lot's condition variable, with a `wait` that moves the guard as loom's does.
    #[derive(Default)]
    pub struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// Sleeps until notified; wakes may be spurious.
        pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(&mut guard);
            guard
        }

        /// Wakes one sleeper.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }
    }

    /// Makes what parking_lot keeps for a thread that sleeps, so that no later sleep of the calling
    /// thread allocates. Every thread that parks calls it once, at its start.
    pub fn prepare_thread() {
        let mutex = Mutex::new(());
        let mut guard = mutex.lock();
        let condvar = parking_lot::Condvar::new();
        let timed_out = condvar.wait_for(&mut guard, std::time::Duration::ZERO).timed_out();
        debug_assert!(timed_out, "nobody can notify a condition variable of our own");
    }

    /// std's cell with loom's access by closure.
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub fn new(value: T) -> UnsafeCell<T> {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        /// Hands out the address for reading.
        #[inline]
        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        /// Hands out the address for writing.
        #[inline]
        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

#[cfg(loom)]
mod model {
    use loom::sync::MutexGuard;

    /// loom's lock without poisoning, as parking_lot's.
    #[derive(Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Takes the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("loom's locks are poisoned only by a model that failed already")
        }
    }

    /// loom's condition variable without poisoning.
    #[derive(Default)]
    pub struct Condvar(loom::sync::Condvar);

    impl Condvar {
        /// Sleeps until notified.
        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0
                .wait(guard)
                .expect("loom's locks are poisoned only by a model that failed already")
        }

        /// Wakes one sleeper.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }
    }
}
