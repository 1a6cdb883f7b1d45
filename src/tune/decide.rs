//! The rule by which a change is taken: a pure function over samples.
//!
//! A change is taken when the median run is faster by [`GAIN_MIN`] or more, the interval of the gain (by
//! resampling, 99 %) lies above zero, the 99th percentile isn't longer by more than [`P99_WORSE_MAX`],
//! and every run chose the same tokens. So noise alone seldom passes, and when it does, it is small.

/// A change must gain this at least: less isn't worth a setting.
pub const GAIN_MIN: f64 = 0.03;
/// The 99th percentile may grow by this.
pub const P99_WORSE_MAX: f64 = 0.05;
/// Runs of each side before a change may be taken.
pub const RUNS_MIN: usize = 8;
/// How often the samples are drawn anew for the interval, and the share left out at either end.
const RESAMPLES: usize = 4000;
const TAIL: f64 = 0.005;

/// What one run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Seconds a token.
    pub token_s: f64,
    /// The 99th percentile of the time between tokens, in seconds.
    pub p99_s: f64,
    /// Hash of what the model chose.
    pub hash: String,
}

/// What the samples of two settings say.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// By how much the second is faster: 0.1 is 10 % more tokens a second.
    pub gain: f64,
    /// The interval of the gain.
    pub gain_low: f64,
    /// Likewise.
    pub gain_high: f64,
    /// By how much its 99th percentile is longer.
    pub p99_worse: f64,
    /// All runs of both chose the same tokens.
    pub same_tokens: bool,
    /// Runs of the smaller side.
    pub runs: usize,
}

/// What follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The change is taken.
    Take,
    /// It isn't, and more runs would hardly change that.
    Leave,
    /// More runs could decide.
    Undecided,
}

/// Looks at the samples of a setting and of a change.
pub fn judge(before: &[Run], after: &[Run]) -> Judgement {
    let seconds = |runs: &[Run]| runs.iter().map(|run| run.token_s).collect::<Vec<_>>();
    let p99 = |runs: &[Run]| median(&mut runs.iter().map(|run| run.p99_s).collect::<Vec<_>>());
    let (a, b) = (seconds(before), seconds(after));
    let gain = |a: &mut [f64], b: &mut [f64]| median(a) / median(b) - 1.0;
    let (gain_low, gain_high) = interval(&a, &b, gain);
    let hashes = || before.iter().chain(after).map(|run| &run.hash);
    Judgement {
        gain: gain(&mut a.clone(), &mut b.clone()),
        gain_low,
        gain_high,
        p99_worse: p99(after) / p99(before) - 1.0,
        same_tokens: hashes().all(|hash| Some(hash) == hashes().next()),
        runs: before.len().min(after.len()),
    }
}

impl Judgement {
    /// What follows from it.
    pub fn verdict(&self) -> Verdict {
        if !self.same_tokens || self.gain_high < GAIN_MIN {
            return Verdict::Leave;
        }
        let faster = self.gain >= GAIN_MIN && self.gain_low > 0.0;
        match faster && self.p99_worse <= P99_WORSE_MAX && self.runs >= RUNS_MIN {
            true => Verdict::Take,
            false => Verdict::Undecided,
        }
    }

    /// Why the change isn't taken, in words.
    pub fn reason(&self) -> &'static str {
        if !self.same_tokens {
            "its tokens differ"
        } else if self.gain < GAIN_MIN {
            "it gains less than 3 %"
        } else if self.gain_low <= 0.0 {
            "that may be noise"
        } else if self.p99_worse > P99_WORSE_MAX {
            "its slowest tokens are slower"
        } else {
            "too few runs"
        }
    }
}

/// The interval of a figure of two samples, by drawing them anew.
fn interval(a: &[f64], b: &[f64], figure: impl Fn(&mut [f64], &mut [f64]) -> f64) -> (f64, f64) {
    let mut random = Random(0x6d69_6c6c);
    let (mut drawn_a, mut drawn_b) = (a.to_vec(), b.to_vec());
    let mut figures: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            drawn_a.iter_mut().for_each(|value| *value = a[random.below(a.len())]);
            drawn_b.iter_mut().for_each(|value| *value = b[random.below(b.len())]);
            figure(&mut drawn_a, &mut drawn_b)
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    let at = |share: f64| figures[((RESAMPLES - 1) as f64 * share) as usize];
    (at(TAIL), at(1.0 - TAIL))
}

/// The median; of an even number, the mean of the two in the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(seconds: &[f64], p99_s: f64, hash: &str) -> Vec<Run> {
        seconds.iter().map(|&token_s| Run { token_s, p99_s, hash: hash.to_owned() }).collect()
    }

    const BEFORE: [f64; 8] = [1.00, 1.01, 0.99, 1.02, 1.00, 0.98, 1.01, 1.00];

    fn times(factor: f64) -> Vec<f64> {
        BEFORE.iter().map(|seconds| seconds * factor).collect()
    }

    #[test]
    fn each_condition_can_refuse_a_change() {
        let before = runs(&BEFORE, 2.0, "x");
        let verdict = |after: Vec<Run>| judge(&before, &after).verdict();
        assert_eq!(verdict(runs(&times(0.9), 2.0, "x")), Verdict::Take);
        assert_eq!(verdict(runs(&times(0.9), 2.0, "y")), Verdict::Leave, "other tokens");
        assert_eq!(verdict(runs(&times(0.9), 2.2, "x")), Verdict::Undecided, "slow tokens");
        assert_eq!(verdict(runs(&times(0.98), 2.0, "x")), Verdict::Undecided, "a small gain");
        assert_eq!(verdict(runs(&times(1.1), 2.0, "x")), Verdict::Leave, "slower");
        assert_eq!(verdict(runs(&times(0.9)[..7], 2.0, "x")), Verdict::Undecided, "few runs");
        let wild = [0.5, 1.6, 0.6, 1.5, 0.7, 1.4, 0.8, 1.1];
        assert_eq!(verdict(runs(&wild, 2.0, "x")), Verdict::Undecided, "noise");
    }

    #[test]
    fn the_interval_holds_the_gain() {
        let judgement = judge(&runs(&BEFORE, 1.0, "x"), &runs(&times(0.8), 1.0, "x"));
        assert!((judgement.gain - 0.25).abs() < 1e-9, "{judgement:?}");
        assert!(
            judgement.gain_low < 0.25 && judgement.gain_high > 0.25 && judgement.gain_low > 0.2
        );
    }
}
