//! Replay: recorded routing through the slot tables, without a model.
//!
//! | file | what it does |
//! |---|---|
//! | `trace.rs` | reads what `run --trace` wrote into the uses of each layer |
//! | `table.rs` | the uses of a layer through the engine's own slot table and a policy |
//! | `optimum.rs` | the same through Belady's rule, which knows the future |
//! | `report.rs` | all policies over a range of sizes; as a table and as JSON |
//! | `picture.rs` | the same as an SVG |
//!
//! The accounting is the engine's: one use for each expert of a decode step's layer, one for each
//! expert of the union of a prompt's chunk; a step with more experts than slots goes in chunks of
//! ascending ids. The command `bench --replay` owns all of it; the engine never calls it.

mod optimum;
mod picture;
mod report;
mod table;
mod trace;

pub use picture::picture;
pub use report::{Report, Row, Size};
pub use table::{Start, replay};
pub use trace::{LayerTrace, TraceError, Traces};

pub use optimum::optimum;

use serde::Serialize;

/// Uses that found their expert in a slot, and all uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hits {
    /// Of decode steps.
    pub decode_hits: u64,
    /// Uses in decode steps.
    pub decode_uses: u64,
    /// Of chunks of prompts.
    pub prefill_hits: u64,
    /// Uses in chunks of prompts.
    pub prefill_uses: u64,
}

impl Hits {
    /// Counts uses of a step.
    fn count(&mut self, decode: bool, hits: u64, uses: u64) {
        let (all_hits, all_uses) = match decode {
            true => (&mut self.decode_hits, &mut self.decode_uses),
            false => (&mut self.prefill_hits, &mut self.prefill_uses),
        };
        *all_hits += hits;
        *all_uses += uses;
    }

    /// Share of the decode steps' uses that hit; of all uses if nothing was decoded.
    pub fn decode_share(&self) -> f64 {
        match self.decode_uses {
            0 => self.share(),
            uses => self.decode_hits as f64 / uses as f64,
        }
    }

    /// Share of all uses that hit.
    pub fn share(&self) -> f64 {
        let uses = self.decode_uses + self.prefill_uses;
        (self.decode_hits + self.prefill_hits) as f64 / uses.max(1) as f64
    }
}

impl std::ops::AddAssign for Hits {
    fn add_assign(&mut self, other: Hits) {
        self.count(true, other.decode_hits, other.decode_uses);
        self.count(false, other.prefill_hits, other.prefill_uses);
    }
}
