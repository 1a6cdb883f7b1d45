//! Who may put a question to the engine: as many answers as it has places and the queue has room for.
//!
//! One counter, held by all requests. A place is given at once or not at all: who finds the
//! queue full is told so and comes back later. The engine itself serves first come first served.

use super::errors::{Fault, FaultKind};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places.
#[derive(Clone, Debug)]
pub struct Admission {
    places: Arc<Semaphore>,
    /// Answers that the engine makes at once.
    at_once: usize,
    /// All places, those in the queue too.
    all: usize,
}

/// A place for a question's answers; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Admission {
    /// So many answers at once, and so many that wait.
    pub fn new(at_once: usize, queue_max: usize) -> Admission {
        let all = (at_once + queue_max).min(Semaphore::MAX_PERMITS);
        Admission { places: Arc::new(Semaphore::new(all)), at_once, all }
    }

    /// A place for a question with so many answers.
    ///
    /// # Errors
    /// When there is no room now, or the question never fits.
    pub fn admit(&self, answers: usize) -> Result<Place, Fault> {
        if answers > self.all {
            let message = format!("{answers} answers; this server makes {} at once", self.all);
            return Err(Fault::field("n", message));
        }
        let places = self.places.clone().try_acquire_many_owned(answers as u32);
        places.map(|permit| Place { _permit: permit }).map_err(|_| {
            let message = format!(
                "{} answers are under way or wait, and the queue is full; try again",
                self.all - self.places.available_permits()
            );
            Fault::new(FaultKind::Busy, message)
        })
    }

    /// Answers that are made and answers that wait.
    pub fn counts(&self) -> (usize, usize) {
        let taken = self.all - self.places.available_permits();
        (taken.min(self.at_once), taken.saturating_sub(self.at_once))
    }

    /// Answers that the engine makes at once.
    pub fn at_once(&self) -> usize {
        self.at_once
    }

    /// All places.
    pub fn all(&self) -> usize {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_until_the_queue_is_full_and_come_back() {
        let admission = Admission::new(1, 1);
        let first = admission.admit(1).unwrap();
        let second = admission.admit(1).unwrap();
        assert_eq!(admission.counts(), (1, 1));
        assert_eq!(admission.admit(1).unwrap_err().kind, FaultKind::Busy);
        drop((first, second));
        assert_eq!(admission.counts(), (0, 0));
        assert!(admission.admit(2).is_ok());
        assert_eq!(admission.admit(3).unwrap_err().kind, FaultKind::Invalid);
    }
}
