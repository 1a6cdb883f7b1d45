//! The memory budget: what the process may hold, where it goes, and how many experts that leaves.
//!
//! | file | what it does |
//! |---|---|
//! | `table.rs` | [`MemoryTable`]: every row of the account, for people and programs |
//! | `deal.rs` | what is left of the budget becomes slots, layer by layer |
//!
//! [`fit`] is called once, by [`super::Setup`]: a model, the user's options and the plan go in,
//! [`Limits`] and the table come out. The stages say what they will hold
//! (`millstream_stages::account`); what the process holds already is measured or estimated.

mod deal;
mod table;

pub use deal::{Layer, deal, equal};
pub use table::{MemoryRow, MemoryTable};

use super::pages::Pages;
use super::{EngineError, Model, Options};
use millstream_stages::account::{ArenaBytes, WorkBytes, arenas};
use millstream_stages::limits::{Limits, LimitsRequest};
use millstream_stages::load::ReadNeeds;
use millstream_topology::memory::MemoryLimits;
use millstream_topology::plan::PlacementPlan;

/// Share of the available memory that is used when the user names no budget.
const DEFAULT_SHARE: f64 = 0.8;
/// The prefill chunk isn't made smaller than this to fit a budget.
const CHUNK_ROWS_MIN: usize = 16;
/// What a process holds when the engine starts, if nobody measured it: the program, its libraries
/// and a tokenizer. An estimate with room to spare; commands measure it.
const HELD_BYTES: u64 = 16 << 20;
/// What comes to that until the first token: pages of the program not touched yet, small tables, and
/// what the allocator keeps. An estimate; `tests/memory.rs` holds the whole to the budget.
const GROWTH_BYTES: u64 = 8 << 20;
/// Stack and allocator pages of one thread: an estimate.
const THREAD_BYTES: u64 = 192 << 10;

/// How much memory the process may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryBudget {
    /// So many bytes.
    Bytes(u64),
    /// This share (0 to 1) of what is available.
    Share(f64),
}

impl MemoryBudget {
    /// The budget in bytes; `held` is what the process holds already of what it may.
    fn bytes(self, available: u64, held: u64) -> u64 {
        match self {
            MemoryBudget::Bytes(bytes) => bytes,
            MemoryBudget::Share(share) => (available.saturating_add(held) as f64 * share) as u64,
        }
    }
}

/// What is asked of a budget.
struct Demand<'a> {
    model: &'a Model,
    options: &'a Options,
    plan: &'a PlacementPlan,
    context_max: usize,
    arenas: Vec<ArenaBytes>,
    needs: &'a ReadNeeds,
}

/// Limits whose memory fits the budget, and where it goes.
///
/// # Errors
/// When not even one slot a layer fits, or not as many as were asked for.
pub fn fit(
    model: &Model,
    options: &Options,
    plan: &PlacementPlan,
    needs: &ReadNeeds,
    context_max: usize,
) -> Result<(Limits, MemoryTable), EngineError> {
    let system = MemoryLimits::read(&options.memory_root);
    let available = system.available_bytes.or(system.total_bytes).unwrap_or(u64::MAX);
    let held = options.held_bytes.unwrap_or(HELD_BYTES);
    let budget = options.memory.unwrap_or(MemoryBudget::Share(DEFAULT_SHARE));
    let budget = budget.bytes(available, held);
    let demand = Demand {
        model,
        options,
        plan,
        context_max,
        arenas: arenas(&model.spec, &*model.source, plan.nodes.len()),
        needs,
    };
    let mut chunk = options.prefill_chunk;
    loop {
        let least = demand.table(&demand.limits(chunk, demand.least()), budget, available);
        if least.total() <= budget {
            break;
        }
        if chunk <= CHUNK_ROWS_MIN {
            return Err(EngineError::Memory { table: Box::new(least) });
        }
        chunk = (chunk / 2).max(CHUNK_ROWS_MIN);
    }
    let slots = demand.slots(chunk, budget);
    let limits = demand.limits(chunk, slots);
    let table = demand.table(&limits, budget, available);
    Ok((limits, table))
}

impl Demand<'_> {
    /// The arenas of the layers.
    fn layers(&self) -> &[ArenaBytes] {
        &self.arenas[1..]
    }

    /// Bytes of all arenas with so many slots in each layer, by plan node.
    fn by_node(&self, slots: &[usize]) -> Vec<u64> {
        let mut sums = vec![0; self.plan.nodes.len()];
        for (arena, &slots) in self.arenas.iter().zip(std::iter::once(&0).chain(slots)) {
            let bytes = arena.by_node_with_slots(slots);
            sums.iter_mut().zip(bytes).for_each(|(sum, bytes)| *sum += bytes);
        }
        sums
    }

    /// As few slots as may be: as many as were asked for, or one a layer.
    fn least(&self) -> Vec<usize> {
        let slots = self.options.experts_per_layer.unwrap_or(1);
        equal(&self.layers().iter().map(|layer| layer.experts).collect::<Vec<_>>(), slots)
    }

    /// Slots of each layer from what the budget leaves.
    fn slots(&self, chunk: usize, budget: u64) -> Vec<usize> {
        let least = self.least();
        if self.options.experts_per_layer.is_some() {
            return least;
        }
        // Tables and queues as for all experts: more than needed, so slots never push them over.
        let all: Vec<usize> = self.layers().iter().map(|layer| layer.experts).collect();
        let limits = self.limits(chunk, all);
        let fixed = self.fixed_bytes(&limits) + self.arenas[0].with_slots(0);
        let layer = |arena| Layer { arena, counts: None };
        let mut layers: Vec<Layer<'_>> = self.layers().iter().map(layer).collect();
        if let Some(counts) = &self.options.use_counts {
            for (layer, counts) in layers.iter_mut().zip(counts) {
                layer.counts = (counts.len() == layer.arena.experts).then_some(counts);
            }
        }
        deal(&layers, budget.saturating_sub(fixed))
    }

    fn limits(&self, rows_max: usize, slots: Vec<usize>) -> Limits {
        let options = self.options;
        let request = LimitsRequest {
            rows_max: rows_max.max(options.sequences_max),
            waves_max: options.waves_max,
            sequences_max: options.sequences_max,
            context_max: self.context_max,
            slots_per_layer: slots.iter().copied().max().unwrap_or(0),
            logits_rows_max: options.logits_rows_max.max(options.sequences_max),
            trace: options.trace,
        };
        let limits = Limits::new(&self.model.spec, &request);
        Limits { slots, timeline_events_max: options.timeline_events_max, ..limits }
    }

    /// What the process holds beside the engine.
    fn program_bytes(&self) -> u64 {
        // Seats of the plan, the scheduler, the guard and readers beside the compute threads.
        let threads = (self.plan.threads + 4 + self.options.reads.readers) as u64;
        let held = self.options.held_bytes.unwrap_or(HELD_BYTES);
        held + GROWTH_BYTES + threads * THREAD_BYTES
    }

    /// Everything but the arenas.
    fn fixed_bytes(&self, limits: &Limits) -> u64 {
        let vectors: usize = self.arenas.iter().map(|arena| arena.vector_bytes).sum();
        let work = WorkBytes::of(&self.model.spec, self.plan, limits, self.needs);
        work.total()
            + Pages::bytes(limits.kv_pages_max, self.options.share_prefixes) as u64
            + vectors as u64
            + self.program_bytes()
    }

    fn table(&self, limits: &Limits, budget: u64, available: u64) -> MemoryTable {
        let vectors: usize = self.arenas.iter().map(|arena| arena.vector_bytes).sum();
        let resident: u64 = self.arenas.iter().map(|arena| arena.with_slots(0)).sum();
        let with_slots = |(arena, &slots): (&ArenaBytes, &usize)| arena.with_slots(slots);
        let layers: u64 = self.layers().iter().zip(&limits.slots).map(with_slots).sum();
        let slots = self.arenas[0].with_slots(0) + layers - resident;
        let work = WorkBytes::of(&self.model.spec, self.plan, limits, self.needs);
        let row = |what, bytes, shrink| MemoryRow { what, bytes, shrink };
        let page_tables = Pages::bytes(limits.kv_pages_max, self.options.share_prefixes) as u64;
        let buffers = work.waves + work.compute;
        let rows = vec![
            row("resident weights", resident + vectors as u64, None),
            row("expert slots", slots, Some("--experts-per-layer")),
            row("KV", work.kv + page_tables, Some("--context")),
            row("waves and buffers", buffers, Some("--prefill-chunk")),
            row("threads' scratch", work.scratch, Some("--threads, --prefill-chunk")),
            row("reads in flight", work.reads, None),
            row("queues and tables", work.actors, Some("--experts-per-layer")),
            row("program and tables", self.program_bytes(), None),
        ];
        MemoryTable {
            rows,
            slots: limits.slots.clone(),
            experts: self.layers().iter().map(|layer| layer.experts).collect(),
            slot_bytes: self.layers().iter().map(ArenaBytes::slot_bytes).collect(),
            arena_bytes_by_node: self.by_node(&limits.slots),
            budget,
            available,
            prefill_chunk: limits.rows_max.min(self.options.prefill_chunk),
            prefill_chunk_asked: self.options.prefill_chunk,
        }
    }
}
