//! Combine(L): the ordered sum of a layer's results, and the residual.
//!
//! Each finished chunk is folded in, experts in ascending id as `sum = fma(weight, result, sum)`;
//! after the last chunk the shared expert is added, times its score where it has one, then the residual
//! stream (docs/determinism.md, rule 4). A wave with chunks left goes back to the prefetcher.

use crate::ids::LayerId;
use crate::queue::faults::{self, Fault};
use crate::spec::ModelSpec;
use crate::stage::{ActorId, Message, SeatContext, Stage, StageKind};
use crate::wave::Wave;
use millstream_kernels::{Floats, Kernels, math};

/// The ordered sum of one layer.
pub struct Combine {
    layer: LayerId,
    hidden: usize,
    routed: bool,
    shared: bool,
    /// `[hidden]`: what scores the shared expert.
    shared_score: Option<Vec<f32>>,
    last: bool,
}

impl Combine {
    /// The actor of one layer: `shared` if it has a unit that all rows pass, and what scores it.
    pub fn new(
        layer: LayerId,
        spec: &ModelSpec,
        shared: bool,
        shared_score: Option<Vec<f32>>,
    ) -> Combine {
        let routed = spec.layers[layer.index()].moe().is_some();
        let last = layer.index() + 1 == spec.layers.len();
        Combine { layer, hidden: spec.hidden, routed, shared, shared_score, last }
    }

    /// Adds the results of the present chunk to the sum.
    fn fold(&self, wave: &mut Wave, kernels: Kernels) {
        for step in wave.chunk.clone() {
            let union_index = match faults::active(Fault::SumInArrivalOrder) {
                true => wave.computed[step - wave.chunk.start] as usize,
                false => step,
            };
            let results = wave.results_of(union_index, self.hidden);
            let rows = wave.routing.union[union_index];
            for (offset, result) in wave.results[results].chunks(self.hidden).enumerate() {
                let entry = rows.first as usize + offset;
                let row = wave.routing.rows[entry] as usize;
                let sum = &mut wave.sum[row * self.hidden..][..self.hidden];
                kernels.axpy(wave.routing.row_weights[entry], result, sum);
            }
        }
    }

    /// The shared expert, then the residual.
    fn finish(&self, wave: &mut Wave, kernels: Kernels) {
        let all = ..wave.rows.len() * self.hidden;
        if !self.routed {
            kernels.add(&wave.shared[all], &mut wave.x[all]);
            return;
        }
        if let Some(score) = &self.shared_score {
            let rows = wave.h[all].chunks(self.hidden);
            for (h, shared) in rows.zip(wave.shared[all].chunks_mut(self.hidden)) {
                let score = math::sigmoid(kernels.dot(Floats::F32(score), h));
                kernels.scale(score, shared);
            }
        }
        if self.shared {
            kernels.add(&wave.shared[all], &mut wave.sum[all]);
        }
        kernels.add(&wave.sum[all], &mut wave.x[all]);
    }
}

impl Stage for Combine {
    fn id(&self) -> ActorId {
        ActorId { layer: self.layer, stage: StageKind::Combine }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        let Message::Wave(mut wave) = message else { panic!("combine takes waves: {message:?}") };
        let (compute, outbox) = seat.compute();
        if self.routed {
            self.fold(&mut wave, compute.kernels);
            if wave.chunk.end < wave.routing.union.len() {
                outbox.send_wave(self.layer, StageKind::Prefetch, wave);
                return;
            }
        }
        self.finish(&mut wave, compute.kernels);
        // The next layer starts with no chunk, whether it has experts or not.
        wave.chunk = 0..0;
        match self.last {
            true => outbox.send_wave(LayerId(0), StageKind::Head, wave),
            false => outbox.send_wave(LayerId(self.layer.0 + 1), StageKind::Attend, wave),
        }
    }
}
