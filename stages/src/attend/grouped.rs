//! Grouped-query attention of a layer: its weights, its KV, its projections.
//!
//! Owned by `Attend(L)`. Takes a wave's normed state, remembers turned keys and values for each key
//! head, and leaves every head's values in the context ([`super::grouped_heads`]). Arithmetic as in
//! arXiv 2305.13245; norms, clips, windows and sinks are those of [`GqaSpec`].

use super::pages::Pages;
use super::{Buffers, grouped_heads, of_grouped, widest};
use crate::compute::{Compute, Product};
use crate::limits::{JOB_COLUMNS, Limits};
use crate::placed::{PlacedRows, Placer};
use crate::spec::{GqaSpec, ModelSpec, QueryKeyNorm};
use crate::wave::Wave;
use crate::weights::{Part, SourceError};
use millstream_kernels::Kernels;
use millstream_topology::arena::LayerArena;

/// Weights of a layer's grouped attention, but for the output projection.
pub(super) struct GroupedWeights {
    query: Projection,
    key: Projection,
    value: Projection,
    /// A score for each head.
    pub(super) sinks: Option<Vec<f32>>,
}

/// A projection of the normed state, with what is done to its result before heads are turned.
struct Projection {
    weights: PlacedRows,
    bias: Option<Vec<f32>>,
    norm: Option<Vec<f32>>,
}

/// The grouped attention of one layer.
pub(super) struct Grouped {
    pub(super) gqa: GqaSpec,
    pub(super) weights: GroupedWeights,
    pub(super) keys: Pages,
    pub(super) values: Pages,
}

/// Working memory beside queries and context, for the widest layer.
#[derive(Default)]
pub(super) struct GroupedBuffers {
    key: Vec<f32>,
    value: Vec<f32>,
    normed: Vec<f32>,
}

impl GroupedBuffers {
    /// Room for the largest wave in any layer.
    pub(super) fn new(model: &ModelSpec, limits: &Limits) -> GroupedBuffers {
        let [keys, normed] = widths(model);
        let room = || vec![0.0; limits.rows_max * keys];
        GroupedBuffers { key: room(), value: room(), normed: vec![0.0; normed] }
    }

    /// Bytes of [`GroupedBuffers::new`].
    pub(super) fn bytes(model: &ModelSpec, limits: &Limits) -> usize {
        let [keys, normed] = widths(model);
        4 * (2 * limits.rows_max * keys + normed)
    }
}

/// Of the widest layer: the keys of all heads, and what is normed at once.
fn widths(model: &ModelSpec) -> [usize; 2] {
    let normed = |gqa: &GqaSpec| match gqa.query_key_norm {
        QueryKeyNorm::AllHeads => gqa.heads * gqa.head_dim,
        QueryKeyNorm::None | QueryKeyNorm::EachHead => gqa.head_dim,
    };
    [
        widest(model, of_grouped(|gqa| gqa.key_heads * gqa.head_dim)),
        widest(model, of_grouped(normed)),
    ]
}

impl GroupedWeights {
    /// Places the weights of a layer.
    ///
    /// # Errors
    /// When a vector can't be read.
    pub(super) fn place(
        placer: &mut Placer<'_>,
        gqa: &GqaSpec,
    ) -> Result<GroupedWeights, SourceError> {
        let normed = gqa.query_key_norm != QueryKeyNorm::None;
        let mut projection = |weights, bias, norm: Option<Part>| {
            Ok::<_, SourceError>(Projection {
                weights: placer.rows(weights, JOB_COLUMNS),
                bias: gqa.bias.then(|| placer.vector(bias)).transpose()?,
                norm: norm.filter(|_| normed).map(|norm| placer.vector(norm)).transpose()?,
            })
        };
        Ok(GroupedWeights {
            query: projection(Part::Query, Part::QueryBias, Some(Part::QueryHeadsNorm))?,
            key: projection(Part::Key, Part::KeyBias, Some(Part::KeyHeadsNorm))?,
            value: projection(Part::Value, Part::ValueBias, None)?,
            sinks: gqa.sinks.then(|| placer.vector(Part::Sinks)).transpose()?,
        })
    }
}

impl Grouped {
    /// The attention of a layer, with room for the KV of `pages` pages; `None` when the system
    /// doesn't give that much memory.
    ///
    /// # Panics
    /// When the spec's heads or dimensions don't fit each other.
    pub(super) fn new(
        gqa: GqaSpec,
        weights: GroupedWeights,
        pages: usize,
        arena: &LayerArena,
    ) -> Option<Grouped> {
        assert!(gqa.heads.is_multiple_of(gqa.key_heads), "heads in equal groups: {gqa:?}");
        assert!(gqa.rope_dim <= gqa.head_dim, "turned elements lie in a head: {gqa:?}");
        assert!(gqa.window != Some(0), "a row sees itself: {gqa:?}");
        let room = || Pages::new(gqa.key_heads, gqa.head_dim, pages, arena);
        Some(Grouped { keys: room()?, values: room()?, gqa, weights })
    }

    /// From the normed state to `buffers.context`.
    pub(super) fn attend(
        &mut self,
        arena: &LayerArena,
        wave: &mut Wave,
        compute: &mut Compute,
        buffers: &mut Buffers,
    ) {
        let Buffers { query, context, grouped: GroupedBuffers { key, value, normed }, .. } =
            buffers;
        let tokens = wave.rows.len();
        let x = wave.h.as_slice();
        let weights = &self.weights;
        let projections = [&weights.query, &weights.key, &weights.value];
        let outs = [&mut *query, &mut *key, &mut *value];
        let products = projections.iter().zip(outs).map(|(projection, out)| {
            let weights = &projection.weights;
            Product { weights, x, stride: weights.cols, out }
        });
        compute.all_rows_times(arena, tokens, products);
        let kernels = compute.kernels;
        for (projection, out) in projections.iter().zip([&mut *query, &mut *key, &mut *value]) {
            let rows = &mut out[..tokens * projection.weights.rows];
            self.bias_and_norm(projection, kernels, rows, normed);
        }
        let rope = wave.turn(&self.gqa.rope, self.gqa.rope_dim);
        self.remember(wave, kernels, [key, value], normed, rope);
        let heads = grouped_heads::Heads { actor: self, wave, query, rope };
        heads.attend(compute, context);
    }

    /// The bias of a projection, and the norm where it is over all heads together.
    fn bias_and_norm(
        &self,
        projection: &Projection,
        kernels: Kernels,
        rows: &mut [f32],
        normed: &mut [f32],
    ) {
        let width = projection.weights.rows;
        let all_heads = self.gqa.query_key_norm == QueryKeyNorm::AllHeads;
        for row in rows.chunks_mut(width) {
            if let Some(bias) = &projection.bias {
                kernels.add(bias, row);
            }
            if let Some(norm) = projection.norm.as_ref().filter(|_| all_heads) {
                let normed = &mut normed[..width];
                kernels.rms_norm(row, norm, self.gqa.query_key_norm_epsilon, normed);
                row.copy_from_slice(normed);
            }
        }
    }

    /// Turned keys and values of the rows go into their pages.
    fn remember(
        &mut self,
        wave: &Wave,
        kernels: Kernels,
        [key, value]: [&[f32]; 2],
        normed: &mut [f32],
        rope: usize,
    ) {
        let GqaSpec { key_heads, head_dim, clip, .. } = self.gqa;
        for (index, row) in wave.rows.iter().enumerate() {
            let position = row.position as usize;
            let page = wave.page_of(row, position);
            for head in 0..key_heads {
                let place = self.keys.place(page, head, position);
                let range = (index * key_heads + head) * head_dim..;
                let (key, value) = (&key[range.clone()][..head_dim], &value[range][..head_dim]);
                let finish = HeadFinish::new(&self.gqa, &self.weights.key, kernels);
                let angles = wave.ropes[rope].of(index);
                finish.finish(key, angles, &mut normed[..head_dim], self.keys.row_mut(place));
                let out = self.values.row_mut(place);
                out.copy_from_slice(value);
                clip_to(clip, out);
            }
        }
    }

    /// What is done to a head of a query.
    pub(super) fn query_finish(&self, kernels: Kernels) -> HeadFinish<'_> {
        HeadFinish::new(&self.gqa, &self.weights.query, kernels)
    }
}

/// What is done to one head of a query or key before it meets the others: norm, clip, turn.
pub(super) struct HeadFinish<'a> {
    gqa: &'a GqaSpec,
    /// The norm's weights, where each head is normed by itself.
    norm: Option<&'a [f32]>,
    kernels: Kernels,
}

impl<'a> HeadFinish<'a> {
    fn new(gqa: &'a GqaSpec, projection: &'a Projection, kernels: Kernels) -> HeadFinish<'a> {
        let each = gqa.query_key_norm == QueryKeyNorm::EachHead;
        HeadFinish { gqa, norm: projection.norm.as_deref().filter(|_| each), kernels }
    }

    /// One head; `scratch` is as long as it. The turned elements are written half-split.
    pub(super) fn finish(
        &self,
        head: &[f32],
        (cos, sin): (&[f32], &[f32]),
        scratch: &mut [f32],
        out: &mut [f32],
    ) {
        let gqa = self.gqa;
        match self.norm {
            Some(norm) => self.kernels.rms_norm(head, norm, gqa.query_key_norm_epsilon, scratch),
            None => scratch.copy_from_slice(head),
        }
        clip_to(gqa.clip, scratch);
        let (turned, rest) = out.split_at_mut(gqa.rope_dim);
        self.kernels.rope(&scratch[..gqa.rope_dim], cos, sin, gqa.rope.interleaved, turned);
        rest.copy_from_slice(&scratch[gqa.rope_dim..]);
    }
}

fn clip_to(limit: Option<f32>, values: &mut [f32]) {
    if let Some(limit) = limit {
        values.iter_mut().for_each(|value| *value = value.clamp(-limit, limit));
    }
}
