//! `topology`: the machine as a tree or a picture, with the plan drawn in; how fast its memory is; and
//! whether memory lies as planned.
//!
//! `--verify` makes memory under the plan (a test arena, or with `-m` all arenas of a model as a run
//! would), touches it and asks the kernel where its pages are. It fails if they are elsewhere.

use super::flags::{PlanFlags, held_bytes, parse_memory, write_file};
use super::{Failure, print, say};
use crate::engine::{Engine, MemoryBudget, Model, Options};
use clap::Args;
use clap::builder::FalseyValueParser;
use millstream_topology::arena::{ArenaBuilder, Binding};
use millstream_topology::measure::{FIGURE_TIME, measure};
use millstream_topology::plan::PlacementPlan;
use millstream_topology::{
    PlacementReport, PlanRequest, TopologyError, picture, plan_file, render,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of each segment of the test arena.
const TEST_SEGMENT_BYTES: usize = 64 << 20;

/// Arguments of `topology`.
#[derive(Args, Debug)]
pub struct TopologyArgs {
    #[command(flatten)]
    plan: PlanFlags,
    /// Make memory under the plan and ask the kernel where its pages are; fail if they are elsewhere
    #[arg(long, env = "MILLSTREAM_VERIFY", value_parser = FalseyValueParser::new())]
    verify: bool,
    /// With --verify: the arenas of this model, as a run would make them, instead of a test arena
    #[arg(short, long, env = "MILLSTREAM_MODEL", value_name = "DIR")]
    model: Option<PathBuf>,
    /// With a model: expert slots per layer [default: what memory allows]
    #[arg(
        long,
        env = "MILLSTREAM_EXPERTS_PER_LAYER",
        allow_negative_numbers = true,
        value_name = "N"
    )]
    experts_per_layer: Option<usize>,
    /// With a model: all that the process may hold, as of `run` [default: 80%]
    #[arg(long, env = "MILLSTREAM_MEMORY", allow_negative_numbers = true, value_parser = parse_memory, value_name = "SIZE")]
    memory: Option<MemoryBudget>,
    /// Write the plan as a file, for --topology FILE.toml
    #[arg(long, env = "MILLSTREAM_SAVE", value_name = "FILE.toml", value_parser = parse_plan_name)]
    save: Option<PathBuf>,
    /// Draw machine and plan into this file (SVG)
    #[arg(long, env = "MILLSTREAM_SVG", value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Measure bandwidth and latency between every node's cores and every node's memory: about a
    /// second a pair
    #[arg(long, env = "MILLSTREAM_MEASURE", value_parser = FalseyValueParser::new())]
    measure: bool,
    /// Print one JSON object
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// A file that `--topology` takes for a plan again.
fn parse_plan_name(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    match path.extension().is_some_and(|extension| extension == "toml") {
        true => Ok(path),
        false => Err("name it FILE.toml: --topology tells plans by that".to_owned()),
    }
}

impl From<TopologyError> for Failure {
    fn from(error: TopologyError) -> Failure {
        Failure::Usage(error.to_string())
    }
}

/// What `--verify` found.
struct Verified {
    plan: PlacementPlan,
    report: PlacementReport,
    warnings: Vec<String>,
}

/// Runs the command.
pub fn run(args: &TopologyArgs) -> Result<(), Failure> {
    args.check()?;
    let request = args.plan.request()?;
    let avoided = request.avoid.clone();
    let (machine, plan) = args.plan.topology().place(&request)?;
    let verified = match (args.verify, &args.model) {
        (false, _) => None,
        (true, None) => Some(verify_arena(&plan)?),
        (true, Some(directory)) => Some(args.verify_model(directory, request)?),
    };
    let plan = verified.as_ref().map_or(plan, |verified| verified.plan.clone());
    if let Some(file) = &args.save {
        write_file(file, plan_file::to_text(&plan).as_bytes())?;
    }
    if let Some(file) = &args.svg {
        write_file(file, picture(&machine, Some(&plan)).as_bytes())?;
    }
    let usable = machine.avoiding(&avoided);
    let measured = args.measure.then(|| measure(&usable, FIGURE_TIME)).transpose();
    let measured = measured.map_err(Failure::failed)?;
    if args.json {
        let mut object = serde_json::json!({
            "machine": machine,
            "plan": plan,
            "plan_fingerprint": plan.fingerprint(),
        });
        if let Some(verified) = &verified {
            object["placement"] =
                serde_json::to_value(&verified.report).map_err(Failure::failed)?;
            object["warnings"] = verified.warnings.clone().into();
        }
        if let Some(measured) = &measured {
            object["measured"] = serde_json::to_value(measured).map_err(Failure::failed)?;
        }
        let text = serde_json::to_string_pretty(&object).map_err(Failure::failed)?;
        print(&format!("{text}\n"))?;
    } else {
        print(&render(&machine, Some(&plan)))?;
        for warning in machine.warnings.iter().chain(&plan.warnings) {
            say(&format!("warning: {warning}"));
        }
        if let Some(verified) = &verified {
            print(&verified.report.to_string())?;
        }
        if let Some(measured) = &measured {
            print(&measured.to_string())?;
        }
    }
    verified.map_or(Ok(()), Verified::judge)
}

impl TopologyArgs {
    /// Refuses flags that would do nothing; variables that are set for other commands may stay.
    fn check(&self) -> Result<(), Failure> {
        let given =
            |is_given: bool, variable: &str| is_given && std::env::var_os(variable).is_none();
        let needs = |flag: &str, other: &str| {
            Err(Failure::Usage(format!("{flag} does nothing without {other}; add it")))
        };
        if !self.verify && given(self.model.is_some(), "MILLSTREAM_MODEL") {
            return needs("--model", "--verify");
        }
        let models = self.verify && self.model.is_some();
        if !models && given(self.experts_per_layer.is_some(), "MILLSTREAM_EXPERTS_PER_LAYER") {
            return needs("--experts-per-layer", "--verify and --model");
        }
        if !models && given(self.memory.is_some(), "MILLSTREAM_MEMORY") {
            return needs("--memory", "--verify and --model");
        }
        if self.experts_per_layer == Some(0) {
            return Err(Failure::Usage(
                "--experts-per-layer 0: one slot a layer is the least".into(),
            ));
        }
        Ok(())
    }

    /// Starts an engine as `run` would, and looks where its arenas are.
    fn verify_model(&self, directory: &Path, request: PlanRequest) -> Result<Verified, Failure> {
        let options = Options {
            topology: self.plan.topology(),
            threads: request.threads,
            spin_us: request.spin_us,
            avoid_cpus: request.avoid,
            experts_per_layer: self.experts_per_layer,
            memory: self.memory,
            held_bytes: held_bytes(),
            ..Options::default()
        };
        let engine = Engine::start(Model::open(directory)?, &options)?;
        let report = engine.placement().map_err(Failure::failed)?;
        let warnings = engine.warnings.clone();
        Ok(Verified { plan: engine.setting.plan.clone(), report, warnings })
    }
}

/// Makes a test arena under the plan and looks where it is.
fn verify_arena(plan: &PlacementPlan) -> Result<Verified, Failure> {
    let nodes = plan.nodes.len();
    let binding = Binding::probe(plan, &vec![TEST_SEGMENT_BYTES as u64; nodes]);
    let binding = binding.map_err(Failure::failed)?;
    let mut builder = ArenaBuilder::new(nodes);
    (0..nodes).for_each(|node| {
        builder.region(node, TEST_SEGMENT_BYTES);
    });
    let arena = builder.build(&binding).map_err(Failure::failed)?;
    let report = PlacementReport::of(plan, &[("test arena".to_owned(), Arc::new(arena))]);
    let report = report.map_err(Failure::failed)?;
    Ok(Verified { plan: plan.clone(), report, warnings: binding.warnings().to_vec() })
}

impl Verified {
    fn judge(self) -> Result<(), Failure> {
        self.warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
        match self.report.is_as_planned {
            Some(false) => Err(Failure::Failed(format!(
                "memory isn't where the plan wants it: {}",
                self.report.faults.join("; ")
            ))),
            _ => Ok(()),
        }
    }
}
