//! Grouped-query attention of the straight-line pass.

use super::attention::{attend, rope};
use super::{Real, StraightLine};
use crate::ids::LayerId;
use crate::spec::{GqaSpec, QueryKeyNorm};
use crate::weights::{Part, SourceError};

impl<R: Real> StraightLine<'_, R> {
    /// Every head's values for one row.
    pub(super) fn grouped_attention(
        &mut self,
        id: LayerId,
        gqa: &GqaSpec,
        h: &[R],
    ) -> Result<Vec<R>, SourceError> {
        let position = self.positions as usize;
        let bias = |part| gqa.bias.then_some(part);
        let query = self.projected(id, Part::Query, bias(Part::QueryBias), h)?;
        let key = self.projected(id, Part::Key, bias(Part::KeyBias), h)?;
        let mut value = self.projected(id, Part::Value, bias(Part::ValueBias), h)?;
        let query = self.turned_heads(id, gqa, Part::QueryHeadsNorm, query)?;
        let key = self.turned_heads(id, gqa, Part::KeyHeadsNorm, key)?;
        clip(gqa, &mut value);
        if gqa.sinks {
            self.fetch(Some(id), Part::Sinks)?;
        }
        let cache = &mut self.caches[id.index()];
        cache.keys.push(key);
        cache.values.push(value.chunks(gqa.head_dim).map(<[R]>::to_vec).collect());
        let cache = &self.caches[id.index()];
        let in_window = |p: &usize| gqa.window.is_none_or(|window| p + window > position);
        let positions: Vec<usize> = (0..=position).filter(in_window).collect();
        let scale = R::from_f32(gqa.score_scale);
        let mut context = vec![];
        for (head, query) in query.iter().enumerate() {
            let key_head = head / (gqa.heads / gqa.key_heads);
            let score = |p: usize| R::dot(query, &cache.keys[p][key_head]).times(scale);
            let sink = gqa.sinks.then(|| self.table(Some(id), Part::Sinks).data[head]);
            context.extend(attend(&positions, score, |p| &cache.values[p][key_head], sink));
        }
        Ok(context)
    }

    /// Heads of queries or keys: normed, clipped, turned.
    fn turned_heads(
        &mut self,
        id: LayerId,
        gqa: &GqaSpec,
        norm: Part,
        mut all: Vec<R>,
    ) -> Result<Vec<Vec<R>>, SourceError> {
        if gqa.query_key_norm != QueryKeyNorm::None {
            self.fetch(Some(id), norm)?;
            let weight = &self.table(Some(id), norm).data;
            // Each head by itself has a weight of its own length, all together one for all.
            let runs = all.chunks(weight.len());
            let normed = runs.map(|run| R::rms_norm(run, weight, gqa.query_key_norm_epsilon));
            all = normed.flatten().collect();
        }
        clip(gqa, &mut all);
        let heads = all.chunks(gqa.head_dim).map(|head| {
            let mut turned = rope(&head[..gqa.rope_dim], &gqa.rope, self.positions);
            turned.extend(&head[gqa.rope_dim..]);
            turned
        });
        Ok(heads.collect())
    }
}

fn clip<R: Real>(gqa: &GqaSpec, values: &mut [R]) {
    if let Some(limit) = gqa.clip {
        values.iter_mut().for_each(|value| *value = value.limited(-limit, limit));
    }
}
