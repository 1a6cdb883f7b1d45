//! Router, experts and dense layers of the straight-line pass.

use super::{Choice, Real, StraightLine, Table, add_to};
use crate::ids::{ExpertId, LayerId};
use crate::parts::EXPERT_BIASES;
use crate::spec::{Activation, GateScore, GateSpec, MoeSpec};
use crate::weights::{Part, SourceError};

impl<R: Real> StraightLine<'_, R> {
    /// `down * join(gate * h, up * h)`, the down projection summed over the model's slices. `biased`
    /// is the expert whose biases are added to each product.
    pub(super) fn gated_unit(
        &mut self,
        id: LayerId,
        [gate, up, down]: [Part; 3],
        activation: Activation,
        biased: Option<ExpertId>,
        h: &[R],
    ) -> Result<Vec<R>, SourceError> {
        let [gate_bias, up_bias, down_bias] = EXPERT_BIASES;
        let mut gate = self.times(id, gate, h)?;
        self.add_expert_bias(id, gate_bias, biased, &mut gate)?;
        let mut up = self.times(id, up, h)?;
        self.add_expert_bias(id, up_bias, biased, &mut up)?;
        let inner: Vec<R> = gate.iter().zip(&up).map(|(&g, &u)| join(activation, g, u)).collect();
        self.fetch(Some(id), down)?;
        let mut out = self.table(Some(id), down).times_sliced(&inner);
        self.add_expert_bias(id, down_bias, biased, &mut out)?;
        Ok(out)
    }

    fn add_expert_bias(
        &mut self,
        id: LayerId,
        part: Part,
        expert: Option<ExpertId>,
        out: &mut [R],
    ) -> Result<(), SourceError> {
        if let Some(expert) = expert {
            self.fetch(Some(id), part)?;
            add_to(out, self.table(Some(id), part).row(expert.index()));
        }
        Ok(())
    }

    /// The mixture of one row: experts in ascending id, then the shared expert.
    pub(super) fn mixture(
        &mut self,
        id: LayerId,
        moe: &MoeSpec,
        h: &[R],
    ) -> Result<(Vec<R>, Choice<R>), SourceError> {
        let logit_bias = moe.gate.logit_bias.then_some(Part::RouterLogitBias);
        let logits = self.projected(id, Part::Router, logit_bias, h)?;
        let bias = match moe.gate.bias {
            true => {
                self.fetch(Some(id), Part::RouterBias)?;
                Some(self.table(Some(id), Part::RouterBias))
            }
            false => None,
        };
        let choice = choose(&moe.gate, moe.top_k, &logits, bias);
        let mut ascending = choice.experts.clone();
        ascending.sort_by_key(|&(expert, _)| expert);
        let mut sum = vec![R::ZERO; h.len()];
        for (expert, weight) in ascending {
            let expert = ExpertId(expert);
            let parts =
                [Part::ExpertGate(expert), Part::ExpertUp(expert), Part::ExpertDown(expert)];
            let biased = moe.expert_bias.then_some(expert);
            let out = self.gated_unit(id, parts, moe.activation, biased, h)?;
            for (sum, value) in sum.iter_mut().zip(out) {
                *sum = sum.plus_product(weight, value);
            }
        }
        if moe.shared_intermediate > 0 {
            let parts = [Part::SharedGate, Part::SharedUp, Part::SharedDown];
            let mut out = self.gated_unit(id, parts, moe.activation, None, h)?;
            if moe.shared_score {
                self.fetch(Some(id), Part::SharedScore)?;
                let score = R::dot(&self.table(Some(id), Part::SharedScore).data, h).sigmoid();
                out.iter_mut().for_each(|value| *value = value.times(score));
            }
            add_to(&mut sum, &out);
        }
        Ok((sum, choice))
    }
}

/// Joins gate and up.
fn join<R: Real>(activation: Activation, gate: R, up: R) -> R {
    match activation {
        Activation::Silu => R::silu_mul(gate, up),
        Activation::Clamped { alpha, limit } => {
            let gate = gate.limited(f32::NEG_INFINITY, limit);
            let up = up.limited(-limit, limit).plus(R::from_f32(1.0));
            gate.times(gate.times(R::from_f32(alpha)).sigmoid()).times(up)
        }
    }
}

/// The gate: scores, groups, top-k, weights.
fn choose<R: Real>(
    gate: &GateSpec,
    top_k: usize,
    logits: &[R],
    bias: Option<&Table<R>>,
) -> Choice<R> {
    let scores: Vec<R> = match gate.score {
        GateScore::Sigmoid => logits.iter().map(|&logit| logit.sigmoid()).collect(),
        GateScore::Softmax => softmax(logits),
    };
    let biased: Vec<R> = match bias {
        Some(bias) => scores.iter().zip(&bias.data).map(|(&s, &b)| s.plus(b)).collect(),
        None => scores.clone(),
    };
    let group_size = logits.len() / gate.groups;
    let mut gap = f64::INFINITY;
    let mut open = vec![true; gate.groups];
    if gate.groups > 1 {
        let group_scores: Vec<R> = biased
            .chunks(group_size)
            .map(|group| {
                let order = by_falling(group, &vec![true; group.len()]);
                group[order[0]].plus(order.get(1).map_or(R::ZERO, |&second| group[second]))
            })
            .collect();
        let order = by_falling(&group_scores, &open);
        gap = gap.min(distance(&group_scores, &order, gate.groups_kept));
        for &group in &order[gate.groups_kept..] {
            open[group] = false;
        }
    }
    let allowed: Vec<bool> = (0..logits.len()).map(|e| open[e / group_size]).collect();
    let order = by_falling(&biased, &allowed);
    gap = gap.min(distance(&biased, &order, top_k));
    let chosen = &order[..top_k];
    let mut weights: Vec<R> = chosen.iter().map(|&e| scores[e]).collect();
    if gate.normalise {
        let sum = weights.iter().fold(R::ZERO, |sum, &w| sum.plus(w)).plus(R::from_f32(1e-20));
        weights.iter_mut().for_each(|w| *w = w.over(sum));
    }
    let scale = R::from_f32(gate.scale);
    let experts =
        chosen.iter().zip(weights).map(|(&e, weight)| (e as u32, weight.times(scale))).collect();
    Choice { experts, gap }
}

fn softmax<R: Real>(logits: &[R]) -> Vec<R> {
    let largest = logits.iter().copied().fold(logits[0], |a, b| if b > a { b } else { a });
    let minus_largest = R::ZERO.plus_product(R::from_f32(-1.0), largest);
    let shares: Vec<R> = logits.iter().map(|&l| l.plus(minus_largest).exp()).collect();
    let sum = R::sum(&shares);
    shares.into_iter().map(|share| share.over(sum)).collect()
}

/// Indices of the allowed scores by falling score; equal scores by rising index.
fn by_falling<R: Real>(scores: &[R], allowed: &[bool]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|&i| allowed[i]).collect();
    order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).expect("scores are numbers"));
    order
}

fn distance<R: Real>(scores: &[R], order: &[usize], keep: usize) -> f64 {
    match order.get(keep) {
        Some(&next) => scores[order[keep - 1]].to_f64() - scores[next].to_f64(),
        None => f64::INFINITY,
    }
}
