//! The protocol of a crew's thread as a state machine, one atomic step at a time.
//!
//! The real worker loop and the simulation both drive [`Worker`]; the leading thread uses its inner
//! half, the [`Claimer`], to help. A driver decides two things only: how long an idle worker spins
//! before it parks, and how a parked one sleeps. Each worker is owned by its thread.

use super::cursor::{Claim, Cursor, ErasedTask, Panic, Word};
use super::jobs::{Job, NodeStats};
use super::parking::Parking;
use super::sync::{Arc, spin_hint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Idle polls between two looks at the clock.
const POLLS_PER_CLOCK: u32 = 64;

/// What a step led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There is a next step.
    Busy,
    /// A job was just run to its end.
    Ended,
    /// There is nothing to claim; stepping again looks again.
    Idle,
    /// The worker must sleep until it is unparked.
    Blocked,
}

/// A node's counters. Plain std atomics, relaxed: they order nothing.
#[derive(Default)]
pub(super) struct Counters {
    pub parks: AtomicU64,
    pub wakes: AtomicU64,
    pub stale_claims: AtomicU64,
    pub busy_ns: AtomicU64,
}

impl Counters {
    /// Adds to one of the counters.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// The counts now.
    pub fn read(&self) -> NodeStats {
        NodeStats {
            parks: self.parks.load(Ordering::Relaxed),
            wakes: self.wakes.load(Ordering::Relaxed),
            stale_claims: self.stale_claims.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
        }
    }
}

/// Where a claimer is.
enum Claiming {
    /// About to load the cursor.
    Load,
    /// About to compare and swap what it saw.
    Claim(Word),
    /// About to read the job it has won.
    Read(Claim),
    /// About to run it.
    Run(Claim, Job, ErasedTask),
    /// About to count it as done.
    Finish(Claim, Option<Panic>),
}

/// Claims and runs jobs of one cursor.
pub(super) struct Claimer {
    cursor: Arc<Cursor>,
    counters: Arc<Counters>,
    state: Claiming,
}

impl Claimer {
    /// A claimer that has seen nothing yet.
    pub fn new(cursor: Arc<Cursor>, counters: Arc<Counters>) -> Claimer {
        Claimer { cursor, counters, state: Claiming::Load }
    }

    /// Does one step: Busy, Ended or Idle.
    #[inline]
    pub fn step(&mut self, scratch: &mut [f32]) -> Step {
        let cursor = &self.cursor;
        // The state is moved out; a panic below (a broken protocol) must leave a valid one.
        match std::mem::replace(&mut self.state, Claiming::Load) {
            Claiming::Load => {
                let seen = cursor.load();
                if seen.left == 0 {
                    return Step::Idle;
                }
                self.state = Claiming::Claim(seen);
            }
            Claiming::Claim(seen) => match cursor.claim(seen) {
                Ok(claim) => self.state = Claiming::Read(claim),
                Err(now) => {
                    if now.generation != seen.generation {
                        Counters::add(&self.counters.stale_claims, 1);
                    }
                    if now.left > 0 {
                        self.state = Claiming::Claim(now);
                    }
                }
            },
            Claiming::Read(claim) => {
                let (job, task) = cursor.read(&claim);
                self.state = Claiming::Run(claim, job, task);
            }
            Claiming::Run(claim, job, task) => {
                let run = AssertUnwindSafe(|| cursor.run(&claim, task, job, scratch));
                let panic = catch_unwind(run).err();
                self.state = Claiming::Finish(claim, panic);
            }
            Claiming::Finish(claim, panic) => {
                cursor.finish(claim, panic);
                return Step::Ended;
            }
        }
        Step::Busy
    }
}

/// Where a worker is.
enum Working {
    /// Claiming and running jobs, or idle.
    Claiming,
    /// About to say that it will sleep.
    Announce,
    /// About to look for work once more.
    Recheck,
    /// Asleep until it is unparked.
    Parked,
}

/// One worker of a crew: claims jobs, and parks when there are none.
pub struct Worker {
    claimer: Claimer,
    parking: Arc<Parking>,
    state: Working,
}

impl Worker {
    pub(super) fn new(
        cursor: Arc<Cursor>,
        counters: Arc<Counters>,
        parking: Arc<Parking>,
    ) -> Worker {
        Worker { claimer: Claimer::new(cursor, counters), parking, state: Working::Claiming }
    }

    /// Does one step of the protocol.
    #[inline]
    pub fn step(&mut self, scratch: &mut [f32]) -> Step {
        match self.state {
            Working::Claiming => return self.claimer.step(scratch),
            Working::Announce => {
                self.parking.announce();
                self.state = Working::Recheck;
            }
            Working::Recheck => {
                if self.claimer.cursor.is_idle() {
                    self.state = Working::Parked;
                    Counters::add(&self.claimer.counters.parks, 1);
                } else {
                    self.parking.cancel();
                    self.state = Working::Claiming;
                }
            }
            Working::Parked => return Step::Blocked,
        }
        Step::Busy
    }

    /// Ends the spinning: the next steps announce, look again and park. Right after [`Step::Idle`].
    pub fn begin_park(&mut self) {
        self.state = Working::Announce;
    }

    /// Ends the sleep: right after the parking's token was taken.
    pub fn woken(&mut self) {
        self.state = Working::Claiming;
    }

    /// Whether the leader has ended the crew.
    pub fn is_closed(&self) -> bool {
        self.claimer.cursor.is_closed()
    }

    /// Whether the worker is in the state that waits for a token.
    #[cfg(not(loom))]
    pub(super) fn is_parked(&self) -> bool {
        matches!(self.state, Working::Parked)
    }

    /// The worker's sleeping place.
    #[cfg(not(loom))]
    pub(super) fn parking(&self) -> &Arc<Parking> {
        &self.parking
    }
}

/// A worker's life on its thread: works, spins for up to `spin` without work, parks, and ends when
/// the leader closes the crew. Makes no system call while it spins (the clock is read in user space).
pub fn worker_loop(mut worker: Worker, scratch: &mut [f32], spin: Duration) {
    let mut polls = 0u32;
    let mut busy_since: Option<Instant> = None;
    let mut idle_since = Instant::now();
    loop {
        match worker.step(scratch) {
            Step::Busy | Step::Ended => {
                if busy_since.is_none() {
                    busy_since = Some(Instant::now());
                }
            }
            Step::Idle => {
                if worker.is_closed() {
                    return;
                }
                if let Some(since) = busy_since.take() {
                    idle_since = Instant::now();
                    let busy_ns = (idle_since - since).as_nanos() as u64;
                    Counters::add(&worker.claimer.counters.busy_ns, busy_ns);
                    polls = 0;
                }
                polls = polls.wrapping_add(1);
                let look = polls.is_multiple_of(POLLS_PER_CLOCK);
                if spin.is_zero() || (look && idle_since.elapsed() >= spin) {
                    worker.begin_park();
                } else {
                    spin_hint();
                }
            }
            Step::Blocked => {
                worker.parking.block();
                worker.woken();
                idle_since = Instant::now();
                busy_since = None;
                polls = 0;
            }
        }
    }
}
