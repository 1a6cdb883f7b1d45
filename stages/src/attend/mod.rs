//! Attend(L): norm, latent attention over the KV that it owns, residual, norm.
//!
//! One actor a layer. It owns the layer's KV pages and weights; a wave comes in with the residual
//! stream and goes on with the residual stream after attention and the normed state for the FFN.
//! Working memory is the compute seat's, one for all layers, and is lent for each wave.
//! Attention runs in absorbed form for one row and for many (DeepSeek-V2, arXiv 2405.04434,
//! appendix; the order of sums is docs/determinism.md).

mod indexer;
mod keys;
mod latent;

use crate::compute::{Compute, Product};
use crate::ids::LayerId;
use crate::limits::{JOB_COLUMNS, Limits};
use crate::placed::{PlacedHeads, PlacedRows, PlacedSlices, Placer};
use crate::spec::{AttentionSpec, IndexerSpec, IndexerUse, LayerSpec, MlaSpec, ModelSpec};
use crate::stage::{ActorId, Message, SeatContext, Stage, StageKind};
use crate::wave::Wave;
use crate::weights::{Part, SourceError};
use keys::Keys;
use millstream_topology::arena::LayerArena;
use std::sync::Arc;

/// Heads that share a pass over the keys of a block at most.
const HEADS_AT_ONCE: usize = 8;
/// The rows of so many heads' queries.
static HEAD_ROWS: [u32; HEADS_AT_ONCE] = [0, 1, 2, 3, 4, 5, 6, 7];

/// The latent attention of one layer.
pub struct Attend {
    layer: LayerId,
    spec: LayerSpec,
    hidden: usize,
    keys: Keys,
    weights: AttendWeights,
    /// The compute seat's while a wave is handled, else empty.
    buffers: Buffers,
    arena: Arc<LayerArena>,
}

/// Weights of a layer's attention, placed but not yet mapped.
pub struct AttendWeights {
    input_norm: Vec<f32>,
    post_norm: Vec<f32>,
    query_down: PlacedRows,
    query_down_bias: Option<Vec<f32>>,
    query_norm: Vec<f32>,
    query_up: PlacedRows,
    latent_down: PlacedRows,
    latent_down_bias: Option<Vec<f32>>,
    latent_norm: Vec<f32>,
    /// In units of whole heads.
    latent_up: PlacedHeads,
    output: PlacedSlices,
    output_bias: Option<Vec<f32>>,
    index: Option<indexer::IndexWeights>,
}

/// Working memory of one wave's attention, for the widest layer. `[rows, ..]` each.
#[derive(Default)]
pub struct Buffers {
    query_low: Vec<f32>,
    query: Vec<f32>,
    key_low: Vec<f32>,
    context: Vec<f32>,
    out: Vec<f32>,
    normed: Vec<f32>,
    index: indexer::IndexBuffers,
}

impl Buffers {
    /// Room for the largest wave in any layer.
    pub fn new(model: &ModelSpec, limits: &Limits) -> Buffers {
        let room = |width: fn(&MlaSpec) -> usize| vec![0.0; limits.rows_max * widest(model, width)];
        Buffers {
            query_low: room(query_low_width),
            query: room(query_width),
            key_low: room(key_low_width),
            context: room(context_width),
            out: vec![0.0; limits.rows_max * model.hidden],
            normed: vec![0.0; widest(model, normed_width)],
            index: indexer::IndexBuffers::new(model, limits),
        }
    }

    /// Bytes of [`Buffers::new`].
    pub fn bytes(model: &ModelSpec, limits: &Limits) -> usize {
        let widths = [query_low_width, query_width, key_low_width, context_width];
        let of_row: usize = widths.into_iter().map(|width| widest(model, width)).sum();
        let elements = limits.rows_max * (of_row + model.hidden) + widest(model, normed_width);
        4 * elements + indexer::IndexBuffers::bytes(model, limits)
    }
}

fn query_low_width(mla: &MlaSpec) -> usize {
    mla.query_rank
}

fn query_width(mla: &MlaSpec) -> usize {
    mla.heads * (mla.nope_dim + mla.rope_dim)
}

fn key_low_width(mla: &MlaSpec) -> usize {
    mla.latent_rank + mla.rope_dim
}

fn context_width(mla: &MlaSpec) -> usize {
    mla.heads * mla.value_dim
}

fn normed_width(mla: &MlaSpec) -> usize {
    mla.query_rank.max(mla.latent_rank)
}

/// The largest of a width over all layers.
fn widest(model: &ModelSpec, width: fn(&MlaSpec) -> usize) -> usize {
    let of = |layer: &LayerSpec| {
        let AttentionSpec::Mla(mla) = &layer.attention;
        width(mla)
    };
    model.layers.iter().map(of).max().unwrap_or(0)
}

/// f32 elements of scratch for one attention job.
pub fn scratch_len(mla: &MlaSpec) -> usize {
    latent::scratch_len(mla).max(indexer::SCRATCH_LEN)
}

impl AttendWeights {
    /// Places the weights of a layer's attention.
    ///
    /// # Errors
    /// When a vector can't be read.
    pub fn place(placer: &mut Placer<'_>, spec: &LayerSpec) -> Result<AttendWeights, SourceError> {
        let AttentionSpec::Mla(mla) = &spec.attention;
        let bias = |placer: &Placer<'_>, part| mla.bias.then(|| placer.vector(part)).transpose();
        let index = match &mla.indexer {
            IndexerUse::Full(_) => Some(indexer::IndexWeights::place(placer)?),
            _ => None,
        };
        Ok(AttendWeights {
            input_norm: placer.vector(Part::InputNorm)?,
            post_norm: placer.vector(Part::PostNorm)?,
            query_down: placer.rows(Part::QueryDown, JOB_COLUMNS),
            query_down_bias: bias(placer, Part::QueryDownBias)?,
            query_norm: placer.vector(Part::QueryNorm)?,
            query_up: placer.rows(Part::QueryUp, JOB_COLUMNS),
            latent_down: placer.rows(Part::LatentDown, JOB_COLUMNS),
            latent_down_bias: bias(placer, Part::LatentDownBias)?,
            latent_norm: placer.vector(Part::LatentNorm)?,
            latent_up: placer.heads(Part::LatentUp),
            output: placer.slices(Part::Output),
            output_bias: bias(placer, Part::OutputBias)?,
            index,
        })
    }
}

impl Attend {
    /// The actor, with room for the KV of all pages; `None` when the system doesn't give that much
    /// memory.
    pub fn new(
        layer: LayerId,
        model: &ModelSpec,
        limits: &Limits,
        weights: AttendWeights,
        arena: Arc<LayerArena>,
    ) -> Option<Attend> {
        let spec = model.layers[layer.index()].clone();
        let AttentionSpec::Mla(mla) = &spec.attention;
        // The largest by far comes first, so that a refusal is told and not died of.
        let keys = Keys::new(mla, limits.kv_pages_max, &arena)?;
        let buffers = Buffers::default();
        Some(Attend { layer, hidden: model.hidden, keys, weights, buffers, arena, spec })
    }

    fn attend(&mut self, wave: &mut Wave, compute: &mut Compute) {
        let AttentionSpec::Mla(mla) = &self.spec.attention;
        let mla = mla.clone();
        self.project_down(wave, compute, &mla);
        self.remember(wave, compute, &mla);
        self.project_up(wave, compute, &mla);
        self.select(wave, compute, &mla);
        let tokens = wave.rows.len();
        latent::attend(self, wave, compute, &mla);
        let width = mla.heads * mla.value_dim;
        let out = &mut self.buffers.out;
        let (context, output) = (&self.buffers.context, &self.weights.output);
        compute.slices_times(&self.arena, output, context, width, tokens, out);
        let kernels = compute.kernels;
        for row in 0..tokens {
            let range = row * self.hidden..(row + 1) * self.hidden;
            let out = &mut out[range.clone()];
            if let Some(bias) = &self.weights.output_bias {
                kernels.add(bias, out);
            }
            let x = &mut wave.x[range.clone()];
            kernels.add(out, x);
            let norm = &self.weights.post_norm;
            kernels.rms_norm(x, norm, self.spec.norm_epsilon, &mut wave.h[range]);
        }
    }

    /// Norm, then the projections that read the normed state.
    fn project_down(&mut self, wave: &mut Wave, compute: &mut Compute, mla: &MlaSpec) {
        let (tokens, stride) = (wave.rows.len(), self.hidden);
        let kernels = compute.kernels;
        for row in 0..tokens {
            let range = row * stride..(row + 1) * stride;
            let (x, h) = (&wave.x[range.clone()], &mut wave.h[range]);
            kernels.rms_norm(x, &self.weights.input_norm, self.spec.norm_epsilon, h);
        }
        let Buffers { query_low, key_low, normed, index, .. } = &mut self.buffers;
        let (weights, x) = (&self.weights, wave.h.as_slice());
        let query = Product { weights: &weights.query_down, x, stride, out: &mut *query_low };
        let latent = Product { weights: &weights.latent_down, x, stride, out: key_low };
        let products = [query, latent].into_iter();
        match &weights.index {
            Some(weights) => {
                let products = products.chain(index.products_down(weights, x, stride));
                compute.all_rows_times(&self.arena, tokens, products);
            }
            None => compute.all_rows_times(&self.arena, tokens, products),
        }
        for low in query_low.chunks_mut(mla.query_rank).take(tokens) {
            if let Some(bias) = &self.weights.query_down_bias {
                kernels.add(bias, low);
            }
            let normed = &mut normed[..mla.query_rank];
            kernels.rms_norm(low, &self.weights.query_norm, mla.latent_norm_epsilon, normed);
            low.copy_from_slice(normed);
        }
    }

    /// The projections that read the normed query rank.
    fn project_up(&mut self, wave: &Wave, compute: &mut Compute, mla: &MlaSpec) {
        let (tokens, stride) = (wave.rows.len(), mla.query_rank);
        let Buffers { query_low, query, index, .. } = &mut self.buffers;
        let x = query_low.as_slice();
        let product = Product { weights: &self.weights.query_up, x, stride, out: query };
        match &self.weights.index {
            Some(weights) => {
                let products = [product, index.product_up(weights, x, stride)];
                compute.all_rows_times(&self.arena, tokens, products);
            }
            None => compute.rows_times(&self.arena, tokens, product),
        }
    }

    /// Latents and rope keys of the rows go into their pages.
    fn remember(&mut self, wave: &mut Wave, compute: &mut Compute, mla: &MlaSpec) {
        wave.turn(mla.rope, mla.rope_dim);
        let kernels = compute.kernels;
        let half = mla.rope_dim / 2;
        let width = mla.latent_rank + mla.rope_dim;
        for (index, row) in wave.rows.iter().enumerate() {
            let low = &mut self.buffers.key_low[index * width..][..width];
            if let Some(bias) = &self.weights.latent_down_bias {
                kernels.add(bias, low);
            }
            let position = row.position as usize;
            let place = self.keys.place(wave.page_of(row, position), position);
            let latent = self.keys.latent_mut(place);
            let norm = &self.weights.latent_norm;
            kernels.rms_norm(&low[..mla.latent_rank], norm, mla.latent_norm_epsilon, latent);
            let angles = index * half..(index + 1) * half;
            kernels.rope(
                &low[mla.latent_rank..],
                &wave.rope.cos[angles.clone()],
                &wave.rope.sin[angles],
                mla.rope.interleaved,
                self.keys.rope_key_mut(place),
            );
        }
    }

    /// Which positions the rows look at.
    fn select(&mut self, wave: &mut Wave, compute: &mut Compute, mla: &MlaSpec) {
        let tokens = wave.rows.len();
        match &mla.indexer {
            IndexerUse::Dense => wave.selection.counts[..tokens].fill(None),
            IndexerUse::Shared => {}
            IndexerUse::Full(index) => {
                indexer::select(self, wave, compute, mla, index);
                wave.trace.keep_selection(self.layer, &wave.selection, tokens);
            }
        }
    }
}

fn indexer_of(mla: &MlaSpec) -> Option<&IndexerSpec> {
    match &mla.indexer {
        IndexerUse::Full(indexer) => Some(indexer),
        _ => None,
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
        std::mem::swap(&mut self.buffers, &mut compute.attention);
        self.attend(&mut wave, compute);
        std::mem::swap(&mut self.buffers, &mut compute.attention);
        let next = match self.spec.moe() {
            Some(_) => StageKind::Router,
            None => StageKind::Matmul,
        };
        outbox.send_wave(self.layer, next, wave);
    }
}
