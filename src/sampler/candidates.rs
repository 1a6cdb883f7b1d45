//! The tokens that may be drawn, by weight: which are kept, and which one it is.
//!
//! The sampler owns one [`Candidates`]; logits and a number in [0, 1) go in, a token comes out. What
//! top-k, top-p and min-p keep are beginnings of one order, by falling weight, so the shortest counts.

use super::Sampling;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A token that may be chosen. The order is the order of what is kept: a greater candidate comes first.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// What the order is by.
    pub logit: f32,
    /// Its share of the draw.
    pub weight: f32,
    /// The token.
    pub id: u32,
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

/// Room for the candidates of one choice.
#[derive(Debug)]
pub struct Candidates {
    /// All of them; becomes the heap and comes back.
    all: Vec<Candidate>,
    /// Those that are kept, most likely first.
    kept: Vec<Candidate>,
}

impl Candidates {
    /// Room for a vocabulary.
    pub fn new(vocabulary: usize) -> Candidates {
        Candidates { all: Vec::with_capacity(vocabulary), kept: Vec::with_capacity(vocabulary) }
    }

    /// Draws a token; `max` is the highest of the logits, `uniform` in [0, 1).
    pub fn draw(&mut self, logits: &[f32], max: f32, sampling: &Sampling, uniform: f64) -> u32 {
        let whole = self.weigh(logits, max, sampling.temperature);
        if !sampling.cuts() {
            return draw(&self.all, uniform * whole);
        }
        let part = self.cut(whole, sampling);
        draw(&self.kept, uniform * part)
    }

    /// Fills `all` in ascending id, leaves out those without weight; returns the sum.
    fn weigh(&mut self, logits: &[f32], max: f32, temperature: f32) -> f64 {
        self.all.clear();
        let mut whole = 0.0;
        for (id, &logit) in logits.iter().enumerate() {
            let weight = millstream_kernels::math::exp((logit - max) / temperature);
            if weight > 0.0 {
                whole += f64::from(weight);
                self.all.push(Candidate { logit, weight, id: id as u32 });
            }
        }
        whole
    }

    /// Moves the most likely candidates to `kept`, as few as the settings say; returns their sum. A
    /// heap, because they are few as a rule and the vocabulary is long.
    fn cut(&mut self, whole: f64, sampling: &Sampling) -> f64 {
        self.kept.clear();
        let mut heap = BinaryHeap::from(std::mem::take(&mut self.all));
        let mut whole = whole;
        if sampling.top_k > 0 {
            // The nucleus is one of the tokens that top-k leaves, so their sum must be known first.
            whole = 0.0;
            while self.kept.len() < sampling.top_k as usize
                && let Some(candidate) = heap.pop()
            {
                whole += f64::from(candidate.weight);
                self.kept.push(candidate);
            }
        }
        let enough = whole * f64::from(sampling.top_p);
        let (mut count, mut part) = (0, 0.0);
        while count == 0 || part < enough || sampling.top_p == 1.0 {
            let next = match sampling.top_k {
                0 => heap.pop().inspect(|&candidate| self.kept.push(candidate)),
                _ => self.kept.get(count).copied(),
            };
            // The likeliest has weight 1, so the first one always stays.
            let Some(next) = next.filter(|next| next.weight >= sampling.min_p) else { break };
            part += f64::from(next.weight);
            count += 1;
        }
        self.kept.truncate(count);
        self.all = heap.into_vec();
        part
    }
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
