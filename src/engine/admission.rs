//! How many requests are inside the engine, and the bound on them.
//!
//! [`Admission`] is shared by the engine's handle, which refuses a request that is one too many before
//! anything is done for it, and by whoever wants to know the load. A request holds a [`Ticket`] from
//! then on to its end; dropping it is the only way out, so that no count is ever lost. Control plane:
//! one ticket a request, nothing a token.

use super::EngineError;
use super::request::Request;
use super::sequence::Event;
use crossbeam_channel::Sender;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Requests inside the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// They have a place: they are read or answered.
    pub running: usize,
    /// They wait for a place or for pages.
    pub waiting: usize,
    /// All that may be inside.
    pub most: usize,
}

/// Counts the requests inside.
#[derive(Debug)]
pub struct Admission {
    inside: AtomicUsize,
    running: AtomicUsize,
    most: usize,
}

impl Admission {
    /// Nobody inside; at most so many.
    pub fn new(most: usize) -> Arc<Admission> {
        Arc::new(Admission { inside: 0.into(), running: 0.into(), most })
    }

    /// Lets a request in, to wait.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`] when it is one too many.
    pub fn enter(self: &Arc<Admission>) -> Result<Ticket, EngineError> {
        let one_more = |inside| (inside < self.most).then_some(inside + 1);
        match self.inside.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(Ticket { admission: self.clone(), runs: false }),
            Err(_) => Err(EngineError::QueueFull { load: self.load() }),
        }
    }

    /// Who is inside now.
    pub fn load(&self) -> Load {
        // In this order a request that leaves in between isn't counted as waiting below zero.
        let running = self.running.load(Ordering::Acquire);
        let waiting = self.inside.load(Ordering::Acquire).saturating_sub(running);
        Load { running, waiting, most: self.most }
    }
}

/// A request's stay.
#[derive(Debug)]
pub struct Ticket {
    admission: Arc<Admission>,
    runs: bool,
}

impl Ticket {
    /// The request has a place now.
    pub fn run(&mut self) {
        if !std::mem::replace(&mut self.runs, true) {
            self.admission.running.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.runs {
            self.admission.running.fetch_sub(1, Ordering::AcqRel);
        }
        self.admission.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that is in and has no place yet.
pub struct Entry {
    /// Its number, unique.
    pub number: u64,
    /// What is asked.
    pub request: Request,
    /// Where its events go.
    pub events: Sender<Event>,
    /// Its stay.
    pub ticket: Ticket,
    /// When it came in.
    pub since: Instant,
}

impl Entry {
    /// Ends without having had a place.
    pub fn end(self, outcome: Result<super::Answer, EngineError>) {
        // Out before the caller hears of it, so that who asks again at once isn't refused.
        drop(self.ticket);
        // A caller that has gone away doesn't hear it.
        let _ = self.events.send(Event::Done(Box::new(outcome)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_counts_until_it_is_dropped_and_never_more_than_the_bound() {
        let admission = Admission::new(2);
        let mut first = admission.enter().expect("there is room");
        let second = admission.enter().expect("there is room");
        first.run();
        first.run();
        assert_eq!(admission.load(), Load { running: 1, waiting: 1, most: 2 });
        match admission.enter() {
            Err(EngineError::QueueFull { load }) => {
                assert_eq!((load.running, load.waiting), (1, 1))
            }
            other => panic!("{other:?}"),
        }
        drop(first);
        assert_eq!(admission.load(), Load { running: 0, waiting: 1, most: 2 });
        drop(second);
        assert_eq!(admission.load(), Load { running: 0, waiting: 0, most: 2 });
        assert!(admission.enter().is_ok());
    }

    #[test]
    fn threads_that_come_and_go_leave_nothing_behind() {
        let admission = Admission::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        if let Ok(mut ticket) = admission.enter() {
                            ticket.run();
                            assert!(admission.load().running <= 3);
                        }
                    }
                });
            }
        });
        assert_eq!(admission.load(), Load { running: 0, waiting: 0, most: 3 });
    }
}
