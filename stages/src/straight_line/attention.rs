//! Latent attention and the indexer of the straight-line pass.

use super::{LayerCache, Real, Selection, StraightLine, add_to, largest};
use crate::ids::LayerId;
use crate::spec::{IndexerSpec, IndexerUse, MlaSpec, RopeSpec};
use crate::weights::{Part, SourceError};

/// Positions per KV block: softmax runs within a block, blocks are merged left to right.
const KV_BLOCK: usize = crate::limits::KV_BLOCK_ROWS;

impl<R: Real> StraightLine<'_, R> {
    /// Attention of one row. `selected` carries the selection of the last layer with an indexer.
    pub(super) fn attention(
        &mut self,
        id: LayerId,
        mla: &MlaSpec,
        h: &[R],
        selected: &mut Option<Vec<u32>>,
    ) -> Result<(Vec<R>, Option<Selection>), SourceError> {
        let position = self.positions;
        let bias = |part| mla.bias.then_some(part);
        let query_low =
            self.projected_and_normed(id, h, Part::QueryDown, bias(Part::QueryDownBias), None)?;
        self.fetch(Some(id), Part::QueryNorm)?;
        let norm = &self.table(Some(id), Part::QueryNorm).data;
        let query_low = R::rms_norm(&query_low, norm, mla.latent_norm_epsilon);
        let key_low = self.projected_and_normed(
            id,
            h,
            Part::LatentDown,
            bias(Part::LatentDownBias),
            Some((mla.latent_rank, mla.latent_norm_epsilon)),
        )?;
        let rope_key = rope(&key_low[mla.latent_rank..], mla.rope, position);
        let cache = &mut self.caches[id.index()];
        cache.latents.push(key_low[..mla.latent_rank].to_vec());
        cache.rope_keys.push(rope_key);

        let mut selection = None;
        match &mla.indexer {
            IndexerUse::Dense => *selected = None,
            IndexerUse::Shared => {}
            IndexerUse::Full(indexer) => {
                selection = self.select(id, mla, indexer, h, &query_low)?;
                *selected = selection.as_ref().map(|s| s.positions.clone());
            }
        }
        let query = self.times(id, Part::QueryUp, &query_low)?;
        self.fetch(Some(id), Part::LatentUp)?;
        let mut context = vec![];
        for head in 0..mla.heads {
            let width = mla.nope_dim + mla.rope_dim;
            let query = &query[head * width..][..width];
            context.extend(self.attend_head(id, mla, head, query, selected.as_deref()));
        }
        self.fetch(Some(id), Part::Output)?;
        let output = self.table(Some(id), Part::Output);
        let mut out = output.times_sliced(&context);
        if mla.bias {
            self.fetch(Some(id), Part::OutputBias)?;
            add_to(&mut out, &self.table(Some(id), Part::OutputBias).data);
        }
        Ok((out, selection))
    }

    /// `part * h`, plus a bias; the first `norm.0` values of the result pass the latent's norm.
    fn projected_and_normed(
        &mut self,
        id: LayerId,
        h: &[R],
        part: Part,
        bias: Option<Part>,
        norm: Option<(usize, f32)>,
    ) -> Result<Vec<R>, SourceError> {
        let mut out = self.times(id, part, h)?;
        if let Some(bias) = bias {
            self.fetch(Some(id), bias)?;
            add_to(&mut out, &self.table(Some(id), bias).data);
        }
        if let Some((rank, epsilon)) = norm {
            self.fetch(Some(id), Part::LatentNorm)?;
            let weight = &self.table(Some(id), Part::LatentNorm).data;
            let normed = R::rms_norm(&out[..rank], weight, epsilon);
            out[..rank].copy_from_slice(&normed);
        }
        Ok(out)
    }

    /// One head of one row: the value vector, `value_dim` long.
    fn attend_head(
        &self,
        id: LayerId,
        mla: &MlaSpec,
        head: usize,
        query: &[R],
        selected: Option<&[u32]>,
    ) -> Vec<R> {
        let latent_up = self.table(Some(id), Part::LatentUp);
        let first_row = head * (mla.nope_dim + mla.value_dim);
        let mut absorbed = vec![R::ZERO; mla.latent_rank];
        for (i, &q) in query[..mla.nope_dim].iter().enumerate() {
            for (sum, &w) in absorbed.iter_mut().zip(latent_up.row(first_row + i)) {
                *sum = sum.plus_product(q, w);
            }
        }
        let rope_query = rope(&query[mla.nope_dim..], mla.rope, self.positions);
        let cache = &self.caches[id.index()];
        let mut state: Option<BlockSum<R>> = None;
        let keys = cache.latents.len();
        for block in 0..keys.div_ceil(KV_BLOCK) {
            let range = block * KV_BLOCK..keys.min((block + 1) * KV_BLOCK);
            let positions: Vec<usize> = match selected {
                None => range.collect(),
                Some(list) => {
                    list.iter().map(|&p| p as usize).filter(|p| range.contains(p)).collect()
                }
            };
            if positions.is_empty() {
                continue;
            }
            let scale = R::from_f32(mla.score_scale);
            let part = attend_block(cache, &positions, &absorbed, &rope_query, scale);
            state = Some(match state {
                None => part,
                Some(before) => merge(before, part),
            });
        }
        let BlockSum { sum, mut latent, .. } =
            state.expect("a row attends at least to one position");
        let inverse = R::from_f32(1.0).over(sum);
        for value in &mut latent {
            *value = value.times(inverse);
        }
        // The pieces of a head are its key rows and its value rows.
        latent_up.piece_times(2 * head + 1, &latent)
    }

    /// The indexer: which positions this row looks at; none when it may look at all.
    fn select(
        &mut self,
        id: LayerId,
        mla: &MlaSpec,
        indexer: &IndexerSpec,
        h: &[R],
        query_low: &[R],
    ) -> Result<Option<Selection>, SourceError> {
        let position = self.positions;
        let query = self.times(id, Part::IndexQuery, query_low)?;
        let key = self.times(id, Part::IndexKey, h)?;
        let weights = self.times(id, Part::IndexWeights, h)?;
        self.fetch(Some(id), Part::IndexKeyNorm)?;
        self.fetch(Some(id), Part::IndexKeyNormBias)?;
        let norm = &self.table(Some(id), Part::IndexKeyNorm).data;
        let bias = &self.table(Some(id), Part::IndexKeyNormBias).data;
        let key = R::layer_norm(&key, norm, bias, indexer.norm_epsilon);
        let turned = |x: &[R]| {
            let mut out = rope(&x[..mla.rope_dim], indexer.rope, position);
            out.extend(&x[mla.rope_dim..]);
            out
        };
        self.caches[id.index()].index_keys.push(turned(&key));
        let queries: Vec<Vec<R>> = query.chunks(indexer.dim).map(turned).collect();
        let keys = &self.caches[id.index()].index_keys;
        if keys.len() <= indexer.top_k {
            return Ok(None);
        }
        let dim_scale = R::from_f32(1.0 / (indexer.dim as f32).sqrt());
        let head_scale = R::from_f32(1.0 / (indexer.heads as f32).sqrt());
        let scores: Vec<R> = keys
            .iter()
            .map(|key| {
                let mut score = R::ZERO;
                for (query, &weight) in queries.iter().zip(&weights) {
                    let dot = R::dot(query, key).times(dim_scale);
                    let positive = if dot > R::ZERO { dot } else { R::ZERO };
                    score = score.plus_product(weight, positive);
                }
                score.times(head_scale)
            })
            .collect();
        let (positions, gap) = largest(&scores, indexer.top_k);
        Ok(Some(Selection { positions, gap }))
    }
}

/// What the softmax over some blocks has gathered.
struct BlockSum<R> {
    /// The largest score.
    largest: R,
    /// Sum of exp(score - largest).
    sum: R,
    /// Sum of exp(score - largest) * latent.
    latent: Vec<R>,
}

/// Softmax over the chosen positions of one block.
fn attend_block<R: Real>(
    cache: &LayerCache<R>,
    positions: &[usize],
    absorbed: &[R],
    rope_query: &[R],
    scale: R,
) -> BlockSum<R> {
    let mut scores: Vec<R> = positions
        .iter()
        .map(|&p| {
            let content = R::dot(absorbed, &cache.latents[p]);
            content.plus(R::dot(rope_query, &cache.rope_keys[p])).times(scale)
        })
        .collect();
    let largest = scores.iter().copied().fold(scores[0], |a, b| if b > a { b } else { a });
    let minus_largest = R::ZERO.plus_product(R::from_f32(-1.0), largest);
    for score in &mut scores {
        *score = score.plus(minus_largest).exp();
    }
    let mut latent = vec![R::ZERO; absorbed.len()];
    for (&share, &p) in scores.iter().zip(positions) {
        for (sum, &value) in latent.iter_mut().zip(&cache.latents[p]) {
            *sum = sum.plus_product(share, value);
        }
    }
    BlockSum { largest, sum: R::sum(&scores), latent }
}

/// Merges a later block into what the blocks before it gave.
fn merge<R: Real>(before: BlockSum<R>, block: BlockSum<R>) -> BlockSum<R> {
    let largest = if block.largest > before.largest { block.largest } else { before.largest };
    let minus_largest = R::ZERO.plus_product(R::from_f32(-1.0), largest);
    let keep = before.largest.plus(minus_largest).exp();
    let take = block.largest.plus(minus_largest).exp();
    let sum = before.sum.times(keep).plus_product(take, block.sum);
    let pairs = before.latent.iter().zip(&block.latent);
    let latent = pairs.map(|(a, b)| a.times(keep).plus_product(take, *b)).collect();
    BlockSum { largest, sum, latent }
}

/// Rotary position; the result is half-split whatever the input is.
fn rope<R: Real>(x: &[R], rope: RopeSpec, position: u32) -> Vec<R> {
    let half = x.len() / 2;
    let (cos, sin) = R::rope_angles(rope.theta, x.len(), position);
    let minus = R::from_f32(-1.0);
    let pair =
        |j: usize| if rope.interleaved { (x[2 * j], x[2 * j + 1]) } else { (x[j], x[j + half]) };
    let mut out = vec![R::ZERO; x.len()];
    for j in 0..half {
        let (a, b) = pair(j);
        out[j] = a.times(cos[j]).plus(b.times(sin[j]).times(minus));
        out[j + half] = b.times(cos[j]).plus(a.times(sin[j]));
    }
    out
}
