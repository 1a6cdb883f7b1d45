//! Multi-head latent attention of a layer: its weights, its KV, its projections.
//!
//! Owned by `Attend(L)`. Takes a wave's normed state, remembers latents, rope keys and index keys, lets
//! the indexer select, and leaves every head's values in the context. Always in absorbed form, for one
//! row and for many (DeepSeek-V2, arXiv 2405.04434, appendix; [`super::absorbed`]).

use super::indexer::{self, IndexBuffers, IndexWeights, indexer_of};
use super::pages::Pages;
use super::{Buffers, absorbed, of_latent, widest};
use crate::compute::{Compute, Product};
use crate::ids::LayerId;
use crate::limits::{JOB_COLUMNS, Limits};
use crate::placed::{PlacedHeads, PlacedRows, Placer};
use crate::spec::{IndexerUse, MlaSpec, ModelSpec};
use crate::wave::Wave;
use crate::weights::{Part, SourceError};
use millstream_topology::arena::LayerArena;

/// Weights of a layer's latent attention, but for the output projection.
pub(super) struct LatentWeights {
    query: QueryWeights,
    latent_down: PlacedRows,
    latent_down_bias: Option<Vec<f32>>,
    latent_norm: Vec<f32>,
    /// In units of whole heads.
    pub(super) latent_up: PlacedHeads,
    pub(super) index: Option<IndexWeights>,
}

/// How queries are made of the normed state.
enum QueryWeights {
    /// In one step.
    Whole(PlacedRows),
    /// Through a low rank, which is normed.
    Low { down: PlacedRows, bias: Option<Vec<f32>>, norm: Vec<f32>, up: PlacedRows },
}

/// The KV of a layer.
pub(super) struct LatentPages {
    pub(super) latents: Pages,
    pub(super) rope_keys: Pages,
    pub(super) index_keys: Pages,
}

/// The latent attention of one layer.
pub(super) struct Latent {
    pub(super) mla: MlaSpec,
    pub(super) weights: LatentWeights,
    pub(super) pages: LatentPages,
}

/// Working memory beside queries and context, for the widest layer.
#[derive(Default)]
pub(super) struct LatentBuffers {
    query_low: Vec<f32>,
    key_low: Vec<f32>,
    normed: Vec<f32>,
    index: IndexBuffers,
}

impl LatentBuffers {
    /// Room for the largest wave in any layer.
    pub(super) fn new(model: &ModelSpec, limits: &Limits) -> LatentBuffers {
        let [query_low, key_low] = widths(model).map(|width| vec![0.0; limits.rows_max * width]);
        let normed = vec![0.0; widths(model)[0]];
        LatentBuffers { query_low, key_low, normed, index: IndexBuffers::new(model, limits) }
    }

    /// Bytes of [`LatentBuffers::new`].
    pub(super) fn bytes(model: &ModelSpec, limits: &Limits) -> usize {
        let [query_low, key_low] = widths(model);
        let elements = limits.rows_max * (query_low + key_low) + query_low;
        4 * elements + IndexBuffers::bytes(model, limits)
    }
}

/// Of the widest layer: the low rank of queries, and the latent with its rope key.
fn widths(model: &ModelSpec) -> [usize; 2] {
    [
        widest(model, of_latent(|mla| mla.query_rank.unwrap_or(0))),
        widest(model, of_latent(|mla| mla.latent_rank + mla.rope_dim)),
    ]
}

impl LatentWeights {
    /// Places the weights of a layer.
    ///
    /// # Errors
    /// When a vector can't be read.
    pub(super) fn place(
        placer: &mut Placer<'_>,
        mla: &MlaSpec,
    ) -> Result<LatentWeights, SourceError> {
        let bias = |placer: &Placer<'_>, part| mla.bias.then(|| placer.vector(part)).transpose();
        let index = match &mla.indexer {
            IndexerUse::Full(_) => Some(IndexWeights::place(placer)?),
            IndexerUse::Dense | IndexerUse::Shared => None,
        };
        let query = match mla.query_rank {
            None => QueryWeights::Whole(placer.rows(Part::Query, JOB_COLUMNS)),
            Some(_) => QueryWeights::Low {
                down: placer.rows(Part::QueryDown, JOB_COLUMNS),
                bias: bias(placer, Part::QueryDownBias)?,
                norm: placer.vector(Part::QueryNorm)?,
                up: placer.rows(Part::QueryUp, JOB_COLUMNS),
            },
        };
        Ok(LatentWeights {
            query,
            latent_down: placer.rows(Part::LatentDown, JOB_COLUMNS),
            latent_down_bias: bias(placer, Part::LatentDownBias)?,
            latent_norm: placer.vector(Part::LatentNorm)?,
            latent_up: placer.heads(Part::LatentUp),
            index,
        })
    }
}

impl Latent {
    /// The attention of a layer, with room for the KV of `pages` pages; `None` when the system
    /// doesn't give that much memory.
    pub(super) fn new(
        mla: MlaSpec,
        weights: LatentWeights,
        pages: usize,
        arena: &LayerArena,
    ) -> Option<Latent> {
        let index_dim = indexer_of(&mla).map_or(0, |indexer| indexer.dim);
        let room = |width: usize| Pages::new(1, width, pages, arena);
        let pages = LatentPages {
            latents: room(mla.latent_rank)?,
            rope_keys: room(mla.rope_dim)?,
            index_keys: room(index_dim)?,
        };
        Some(Latent { mla, weights, pages })
    }

    /// From the normed state to `buffers.context`.
    pub(super) fn attend(
        &mut self,
        layer: LayerId,
        arena: &LayerArena,
        wave: &mut Wave,
        compute: &mut Compute,
        buffers: &mut Buffers,
    ) {
        self.project_down(arena, wave, compute, buffers);
        let rope = wave.turn(&self.mla.rope, self.mla.rope_dim);
        self.remember(wave, compute, &mut buffers.latent, rope);
        self.project_up(arena, wave, compute, buffers);
        self.select(layer, wave, compute, &mut buffers.latent.index, rope);
        let Buffers { query, context, .. } = buffers;
        let heads = absorbed::Heads { actor: self, arena, wave, query, rope };
        heads.attend(compute, context);
    }

    /// The projections that read the normed state, and the norm of the query rank.
    fn project_down(
        &self,
        arena: &LayerArena,
        wave: &Wave,
        compute: &mut Compute,
        buffers: &mut Buffers,
    ) {
        let (tokens, x) = (wave.rows.len(), wave.h.as_slice());
        let Buffers { query, latent, .. } = buffers;
        let LatentBuffers { query_low, key_low, normed, index } = latent;
        let (query, out) = match &self.weights.query {
            QueryWeights::Whole(query_weights) => (query_weights, query),
            QueryWeights::Low { down, .. } => (down, &mut *query_low),
        };
        let stride = query.cols;
        let query = Product { weights: query, x, stride, out };
        let latent = Product { weights: &self.weights.latent_down, x, stride, out: key_low };
        let products = [query, latent].into_iter();
        match &self.weights.index {
            Some(weights) => {
                let products = products.chain(index.products_down(weights, x, stride));
                compute.all_rows_times(arena, tokens, products);
            }
            None => compute.all_rows_times(arena, tokens, products),
        }
        if let QueryWeights::Low { bias, norm, down, .. } = &self.weights.query {
            let rank = down.rows;
            for low in query_low.chunks_mut(rank).take(tokens) {
                if let Some(bias) = bias {
                    compute.kernels.add(bias, low);
                }
                let normed = &mut normed[..rank];
                compute.kernels.rms_norm(low, norm, self.mla.latent_norm_epsilon, normed);
                low.copy_from_slice(normed);
            }
        }
    }

    /// The projections that read the normed query rank; without one the index queries read the
    /// normed state.
    fn project_up(
        &self,
        arena: &LayerArena,
        wave: &Wave,
        compute: &mut Compute,
        buffers: &mut Buffers,
    ) {
        let tokens = wave.rows.len();
        let Buffers { query, latent, .. } = buffers;
        let (x, up) = match &self.weights.query {
            QueryWeights::Whole(_) => (wave.h.as_slice(), None),
            QueryWeights::Low { up, .. } => (latent.query_low.as_slice(), Some(up)),
        };
        let query =
            up.map(|weights| Product { weights, x, stride: weights.cols, out: &mut *query });
        let index = self.weights.index.as_ref();
        let index = index.map(|weights| latent.index.product_up(weights, x));
        let products = query.into_iter().chain(index);
        if up.is_some() || self.weights.index.is_some() {
            compute.all_rows_times(arena, tokens, products);
        }
    }

    /// Latents and rope keys of the rows go into their pages.
    fn remember(
        &mut self,
        wave: &Wave,
        compute: &Compute,
        buffers: &mut LatentBuffers,
        rope: usize,
    ) {
        let Latent { mla, weights, pages } = self;
        let kernels = compute.kernels;
        let width = mla.latent_rank + mla.rope_dim;
        for (index, row) in wave.rows.iter().enumerate() {
            let low = &mut buffers.key_low[index * width..][..width];
            if let Some(bias) = &weights.latent_down_bias {
                kernels.add(bias, low);
            }
            let position = row.position as usize;
            let place = pages.latents.place(wave.page_of(row, position), 0, position);
            let latent = pages.latents.row_mut(place);
            let (low, key) = low.split_at(mla.latent_rank);
            kernels.rms_norm(low, &weights.latent_norm, mla.latent_norm_epsilon, latent);
            let (cos, sin) = wave.ropes[rope].of(index);
            let out = pages.rope_keys.row_mut(place);
            kernels.rope(key, cos, sin, mla.rope.interleaved, out);
        }
    }

    /// Which positions the rows look at.
    fn select(
        &mut self,
        layer: LayerId,
        wave: &mut Wave,
        compute: &mut Compute,
        buffers: &mut IndexBuffers,
        rope: usize,
    ) {
        let tokens = wave.rows.len();
        match self.mla.indexer {
            IndexerUse::Dense => wave.selection.counts[..tokens].fill(None),
            IndexerUse::Shared => {}
            IndexerUse::Full(index) => {
                indexer::select(self, wave, compute, buffers, &index, rope);
                wave.trace.keep_selection(layer, &wave.selection, tokens);
            }
        }
    }
}
