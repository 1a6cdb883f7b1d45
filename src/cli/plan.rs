//! `plan`: what a run would hold, and how fast memory and drive could let it be.
//!
//! Takes the flags of `run`, resolves them as a run would, and starts nothing. Memory and drive are
//! measured for about two seconds unless that is refused; what wasn't measured is said to be so.

use super::flags::{EngineFlags, ModelFlag, held_bytes};
use super::{Failure, print, say};
use crate::checkpoint::model_dirs;
use crate::engine::{Ceilings, Model, Setup, TokenBytes, bandwidth};
use crate::text::Tokenizer;
use clap::Args;
use clap::builder::FalseyValueParser;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::spec::LayerSpec;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Arguments of `plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    model: ModelFlag,
    #[command(flatten)]
    engine: EngineFlags,
    /// Measure neither memory nor drive: bytes only
    #[arg(long, env = "MILLSTREAM_NO_MEASURE", value_parser = FalseyValueParser::new())]
    no_measure: bool,
    /// Print one JSON object
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<(), Failure> {
    let directory = args.model.directory()?;
    let mut options = args.engine.tuned_options(&directory)?;
    let model = Model::open_with(&directory, args.engine.checks())?;
    // A run would hold it, too.
    let _tokenizer = Tokenizer::open(&directory)?;
    if let Some(file) = args.engine.use_file(&args.model, &directory) {
        let experts = |layer: &LayerSpec| layer.moe().map_or(0, |moe| moe.experts);
        let experts: Vec<usize> = model.spec.layers.iter().map(experts).collect();
        let (uses, warning) = file.load(&experts);
        warning.iter().for_each(|warning| say(&format!("warning: {warning}")));
        options.use_counts = Some(uses);
    }
    options.held_bytes = held_bytes();
    let setup = Setup::new(&model, &options)?;
    let token = TokenBytes::of(&model, &setup, &options);
    let ceilings = match args.no_measure {
        true => Ceilings::new(token, None, Err("--no-measure".into())),
        false => {
            let memory = bandwidth::memory_bytes_s(&setup.plan, setup.kernels);
            let drive = bandwidth::drive_bytes_s(
                &expert_files(&model, &directory),
                options.reads.at_once(&setup.reads),
            );
            Ceilings::new(token, memory.ok(), drive)
        }
    };
    if args.json {
        let object = serde_json::json!({
            "memory": setup.memory,
            "memory_total_bytes": setup.memory.total(),
            "threads": setup.plan.threads,
            "nodes": setup.plan.nodes.len(),
            "ceilings": ceilings,
        });
        let text = serde_json::to_string_pretty(&object).map_err(Failure::failed)?;
        return print(&format!("{text}\n"));
    }
    let memory = &setup.memory;
    let text = format!("memory\n{memory}\nslots\n{}{ceilings}\n", slots(memory));
    print(&text)?;
    for warning in memory.warnings() {
        say(&format!("warning: {warning}"));
    }
    Ok(())
}

/// Slots of each layer; neighbours that are alike in one line.
fn slots(memory: &crate::engine::MemoryTable) -> String {
    let of = |layer: usize| (memory.slots[layer], memory.experts[layer], memory.slot_bytes[layer]);
    let mut text = String::new();
    let mut first = 0;
    while first < memory.slots.len() {
        let alike = (first..memory.slots.len()).take_while(|&layer| of(layer) == of(first));
        let last = first + alike.count() - 1;
        let (slots, experts, bytes) = of(first);
        let layers = match first == last {
            true => format!("layer {first}"),
            false => format!("layers {first} to {last}"),
        };
        let what = match experts {
            0 => "no routed experts".to_owned(),
            _ => format!("{slots} of {experts} experts, {:.2} MB each", bytes as f64 / 1e6),
        };
        text.push_str(&format!("  {layers:<19}{what}\n"));
        first = last + 1;
    }
    text
}

/// The files that experts are read from, those that can be found by their names.
pub fn expert_files(model: &Model, directory: &Path) -> Vec<PathBuf> {
    let mut files = BTreeSet::new();
    for (index, layer) in model.spec.layers.iter().enumerate() {
        for expert in 0..layer.moe().map_or(0, |moe| moe.experts) as u32 {
            let extents = model.source.expert_extents(LayerId(index as u32), ExpertId(expert));
            files.extend(extents.iter().map(|extent| extent.file.index()));
        }
    }
    let name = |file: usize| model.source.file_name(millstream_stages::ids::FileId(file as u32));
    let beside = if directory.is_file() { directory.parent() } else { None };
    let mut places = vec![beside.unwrap_or(directory).to_path_buf()];
    places.extend(model_dirs());
    let find = |name: String| places.iter().map(|place| place.join(&name)).find(|p| p.is_file());
    files.into_iter().map(name).filter_map(find).collect()
}
