//! `inspect`: what is in a model's files, from their headers alone.

use super::flags::ModelFlag;
use super::{Failure, print};
use crate::checkpoint::ModelFiles;
use crate::checkpoint::describe::describe;
use crate::checkpoint::pack::{PackChecks, PackFiles, describe_pack};
use clap::Args;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// Arguments of `inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Model: a directory or a GGUF file. Left out: the small model inside the binary
    #[arg(value_name = "MODEL")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    model: ModelFlag,
    /// Print one JSON object
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<(), Failure> {
    let directory = match &args.directory {
        Some(directory) => directory.clone(),
        None => args.model.directory()?,
    };
    let description = match PackFiles::is_pack(&directory) {
        true => describe_pack(&PackFiles::open(&directory, PackChecks::default())?),
        false => describe(&ModelFiles::open(&directory)?),
    };
    match args.json {
        true => {
            let text = serde_json::to_string_pretty(&description).map_err(Failure::failed)?;
            print(&format!("{text}\n"))
        }
        false => print(&format!("{}\n{description}", directory.display())),
    }
}
