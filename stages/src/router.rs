//! Router(L): gate, top-k, and the union of experts over the rows of a wave.
//!
//! Takes a wave with its normed state, leaves the choice in [`Routing`] and sends the wave to the
//! layer's prefetcher ([`Chooser`] says which experts). When the prefetcher has sent the layer's
//! reads on their way, the router guesses what the next layers will need ([`Foresight`]).

use crate::choose::{Chooser, GateBiases};
use crate::compute::{Compute, Product};
use crate::foresight::Foresight;
use crate::ids::{ExpertId, LayerId};
use crate::limits::Limits;
use crate::placed::PlacedRows;
use crate::spec::MoeSpec;
use crate::stage::{ActorId, Message, Outbox, SeatContext, Stage, StageKind};
use crate::wave::{ExpertRows, Routing, Wave};
use millstream_kernels::Kernels;
use millstream_topology::arena::LayerArena;
use std::sync::Arc;

/// The router of one layer.
pub struct Router {
    layer: LayerId,
    moe: MoeSpec,
    gate: PlacedRows,
    biases: GateBiases,
    arena: Arc<LayerArena>,
    logits: Vec<f32>,
    chooser: Chooser,
    /// Rows of each expert, then where its next row goes.
    counts: Vec<u32>,
    foresight: Option<Foresight>,
}

impl Router {
    /// The actor of one layer; `foresight` guesses for the layers after it.
    pub fn new(
        layer: LayerId,
        moe: &MoeSpec,
        limits: &Limits,
        gate: PlacedRows,
        biases: GateBiases,
        arena: Arc<LayerArena>,
        foresight: Option<Foresight>,
    ) -> Router {
        Router {
            layer,
            gate,
            biases,
            arena,
            logits: vec![0.0; limits.rows_max * moe.experts],
            chooser: Chooser::new(moe),
            counts: vec![0; moe.experts],
            moe: moe.clone(),
            foresight,
        }
    }

    fn take_wave(&mut self, mut wave: Box<Wave>, compute: &mut Compute, outbox: &mut Outbox) {
        let (tokens, hidden) = (wave.rows.len(), self.gate.cols);
        let (x, out) = (wave.h.as_slice(), self.logits.as_mut_slice());
        let product = Product { weights: &self.gate, x, stride: hidden, out };
        compute.rows_times(&self.arena, tokens, product);
        self.route(&mut wave, compute.kernels);
        wave.sum[..tokens * hidden].fill(0.0);
        if let Some(foresight) = &mut self.foresight {
            foresight.remember(&wave, compute.kernels);
        }
        outbox.send_wave(self.layer, StageKind::Prefetch, wave);
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
            self.chooser.choose(&self.moe, logits, &self.biases, kernels);
            let routing = &mut wave.routing;
            self.chooser.weigh(&self.moe, routing);
        }
        union_rows(&mut wave.routing, self.moe.top_k, &mut self.counts);
        wave.trace.keep_routing(self.layer, &wave.routing);
        wave.chunk = 0..0;
    }
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
        let (compute, outbox) = seat.compute();
        match message {
            Message::Wave(wave) => self.take_wave(wave, compute, outbox),
            Message::Foresee(wave) => {
                let foresight = self.foresight.as_mut().expect("asked of routers that have one");
                foresight.guess(wave, compute, outbox);
            }
            other => panic!("a router takes waves and is asked to foresee, not {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
