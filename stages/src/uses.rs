//! How often each expert was used: what a session learns for the next.
//!
//! Made with the pipeline, from what earlier sessions counted. Each layer's prefetcher adds to its own
//! row, relaxed; the engine reads all of it when an answer ends and keeps it (a figure may be one
//! wave old, never torn).

use crate::ids::{ExpertId, LayerId};
use crate::spec::ModelSpec;
use std::sync::atomic::{AtomicU32, Ordering};

/// Uses by layer and expert; no experts in dense layers.
#[derive(Debug)]
pub struct UseCounts {
    layers: Vec<Vec<AtomicU32>>,
}

impl UseCounts {
    /// No uses.
    pub fn new(spec: &ModelSpec) -> UseCounts {
        let experts = |layer: &crate::spec::LayerSpec| layer.moe().map_or(0, |moe| moe.experts);
        let none = |experts| (0..experts).map(|_| AtomicU32::new(0)).collect();
        UseCounts { layers: spec.layers.iter().map(experts).map(none).collect() }
    }

    /// What earlier sessions counted, by layer and expert of the same model.
    pub fn of_earlier(uses: &[Vec<u32>]) -> UseCounts {
        let counters = |layer: &Vec<u32>| layer.iter().map(|&uses| AtomicU32::new(uses)).collect();
        UseCounts { layers: uses.iter().map(counters).collect() }
    }

    /// Counts uses.
    pub fn add(&self, layer: LayerId, expert: ExpertId, uses: u32) {
        let counter = &self.layers[layer.index()][expert.index()];
        // One writer a layer: no other addition comes between.
        let sum = counter.load(Ordering::Relaxed).saturating_add(uses);
        counter.store(sum, Ordering::Relaxed);
    }

    /// The uses of a layer's experts.
    pub fn of_layer(&self, layer: LayerId) -> Vec<u32> {
        self.layers[layer.index()].iter().map(|uses| uses.load(Ordering::Relaxed)).collect()
    }

    /// A layer's experts that were used at all, the most used first, at most so many.
    pub fn most_used(&self, layer: LayerId, experts_max: usize) -> Vec<ExpertId> {
        let uses = self.of_layer(layer);
        let used = (0..uses.len()).filter(|&expert| uses[expert] > 0);
        let mut experts: Vec<usize> = used.collect();
        experts.sort_by_key(|&expert| (std::cmp::Reverse(uses[expert]), expert));
        experts.truncate(experts_max);
        experts.into_iter().map(|expert| ExpertId(expert as u32)).collect()
    }

    /// The uses of every layer's experts.
    pub fn all(&self) -> Vec<Vec<u32>> {
        (0..self.layers.len()).map(|layer| self.of_layer(LayerId(layer as u32))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_used_come_first_and_the_unused_never() {
        let uses = UseCounts::of_earlier(&[vec![], vec![3, 0, 9, 3]]);
        uses.add(LayerId(1), ExpertId(3), 1);
        let most = |experts_max| uses.most_used(LayerId(1), experts_max);
        assert_eq!(most(9), [2, 3, 0].map(ExpertId));
        assert_eq!(most(1), [ExpertId(2)]);
        assert_eq!(uses.all(), [vec![], vec![3, 0, 9, 4]]);
    }
}
