//! What an expert in a slot is worth, and so which one goes when a slot is needed.
//!
//! | file | policy |
//! |---|---|
//! | `recency.rs` | the one that was used longest ago goes |
//! | `frequency.rs` | the one that was used least goes; uses count less as they grow old |
//! | `least_stale.rs` | the one goes whose next use is furthest off by its own habit |
//! | `mixed.rs` | as frequency, and what earlier sessions learned counts too |
//!
//! A policy belongs to one layer's slot table, which tells it how time passes and which experts are
//! used, and asks what experts are worth. Time is counted in tokens: a wave of n rows is n tokens'
//! worth of evidence, whether it is a prompt's chunk or one token of n answers. What a policy says
//! changes which experts have to be read, never a byte of the answer. To add one: a file, and a line
//! in [`EVICTIONS`].

mod frequency;
mod least_stale;
mod mixed;
mod recency;

use crate::ids::ExpertId;
use std::fmt;

/// What experts are worth. State is bounded by the layer's experts and made at the start.
pub trait Eviction: Send {
    /// A wave begins: so many tokens go by. 0 for the later chunks of the same wave.
    fn pass(&mut self, tokens: usize);

    /// So many of the present tokens use an expert.
    fn used(&mut self, expert: ExpertId, tokens: usize);

    /// About how many uses the next token makes of an expert: 0 to 1, not NaN. Only the order
    /// decides what goes; hints are weighed on the same scale.
    fn worth(&self, expert: ExpertId) -> f64;
}

/// What is known of a layer before anything ran.
#[derive(Clone, Copy, Debug)]
pub struct Habits<'a> {
    /// Experts of the layer.
    pub experts: usize,
    /// Experts that a token uses.
    pub top_k: usize,
    /// Uses that earlier sessions counted, by expert; empty when there are none.
    pub learned: &'a [u32],
}

impl Habits<'_> {
    /// Tokens from one use of an expert to the next, if all were used alike.
    pub fn interval_tokens(&self) -> f64 {
        self.experts as f64 / self.top_k.max(1) as f64
    }

    /// Learned uses of each expert per token, which add up to `top_k`; zeros if none are known.
    fn learned_rates(&self) -> Vec<f64> {
        let total: f64 = self.learned.iter().map(|&uses| f64::from(uses)).sum();
        let rate = |expert: usize| {
            let uses = self.learned.get(expert).copied().unwrap_or(0);
            if total > 0.0 { f64::from(uses) / total * self.top_k as f64 } else { 0.0 }
        };
        (0..self.experts).map(rate).collect()
    }
}

/// A policy that can be chosen.
#[derive(Clone, Copy)]
pub struct EvictionPolicy {
    /// Its name.
    pub name: &'static str,
    /// The one line that a user needs.
    pub help: &'static str,
    start: fn(&Habits<'_>) -> Box<dyn Eviction>,
}

/// Every policy.
pub const EVICTIONS: [EvictionPolicy; 4] = [
    policy("recency", "the expert used longest ago goes", recency::start),
    policy("frequency", "the expert used least goes; old uses count less", frequency::start),
    policy("least-stale", "the expert whose next use is furthest off goes", least_stale::start),
    policy("mixed", "as frequency, with what earlier sessions learned", mixed::start),
];

const fn policy(
    name: &'static str,
    help: &'static str,
    start: fn(&Habits<'_>) -> Box<dyn Eviction>,
) -> EvictionPolicy {
    EvictionPolicy { name, help, start }
}

impl EvictionPolicy {
    /// The policy of that name.
    pub fn named(name: &str) -> Option<EvictionPolicy> {
        EVICTIONS.into_iter().find(|policy| policy.name == name)
    }

    /// Its state for one layer.
    pub fn start(&self, habits: &Habits<'_>) -> Box<dyn Eviction> {
        (self.start)(habits)
    }
}

/// The best of the four on recorded traces (docs/tuning.md).
impl Default for EvictionPolicy {
    fn default() -> EvictionPolicy {
        EvictionPolicy::named("frequency").expect("it is in the table")
    }
}

impl PartialEq for EvictionPolicy {
    fn eq(&self, other: &EvictionPolicy) -> bool {
        self.name == other.name
    }
}

impl Eq for EvictionPolicy {}

impl fmt::Debug for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HABITS: Habits<'_> = Habits { experts: 6, top_k: 2, learned: &[] };

    fn step(policy: &mut dyn Eviction, experts: &[u32]) {
        policy.pass(1);
        experts.iter().for_each(|&expert| policy.used(ExpertId(expert), 1));
    }

    #[test]
    fn every_policy_values_what_is_used_over_what_never_was() {
        for entry in EVICTIONS {
            let mut policy = entry.start(&HABITS);
            (0..40).for_each(|_| step(&mut *policy, &[1, 4]));
            let worth = |expert| policy.worth(ExpertId(expert));
            assert!(worth(1) > worth(0) && worth(4) > worth(5), "{entry:?}");
            assert!((0..6).all(|expert| (0.0..=1.0).contains(&worth(expert))), "{entry:?}");
        }
    }

    #[test]
    fn every_policy_forgets() {
        for entry in EVICTIONS {
            let mut policy = entry.start(&HABITS);
            (0..40).for_each(|_| step(&mut *policy, &[0, 1]));
            (0..80).for_each(|_| step(&mut *policy, &[2, 3]));
            assert!(policy.worth(ExpertId(2)) > policy.worth(ExpertId(0)), "{entry:?}");
        }
    }

    #[test]
    fn long_runs_leave_every_worth_a_number() {
        for entry in EVICTIONS {
            let mut policy = entry.start(&HABITS);
            for wave in 0..3000 {
                policy.pass(4096);
                policy.used(ExpertId(wave % 5), 4096);
            }
            let worths: Vec<f64> = (0..6).map(|expert| policy.worth(ExpertId(expert))).collect();
            assert!(worths.iter().all(|worth| (0.0..=1.0).contains(worth)), "{entry:?} {worths:?}");
            assert!(worths[4] > worths[5], "{entry:?} {worths:?}");
        }
    }

    #[test]
    fn names_are_found_and_the_default_is_one_of_them() {
        assert!(EVICTIONS.iter().all(|entry| EvictionPolicy::named(entry.name) == Some(*entry)));
        assert_eq!(EvictionPolicy::named("psychic"), None);
        assert!(EVICTIONS.contains(&EvictionPolicy::default()));
    }
}
