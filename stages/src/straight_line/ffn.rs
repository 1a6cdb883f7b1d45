//! Router, experts and dense layers of the straight-line pass.

use super::{Choice, Real, StraightLine, Table, add_to};
use crate::ids::{ExpertId, LayerId};
use crate::spec::{GateScore, GateSpec, MoeSpec};
use crate::weights::{Part, SourceError};

impl<R: Real> StraightLine<'_, R> {
    /// `down * (silu(gate * h) * (up * h))`, the down projection summed over the model's slices.
    pub(super) fn gated_unit(
        &mut self,
        id: LayerId,
        [gate, up, down]: [Part; 3],
        h: &[R],
    ) -> Result<Vec<R>, SourceError> {
        let gate = self.times(id, gate, h)?;
        let up = self.times(id, up, h)?;
        let inner: Vec<R> = gate.iter().zip(&up).map(|(&g, &u)| R::silu_mul(g, u)).collect();
        self.fetch(Some(id), down)?;
        Ok(self.table(Some(id), down).times_sliced(&inner))
    }

    /// The mixture of one row: experts in ascending id, then the shared expert.
    pub(super) fn mixture(
        &mut self,
        id: LayerId,
        moe: &MoeSpec,
        h: &[R],
    ) -> Result<(Vec<R>, Choice<R>), SourceError> {
        let logits = self.times(id, Part::Router, h)?;
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
            let out = self.gated_unit(id, parts, h)?;
            for (sum, value) in sum.iter_mut().zip(out) {
                *sum = sum.plus_product(weight, value);
            }
        }
        if moe.shared_intermediate > 0 {
            let parts = [Part::SharedGate, Part::SharedUp, Part::SharedDown];
            let out = self.gated_unit(id, parts, h)?;
            add_to(&mut sum, &out);
        }
        Ok((sum, choice))
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
