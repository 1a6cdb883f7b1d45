//! Both ends of the layers: Embed turns tokens into the residual stream, Head turns the residual
//! stream into logits.
//!
//! The two share the model's own arena (the tables may be one, when the head is tied). Head hands
//! the finished wave to the engine.

use crate::compute::Product;
use crate::ids::LayerId;
use crate::limits::Limits;
use crate::placed::PlacedRows;
use crate::spec::ModelSpec;
use crate::stage::{ActorId, Message, SeatContext, Stage, StageKind};
use crate::wave::Wave;
use millstream_topology::arena::LayerArena;
use std::sync::Arc;

/// Tokens to residual stream.
pub struct Embed {
    hidden: usize,
    table: PlacedRows,
    arena: Arc<LayerArena>,
}

impl Embed {
    /// The actor; `table` is `[vocabulary, hidden]`.
    pub fn new(table: PlacedRows, arena: Arc<LayerArena>) -> Embed {
        Embed { hidden: table.cols, table, arena }
    }
}

impl Stage for Embed {
    fn id(&self) -> ActorId {
        ActorId { layer: LayerId(0), stage: StageKind::Embed }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        let Message::Wave(mut wave) = message else { panic!("embed takes waves: {message:?}") };
        let Wave { rows, x, .. } = &mut *wave;
        for (row, x) in rows.iter().zip(x.chunks_mut(self.hidden)) {
            let token = row.token as usize;
            self.table.decode_row(&self.arena, token, x);
        }
        seat.outbox.send_wave(LayerId(0), StageKind::Attend, wave);
    }
}

/// Residual stream to logits.
pub struct Head {
    hidden: usize,
    epsilon: f32,
    norm: Vec<f32>,
    table: PlacedRows,
    arena: Arc<LayerArena>,
    normed: Vec<f32>,
}

impl Head {
    /// The actor; `table` is `[vocabulary, hidden]`, `norm` the final norm's weights.
    pub fn new(
        table: PlacedRows,
        norm: Vec<f32>,
        epsilon: f32,
        limits: &Limits,
        arena: Arc<LayerArena>,
    ) -> Head {
        let normed = vec![0.0; limits.logits_rows_max * table.cols];
        Head { hidden: table.cols, epsilon, norm, table, arena, normed }
    }

    /// Bytes of working memory.
    pub fn bytes(spec: &ModelSpec, limits: &Limits) -> usize {
        4 * limits.logits_rows_max * spec.hidden
    }
}

impl Stage for Head {
    fn id(&self) -> ActorId {
        ActorId { layer: LayerId(0), stage: StageKind::Head }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        let Message::Wave(mut wave) = message else { panic!("head takes waves: {message:?}") };
        let (compute, outbox) = seat.compute();
        let mut wanted = 0;
        for (row, x) in wave.rows.iter().zip(wave.x.chunks(self.hidden)) {
            if row.wants_logits {
                let normed = &mut self.normed[wanted * self.hidden..][..self.hidden];
                compute.kernels.rms_norm(x, &self.norm, self.epsilon, normed);
                wanted += 1;
            }
        }
        wave.logits.resize(wanted * self.table.rows, 0.0);
        if wanted > 0 {
            let (x, out) = (self.normed.as_slice(), wave.logits.as_mut_slice());
            let product = Product { weights: &self.table, x, stride: self.hidden, out };
            compute.rows_times(&self.arena, wanted, product);
        }
        outbox.finish(wave);
    }
}
