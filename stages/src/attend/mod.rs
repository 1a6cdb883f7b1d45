//! Attend(L): norm, attention over the KV that it owns, residual, norm.
//!
//! One actor a layer. It owns the layer's KV pages and weights; a wave comes in with the residual
//! stream and goes on with the residual stream after attention and the normed state for the FFN.
//! Between the norms one of two kinds makes every head's values: latent attention (`latent.rs`, its
//! jobs in `absorbed.rs`, which positions in `indexer.rs`) or grouped-query attention (`grouped.rs`,
//! its jobs in `grouped_heads.rs`). Working memory is the compute seat's, one for all layers, and is
//! lent for each wave. The order of sums is docs/determinism.md.

mod absorbed;
mod grouped;
mod grouped_heads;
mod indexer;
mod latent;
mod pages;
mod softmax;

use crate::compute::Compute;
use crate::ids::LayerId;
use crate::limits::Limits;
use crate::placed::{PlacedSlices, Placer};
use crate::spec::{AttentionSpec, GqaSpec, LayerSpec, MlaSpec, ModelSpec};
use crate::stage::{ActorId, Message, SeatContext, Stage, StageKind};
use crate::wave::Wave;
use crate::weights::{Part, SourceError};
use grouped::{Grouped, GroupedBuffers, GroupedWeights};
use latent::{Latent, LatentBuffers, LatentWeights};
use millstream_topology::arena::LayerArena;
use std::sync::Arc;

/// Heads that share a pass over the keys of a block at most.
const HEADS_AT_ONCE: usize = 8;
/// The rows of so many heads' queries.
static HEAD_ROWS: [u32; HEADS_AT_ONCE] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Jobs that every thread should get of a batch.
const JOBS_PER_THREAD_MIN: usize = 2;

/// The attention of one layer.
pub struct Attend {
    layer: LayerId,
    hidden: usize,
    /// Of both norms.
    norm_epsilon: f32,
    weights: SharedWeights,
    kind: Kind,
    /// Where a wave goes from here.
    next: StageKind,
    arena: Arc<LayerArena>,
}

/// What makes the heads' values.
enum Kind {
    Latent(Box<Latent>),
    Grouped(Box<Grouped>),
}

/// Weights of a layer's attention, placed but not yet mapped.
pub struct AttendWeights {
    shared: SharedWeights,
    kind: KindWeights,
}

/// What every kind of attention has.
struct SharedWeights {
    input_norm: Vec<f32>,
    post_norm: Vec<f32>,
    output: PlacedSlices,
    output_bias: Option<Vec<f32>>,
}

enum KindWeights {
    Latent(LatentWeights),
    Grouped(GroupedWeights),
}

/// Working memory of one wave's attention, for the widest layer. `[rows, ..]` each.
#[derive(Default)]
pub struct Buffers {
    query: Vec<f32>,
    context: Vec<f32>,
    out: Vec<f32>,
    latent: LatentBuffers,
    grouped: GroupedBuffers,
}

impl Buffers {
    /// Room for the largest wave in any layer.
    pub fn new(model: &ModelSpec, limits: &Limits) -> Buffers {
        let room = |width: usize| vec![0.0; limits.rows_max * width];
        Buffers {
            query: room(widest(model, query_width)),
            context: room(widest(model, context_width)),
            out: room(model.hidden),
            latent: LatentBuffers::new(model, limits),
            grouped: GroupedBuffers::new(model, limits),
        }
    }

    /// Bytes of [`Buffers::new`].
    pub fn bytes(model: &ModelSpec, limits: &Limits) -> usize {
        let of_row = widest(model, query_width) + widest(model, context_width) + model.hidden;
        let kinds = LatentBuffers::bytes(model, limits) + GroupedBuffers::bytes(model, limits);
        4 * limits.rows_max * of_row + kinds
    }
}

fn query_width(attention: &AttentionSpec) -> usize {
    match attention {
        AttentionSpec::Mla(mla) => mla.heads * (mla.nope_dim + mla.rope_dim),
        AttentionSpec::Gqa(gqa) => gqa.heads * gqa.head_dim,
    }
}

fn context_width(attention: &AttentionSpec) -> usize {
    let (heads, value_dim) = attention.values();
    heads * value_dim
}

/// The largest of a width over all layers.
fn widest(model: &ModelSpec, width: impl Fn(&AttentionSpec) -> usize) -> usize {
    model.layers.iter().map(|layer| width(&layer.attention)).max().unwrap_or(0)
}

/// A width that latent attention alone has.
fn of_latent(width: impl Fn(&MlaSpec) -> usize) -> impl Fn(&AttentionSpec) -> usize {
    move |attention| match attention {
        AttentionSpec::Mla(mla) => width(mla),
        AttentionSpec::Gqa(_) => 0,
    }
}

/// A width that grouped-query attention alone has.
fn of_grouped(width: impl Fn(&GqaSpec) -> usize) -> impl Fn(&AttentionSpec) -> usize {
    move |attention| match attention {
        AttentionSpec::Gqa(gqa) => width(gqa),
        AttentionSpec::Mla(_) => 0,
    }
}

/// f32 elements of scratch for one attention job.
pub fn scratch_len(attention: &AttentionSpec) -> usize {
    match attention {
        AttentionSpec::Mla(mla) => absorbed::scratch_len(mla).max(indexer::SCRATCH_LEN),
        AttentionSpec::Gqa(gqa) => grouped_heads::scratch_len(gqa),
    }
}

impl AttendWeights {
    /// Places the weights of a layer's attention.
    ///
    /// # Errors
    /// When a vector can't be read.
    pub fn place(placer: &mut Placer<'_>, spec: &LayerSpec) -> Result<AttendWeights, SourceError> {
        let (kind, output_bias) = match &spec.attention {
            AttentionSpec::Mla(mla) => {
                (KindWeights::Latent(LatentWeights::place(placer, mla)?), mla.bias)
            }
            AttentionSpec::Gqa(gqa) => {
                (KindWeights::Grouped(GroupedWeights::place(placer, gqa)?), gqa.output_bias)
            }
        };
        let shared = SharedWeights {
            input_norm: placer.vector(Part::InputNorm)?,
            post_norm: placer.vector(Part::PostNorm)?,
            output: placer.slices(Part::Output),
            output_bias: output_bias.then(|| placer.vector(Part::OutputBias)).transpose()?,
        };
        Ok(AttendWeights { shared, kind })
    }
}

impl Attend {
    /// The actor, with room for the KV of all pages; `None` when the system doesn't give that much
    /// memory.
    ///
    /// # Panics
    /// When the weights are of another kind of attention than the layer's.
    pub fn new(
        layer: LayerId,
        model: &ModelSpec,
        limits: &Limits,
        weights: AttendWeights,
        arena: Arc<LayerArena>,
    ) -> Option<Attend> {
        let spec = &model.layers[layer.index()];
        let AttendWeights { shared, kind } = weights;
        let pages = limits.kv_pages_max;
        let kind = match (&spec.attention, kind) {
            (AttentionSpec::Mla(mla), KindWeights::Latent(weights)) => {
                Kind::Latent(Box::new(Latent::new(mla.clone(), weights, pages, &arena)?))
            }
            (AttentionSpec::Gqa(gqa), KindWeights::Grouped(weights)) => {
                Kind::Grouped(Box::new(Grouped::new(gqa.clone(), weights, pages, &arena)?))
            }
            _ => panic!("{layer} has weights of another kind of attention"),
        };
        let next = match spec.moe() {
            Some(_) => StageKind::Router,
            None => StageKind::Matmul,
        };
        let (hidden, norm_epsilon) = (model.hidden, spec.norm_epsilon);
        Some(Attend { layer, hidden, norm_epsilon, weights: shared, kind, next, arena })
    }

    fn attend(&mut self, wave: &mut Wave, compute: &mut Compute, buffers: &mut Buffers) {
        let (tokens, hidden) = (wave.rows.len(), self.hidden);
        let (kernels, weights) = (compute.kernels, &self.weights);
        let all = ..tokens * hidden;
        let rows = wave.x[all].chunks(hidden).zip(wave.h[all].chunks_mut(hidden));
        rows.for_each(|(x, h)| kernels.rms_norm(x, &weights.input_norm, self.norm_epsilon, h));
        match &mut self.kind {
            Kind::Latent(latent) => {
                latent.attend(self.layer, &self.arena, wave, compute, buffers);
            }
            Kind::Grouped(grouped) => grouped.attend(&self.arena, wave, compute, buffers),
        }
        let Buffers { context, out, .. } = buffers;
        let stride = weights.output.slice_cols * compute.map.slices;
        compute.slices_times(&self.arena, &weights.output, context, stride, tokens, out);
        for row in 0..tokens {
            let range = row * hidden..(row + 1) * hidden;
            let out = &mut out[range.clone()];
            if let Some(bias) = &weights.output_bias {
                kernels.add(bias, out);
            }
            let x = &mut wave.x[range.clone()];
            kernels.add(out, x);
            kernels.rms_norm(x, &weights.post_norm, self.norm_epsilon, &mut wave.h[range]);
        }
    }
}

impl Stage for Attend {
    fn id(&self) -> ActorId {
        ActorId { layer: self.layer, stage: StageKind::Attend }
    }

    fn handle(&mut self, message: Message, seat: &mut SeatContext) {
        let Message::Wave(mut wave) = message else {
            panic!("attend takes waves, not {message:?}")
        };
        let (compute, outbox) = seat.compute();
        let mut buffers = std::mem::take(&mut compute.attention);
        self.attend(&mut wave, compute, &mut buffers);
        compute.attention = buffers;
        outbox.send_wave(self.layer, self.next, wave);
    }
}
