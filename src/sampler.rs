//! Which token comes next: greedy, or drawn from the nucleus.
//!
//! Logits of one position go in, one token id comes out. The engine owns one [`Sampler`] per
//! thread that samples; its buffers are made once for the vocabulary, so that a choice never
//! allocates. Nothing here remembers earlier choices: the randomness of a choice is a function of
//! (seed, choice index, position) alone, so that the answer doesn't depend on batching, on company
//! or on how often a position was tried.
//!
//! Arithmetic, in this order: `weight[i] = exp((logit[i] - max) / temperature)` in f32 with
//! `millstream_kernels::math::exp`; sums in f64 over ascending ids (the whole) and over falling
//! logits (the nucleus). Equal logits go to the lower id; +0 equals -0.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the highest logit; larger is more even. Finite, not negative.
    pub temperature: f32,
    /// The nucleus: the fewest most likely tokens whose probabilities reach this sum, at least
    /// one token. 0 to 1; 1 keeps all.
    pub top_p: f32,
    /// Key of the random generator.
    pub seed: u64,
}

impl Sampling {
    /// The highest logit, always.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0 };

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`SamplingError::Setting`] names the field, its value and what is allowed.
    pub fn check(&self) -> Result<(), SamplingError> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return Err(SamplingError::Setting {
                field: "temperature",
                value: self.temperature,
                allowed: "a finite number, 0 or more",
            });
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return Err(SamplingError::Setting {
                field: "top_p",
                value: self.top_p,
                allowed: "0 to 1",
            });
        }
        Ok(())
    }
}

/// Why no token could be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A setting is out of range.
    #[error("{field} is {value}; use {allowed}")]
    Setting {
        /// Which setting.
        field: &'static str,
        /// What it was.
        value: f32,
        /// What it may be.
        allowed: &'static str,
    },
    /// The model's output isn't a distribution.
    #[error(
        "position {position}: the logit of token {token} is {logit}; the model's weights or its \
         input are damaged (check the files' checksums)"
    )]
    NotFinite {
        /// Position of the logits.
        position: u64,
        /// First token concerned.
        token: u32,
        /// NaN or +infinity.
        logit: f32,
    },
    /// Every token is forbidden.
    #[error("position {position}: every logit is -infinity, so no token may follow")]
    NothingAllowed {
        /// Position of the logits.
        position: u64,
    },
}

/// A token that may be chosen. The order is the nucleus' order: a greater candidate comes first.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    weight: f32,
    id: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        let by_logit = self.logit.partial_cmp(&other.logit).expect("NaN was refused before");
        by_logit.then(other.id.cmp(&self.id))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// Chooses tokens for one vocabulary.
#[derive(Debug)]
pub struct Sampler {
    /// All candidates; becomes the heap and comes back.
    candidates: Vec<Candidate>,
    /// Those of the nucleus, most likely first.
    nucleus: Vec<Candidate>,
    vocabulary: usize,
}

impl Sampler {
    /// A sampler for `vocabulary` tokens; holds 24 bytes for each.
    pub fn new(vocabulary: usize) -> Sampler {
        Sampler {
            candidates: Vec::with_capacity(vocabulary),
            nucleus: Vec::with_capacity(vocabulary),
            vocabulary,
        }
    }

    /// Chooses a token from the logits of one position. `choice` is the index of the answer among
    /// those asked for at once (`n` of the HTTP APIs), `position` counts the sequence's tokens.
    ///
    /// # Errors
    /// When a setting is out of range, a logit is NaN or +infinity, or all are -infinity.
    ///
    /// # Panics
    /// When there are not `vocabulary` logits.
    pub fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        choice: u32,
        position: u64,
    ) -> Result<u32, SamplingError> {
        assert_eq!(logits.len(), self.vocabulary, "logits of another vocabulary");
        sampling.check()?;
        let best = highest(logits, position)?;
        if sampling.temperature == 0.0 {
            return Ok(best);
        }
        let whole = self.weigh(logits, logits[best as usize], sampling.temperature);
        let uniform = uniform(sampling.seed, choice, position);
        if sampling.top_p == 1.0 {
            return Ok(draw(&self.candidates, uniform * whole));
        }
        let part = self.cut(whole * f64::from(sampling.top_p));
        Ok(draw(&self.nucleus, uniform * part))
    }

    /// Fills `candidates` in ascending id, leaves out those without weight; returns the sum.
    fn weigh(&mut self, logits: &[f32], max: f32, temperature: f32) -> f64 {
        self.candidates.clear();
        let mut whole = 0.0;
        for (id, &logit) in logits.iter().enumerate() {
            let weight = millstream_kernels::math::exp((logit - max) / temperature);
            if weight > 0.0 {
                whole += f64::from(weight);
                self.candidates.push(Candidate { logit, weight, id: id as u32 });
            }
        }
        whole
    }

    /// Moves the most likely candidates to `nucleus` until their sum reaches `enough`; returns
    /// the sum. A heap, because the nucleus is short as a rule and the vocabulary long.
    fn cut(&mut self, enough: f64) -> f64 {
        self.nucleus.clear();
        let mut heap = BinaryHeap::from(std::mem::take(&mut self.candidates));
        let mut part = 0.0;
        while let Some(candidate) = heap.pop() {
            part += f64::from(candidate.weight);
            self.nucleus.push(candidate);
            if part >= enough {
                break;
            }
        }
        self.candidates = heap.into_vec();
        part
    }
}

/// The token with the highest logit, the lowest id among equals.
fn highest(logits: &[f32], position: u64) -> Result<u32, SamplingError> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in logits.iter().enumerate() {
        let token = id as u32;
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SamplingError::NotFinite { position, token, logit });
        }
        let beaten = best.is_none_or(|(_, highest)| logit > highest);
        if beaten && logit > f32::NEG_INFINITY {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token).ok_or(SamplingError::NothingAllowed { position })
}

/// The first candidate at which the running sum exceeds `target`; the last one if rounding keeps
/// the sum from getting there.
fn draw(candidates: &[Candidate], target: f64) -> u32 {
    let mut sum = 0.0;
    for candidate in candidates {
        sum += f64::from(candidate.weight);
        if sum > target {
            return candidate.id;
        }
    }
    candidates.last().expect("the best token has weight 1").id
}

/// A number in [0, 1) with 53 random bits, made from nothing but its arguments.
fn uniform(seed: u64, choice: u32, position: u64) -> f64 {
    let counter = [position as u32, (position >> 32) as u32, choice, 0];
    let key = [seed as u32, (seed >> 32) as u32];
    let [low, high, ..] = philox(counter, key);
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Philox4x32 with 10 rounds: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random
/// numbers: as easy as 1, 2, 3", SC 2011. A block cipher of the counter under the key.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let first = u64::from(counter[0]) * 0xD251_1F53;
        let second = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The three known answers for philox4x32 with 10 rounds of the authors' Random123 library
    /// (file `tests/kat_vectors`).
    #[test]
    fn philox_gives_the_known_answers() {
        let all = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([all; 4], [all; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniform_takes_the_upper_bits_of_both_words() {
        let expected = (0xe169_c58d_6627_e8d5_u64 >> 11) as f64 / (1u64 << 53) as f64;
        assert_eq!(uniform(0, 0, 0), expected);
        assert!(uniform(1, 0, 0) != expected && uniform(0, 1, 0) != expected);
        assert!(uniform(0, 0, 1) != expected && uniform(0, 0, 1 << 32) != uniform(0, 0, 1));
        assert!(uniform(1 << 32, 0, 0) != uniform(1, 0, 0));
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equals() {
        let mut sampler = Sampler::new(5);
        let choose = |sampler: &mut Sampler, logits: &[f32]| {
            sampler.choose(logits, &Sampling::GREEDY, 0, 0).unwrap()
        };
        assert_eq!(choose(&mut sampler, &[1.0, 3.0, 2.0, 3.0, -1.0]), 1);
        assert_eq!(choose(&mut sampler, &[-0.0, 0.0, -1.0, 0.0, -0.0]), 0);
        assert_eq!(choose(&mut sampler, &[f32::NEG_INFINITY, -9.0, -8.0, -8.0, -9.0]), 2);
    }

    #[test]
    fn broken_logits_are_errors_not_choices() {
        let mut sampler = Sampler::new(3);
        for temperature in [0.0, 1.0] {
            let sampling = Sampling { temperature, top_p: 0.9, seed: 1 };
            let nan = sampler.choose(&[0.0, f32::NAN, 1.0], &sampling, 0, 7);
            assert!(
                matches!(nan, Err(SamplingError::NotFinite { position: 7, token: 1, .. })),
                "{nan:?}"
            );
            let infinite = sampler.choose(&[0.0, 1.0, f32::INFINITY], &sampling, 0, 7);
            assert!(matches!(infinite, Err(SamplingError::NotFinite { token: 2, .. })));
            let none = sampler.choose(&[f32::NEG_INFINITY; 3], &sampling, 0, 7);
            assert_eq!(none, Err(SamplingError::NothingAllowed { position: 7 }));
        }
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        for (temperature, top_p) in
            [(-0.1, 1.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, 1.1), (1.0, f32::NAN)]
        {
            let sampling = Sampling { temperature, top_p, seed: 0 };
            assert!(sampling.check().is_err(), "{sampling:?}");
        }
    }

    #[test]
    fn same_seed_choice_and_position_give_the_same_token() {
        let logits: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32 / 20.0).collect();
        let sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: 42 };
        let draw = |sampler: &mut Sampler, sampling: &Sampling, choice| -> Vec<u32> {
            (0..64).map(|at| sampler.choose(&logits, sampling, choice, at).unwrap()).collect()
        };
        let first = draw(&mut Sampler::new(1000), &sampling, 0);
        let mut used = Sampler::new(1000);
        used.choose(&logits, &Sampling::GREEDY, 9, 9).unwrap();
        assert_eq!(draw(&mut used, &sampling, 0), first);
        let alone = used.choose(&logits, &sampling, 0, 40).unwrap();
        assert_eq!(alone, first[40], "a position doesn't depend on those before it");
        assert_ne!(draw(&mut used, &sampling, 1), first, "another choice draws otherwise");
        let other_seed = Sampling { seed: 43, ..sampling };
        assert_ne!(draw(&mut used, &other_seed, 0), first);
    }

    #[test]
    fn nucleus_keeps_the_fewest_tokens_that_reach_top_p() {
        // Probabilities 0.5, 0.3, 0.15, 0.05 out of order.
        let logits: Vec<f32> =
            [0.15f64, 0.5, 0.05, 0.3].iter().map(|&p| libm::log(p) as f32).collect();
        let mut sampler = Sampler::new(4);
        for (top_p, allowed) in
            [(0.0, &[1u32][..]), (0.45, &[1]), (0.7, &[1, 3]), (0.9, &[0, 1, 3])]
        {
            let sampling = Sampling { temperature: 1.0, top_p, seed: 5 };
            let mut seen: Vec<u32> =
                (0..2000).map(|at| sampler.choose(&logits, &sampling, 0, at).unwrap()).collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, allowed, "top_p {top_p}");
        }
    }

    /// Pearson's test against the exact distribution, 1e5 draws, with and without a nucleus.
    /// 29.59 is the 0.999 quantile of chi-square with 10 degrees of freedom; the draws are fixed
    /// by the seed, so the test can't flicker.
    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.3f32, -1.2, 2.0, 0.0, 1.1, -0.4, 0.9, 1.7, -2.0, 0.5, 1.3];
        for (temperature, top_p) in [(1.0f32, 1.0f32), (0.7, 1.0), (1.3, 0.8)] {
            let (expected, freedom) = exact(&logits, temperature, top_p);
            let sampling = Sampling { temperature, top_p, seed: 2024 };
            let mut sampler = Sampler::new(logits.len());
            let mut counts = [0u32; 11];
            let draws = 100_000u32;
            for at in 0..draws {
                let id = sampler.choose(&logits, &sampling, at % 3, u64::from(at)).unwrap();
                counts[id as usize] += 1;
            }
            let mut chi_square = 0.0;
            for (&count, &p) in counts.iter().zip(&expected) {
                let mean = p * f64::from(draws);
                assert!(p > 0.0 || count == 0, "a token outside the nucleus was drawn");
                if p > 0.0 {
                    chi_square += (f64::from(count) - mean) * (f64::from(count) - mean) / mean;
                }
            }
            assert!(freedom <= 10 && chi_square < 29.59, "chi-square {chi_square}");
        }
    }

    /// The distribution by the definition, in f64, and its degrees of freedom.
    fn exact(logits: &[f32], temperature: f32, top_p: f32) -> (Vec<f64>, usize) {
        let weights: Vec<f64> =
            logits.iter().map(|&l| libm::exp(f64::from(l) / f64::from(temperature))).collect();
        let whole: f64 = weights.iter().sum();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
        let (mut kept, mut part) = (0, 0.0);
        while part < f64::from(top_p) * whole && kept < order.len() {
            part += weights[order[kept]];
            kept += 1;
        }
        let mut probabilities = vec![0.0; weights.len()];
        for &id in &order[..kept] {
            probabilities[id] = weights[id] / part;
        }
        (probabilities, kept - 1)
    }
}
