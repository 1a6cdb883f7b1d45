//! Which experts a row gets: scores, groups, top-k, weights.
//!
//! Arithmetic without messages: the router chooses with it, and foresight guesses with the same.
//! Scores, groups and normalisation follow DeepSeek-V3 (arXiv 2412.19437, section 2.1.2): the bias
//! takes part in the choice and never in the weight. Equal scores choose the lower id.

use crate::spec::{GateScore, MoeSpec};
use crate::wave::Routing;
use millstream_kernels::{Kernels, math};

/// The biases of a gate, one for each expert.
#[derive(Clone, Debug, Default)]
pub struct GateBiases {
    /// On the logits.
    pub logits: Option<Vec<f32>>,
    /// Takes part in the choice only.
    pub choice: Option<Vec<f32>>,
}

/// The choice of one row and its working memory.
pub struct Chooser {
    scores: Vec<f32>,
    biased: Vec<f32>,
    group_scores: Vec<f32>,
    groups: Vec<u32>,
    /// The chosen experts, by falling biased score.
    pub chosen: Vec<u32>,
}

impl Chooser {
    /// Working memory for a layer's choices.
    pub fn new(moe: &MoeSpec) -> Chooser {
        Chooser {
            scores: vec![0.0; moe.experts],
            biased: vec![0.0; moe.experts],
            group_scores: Vec::with_capacity(moe.gate.groups),
            groups: Vec::with_capacity(moe.gate.groups),
            chosen: Vec::with_capacity(moe.experts),
        }
    }

    /// Fills `scores` and `chosen` (by falling biased score) from a row's logits.
    pub fn choose(&mut self, moe: &MoeSpec, logits: &[f32], biases: &GateBiases, kernels: Kernels) {
        self.scores.copy_from_slice(logits);
        if let Some(bias) = &biases.logits {
            kernels.add(bias, &mut self.scores);
        }
        match moe.gate.score {
            GateScore::Sigmoid => self.scores.iter_mut().for_each(|s| *s = math::sigmoid(*s)),
            GateScore::Softmax => {
                let (_, sum) = kernels.softmax_block(&mut self.scores);
                self.scores.iter_mut().for_each(|score| *score /= sum);
            }
        }
        self.biased.copy_from_slice(&self.scores);
        if let Some(bias) = &biases.choice {
            kernels.add(bias, &mut self.biased);
        }
        // A NaN (from weights that overflow) must not break the order: it is chosen last.
        for score in &mut self.biased {
            if score.is_nan() {
                *score = f32::NEG_INFINITY;
            }
        }
        self.close_groups(moe);
        largest(&self.biased, moe.top_k, &mut self.chosen);
    }

    /// Keeps the best groups: the experts of the others can't be chosen.
    fn close_groups(&mut self, moe: &MoeSpec) {
        if moe.gate.groups <= 1 {
            return;
        }
        let size = moe.experts / moe.gate.groups;
        self.group_scores.clear();
        for group in self.biased.chunks(size) {
            let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for &score in group {
                if score > best {
                    (best, second) = (score, best);
                } else if score > second {
                    second = score;
                }
            }
            let score = if group.len() > 1 { best + second } else { best };
            // Infinities of both signs (a damaged bias) add up to a NaN.
            self.group_scores.push(if score.is_nan() { f32::NEG_INFINITY } else { score });
        }
        largest(&self.group_scores, moe.gate.groups_kept, &mut self.groups);
        for (group, scores) in self.biased.chunks_mut(size).enumerate() {
            if !self.groups.contains(&(group as u32)) {
                scores.fill(f32::NEG_INFINITY);
            }
        }
    }

    /// Appends the chosen experts and their weights to the routing.
    pub fn weigh(&self, moe: &MoeSpec, routing: &mut Routing) {
        let first = routing.weights.len();
        for &expert in &self.chosen {
            routing.experts.push(expert);
            routing.weights.push(self.scores[expert as usize]);
        }
        let weights = &mut routing.weights[first..];
        if moe.gate.normalise {
            let sum = weights.iter().fold(0.0f32, |sum, &weight| sum + weight) + 1e-20;
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        weights.iter_mut().for_each(|weight| *weight *= moe.gate.scale);
    }
}

/// Indices of the `count` largest scores by falling score; equal scores by rising index.
fn largest(scores: &[f32], count: usize, chosen: &mut Vec<u32>) {
    chosen.clear();
    chosen.extend(0..scores.len() as u32);
    let falling = |a: &u32, b: &u32| {
        let (left, right) = (scores[*a as usize], scores[*b as usize]);
        right.partial_cmp(&left).expect("scores are numbers").then(a.cmp(b))
    };
    if count < chosen.len() {
        chosen.select_nth_unstable_by(count, falling);
        chosen.truncate(count);
    }
    chosen.sort_unstable_by(falling);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Activation, GateSpec};

    #[test]
    fn equal_scores_choose_the_lower_id() {
        let mut chosen = vec![];
        largest(&[0.5, -0.0, 0.5, 0.0, 0.5], 4, &mut chosen);
        assert_eq!(chosen, [0, 2, 4, 1]);
    }

    #[test]
    fn infinite_biases_choose_experts_and_break_nothing() {
        let gate = GateSpec {
            score: GateScore::Sigmoid,
            logit_bias: false,
            bias: true,
            groups: 2,
            groups_kept: 1,
            normalise: true,
            scale: 1.0,
        };
        let moe = MoeSpec {
            experts: 4,
            top_k: 2,
            intermediate: 8,
            shared_intermediate: 0,
            shared_score: false,
            activation: Activation::Silu,
            expert_bias: false,
            gate,
        };
        let mut chooser = Chooser::new(&moe);
        let kernels =
            Kernels::new(millstream_kernels::Isa::Scalar).expect("scalar runs everywhere");
        let bias = vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0];
        let biases = GateBiases { choice: Some(bias), logits: None };
        chooser.choose(&moe, &[0.5, f32::NAN, 0.1, 0.2], &biases, kernels);
        assert_eq!(chooser.chosen.len(), 2);
    }
}
