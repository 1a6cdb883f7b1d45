//! `bench`: speed, and what could be better, measured. Results go to stdout, progress to stderr.
//!
//! | command | what it measures | where |
//! |---|---|---|
//! | `bench` | prefill and decode as llama-bench names them; `--histograms`, `--report` | `speed.rs` |
//! | `bench --stream` | decode while experts come from the drive | `stream.rs` |
//! | `bench --replay` | what each eviction policy would have hit; takes no model | here |
//! | `bench --kernels` | the kernels beside a plain read of the same memory; takes no model | here |
//! | `bench --hops` | a message's way from one spinning thread to another; takes no model | here |

use super::flags::{EngineFlags, ModelFlag, write_file};
use super::speed::{self, SpeedArgs};
use super::stream::{self, StreamArgs};
use super::{Failure, print};
use crate::bench::hops;
use crate::bench::kernels::KernelBench;
use crate::replay::{Report, Size, Traces, picture};
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use millstream_kernels::{Isa, Kernels, WeightFormat};
use std::path::PathBuf;
use std::time::Duration;

/// How long hops are measured with each gap.
const HOPS_TIME: Duration = Duration::from_secs(1);

/// Passes of each kind of the kernels' bench.
const ROUNDS: usize = 20;

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelFlag,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    speed: SpeedArgs,
    /// Decode while experts come from the drive: with a cold cache, again, and with prompts in turn
    #[arg(long, env = "MILLSTREAM_STREAM", value_parser = FalseyValueParser::new(), conflicts_with_all = ["replay", "slots", "experts", "svg", "hops"])]
    stream: bool,
    #[command(flatten)]
    streaming: StreamArgs,
    /// Replay what `run --trace FILE` recorded through every eviction policy and Belady's optimum;
    /// several files are one session after the other
    #[arg(long, env = "MILLSTREAM_REPLAY", value_name = "FILE", num_args = 1.., value_delimiter = ',')]
    replay: Vec<PathBuf>,
    /// Sizes to replay: slots a layer, or shares of its experts [default: 12.5%,25%,50%,75%]
    #[arg(
        long,
        env = "MILLSTREAM_SLOTS",
        value_name = "LIST",
        value_delimiter = ',',
        requires = "replay"
    )]
    slots: Vec<Size>,
    /// Experts of a layer [default: as many as the largest id in the traces says]
    #[arg(long, env = "MILLSTREAM_EXPERTS", value_name = "N", requires = "replay", value_parser = clap::value_parser!(u32).range(0..=65_536))]
    experts: Option<u32>,
    /// Draw the hits as well
    #[arg(long, env = "MILLSTREAM_SVG", value_name = "FILE", requires = "replay")]
    svg: Option<PathBuf>,
    /// Measure how long a message takes from one spinning thread to another
    #[arg(long, env = "MILLSTREAM_HOPS", value_parser = FalseyValueParser::new(), conflicts_with = "replay")]
    hops: bool,
    /// Measure the kernels: GB/s of weights for every format, beside a plain read of the same memory
    #[arg(long, env = "MILLSTREAM_KERNELS", value_parser = FalseyValueParser::new(), conflicts_with_all = ["replay", "stream", "hops"])]
    kernels: bool,
    /// Formats that --kernels measures, a list [default: all]
    #[arg(
        long,
        env = "MILLSTREAM_FORMATS",
        value_name = "LIST",
        value_delimiter = ',',
        requires = "kernels"
    )]
    formats: Vec<WeightFormat>,
    /// Passes of each kind that --kernels makes; the best counts
    #[arg(long, env = "MILLSTREAM_ROUNDS", value_name = "N", requires = "kernels", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,
    /// Of the ids that are fed
    #[arg(long, env = "MILLSTREAM_SEED", default_value = "0", value_name = "N")]
    seed: u64,
    /// How to print: markdown, json, jsonl or csv
    #[arg(short, long, env = "MILLSTREAM_OUTPUT", value_name = "HOW", default_value = "markdown")]
    output: Output,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table.
    Markdown,
    /// One object.
    Json,
    /// One object a row.
    Jsonl,
    /// One line a row.
    Csv,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let special = args.stream || args.hops || args.kernels || !args.replay.is_empty();
    if !special {
        return speed::run(&args.speed, &args.model, &args.engine, args.seed, args.output);
    }
    args.speed.refuse_beside_others()?;
    let json = match args.output {
        Output::Markdown => false,
        Output::Json => true,
        Output::Jsonl | Output::Csv => {
            return Err(Failure::Usage("-o: use markdown or json here".into()));
        }
    };
    if args.stream {
        return stream::run(&args.streaming, &args.model, &args.engine, args.seed, json);
    }
    if args.hops {
        let machine = millstream_topology::probe(&args.engine.plan.topology().source)?;
        let machine = machine.avoiding(&args.engine.plan.avoid_cpus);
        if machine.is_foreign() {
            return Err(Failure::Usage(
                "hops are measured on this machine; leave --topology out".into(),
            ));
        }
        let report = hops::hops(&machine, HOPS_TIME).map_err(Failure::failed)?;
        return print_as(json, &report, || report.to_string());
    }
    if args.kernels {
        return kernels(args, json);
    }
    replay(args, json)
}

fn kernels(args: &BenchArgs, json: bool) -> Result<(), Failure> {
    let machine = millstream_topology::probe(&args.engine.plan.topology().source)?;
    let isa = args.engine.isa.0.unwrap_or_else(Isa::best);
    let kernels = Kernels::new(isa);
    let kernels = kernels.ok_or_else(|| Failure::Usage(format!("--isa {isa}: not on this CPU")))?;
    let formats = match args.formats.is_empty() {
        true => WeightFormat::EACH.to_vec(),
        false => args.formats.clone(),
    };
    let rounds = args.rounds.map_or(ROUNDS, |rounds| rounds as usize);
    let bench = KernelBench { kernels, formats, rounds };
    let report = bench.run(&machine).map_err(Failure::failed)?;
    print_as(json, &report, || report.to_string())
}

fn replay(args: &BenchArgs, json: bool) -> Result<(), Failure> {
    let mut traces = Traces::open(&args.replay).map_err(Failure::failed)?;
    traces.set_experts(args.experts.unwrap_or(0) as usize);
    let sizes = if args.slots.is_empty() { Size::USUAL.to_vec() } else { args.slots.clone() };
    let report = Report::new(&traces, &sizes);
    if let Some(file) = &args.svg {
        write_file(file, picture(&report).as_bytes())?;
    }
    print_as(json, &report, || report.markdown())
}

/// One JSON object, or a table.
fn print_as(
    json: bool,
    report: &impl serde::Serialize,
    table: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match json {
        false => print(&table()),
        true => print(&format!("{}\n", serde_json::to_string(report).map_err(Failure::failed)?)),
    }
}
