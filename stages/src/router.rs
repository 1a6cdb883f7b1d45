//! Router(L): gate, top-k, and the union of experts over the rows of a wave.
//!
//! Takes a wave with its normed state, leaves the choice in [`Routing`] and sends the wave to the
//! layer's prefetcher. Scores, groups and normalisation follow DeepSeek-V3 (arXiv 2412.19437,
//! section 2.1.2): the bias takes part in the choice and never in the weight. Equal scores choose
//! the lower id.

use crate::compute::Product;
use crate::gauge::StageTimer;
use crate::ids::{ExpertId, LayerId};
use crate::limits::Limits;
use crate::placed::PlacedRows;
use crate::spec::{GateScore, MoeSpec};
use crate::stage::{ActorId, Message, SeatContext, Stage, StageKind};
use crate::wave::{ExpertRows, Routing, Wave};
use millstream_kernels::{Kernels, math};
use millstream_topology::arena::LayerArena;
use std::sync::Arc;

/// The router of one layer.
pub struct Router {
    layer: LayerId,
    moe: MoeSpec,
    gate: PlacedRows,
    bias: Option<Vec<f32>>,
    arena: Arc<LayerArena>,
    logits: Vec<f32>,
    chooser: Chooser,
    /// Rows of each expert, then where its next row goes.
    counts: Vec<u32>,
}

/// The choice of one row and its working memory.
struct Chooser {
    scores: Vec<f32>,
    biased: Vec<f32>,
    group_scores: Vec<f32>,
    groups: Vec<u32>,
    chosen: Vec<u32>,
}

impl Router {
    /// The actor of one layer.
    pub fn new(
        layer: LayerId,
        moe: &MoeSpec,
        limits: &Limits,
        gate: PlacedRows,
        bias: Option<Vec<f32>>,
        arena: Arc<LayerArena>,
    ) -> Router {
        Router {
            layer,
            gate,
            bias,
            arena,
            logits: vec![0.0; limits.rows_max * moe.experts],
            chooser: Chooser {
                scores: vec![0.0; moe.experts],
                biased: vec![0.0; moe.experts],
                group_scores: Vec::with_capacity(moe.gate.groups),
                groups: Vec::with_capacity(moe.gate.groups),
                chosen: Vec::with_capacity(moe.experts),
            },
            counts: vec![0; moe.experts],
            moe: moe.clone(),
        }
    }

    /// Bytes of working memory of one layer.
    pub fn bytes(moe: &MoeSpec, limits: &Limits) -> usize {
        // Logits of the rows; of one row scores, biased, chosen and counts.
        4 * (moe.experts * (limits.rows_max + 4) + 2 * moe.gate.groups)
    }

    fn route(&mut self, wave: &mut Wave, kernels: Kernels) {
        wave.routing.experts.clear();
        wave.routing.weights.clear();
        for logits in self.logits.chunks(self.moe.experts).take(wave.rows.len()) {
            self.chooser.choose(&self.moe, logits, self.bias.as_deref(), kernels);
            let routing = &mut wave.routing;
            self.chooser.weigh(&self.moe, routing);
        }
        union_rows(&mut wave.routing, self.moe.top_k, &mut self.counts);
        wave.trace.keep_routing(self.layer, &wave.routing);
        wave.chunk = 0..0;
    }
}

impl Chooser {
    /// Fills `scores` and `chosen` (by falling biased score).
    fn choose(&mut self, moe: &MoeSpec, logits: &[f32], bias: Option<&[f32]>, kernels: Kernels) {
        self.scores.copy_from_slice(logits);
        match moe.gate.score {
            GateScore::Sigmoid => self.scores.iter_mut().for_each(|s| *s = math::sigmoid(*s)),
            GateScore::Softmax => {
                let (_, sum) = kernels.softmax_block(&mut self.scores);
                self.scores.iter_mut().for_each(|score| *score /= sum);
            }
        }
        self.biased.copy_from_slice(&self.scores);
        if let Some(bias) = bias {
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
    fn weigh(&self, moe: &MoeSpec, routing: &mut Routing) {
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

/// Groups the rows by expert, experts ascending, rows ascending within an expert.
fn union_rows(routing: &mut Routing, top_k: usize, counts: &mut [u32]) {
    counts.fill(0);
    for &expert in &routing.experts {
        counts[expert as usize] += 1;
    }
    routing.union.clear();
    let mut first = 0;
    for (expert, count) in counts.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
        let rows = ExpertRows { expert: ExpertId(expert as u32), first, count: *count };
        routing.union.push(rows);
        first += rows.count;
        *count = rows.first;
    }
    routing.rows.clear();
    routing.rows.resize(routing.experts.len(), 0);
    routing.row_weights.clear();
    routing.row_weights.resize(routing.experts.len(), 0.0);
    for (entry, (&expert, &weight)) in routing.experts.iter().zip(&routing.weights).enumerate() {
        let next = &mut counts[expert as usize];
        routing.rows[*next as usize] = (entry / top_k) as u32;
        routing.row_weights[*next as usize] = weight;
        *next += 1;
    }
}

impl Stage for Router {
    fn id(&self) -> ActorId {
        ActorId { layer: self.layer, stage: StageKind::Router }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        let Message::Wave(mut wave) = message else { panic!("a router takes waves: {message:?}") };
        let timer = StageTimer::start();
        let (compute, outbox) = seat.compute();
        let (tokens, hidden) = (wave.rows.len(), self.gate.cols);
        let (x, out) = (wave.h.as_slice(), self.logits.as_mut_slice());
        let product = Product { weights: &self.gate, x, stride: hidden, out };
        compute.rows_times(&self.arena, tokens, product);
        self.route(&mut wave, compute.kernels);
        wave.sum[..tokens * hidden].fill(0.0);
        outbox.send_wave(self.layer, StageKind::Prefetch, wave);
        timer.stop(&seat.gauges, StageKind::Router);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::GateSpec;

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
            bias: true,
            groups: 2,
            groups_kept: 1,
            normalise: true,
            scale: 1.0,
        };
        let moe = MoeSpec { experts: 4, top_k: 2, intermediate: 8, shared_intermediate: 0, gate };
        let mut chooser = Chooser {
            scores: vec![0.0; 4],
            biased: vec![0.0; 4],
            group_scores: vec![],
            groups: vec![],
            chosen: vec![],
        };
        let kernels =
            Kernels::new(millstream_kernels::Isa::Scalar).expect("scalar runs everywhere");
        let bias = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0];
        chooser.choose(&moe, &[0.5, f32::NAN, 0.1, 0.2], Some(&bias), kernels);
        assert_eq!(chooser.chosen.len(), 2);
    }

    #[test]
    fn union_lists_rows_by_ascending_expert() {
        let mut routing = Routing {
            experts: vec![3, 0, 3, 1, 0, 3],
            weights: vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
            ..Routing::default()
        };
        union_rows(&mut routing, 2, &mut [0; 4]);
        let union: Vec<_> = routing.union.iter().map(|e| (e.expert.0, e.first, e.count)).collect();
        assert_eq!(union, [(0, 0, 2), (1, 2, 1), (3, 3, 3)]);
        assert_eq!(routing.rows, [0, 2, 1, 0, 1, 2]);
        assert_eq!(routing.row_weights, [0.2, 0.5, 0.4, 0.1, 0.3, 0.6]);
    }
}
