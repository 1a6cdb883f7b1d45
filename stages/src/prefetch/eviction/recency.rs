//! Recency: the expert that was used longest ago goes.

use super::{Eviction, Habits};
use crate::ids::ExpertId;

/// When each expert was used last. Time is counted in chunks here, so that within a prompt's wave
/// the experts of an earlier chunk go before those of a later one.
struct Recency {
    now: u64,
    /// By expert; 0 is never.
    used: Vec<u64>,
}

/// The state of one layer.
pub fn start(habits: &Habits<'_>) -> Box<dyn Eviction> {
    Box::new(Recency { now: 0, used: vec![0; habits.experts] })
}

impl Eviction for Recency {
    fn pass(&mut self, _: usize) {
        self.now += 1;
    }

    fn used(&mut self, expert: ExpertId, _: usize) {
        self.used[expert.index()] = self.now;
    }

    fn worth(&self, expert: ExpertId) -> f64 {
        match self.used[expert.index()] {
            0 => 0.0,
            used => 1.0 / (1 + self.now - used) as f64,
        }
    }
}
