//! The engine: requests in, tokens out.
//!
//! | file | what it does |
//! |---|---|
//! | `model.rs` | a model that can be started |
//! | `options.rs` | from what the user asked to plan, limits and memory |
//! | `reads.rs`, `mirror.rs` | how its files are read, and a second copy of them |
//! | `budget/` | what memory the process may hold, and how many experts that leaves |
//! | `guard.rs` | experts' memory goes back while the system runs short |
//! | `ceilings.rs`, `bandwidth.rs` | how fast a model could run at best |
//! | `request.rs`, `generation.rs`, `statistics.rs` | what goes in and what comes out |
//! | `admission.rs` | how many requests may be inside |
//! | `pages.rs` | KV pages, and the prompts that begin with known ones |
//! | `pace.rs` | how many prompt rows go beside answers |
//! | `scheduler.rs`, `sequence.rs` | sequences become rows of waves |
//! | `keeper.rs` | what was learned is saved after each answer |
//!
//! [`Engine`] is the handle: it talks to the scheduler's thread over channels (the control plane).
//! Waves, the data plane, cross the pipeline's rings only.

mod admission;
pub mod bandwidth;
mod budget;
mod ceilings;
mod generation;
mod guard;
mod keeper;
mod mirror;
mod model;
mod options;
mod pace;
mod pages;
mod reads;
mod request;
mod scheduler;
mod sequence;
mod statistics;

pub use admission::Load;
pub use budget::{MemoryBudget, MemoryRow, MemoryTable};
pub use ceilings::{Ceilings, TokenBytes};
pub use generation::Generation;
pub use mirror::MirrorError;
pub use model::{Model, ReaderMaker};
pub use options::{Options, Setup};
pub use reads::{
    DirectChoice, FileToRead, IO_DEPTH_DEFAULT, IO_DEPTH_MAX, IoChoice, OpenedReader,
    READERS_DEFAULT, READERS_MAX, ReadOptions, ReadsError, open_reader,
};
pub use request::{Answer, Finish, PositionTrace, Request};
pub use sequence::{Event, Token};
pub use statistics::{PhaseFigures, Statistics};

use crate::checkpoint::OpenError;
use crate::learn::Uses;
use crate::sampler::{SamplingError, TOP_LOG_PROBABILITIES_MAX};
use admission::{Admission, Entry};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use guard::Guard;
use keeper::Keeper;
use millstream_kernels::Isa;
use millstream_stages::gauge::Gauges;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::limits::Limits;
use millstream_stages::load::ReadFault;
use millstream_stages::pipeline::{Blueprint, StartError};
use millstream_stages::threads::Pipeline;
use millstream_stages::uses::UseCounts;
use millstream_topology::arena::{ArenaError, Binding, LayerArena};
use millstream_topology::plan::{PlacementPlan, SeatHost};
use millstream_topology::verify::{NamedArena, VerifyError};
use millstream_topology::{PlacementReport, TopologyError};
use scheduler::{Command, Rules, Scheduler};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Why the engine can't do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The machine or the plan can't be had.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Files can't be read as asked.
    #[error(transparent)]
    Reads(#[from] ReadsError),
    /// Memory can't be bound.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The pipeline can't be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The kernels don't run here.
    #[error("--isa {isa}: this CPU doesn't have it; it has {available}")]
    Isa {
        /// What was asked for.
        isa: Isa,
        /// What there is.
        available: String,
    },
    /// The context is out of range.
    #[error("--context {context}: the model allows 1 to {model_max}")]
    Context {
        /// What was asked for.
        context: usize,
        /// What the model allows.
        model_max: usize,
    },
    /// Not even one slot a layer fits.
    #[error(
        "the memory allowed doesn't hold the model:\n{table}\nraise --memory, or lower what the table names"
    )]
    Memory {
        /// Where it would go.
        table: Box<MemoryTable>,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    /// A token that the model doesn't have.
    #[error(
        "{what}: token {token} isn't in the model's vocabulary of {vocabulary}; these ids belong to another model"
    )]
    Token {
        /// Which list it is in.
        what: &'static str,
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// The prompt doesn't fit.
    #[error(
        "prompt and forced ids have {tokens} tokens in all, and the context of {context} must hold \
         them and one more; {}", context_remedy(*context, *model_max)
    )]
    ContextExceeded {
        /// Tokens of the prompt and of the forced ids.
        tokens: usize,
        /// What the engine was started with.
        context: usize,
        /// What the model allows.
        model_max: usize,
    },
    /// A recording to guess from was made with another model.
    #[error(
        "the trace to foresee from isn't this model's: its entry {position} has other layers or \
         experts; record one with `run --trace` on this model"
    )]
    Recording {
        /// Which entry of the trace.
        position: usize,
    },
    /// More requests are inside than may be.
    #[error(
        "{} requests run and {} wait, which is all that may: try again later", load.running, load.waiting
    )]
    QueueFull {
        /// Who was inside.
        load: Load,
    },
    /// A request waited too long.
    #[error("no place came free within {} s: try again later", wait_max.as_secs_f64())]
    QueueTimeout {
        /// How long it may wait.
        wait_max: Duration,
    },
    /// More log-probabilities are asked for than a token comes with.
    #[error(
        "{asked} log-probabilities a token are asked for; use 0 to {TOP_LOG_PROBABILITIES_MAX}"
    )]
    LogProbabilities {
        /// What was asked.
        asked: usize,
    },
    /// A trace was asked for and the engine was started without.
    #[error("the engine was started without --trace")]
    NoTrace,
    /// A sampler setting is out of range, or the logits are no numbers.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// An expert couldn't be read.
    #[error("{fault}")]
    Read {
        /// Which, and why.
        fault: ReadFault,
    },
    /// A thread of the engine died.
    #[error("the engine stopped because of a bug; its message is above, please report it")]
    Stopped,
}

/// What an engine runs with.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Who sits where.
    pub plan: PlacementPlan,
    /// Every bound.
    pub limits: Limits,
    /// Where the memory goes.
    pub memory: MemoryTable,
    /// How experts are read, in words.
    pub reads: String,
    /// Reads in flight at most, or threads that read.
    pub reads_at_once: usize,
}

impl Setting {
    fn of(setup: &Setup, options: &Options) -> Setting {
        Setting {
            plan: setup.plan.clone(),
            limits: setup.limits.clone(),
            memory: setup.memory.clone(),
            reads: setup.reads.words.clone(),
            reads_at_once: options.reads.at_once(&setup.reads),
        }
    }
}

/// A running engine.
pub struct Engine {
    guard: Option<Guard>,
    commands: Option<Sender<Command>>,
    scheduler: Option<JoinHandle<()>>,
    vocabulary: usize,
    context: usize,
    model_max: usize,
    trace: bool,
    admission: Arc<Admission>,
    next_number: std::sync::atomic::AtomicU64,
    gauges: Arc<Gauges>,
    arenas: Vec<NamedArena>,
    /// The instruction set of the kernels.
    pub isa: Isa,
    /// What runs.
    pub setting: Setting,
    /// What was resolved, for the start line.
    pub start_line: String,
    /// What went other than planned.
    pub warnings: Vec<String>,
}

impl Engine {
    /// Reads the resident weights and starts all threads.
    ///
    /// # Errors
    /// When an option can't be had here, a file can't be read, or memory or threads can't be had.
    pub fn start(model: Model, options: &Options) -> Result<Engine, EngineError> {
        let (learned, unlearned) = learned(&model, options);
        let setup = match &learned {
            Some(uses) if options.use_counts.is_none() => {
                Setup::new(&model, &Options { use_counts: Some(uses.clone()), ..options.clone() })?
            }
            _ => Setup::new(&model, options)?,
        };
        let binding = Binding::probe(&setup.plan, &setup.memory.arena_bytes_by_node)?;
        let mut warnings = model.warnings.clone();
        warnings.extend(unlearned);
        warnings.extend(setup.machine.warnings.iter().cloned());
        warnings.extend(binding.warnings().iter().cloned());
        warnings.extend(setup.memory.warnings());
        warnings.extend(setup.reads.warnings.iter().cloned());
        let start_line = start_line(&setup);
        let setting = Setting::of(&setup, options);
        let (vocabulary, model_max) = (model.spec.vocabulary, model.spec.context_max);
        let (context, isa) = (setup.limits.context_max, setup.kernels.isa());
        let uses = learned.as_deref().map(UseCounts::of_earlier);
        let uses = Arc::new(uses.unwrap_or_else(|| UseCounts::new(&model.spec)));
        let blueprint = Blueprint {
            spec: model.spec,
            source: model.source,
            plan: setup.plan,
            limits: setup.limits,
            kernels: setup.kernels,
            lookahead: options.lookahead,
            recording: options.recording.clone(),
            eviction: options.eviction,
            uses: uses.clone(),
            binding,
        };
        let pipeline = Pipeline::start(&blueprint, setup.reads.reader)?;
        warnings.extend(pipeline.warnings());
        let guard = start_guard(&pipeline, &setup.memory, options).map_err(thread_fault)?;
        let (commands, receiver) = unbounded();
        let gauges = pipeline.gauges().clone();
        let arenas = named(pipeline.arenas());
        pipeline.warm(&warm(&uses, pipeline.limits()));
        let keeper = options.learn.clone().map(|file| Keeper::start(file, uses)).transpose();
        let keeper = keeper.map_err(thread_fault)?;
        let rules = Rules::of(options);
        let inside_max = pipeline.limits().sequences_max + options.queue_max;
        let scheduler = Scheduler::new(pipeline, vocabulary, receiver, keeper, &rules);
        let thread = std::thread::Builder::new().name("scheduler".into());
        let scheduler = thread.spawn(move || scheduler.run()).map_err(thread_fault)?;
        Ok(Engine {
            guard,
            commands: Some(commands),
            scheduler: Some(scheduler),
            vocabulary,
            context,
            model_max,
            trace: options.trace,
            admission: Admission::new(inside_max),
            next_number: 0.into(),
            gauges,
            arenas,
            isa,
            setting,
            start_line,
            warnings,
        })
    }

    /// Begins an answer that is heard as it comes, on whatever thread asks.
    ///
    /// # Errors
    /// When the request can't be met.
    pub fn begin(&self, request: &Request) -> Result<Generation, EngineError> {
        let (number, events) = self.submit(request)?;
        let commands = self.commands.clone().expect("open until dropped");
        Ok(Generation { number, events, commands })
    }

    /// Generates; `on_token` hears every token as it comes and may break off.
    ///
    /// # Errors
    /// When the request can't be met or a read fails.
    pub fn generate(
        &self,
        request: &Request,
        on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Answer, EngineError> {
        let generation = self.begin(request)?;
        loop {
            match generation.next() {
                Event::Token(token) => {
                    if on_token(token.id).is_break() {
                        generation.cancel();
                    }
                }
                Event::Done(outcome) => return *outcome,
            }
        }
    }

    /// Generates several answers at once.
    ///
    /// # Errors
    /// When one of the requests can't be met; per request, when its generation fails.
    pub fn generate_all(
        &self,
        requests: &[Request],
    ) -> Result<Vec<Result<Answer, EngineError>>, EngineError> {
        let submitted: Vec<_> =
            requests.iter().map(|r| self.submit(r)).collect::<Result<_, _>>()?;
        let last = |events: Receiver<Event>| loop {
            match events.recv() {
                Ok(Event::Token(_)) => {}
                Ok(Event::Done(outcome)) => return *outcome,
                Err(_) => return Err(EngineError::Stopped),
            }
        };
        Ok(submitted.into_iter().map(|(_, events)| last(events)).collect())
    }

    /// How many requests run and wait.
    pub fn load(&self) -> Load {
        self.admission.load()
    }

    /// What the pipeline and the scheduler measure about themselves.
    pub fn gauges(&self) -> &Gauges {
        &self.gauges
    }

    /// Makes all memory of the weights present and asks the kernel where it lies.
    ///
    /// # Errors
    /// When the kernel doesn't say.
    pub fn placement(&self) -> Result<PlacementReport, VerifyError> {
        PlacementReport::of(&self.setting.plan, &self.arenas)
    }

    fn submit(&self, request: &Request) -> Result<(u64, Receiver<Event>), EngineError> {
        self.check(request)?;
        let ticket = self.admission.enter()?;
        let number = self.next_number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Room for all that can come, so that a slow caller never holds up the scheduler.
        let (events, receiver) = bounded(request.answer_max().min(self.context) + 1);
        let (request, since) = (request.clone(), Instant::now());
        let entry = Entry { number, request, events, ticket, since };
        self.send(Command::Submit(Box::new(entry)))?;
        Ok((number, receiver))
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        let commands = self.commands.as_ref().expect("open until dropped");
        commands.send(command).map_err(|_| EngineError::Stopped)
    }

    fn check(&self, request: &Request) -> Result<(), EngineError> {
        if request.prompt_ids.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let known = |what: &'static str, ids: &[u32]| match ids
            .iter()
            .find(|&&id| id as usize >= self.vocabulary)
        {
            None => Ok(()),
            Some(&token) => Err(EngineError::Token { what, token, vocabulary: self.vocabulary }),
        };
        known("the prompt", &request.prompt_ids)?;
        known("the forced ids", request.forced.as_deref().unwrap_or(&[]))?;
        let forced = request.forced.as_ref().map_or(0, Vec::len);
        let tokens = request.prompt_ids.len() + forced;
        if tokens >= self.context {
            let (context, model_max) = (self.context, self.model_max);
            return Err(EngineError::ContextExceeded { tokens, context, model_max });
        }
        if request.keep_trace && !self.trace {
            return Err(EngineError::NoTrace);
        }
        if let Some(asked) = request.log_probabilities.filter(|&n| n > TOP_LOG_PROBABILITIES_MAX) {
            return Err(EngineError::LogProbabilities { asked });
        }
        Ok(request.sampling.check()?)
    }
}

/// The guard, unless it is left out or has nothing to look at.
fn start_guard(
    pipeline: &Pipeline,
    memory: &MemoryTable,
    options: &Options,
) -> std::io::Result<Option<Guard>> {
    let Some(period) = options.guard_period else { return Ok(None) };
    Guard::start(memory, pipeline.caps(), &options.memory_root, period)
}

/// A thread besides the seats' that the system doesn't give.
fn thread_fault(source: std::io::Error) -> StartError {
    StartError::Thread { seat: millstream_stages::ids::SeatId(u32::MAX), source }
}

/// What earlier sessions counted, if anything is to be learned, and why a file was passed over.
fn learned(model: &Model, options: &Options) -> (Option<Uses>, Option<String>) {
    let Some(file) = &options.learn else { return (None, None) };
    let layers = model.spec.layers.iter();
    let experts: Vec<usize> = layers.map(|l| l.moe().map_or(0, |moe| moe.experts)).collect();
    let (uses, warning) = file.load(&experts);
    (Some(uses), warning)
}

/// What is loaded before anybody asks: the most used experts of every layer, into half of its slots;
/// the most used of all layers first.
fn warm(uses: &UseCounts, limits: &Limits) -> Vec<(LayerId, ExpertId)> {
    let most_used = |(layer, &slots): (usize, &usize)| {
        let layer = LayerId(layer as u32);
        let experts = uses.most_used(layer, slots / 2).into_iter().enumerate();
        experts.map(move |(rank, expert)| (rank, layer, expert)).collect::<Vec<_>>()
    };
    let mut experts: Vec<_> = limits.slots.iter().enumerate().flat_map(most_used).collect();
    experts.sort_unstable();
    experts.into_iter().map(|(_, layer, expert)| (layer, expert)).collect()
}

/// The arenas by what they hold.
fn named(arenas: &[Arc<LayerArena>]) -> Vec<NamedArena> {
    let name = |index: usize| match index {
        0 => "ends".to_owned(),
        _ => format!("layer {}", index - 1),
    };
    arenas.iter().enumerate().map(|(index, arena)| (name(index), arena.clone())).collect()
}

/// What helps against a context that is too short.
fn context_remedy(context: usize, model_max: usize) -> String {
    match context < model_max {
        true => format!("raise --context (the model allows {model_max}) or shorten them"),
        false => "that is all that the model allows: shorten them".to_owned(),
    }
}

/// What will run, in one line.
fn start_line(setup: &Setup) -> String {
    let plan = &setup.plan;
    let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
    format!(
        "{}; {} kernels, policy {}, {} on {}{}, spin {} us; {}{}; {}",
        plan.machine_summary,
        setup.kernels.isa(),
        plan.policy,
        count(plan.threads, "thread"),
        count(plan.nodes.len(), "node"),
        if plan.virtual_nodes { " (virtual: not this machine's)" } else { "" },
        plan.spin_us,
        setup.reads.words,
        if plan.io == SeatHost::Leader { " on the leading thread" } else { "" },
        setup.limits
    )
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.guard = None;
        self.commands = None;
        if let Some(scheduler) = self.scheduler.take() {
            // A scheduler that died has said why on stderr.
            let _ = scheduler.join();
        }
    }
}
