//! `bench --stream`: decode while experts come from the drive, beside what the drive gives.
//!
//! The drive is measured before and after each row, with plain reads of the same files past the page
//! cache. The engine starts as `run` would start it and decodes ids by chance, which both the prompt and the
//! answer are, so that routing and reads are the same in every run.

use super::flags::{EngineFlags, ModelFlag, held_bytes};
use super::plan::expert_files;
use super::{Failure, print, say};
use crate::bench::{StreamBench, Workload};
use crate::engine::{Engine, Model, bandwidth};
use clap::Args;
use clap::builder::FalseyValueParser;

/// Arguments of `bench --stream`.
#[derive(Args, Debug)]
pub struct StreamArgs {
    /// Tokens of each prompt
    #[arg(long, env = "MILLSTREAM_PROMPT_TOKENS", default_value = "32", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: u32,
    /// Tokens of each answer
    #[arg(long, env = "MILLSTREAM_ANSWER_TOKENS", default_value = "64", value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    answer_tokens: u32,
    /// Prompts that take turns in the last row
    #[arg(long, env = "MILLSTREAM_PROMPTS", default_value = "4", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    prompts: u32,
    /// Streams side by side, each in a wave of its own
    #[arg(long, env = "MILLSTREAM_STREAMS", default_value = "1", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// Let the model choose the answers instead of feeding ids by chance
    #[arg(long, env = "MILLSTREAM_FREE", value_parser = FalseyValueParser::new())]
    free: bool,
}

/// Runs it; `json` prints one object instead of a table.
pub fn run(
    args: &StreamArgs,
    model: &ModelFlag,
    flags: &EngineFlags,
    seed: u64,
    json: bool,
) -> Result<(), Failure> {
    let directory = model.directory()?;
    let mut options = flags.tuned_options(&directory)?;
    let streams = args.streams as usize;
    (options.sequences_max, options.waves_max) = (streams, streams);
    options.held_bytes = held_bytes();
    let model = Model::open_with(&directory, flags.checks())?;
    let vocabulary = model.spec.vocabulary;
    let files = expert_files(&model, &directory);
    let engine = Engine::start(model, &options)?;
    let at_once = engine.setting.reads_at_once;
    let drive_gb_s = || match bandwidth::drive_bytes_s(&files, at_once) {
        Ok(bytes_s) => Some(bytes_s / 1e9),
        Err(reason) => {
            say(&format!("drive: not measured: {reason}"));
            None
        }
    };
    for warning in &engine.warnings {
        say(&format!("warning: {warning}"));
    }
    let workload = Workload {
        prompt_tokens: args.prompt_tokens as usize,
        answer_tokens: args.answer_tokens as usize,
        prompts: args.prompts as usize,
        streams,
        forced: !args.free,
        seed,
    };
    let bench = StreamBench { engine: &engine, vocabulary, workload, drive_gb_s: &drive_gb_s };
    let report = bench.run()?;
    match json {
        false => print(&report.to_string()),
        true => print(&format!("{}\n", serde_json::to_string(&report).map_err(Failure::failed)?)),
    }
}
