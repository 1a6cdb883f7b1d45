//! Mixed: what is used now, and what earlier sessions learned.
//!
//! The aged uses of this session and the learned rates are two estimates of the same thing. Here the
//! learned one counts as a constant amount of evidence: much at the start, little once the session
//! has a memory of its own.

use super::frequency::AgedUses;
use super::{Eviction, Habits};
use crate::ids::ExpertId;

/// What was learned counts as the evidence of so many mean intervals of reuse.
const LEARNED_INTERVALS: f64 = 0.5;

struct Mixed {
    recent: AgedUses,
    /// Tokens that the learned rates count as.
    learned_tokens: f64,
    /// Uses per token, by expert.
    learned_rates: Vec<f64>,
}

/// The state of one layer.
pub fn start(habits: &Habits<'_>) -> Box<dyn Eviction> {
    Box::new(Mixed {
        recent: AgedUses::new(habits),
        learned_tokens: LEARNED_INTERVALS * habits.interval_tokens(),
        learned_rates: habits.learned_rates(),
    })
}

impl Eviction for Mixed {
    fn pass(&mut self, tokens: usize) {
        self.recent.pass(tokens);
    }

    fn used(&mut self, expert: ExpertId, tokens: usize) {
        self.recent.used(expert, tokens);
    }

    fn worth(&self, expert: ExpertId) -> f64 {
        let learned_uses = self.learned_rates[expert.index()] * self.learned_tokens;
        let evidence_tokens = self.recent.memory_tokens() + self.learned_tokens;
        ((self.recent.uses(expert) + learned_uses) / evidence_tokens).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_decides_until_something_is_used() {
        let habits = Habits { experts: 4, top_k: 1, learned: &[5, 50, 0, 5] };
        let mut policy = start(&habits);
        assert!(policy.worth(ExpertId(1)) > policy.worth(ExpertId(0)));
        for _ in 0..20 {
            policy.pass(1);
            policy.used(ExpertId(2), 1);
        }
        assert!(policy.worth(ExpertId(2)) > policy.worth(ExpertId(1)));
    }
}
