//! From what the user asked to what will run: machine, plan, limits, and the memory they need.

use super::budget::{self, MemoryBudget, MemoryTable};
use super::reads::{OpenedReader, ReadOptions};
use super::{EngineError, Model};
use crate::learn::UseFile;
use millstream_kernels::{Isa, Kernels};
use millstream_stages::foresight::Recording;
use millstream_stages::limits::Limits;
use millstream_stages::load::ReadNeeds;
use millstream_stages::prefetch::Lookahead;
use millstream_stages::prefetch::eviction::EvictionPolicy;
use millstream_topology::TopologyArg;
use millstream_topology::cpuset::CpuSet;
use millstream_topology::machine::Machine;
use millstream_topology::plan::{PlacementPlan, PlanRequest};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Positions of a sequence when the user names none and the model allows more.
const DEFAULT_CONTEXT: usize = 4096;

/// Requests that wait when the user names no number.
const QUEUE_MAX_DEFAULT: usize = 1024;

/// How many times as long answers may take beside prompts that are read: a little under two, because
/// waves don't all take the same time.
const PREFILL_PACE: f64 = 1.75;

/// How often the guard looks: often enough to be ahead of the kernel's own remedies.
const GUARD_PERIOD: Duration = Duration::from_millis(250);

/// What the user asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine to plan for and the policy.
    pub topology: TopologyArg,
    /// Compute threads in all.
    pub threads: Option<usize>,
    /// How long an idle thread spins before it parks; 0 always parks.
    pub spin_us: Option<u32>,
    /// CPUs on which no thread is put. Threads that aren't pinned are kept off them by whoever starts
    /// the engine ([`millstream_topology::pin::stay_off`]).
    pub avoid_cpus: CpuSet,
    /// Expert slots per layer.
    pub experts_per_layer: Option<usize>,
    /// What the process may hold in all.
    pub memory: Option<MemoryBudget>,
    /// What it holds already (program, tokenizer, tables of files); none takes an estimate.
    pub held_bytes: Option<u64>,
    /// Where `/proc` and `/sys` are that say how much memory there is.
    pub memory_root: PathBuf,
    /// How often the guard looks whether memory runs short; none leaves it out.
    pub guard_period: Option<Duration>,
    /// How often each expert was used, by layer: decides which layers get more slots.
    pub use_counts: Option<Vec<Vec<u32>>>,
    /// Positions of one sequence.
    pub context: Option<usize>,
    /// The instruction set of the kernels.
    pub isa: Option<Isa>,
    /// Rows of one wave: how much of a prompt is read at once.
    pub prefill_chunk: usize,
    /// How prefetchers guess.
    pub lookahead: Lookahead,
    /// What an earlier run chose, for [`Lookahead::Recorded`].
    pub recording: Option<Arc<Recording>>,
    /// Sequences at once.
    pub sequences_max: usize,
    /// Requests that may wait besides; one more is refused.
    pub queue_max: usize,
    /// How long a request waits for its place at most; none waits as long as it takes.
    pub queue_wait_max: Option<Duration>,
    /// While prompts are read, answers take at most so many times as long as without them; none lets
    /// prompts take what they want.
    pub prefill_pace: Option<f64>,
    /// Prompts begin with the KV pages of earlier ones that began alike.
    pub share_prefixes: bool,
    /// Waves in flight at once.
    pub waves_max: usize,
    /// Rows of one wave that may want logits.
    pub logits_rows_max: usize,
    /// Let requests keep what routers and indexers chose.
    pub trace: bool,
    /// Events of a timeline that the gauges have room for; 0 keeps none.
    pub timeline_events_max: usize,
    /// How experts are read.
    pub reads: ReadOptions,
    /// Which expert goes when a slot is needed.
    pub eviction: EvictionPolicy,
    /// Where uses of experts are kept from session to session; none learns nothing.
    pub learn: Option<UseFile>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            topology: TopologyArg::default(),
            threads: None,
            spin_us: None,
            avoid_cpus: CpuSet::new(),
            experts_per_layer: None,
            memory: None,
            held_bytes: None,
            memory_root: PathBuf::from("/"),
            guard_period: Some(GUARD_PERIOD),
            use_counts: None,
            context: None,
            isa: None,
            prefill_chunk: 128,
            lookahead: Lookahead::Off,
            recording: None,
            sequences_max: 1,
            queue_max: QUEUE_MAX_DEFAULT,
            queue_wait_max: None,
            prefill_pace: None,
            share_prefixes: false,
            waves_max: 1,
            logits_rows_max: 16,
            trace: false,
            timeline_events_max: 0,
            reads: ReadOptions::default(),
            eviction: EvictionPolicy::default(),
            learn: None,
        }
    }
}

impl Options {
    /// For answers to people: prompts begin with what is known of earlier ones, and leave those that
    /// are answered their pace. Measurements read each prompt whole and as fast as it goes.
    pub fn serving(self) -> Options {
        Options { share_prefixes: true, prefill_pace: Some(PREFILL_PACE), ..self }
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

impl Setup {
    /// Resolves the options for a model on this machine.
    ///
    /// # Errors
    /// When an option can't be had here, or memory doesn't hold even one slot a layer.
    pub fn new(model: &Model, options: &Options) -> Result<Setup, EngineError> {
        let reads = (model.reader)(&options.reads)?;
        let geometry = reads.reader.geometry();
        // How many nodes there are changes nothing here: slices are cut alike for all.
        let needs = ReadNeeds::new(&model.spec, &*model.source, 1, geometry);
        let request = PlanRequest {
            threads: options.threads,
            spin_us: options.spin_us,
            avoid: options.avoid_cpus.clone(),
            drive_node: reads.drive_node,
            io_is_light: reads.is_light && needs.all_straight() && !model.source.verifies_experts(),
            ..PlanRequest::default()
        };
        let (machine, plan) = options.topology.place(&request)?;
        let isa = options.isa.unwrap_or_else(Isa::best);
        let kernels = Kernels::new(isa).ok_or(EngineError::Isa {
            isa,
            available: Isa::available().iter().map(Isa::to_string).collect::<Vec<_>>().join(", "),
        })?;
        let context = context(model, options)?;
        if let Some(recording) = &options.recording {
            check_recording(recording, model)?;
        }
        let (limits, memory) = budget::fit(model, options, &plan, &needs, context)?;
        Ok(Setup { machine, plan, limits, kernels, memory, reads })
    }
}

/// Refuses a recording of another model: guesses name experts that the layers have.
fn check_recording(recording: &Recording, model: &Model) -> Result<(), EngineError> {
    let layers = &model.spec.layers;
    let experts = |layer: usize| layers[layer].moe().map_or(0, |moe| moe.experts);
    for (position, chosen) in recording.positions.iter().enumerate() {
        let fits = chosen.len() == layers.len()
            && (0..layers.len()).all(|layer| {
                chosen[layer].iter().all(|&expert| (expert as usize) < experts(layer))
            });
        if !fits {
            return Err(EngineError::Recording { position });
        }
    }
    Ok(())
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
