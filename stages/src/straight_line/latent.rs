//! Latent attention and the indexer of the straight-line pass.

use super::attention::{attend, rope};
use super::{Real, Selection, StraightLine, largest};
use crate::ids::LayerId;
use crate::spec::{IndexerSpec, IndexerUse, MlaSpec};
use crate::weights::{Part, SourceError};

impl<R: Real> StraightLine<'_, R> {
    /// Every head's values for one row. `selected` carries the selection of the last layer with an
    /// indexer.
    pub(super) fn latent_attention(
        &mut self,
        id: LayerId,
        mla: &MlaSpec,
        h: &[R],
        selected: &mut Option<Vec<u32>>,
    ) -> Result<(Vec<R>, Option<Selection>), SourceError> {
        let position = self.positions;
        let bias = |part| mla.bias.then_some(part);
        let query_low = match mla.query_rank {
            // Without a low rank what reads it reads the state itself.
            None => h.to_vec(),
            Some(_) => {
                let low = self.projected(id, Part::QueryDown, bias(Part::QueryDownBias), h)?;
                self.fetch(Some(id), Part::QueryNorm)?;
                let norm = &self.table(Some(id), Part::QueryNorm).data;
                R::rms_norm(&low, norm, mla.latent_norm_epsilon)
            }
        };
        let key_low = self.projected(id, Part::LatentDown, bias(Part::LatentDownBias), h)?;
        self.fetch(Some(id), Part::LatentNorm)?;
        let norm = &self.table(Some(id), Part::LatentNorm).data;
        let latent = R::rms_norm(&key_low[..mla.latent_rank], norm, mla.latent_norm_epsilon);
        let rope_key = rope(&key_low[mla.latent_rank..], &mla.rope, position);
        let cache = &mut self.caches[id.index()];
        cache.latents.push(latent);
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
        let query = match mla.query_rank {
            None => self.times(id, Part::Query, h)?,
            Some(_) => self.times(id, Part::QueryUp, &query_low)?,
        };
        self.fetch(Some(id), Part::LatentUp)?;
        let mut context = vec![];
        for head in 0..mla.heads {
            let width = mla.nope_dim + mla.rope_dim;
            let query = &query[head * width..][..width];
            context.extend(self.attend_head(id, mla, head, query, selected.as_deref()));
        }
        Ok((context, selection))
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
        let rope_query = rope(&query[mla.nope_dim..], &mla.rope, self.positions);
        let cache = &self.caches[id.index()];
        let positions: Vec<usize> = match selected {
            None => (0..cache.latents.len()).collect(),
            Some(list) => list.iter().map(|&position| position as usize).collect(),
        };
        let scale = R::from_f32(mla.score_scale);
        let score = |p: usize| {
            let content = R::dot(&absorbed, &cache.latents[p]);
            content.plus(R::dot(&rope_query, &cache.rope_keys[p])).times(scale)
        };
        let latent = attend(&positions, score, |p| &cache.latents[p], None);
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
            let mut out = rope(&x[..mla.rope_dim], &indexer.rope, position);
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
