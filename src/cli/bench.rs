//! `bench`: what could be better, measured.
//!
//! `--stream` decodes while experts come from the drive (`stream.rs`). `--replay` takes recorded routing and no model: it says what each eviction policy would have hit
//! at several sizes, and what the best possible one would have. Everything goes to stdout.

use super::flags::write_file;
use super::stream::{self, StreamArgs};
use super::{Failure, print};
use crate::replay::{Report, Size, Traces, picture};
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Decode while experts come from the drive: with a cold cache, again, and with prompts in turn
    #[arg(long, env = "MILLSTREAM_STREAM", value_parser = FalseyValueParser::new(), conflicts_with_all = ["replay", "slots", "experts", "svg"])]
    stream: bool,
    #[command(flatten)]
    streaming: StreamArgs,
    /// Replay what `run --trace FILE` recorded through every eviction policy and Belady's optimum;
    /// several files are one session after the other
    #[arg(long, env = "MILLSTREAM_REPLAY", value_name = "FILE", required_unless_present = "stream", num_args = 1.., value_delimiter = ',')]
    replay: Vec<PathBuf>,
    /// Sizes to replay: slots a layer, or shares of its experts [default: 12.5%,25%,50%,75%]
    #[arg(long, env = "MILLSTREAM_SLOTS", value_name = "LIST", value_delimiter = ',')]
    slots: Vec<Size>,
    /// Experts of a layer [default: as many as the largest id in the traces says]
    #[arg(long, env = "MILLSTREAM_EXPERTS", value_name = "N", default_value = "0", hide_default_value = true, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    experts: u32,
    /// How to print
    #[arg(short, long, env = "MILLSTREAM_OUTPUT", value_name = "HOW", default_value = "markdown")]
    output: Output,
    /// Draw the hits as well
    #[arg(long, env = "MILLSTREAM_SVG", value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// A table.
    Markdown,
    /// One object.
    Json,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.stream {
        return stream::run(&args.streaming, matches!(args.output, Output::Json));
    }
    let mut traces = Traces::open(&args.replay).map_err(Failure::failed)?;
    traces.set_experts(args.experts as usize);
    let sizes = if args.slots.is_empty() { Size::USUAL.to_vec() } else { args.slots.clone() };
    let report = Report::new(&traces, &sizes);
    if let Some(file) = &args.svg {
        write_file(file, picture(&report).as_bytes())?;
    }
    match args.output {
        Output::Markdown => print(&report.markdown()),
        Output::Json => {
            let object = serde_json::to_string(&report).map_err(Failure::failed)?;
            print(&format!("{object}\n"))
        }
    }
}
