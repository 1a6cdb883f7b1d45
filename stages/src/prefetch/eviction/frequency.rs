//! Frequency with aging: the expert that was used least goes, and uses count less as they grow old.

use super::{Eviction, Habits};
use crate::ids::ExpertId;

/// After so many mean intervals of reuse a use counts half.
const HALF_LIFE_INTERVALS: f64 = 3.0;
/// Uses are counted in a unit that grows with time instead of being divided at every step; at this
/// size of the unit all counts are divided once.
const UNIT_MAX: f64 = 1e200;

/// Uses of each expert, aged.
pub struct AgedUses {
    /// What a use counts now.
    unit: f64,
    /// The unit's growth with a token.
    growth: f64,
    /// What a use by one of the present tokens counts: the mean over the wave, whose first tokens
    /// are older than its last.
    present: f64,
    /// By expert, in units of the start.
    uses: Vec<f64>,
}

impl AgedUses {
    /// No uses.
    pub fn new(habits: &Habits<'_>) -> AgedUses {
        let half_life_tokens = HALF_LIFE_INTERVALS * habits.interval_tokens();
        // 2^(1/n) to first order: "half" is about half.
        let growth = 1.0 + std::f64::consts::LN_2 / half_life_tokens;
        AgedUses { unit: 1.0, growth, present: 1.0, uses: vec![0.0; habits.experts] }
    }

    /// Tokens' worth of evidence that the counts hold once enough tokens went by.
    pub fn memory_tokens(&self) -> f64 {
        self.growth / (self.growth - 1.0)
    }

    /// So many tokens go by.
    pub fn pass(&mut self, tokens: usize) {
        if tokens == 0 {
            return;
        }
        let mut kept = 1.0;
        for _ in 0..tokens {
            kept /= self.growth;
            self.unit *= self.growth;
            if self.unit > UNIT_MAX {
                self.uses.iter_mut().for_each(|uses| *uses /= self.unit);
                self.unit = 1.0;
            }
        }
        let mean = (1.0 - kept) * self.memory_tokens() / tokens as f64;
        self.present = self.unit * mean;
    }

    /// So many of the present tokens use an expert.
    pub fn used(&mut self, expert: ExpertId, tokens: usize) {
        self.uses[expert.index()] += self.present * tokens as f64;
    }

    /// Uses of an expert, aged: at most about [`AgedUses::memory_tokens`].
    pub fn uses(&self, expert: ExpertId) -> f64 {
        self.uses[expert.index()] / self.unit
    }
}

struct Frequency(AgedUses);

/// The state of one layer.
pub fn start(habits: &Habits<'_>) -> Box<dyn Eviction> {
    Box::new(Frequency(AgedUses::new(habits)))
}

impl Eviction for Frequency {
    fn pass(&mut self, tokens: usize) {
        self.0.pass(tokens);
    }

    fn used(&mut self, expert: ExpertId, tokens: usize) {
        self.0.used(expert, tokens);
    }

    fn worth(&self, expert: ExpertId) -> f64 {
        (self.0.uses(expert) / self.0.memory_tokens()).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_counts_as_its_tokens_one_by_one_would() {
        let habits = Habits { experts: 4, top_k: 1, learned: &[] };
        let (mut whole, mut single) = (AgedUses::new(&habits), AgedUses::new(&habits));
        for expert in [0, 1, 0, 2].map(ExpertId) {
            whole.pass(500);
            whole.used(expert, 500);
            for _ in 0..500 {
                single.pass(1);
                single.used(expert, 1);
            }
        }
        for expert in (0..4).map(ExpertId) {
            let (whole, single) = (whole.uses(expert), single.uses(expert));
            assert!((whole - single).abs() <= 1e-9 * single, "{expert:?}: {whole} {single}");
        }
    }
}
