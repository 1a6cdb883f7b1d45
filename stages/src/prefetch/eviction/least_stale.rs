//! Least stale: the expert goes whose next use is furthest off by its own habit.
//!
//! A layer's table is visited once a step, so every expert has a mean interval between its uses. An
//! expert that is younger than its interval is expected back after about that; one that has been
//! away for longer has become stale, and its absence is the better guess. So the next use is taken
//! to be as far off as the longer of the two.

use super::{Eviction, Habits};
use crate::ids::ExpertId;

/// How much of a new interval goes into the mean.
const NEW_SHARE: f64 = 0.25;

/// One expert's uses.
#[derive(Clone, Copy)]
struct Habit {
    /// Token of its last use; none was yet.
    used: Option<u64>,
    /// Tokens from one use to the next, on average.
    interval: f64,
}

struct LeastStale {
    now: u64,
    /// By expert.
    habits: Vec<Habit>,
}

/// The state of one layer.
pub fn start(habits: &Habits<'_>) -> Box<dyn Eviction> {
    let habit = Habit { used: None, interval: habits.interval_tokens() };
    Box::new(LeastStale { now: 0, habits: vec![habit; habits.experts] })
}

impl Eviction for LeastStale {
    fn pass(&mut self, tokens: usize) {
        self.now += tokens as u64;
    }

    fn used(&mut self, expert: ExpertId, tokens: usize) {
        let habit = &mut self.habits[expert.index()];
        if let Some(used) = habit.used.replace(self.now) {
            let interval = (self.now - used) as f64 / tokens.max(1) as f64;
            habit.interval += NEW_SHARE * (interval - habit.interval);
        }
    }

    fn worth(&self, expert: ExpertId) -> f64 {
        let Habit { used, interval } = self.habits[expert.index()];
        let age = |used| (self.now - used) as f64;
        used.map_or(0.0, |used| 1.0 / interval.max(age(used)).max(1.0))
    }
}
