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

    /// The uses of every layer's experts.
    pub fn all(&self) -> Vec<Vec<u32>> {
        (0..self.layers.len()).map(|layer| self.of_layer(LayerId(layer as u32))).collect()
    }
}
