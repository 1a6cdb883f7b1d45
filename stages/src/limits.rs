//! Every bound of a running pipeline, in one value.
//!
//! `Limits` is made once at start from the model, the plan and the user's flags, and printed. No
//! queue, buffer or table of the data path grows past what it says, so nothing allocates later.

use crate::spec::{AttentionSpec, IndexerUse, ModelSpec};
use std::fmt;

/// Positions per KV block: softmax runs within a block and blocks are merged left to right, so
/// this is part of the arithmetic, not a tuning knob. A KV page is one block.
pub const KV_BLOCK_ROWS: usize = 64;

/// Columns of one job's output: a job computes this many weight rows for all rows of a wave.
pub const JOB_COLUMNS: usize = 32;

/// Experts that are read through bounce buffers at once, each with a buffer as long as the largest
/// expert: enough to keep a reader busy while another expert is unpacked.
const READS_BOUNCED_MAX: usize = 4;

/// Experts that are read straight into their slots at once: all misses of a layer, and hints.
const READS_STRAIGHT_MAX: usize = 64;

/// The bounds of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one wave.
    pub rows_max: usize,
    /// Waves in flight.
    pub waves_max: usize,
    /// Sequences admitted at once.
    pub sequences_max: usize,
    /// Rows of one wave whose logits are wanted.
    pub logits_rows_max: usize,
    /// Positions of one sequence.
    pub context_max: usize,
    /// KV pages of [`KV_BLOCK_ROWS`] positions, over all sequences.
    pub kv_pages_max: usize,
    /// Expert slots of each layer (0 for dense layers).
    pub slots: Vec<usize>,
    /// Bytes of expert results that one chunk of a wave may hold.
    pub partial_bytes_max: usize,
    /// Index scores that are held at once, in positions (rows times context).
    pub index_scores_max: usize,
    /// Experts that are read straight into their slots at once.
    pub reads_straight_max: usize,
    /// Experts that are read through a bounce buffer at once.
    pub reads_bounced_max: usize,
    /// Keep each row's experts and index selections for the caller.
    pub trace: bool,
    /// Events of a timeline that are kept; 0 keeps none.
    pub timeline_events_max: usize,
}

/// What the user or a test asks for; the rest of [`Limits`] follows from the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsRequest {
    /// Rows of one wave (the prefill chunk).
    pub rows_max: usize,
    /// Waves in flight.
    pub waves_max: usize,
    /// Sequences admitted at once.
    pub sequences_max: usize,
    /// Positions of one sequence.
    pub context_max: usize,
    /// Expert slots per layer; each layer gets at most its number of experts.
    pub slots_per_layer: usize,
    /// Rows of one wave whose logits are wanted.
    pub logits_rows_max: usize,
    /// Keep each row's experts and index selections for the caller.
    pub trace: bool,
}

impl Limits {
    /// The bounds for a model.
    pub fn new(spec: &ModelSpec, request: &LimitsRequest) -> Limits {
        let slots = |layer: &crate::spec::LayerSpec| {
            layer.moe().map_or(0, |moe| request.slots_per_layer.clamp(1, moe.experts))
        };
        let slots: Vec<usize> = spec.layers.iter().map(slots).collect();
        let pages = request.context_max.div_ceil(KV_BLOCK_ROWS) * request.sequences_max;
        let one_expert = request.rows_max * spec.hidden * 4;
        Limits {
            rows_max: request.rows_max,
            waves_max: request.waves_max,
            sequences_max: request.sequences_max,
            logits_rows_max: request.logits_rows_max.clamp(1, request.rows_max),
            context_max: request.context_max,
            kv_pages_max: pages,
            partial_bytes_max: one_expert.max(64 << 20).min(one_expert * experts_of_row(spec)),
            index_scores_max: request.context_max.max(4 << 20),
            reads_straight_max: slots.iter().sum::<usize>().clamp(1, READS_STRAIGHT_MAX),
            reads_bounced_max: slots.iter().copied().max().unwrap_or(0).clamp(1, READS_BOUNCED_MAX),
            slots,
            trace: request.trace,
            timeline_events_max: 0,
        }
    }

    /// f32 elements of KV that one position of one layer needs.
    pub fn kv_width(attention: &AttentionSpec) -> usize {
        match attention {
            AttentionSpec::Mla(mla) => {
                let index = match &mla.indexer {
                    IndexerUse::Full(indexer) => indexer.dim,
                    IndexerUse::Dense | IndexerUse::Shared => 0,
                };
                mla.latent_rank + mla.rope_dim + index
            }
            AttentionSpec::Gqa(gqa) => 2 * gqa.key_heads * gqa.head_dim,
        }
    }

    /// Bytes of KV over all layers and pages.
    pub fn kv_bytes(&self, spec: &ModelSpec) -> usize {
        let width: usize = spec.layers.iter().map(|layer| Limits::kv_width(&layer.attention)).sum();
        width * 4 * self.kv_pages_max * KV_BLOCK_ROWS
    }

    /// Messages that can exist at once: no queue of the pipeline is shorter than this.
    ///
    /// One about each slot that is being filled (order, job, read or loaded); for each wave and
    /// slot of its layer one about the lease (arrived or returned) and one promotion; for each wave
    /// a guess a layer (at most four layers are guessed for at a time), the request for it, and the wave itself;
    /// for each layer one new cap; and the hints that warm half of the slots.
    pub fn messages_max(&self) -> usize {
        let slots: usize = self.slots.iter().sum();
        let slots_largest = self.slots.iter().copied().max().unwrap_or(0);
        let of_wave = 2 * slots_largest + self.slots.len() + 7;
        (slots + slots / 2 + self.waves_max * of_wave + self.slots.len() + 8).next_power_of_two()
    }
}

/// Experts that a row goes through: a wave's results never take more rows than its rows choose.
fn experts_of_row(spec: &ModelSpec) -> usize {
    spec.layers.iter().filter_map(|l| l.moe()).map(|moe| moe.top_k).max().unwrap_or(1)
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moe: Vec<usize> = self.slots.iter().copied().filter(|&slots| slots > 0).collect();
        let slots = match (moe.iter().min(), moe.iter().max()) {
            (Some(low), Some(high)) if low == high => format!("{low}"),
            (Some(low), Some(high)) => format!("{low} to {high}"),
            _ => "0".into(),
        };
        write!(
            f,
            "rows a wave {} (with logits {}), waves {}, sequences {}, context {}, KV pages {} of {} \
             positions, slots a layer {slots}, expert results {} KiB a wave, index scores {}, reads \
             straight {} bounced {}, messages {}",
            self.rows_max,
            self.logits_rows_max,
            self.waves_max,
            self.sequences_max,
            self.context_max,
            self.kv_pages_max,
            KV_BLOCK_ROWS,
            self.partial_bytes_max / 1024,
            self.index_scores_max,
            self.reads_straight_max,
            self.reads_bounced_max,
            self.messages_max(),
        )
    }
}
