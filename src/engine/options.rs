//! From what the user asked to what will run: machine, plan, limits, and the memory they need.

use super::reads::{OpenedReader, ReadOptions};
use super::{EngineError, Model};
use millstream_kernels::{Isa, Kernels};
use millstream_stages::limits::{Limits, LimitsRequest};
use millstream_stages::load::ReadNeeds;
use millstream_stages::pipeline::slot_bytes;
use millstream_stages::prefetch::Lookahead;
use millstream_topology::machine::Machine;
use millstream_topology::memory::MemoryLimits;
use millstream_topology::plan::{PlacementPlan, PlanRequest};
use millstream_topology::{TopologyArg, policy, probe};
use std::path::Path;

/// Share of the available memory that is used when the user names no budget.
const DEFAULT_SHARE: f64 = 0.8;
/// Positions of a sequence when the user names none and the model allows more.
const DEFAULT_CONTEXT: usize = 4096;

/// How much memory the process may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryBudget {
    /// So many bytes.
    Bytes(u64),
    /// This share (0 to 1) of what is available.
    Share(f64),
}

/// What the user asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine to plan for and the policy.
    pub topology: TopologyArg,
    /// Compute threads in all.
    pub threads: Option<usize>,
    /// How long an idle thread spins before it parks; 0 always parks.
    pub spin_us: Option<u32>,
    /// Expert slots per layer.
    pub experts_per_layer: Option<usize>,
    /// What resident weights, expert slots and KV may take together.
    pub memory: Option<MemoryBudget>,
    /// Positions of one sequence.
    pub context: Option<usize>,
    /// The instruction set of the kernels.
    pub isa: Option<Isa>,
    /// Rows of one wave: how much of a prompt is read at once.
    pub prefill_chunk: usize,
    /// How prefetchers guess.
    pub lookahead: Lookahead,
    /// Sequences at once.
    pub sequences_max: usize,
    /// Waves in flight at once.
    pub waves_max: usize,
    /// Rows of one wave that may want logits.
    pub logits_rows_max: usize,
    /// Let requests keep what routers and indexers chose.
    pub trace: bool,
    /// How experts are read.
    pub reads: ReadOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            topology: TopologyArg::default(),
            threads: None,
            spin_us: None,
            experts_per_layer: None,
            memory: None,
            context: None,
            isa: None,
            prefill_chunk: 128,
            lookahead: Lookahead::Off,
            sequences_max: 1,
            waves_max: 1,
            logits_rows_max: 16,
            trace: false,
            reads: ReadOptions::default(),
        }
    }
}

/// What will run.
pub struct Setup {
    /// What the probe saw.
    pub machine: Machine,
    /// Who sits where.
    pub plan: PlacementPlan,
    /// Every bound.
    pub limits: Limits,
    /// The arithmetic.
    pub kernels: Kernels,
    /// Where the memory goes.
    pub memory: MemoryTable,
    /// What reads the experts.
    pub reads: OpenedReader,
}

/// Where the memory goes, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryTable {
    /// Weights that are always resident.
    pub resident: u64,
    /// One expert slot in every layer.
    pub slots_each: u64,
    /// Slots a layer.
    pub slots: usize,
    /// KV of all pages.
    pub kv: u64,
    /// What the process may hold.
    pub budget: u64,
    /// What is available now.
    pub available: u64,
}

impl MemoryTable {
    /// Says so when the user allows more than there is.
    pub fn warning(&self) -> Option<String> {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        (self.budget > self.available).then(|| {
            format!(
                "--memory allows {:.1} GiB and {:.1} GiB are available; the process may be killed \
                 if it comes to need them",
                gib(self.budget),
                gib(self.available)
            )
        })
    }

    fn total(&self) -> u64 {
        self.resident + self.kv + self.slots_each * self.slots as u64
    }
}

impl std::fmt::Display for MemoryTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        writeln!(f, "  resident weights {:>12.1} MiB", mib(self.resident))?;
        writeln!(
            f,
            "  expert slots     {:>12.1} MiB ({} a layer, {:.1} MiB for one in each layer)",
            mib(self.slots_each * self.slots as u64),
            self.slots,
            mib(self.slots_each)
        )?;
        writeln!(f, "  KV               {:>12.1} MiB", mib(self.kv))?;
        writeln!(f, "  together         {:>12.1} MiB", mib(self.total()))?;
        write!(f, "  allowed          {:>12.1} MiB", mib(self.budget))
    }
}

impl Setup {
    /// Resolves the options for a model on this machine.
    ///
    /// # Errors
    /// When an option can't be had here, or memory doesn't hold even one slot a layer.
    pub fn new(model: &Model, options: &Options) -> Result<Setup, EngineError> {
        let machine = probe(&options.topology.source)?;
        let reads = (model.reader)(&options.reads)?;
        let geometry = reads.reader.geometry();
        // How many nodes there are changes nothing here: slices are cut alike for all.
        let needs = ReadNeeds::new(&model.spec, &*model.source, 1, geometry);
        let request = PlanRequest {
            threads: options.threads,
            spin_us: options.spin_us,
            io_is_light: reads.is_light && needs.all_straight() && !model.source.verifies_experts(),
            ..PlanRequest::default()
        };
        let plan = policy::plan(&machine, options.topology.policy, &request)?;
        let isa = options.isa.unwrap_or_else(Isa::best);
        let kernels = Kernels::new(isa).ok_or(EngineError::Isa {
            isa,
            available: Isa::available().iter().map(Isa::to_string).collect::<Vec<_>>().join(", "),
        })?;
        let context = context(model, options)?;
        let mut limits = limits(model, options, context, usize::MAX);
        let memory = memory_table(model, options, &plan, &limits)?;
        limits = self::limits(model, options, context, memory.slots);
        Ok(Setup { machine, plan, limits, kernels, memory, reads })
    }
}

fn context(model: &Model, options: &Options) -> Result<usize, EngineError> {
    let model_max = model.spec.context_max;
    match options.context {
        Some(context) if context == 0 || context > model_max => {
            Err(EngineError::Context { context, model_max })
        }
        Some(context) => Ok(context),
        None => Ok(model_max.min(DEFAULT_CONTEXT)),
    }
}

fn limits(model: &Model, options: &Options, context_max: usize, slots: usize) -> Limits {
    let request = LimitsRequest {
        rows_max: options.prefill_chunk.max(options.sequences_max),
        waves_max: options.waves_max,
        sequences_max: options.sequences_max,
        context_max,
        slots_per_layer: slots,
        logits_rows_max: options.logits_rows_max.max(options.sequences_max),
        trace: options.trace,
    };
    Limits::new(&model.spec, &request)
}

/// Slots a layer from the budget, or as asked.
fn memory_table(
    model: &Model,
    options: &Options,
    plan: &PlacementPlan,
    limits: &Limits,
) -> Result<MemoryTable, EngineError> {
    let available = available_bytes();
    let budget = match options.memory {
        Some(MemoryBudget::Bytes(bytes)) => bytes,
        Some(MemoryBudget::Share(share)) => (available as f64 * share) as u64,
        None => (available as f64 * DEFAULT_SHARE) as u64,
    };
    let each = slot_bytes(&model.spec, &*model.source, plan.nodes.len());
    let slots_each = each.iter().map(|&bytes| bytes as u64).sum::<u64>();
    let most = limits.slots.iter().copied().max().unwrap_or(0);
    let mut table = MemoryTable {
        resident: model.resident_bytes,
        slots_each,
        slots: most.min(1),
        kv: limits.kv_bytes(&model.spec) as u64,
        budget,
        available,
    };
    if let Some(asked) = options.experts_per_layer {
        table.slots = asked.clamp(most.min(1), most);
    }
    if table.total() > budget {
        return Err(EngineError::Memory { table });
    }
    if options.experts_per_layer.is_none() && slots_each > 0 {
        let left = budget - table.resident - table.kv;
        table.slots = usize::try_from(left / slots_each).unwrap_or(usize::MAX).min(most);
    }
    Ok(table)
}

/// What this process can take: the machine that we run on counts, whatever machine is planned for.
fn available_bytes() -> u64 {
    let limits = MemoryLimits::read(Path::new("/"));
    limits.available_bytes.or(limits.total_bytes).unwrap_or(u64::MAX)
}
