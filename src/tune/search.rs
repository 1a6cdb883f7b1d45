//! One change after the other, each against the best so far, and a last check against the default.
//!
//! A comparison interleaves its runs, A B B A, so that whatever drifts hits both sides alike. It ends as
//! soon as the rule (`decide.rs`) decides, or after [`BLOCKS_MAX`] blocks, which leaves things as they are.
//! The last check runs B A A B. In flow: a [`Trial`] that runs settings. Every step is told as it ends, so
//! that what was found is kept whenever the search is stopped.

use super::decide::{Judgement, Run, Verdict, judge};
use super::knobs::{Goal, Knob};
use super::settings::Settings;
use std::time::Duration;

/// Blocks of two runs a side.
const BLOCKS_MAX: usize = 10;
/// Blocks before anything is decided.
const BLOCKS_MIN: usize = 2;
/// Runs that are kept in reserve for the last check: as many as it may take.
const RESERVED_RUNS: u32 = 4 * BLOCKS_MAX as u32;

/// Runs settings, and says how much time has gone.
pub trait Trial {
    /// One run.
    ///
    /// # Errors
    /// When these settings can't be had here; in words.
    fn run(&mut self, settings: &Settings, goal: Goal) -> Result<Run, String>;

    /// Time since the search began.
    fn elapsed(&self) -> Duration;
}

/// How a comparison ended.
#[derive(Clone, Debug, PartialEq)]
pub enum StepEnd {
    /// The change was taken.
    Taken(Judgement),
    /// It wasn't.
    Left(Judgement),
    /// It can't be had.
    Refused(String),
    /// There was no time for it.
    OutOfTime,
}

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What was changed.
    pub knob: &'static str,
    /// To which value.
    pub value: String,
    /// How it ended.
    pub end: StepEnd,
    /// The best so far, now.
    pub best: Settings,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What to run with: the default's own settings if nothing is better.
    pub best: Settings,
    /// The last check: the best against the default. None if they are the same, or there was no time.
    pub check: Option<Judgement>,
    /// The last check took the best back.
    pub taken_back: bool,
    /// Not everything could be tried.
    pub out_of_time: bool,
}

/// A search; see the module's story.
pub struct Search<'a> {
    trial: &'a mut dyn Trial,
    budget: Duration,
    on_step: &'a mut dyn FnMut(&Step),
    /// Runs so far.
    runs: u32,
}

/// Which settings come first in a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Abba,
    Baab,
}

impl<'a> Search<'a> {
    /// A search that takes no longer than `budget`; `on_step` hears of every step.
    pub fn new(
        trial: &'a mut dyn Trial,
        budget: Duration,
        on_step: &'a mut dyn FnMut(&Step),
    ) -> Search<'a> {
        Search { trial, budget, on_step, runs: 0 }
    }

    /// Tries the values of the knobs in turn, beginning with `default`.
    pub fn run(&mut self, default: &Settings, knobs: &[(&'static Knob, Vec<String>)]) -> Outcome {
        let mut best = default.clone();
        let mut out_of_time = false;
        let mut goals = vec![];
        let tried = knobs.iter().flat_map(|(knob, values)| values.iter().map(move |v| (knob, v)));
        for (knob, value) in tried {
            let candidate = best.with(knob, value);
            if candidate == best {
                continue;
            }
            let end = self.compare(&best, &candidate, knob.goal, Order::Abba);
            out_of_time = end == StepEnd::OutOfTime;
            if let StepEnd::Taken(_) = end {
                best = candidate;
                goals.push(knob.goal);
            }
            let step = Step { knob: knob.name, value: value.clone(), end, best: best.clone() };
            (self.on_step)(&step);
            if out_of_time {
                break;
            }
        }
        if best == *default {
            return Outcome { best, check: None, taken_back: false, out_of_time };
        }
        // Decode is what most of the time goes to; a prompt's goal counts where nothing else was gained.
        let goal = if goals.contains(&Goal::Decode) { Goal::Decode } else { Goal::Prefill };
        match self.compare(default, &best, goal, Order::Baab) {
            StepEnd::Taken(check) => {
                Outcome { best, check: Some(check), taken_back: false, out_of_time }
            }
            StepEnd::Left(check) => {
                Outcome { best: default.clone(), check: Some(check), taken_back: true, out_of_time }
            }
            StepEnd::Refused(_) | StepEnd::OutOfTime => {
                Outcome { best, check: None, taken_back: false, out_of_time: true }
            }
        }
    }

    fn compare(&mut self, a: &Settings, b: &Settings, goal: Goal, order: Order) -> StepEnd {
        let (mut before, mut after): (Vec<Run>, Vec<Run>) = (vec![], vec![]);
        let block = match order {
            Order::Abba => [false, true, true, false],
            Order::Baab => [true, false, false, true],
        };
        for number in 1..=BLOCKS_MAX {
            for is_after in block {
                if self.is_late(order) {
                    return StepEnd::OutOfTime;
                }
                let (settings, runs) = if is_after { (b, &mut after) } else { (a, &mut before) };
                self.runs += 1;
                match self.trial.run(settings, goal) {
                    Ok(run) => runs.push(run),
                    Err(reason) => return StepEnd::Refused(reason),
                }
            }
            if number < BLOCKS_MIN {
                continue;
            }
            let judgement = judge(&before, &after);
            match judgement.verdict() {
                Verdict::Take => return StepEnd::Taken(judgement),
                Verdict::Leave => return StepEnd::Left(judgement),
                Verdict::Undecided if number == BLOCKS_MAX => return StepEnd::Left(judgement),
                Verdict::Undecided => {}
            }
        }
        unreachable!("the last block decides")
    }

    /// No time for another run. While changes are tried, what the last check takes is kept back.
    fn is_late(&self, order: Order) -> bool {
        let elapsed = self.trial.elapsed();
        let kept_back = match order {
            Order::Abba => elapsed / self.runs.max(1) * RESERVED_RUNS,
            Order::Baab => Duration::ZERO,
        };
        elapsed + kept_back >= self.budget
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
