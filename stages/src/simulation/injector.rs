//! Faults on purpose, around any reader: jobs that fail, end early or come late, by seed.
//!
//! For tests of the whole: the pipeline's threads are real, and only the drive misbehaves. What the
//! wrapped reader reports as failed stays so.

use super::random::Random;
use crate::ids::{ExpertId, LayerId, Tag};
use crate::load::{Geometry, LoadClass, ReadJob, Reader};
use std::time::{Duration, Instant};

/// How often what goes wrong: shares of jobs, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InjectedFaults {
    /// The drive reports an error (EIO).
    pub failing: f64,
    /// The file ends in the middle of the expert.
    pub ending: f64,
    /// The job comes late.
    pub slow: f64,
    /// How late.
    pub delay: Duration,
    /// What decides.
    pub seed: u64,
}

/// A reader that misbehaves as told.
pub struct FaultInjector {
    inner: Box<dyn Reader>,
    faults: InjectedFaults,
    random: Random,
    /// Jobs that are handed out later.
    held: Vec<(Instant, Box<ReadJob>)>,
}

impl FaultInjector {
    /// Wraps a reader.
    pub fn new(inner: Box<dyn Reader>, faults: InjectedFaults) -> FaultInjector {
        FaultInjector { inner, faults, random: Random::new(faults.seed), held: vec![] }
    }

    fn draw(&mut self, share: f64) -> bool {
        (self.random.below(1_000_000) as f64) < share * 1e6
    }

    fn due(&self) -> Option<usize> {
        let now = Instant::now();
        self.held.iter().position(|(due, _)| *due <= now)
    }
}

impl Reader for FaultInjector {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn copies(&self) -> usize {
        self.inner.copies()
    }

    fn copy_of(&self, layer: LayerId, expert: ExpertId) -> usize {
        self.inner.copy_of(layer, expert)
    }

    fn reserve(&mut self, jobs_max: usize) {
        self.inner.reserve(jobs_max);
        self.held.reserve(jobs_max);
    }

    fn submit(&mut self, job: Box<ReadJob>) {
        self.inner.submit(job);
    }

    fn promote(&mut self, layer: LayerId, slot: Tag, class: LoadClass) {
        self.inner.promote(layer, slot, class);
    }

    fn poll(&mut self) -> Option<Box<ReadJob>> {
        if let Some(due) = self.due() {
            return Some(self.held.swap_remove(due).1);
        }
        let mut job = self.inner.poll()?;
        let InjectedFaults { failing, ending, slow, delay, .. } = self.faults;
        if job.progress.failure().is_none() {
            let wanted = job.progress.pieces()[0].wanted;
            if self.draw(failing) {
                job.progress.fail(0, Some(std::io::Error::from_raw_os_error(EIO)));
            } else if self.draw(ending) {
                job.progress.fail(wanted / 2, None);
            }
        }
        if self.draw(slow) {
            self.held.push((Instant::now() + delay, job));
            return None;
        }
        Some(job)
    }

    fn is_ready(&mut self) -> bool {
        self.due().is_some() || self.inner.is_ready()
    }

    fn wait(&mut self, timeout: Duration) {
        match self.inner.pending() {
            0 => std::thread::sleep(timeout),
            _ => self.inner.wait(timeout),
        }
    }

    fn pending(&self) -> usize {
        self.inner.pending() + self.held.len()
    }
}

/// EIO of Linux.
pub(super) const EIO: i32 = 5;
