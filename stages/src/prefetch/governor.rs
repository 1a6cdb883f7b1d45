//! Whether guessing pays, by what became of the last guesses.
//!
//! One a layer, owned by its prefetcher. A guess ends as useful (there when a wave came for it), late
//! (still on its way) or wasted (replaced, unused). Counts fade by a 64th with each outcome, so the
//! last few dozen decide. When wasted ones outweigh the useful and half the late ones, the layer
//! stops guessing for a while, twice as long each time, and then tries again.

/// What became of a guessed expert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// In its slot when a wave came for it.
    Useful,
    /// On its way when a wave came for it.
    Late,
    /// Gone before any wave came for it.
    Wasted,
}

/// How much of the counts an outcome leaves.
const FADE: f32 = 63.0 / 64.0;
/// Outcomes (faded) before the counts mean anything.
const OUTCOMES_MIN: f32 = 16.0;
/// Waves of the first pause, and of the longest.
const PAUSE_WAVES_MIN: u32 = 128;
const PAUSE_WAVES_MAX: u32 = 8192;

/// Lets a layer guess, or not.
#[derive(Debug)]
pub struct Governor {
    useful: f32,
    late: f32,
    wasted: f32,
    /// Waves until the next try; 0 while guessing.
    pause_waves: u32,
    next_pause_waves: u32,
    /// Never pauses.
    always: bool,
}

impl Governor {
    /// One that lets guess until it has seen enough; `always` keeps it from pausing.
    pub fn new(always: bool) -> Governor {
        let (useful, late, wasted) = (0.0, 0.0, 0.0);
        let next_pause_waves = PAUSE_WAVES_MIN;
        Governor { useful, late, wasted, pause_waves: 0, next_pause_waves, always }
    }

    /// True while the layer may guess.
    pub fn allows(&self) -> bool {
        self.pause_waves == 0
    }

    /// Counts what became of a guess; what ends in a pause was begun before it and counted by then.
    pub fn count(&mut self, outcome: Outcome) {
        if !self.allows() {
            return;
        }
        for count in [&mut self.useful, &mut self.late, &mut self.wasted] {
            *count *= FADE;
        }
        match outcome {
            Outcome::Useful => self.useful += 1.0,
            Outcome::Late => self.late += 1.0,
            Outcome::Wasted => self.wasted += 1.0,
        }
        let all = self.useful + self.late + self.wasted;
        if all < OUTCOMES_MIN || self.always {
            return;
        }
        if self.wasted > self.useful + self.late / 2.0 {
            self.pause_waves = self.next_pause_waves;
            self.next_pause_waves = (2 * self.next_pause_waves).min(PAUSE_WAVES_MAX);
            (self.useful, self.late, self.wasted) = (0.0, 0.0, 0.0);
        } else if all > 2.0 * OUTCOMES_MIN {
            self.next_pause_waves = PAUSE_WAVES_MIN;
        }
    }

    /// A wave came to the layer.
    pub fn wave(&mut self) {
        self.pause_waves = self.pause_waves.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(governor: &mut Governor, outcome: Outcome, times: usize) {
        (0..times).for_each(|_| governor.count(outcome));
    }

    #[test]
    fn wasted_guesses_end_guessing_for_a_while() {
        let mut governor = Governor::new(false);
        count(&mut governor, Outcome::Wasted, 40);
        assert!(!governor.allows());
        (0..PAUSE_WAVES_MIN).for_each(|_| governor.wave());
        assert!(governor.allows(), "it tries again");
        count(&mut governor, Outcome::Wasted, 40);
        (0..PAUSE_WAVES_MIN).for_each(|_| governor.wave());
        assert!(!governor.allows(), "the second pause is longer");
    }

    #[test]
    fn useful_guesses_go_on_and_a_few_wasted_ones_prove_nothing() {
        let mut governor = Governor::new(false);
        count(&mut governor, Outcome::Wasted, 3);
        assert!(governor.allows());
        for _ in 0..1000 {
            governor.count(Outcome::Useful);
            governor.count(Outcome::Late);
            governor.count(Outcome::Wasted);
        }
        assert!(governor.allows());
    }

    #[test]
    fn told_to_go_on_it_never_pauses() {
        let mut governor = Governor::new(true);
        count(&mut governor, Outcome::Wasted, 1000);
        assert!(governor.allows());
    }
}
