//! `run`: one prompt in, one answer out, as it is made.
//!
//! The prompt becomes ids (`prompt.rs`), the engine makes ids of them, and text or ids go to
//! stdout one by one, or as one JSON object at the end. What runs, warnings and statistics go to stderr.

use super::flags::{EngineFlags, ModelFlag, held_bytes, write_file};
use super::guard::check_ids;
use super::prompt::{Prompt, PromptFlags, read_ids};
use super::sampling::SamplingFlags;
use super::{Failure, print};
use crate::engine::{Answer, Engine, Model, Request};
use crate::sampler::Sampling;
use crate::text::{SamplingAdvice, TextError, TextStream, Tokenizer, sampling_advice, stop_ids};
use clap::Args;
use clap::builder::FalseyValueParser;
use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelFlag,
    #[command(flatten)]
    prompt: PromptFlags,
    #[command(flatten)]
    engine: EngineFlags,
    /// Tokens of the answer at most
    #[arg(
        long,
        env = "MILLSTREAM_MAX_TOKENS",
        allow_negative_numbers = true,
        default_value = "128",
        value_name = "N"
    )]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingFlags,
    /// Go on where the model would end its answer
    #[arg(long, env = "MILLSTREAM_IGNORE_EOS", value_parser = FalseyValueParser::new())]
    ignore_eos: bool,
    /// Print one JSON object at the end: prompt_ids, answer_ids, text, finish, stats
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
    /// Write the logits of every position (safetensors, "logits", f32 [positions, vocabulary])
    #[arg(long, env = "MILLSTREAM_LOGITS", value_name = "FILE")]
    logits: Option<PathBuf>,
    /// Write the experts and positions that were chosen, by layer and position (JSON)
    #[arg(long, env = "MILLSTREAM_TRACE", value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Feed the ids in this file (a JSON list, or numbers) as the answer, whatever the model would
    /// choose, and --max-tokens or not: then routing is the same in every run
    #[arg(long, env = "MILLSTREAM_FORCED", value_name = "FILE")]
    forced: Option<PathBuf>,
    /// Take ids that look as if they were made for another model
    #[arg(long, env = "MILLSTREAM_FORCE", value_parser = FalseyValueParser::new())]
    force: bool,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let forced = args.forced.as_deref().map(read_ids).transpose()?;
    if args.logits.is_some() && args.logits == args.trace {
        return Err(Failure::Usage("--logits and --trace name one file; name two".into()));
    }
    for file in [&args.logits, &args.trace].into_iter().flatten() {
        check_writable(file)?;
    }

    let directory = args.model.directory()?;
    check_not_the_models([&args.logits, &args.trace], &directory)?;
    let mut options = args.engine.tuned_options(&directory)?;
    options.trace = args.trace.is_some();
    if args.logits.is_some() {
        options.logits_rows_max = options.prefill_chunk;
    }
    options.learn = args.engine.use_file(&args.model, &directory);
    let model = Model::open_with(&directory, args.engine.checks())?;
    let sampling = sampling(args, &directory)?;
    let vocabulary = model.spec.vocabulary;
    let tokenizer = Tokenizer::open(&directory)?;
    if let Some(tokenizer) = &tokenizer {
        tokenizer.check_vocabulary(vocabulary)?;
    }
    let embedded = args.model.model.is_none();
    let prompt = Prompt::new(&args.prompt, &directory, tokenizer.as_ref(), embedded)?;
    let check =
        |flag, ids: &[u32]| check_ids(flag, ids, vocabulary, args.force).map_err(Failure::Usage);
    if args.prompt.prompt_ids.is_some() {
        check("--prompt-ids", &prompt.ids)?;
    }
    check("--forced", forced.as_deref().unwrap_or(&[]))?;
    let request = Request {
        sampling,
        stop_ids: match args.ignore_eos {
            true => vec![],
            false => stops(&model, &directory, tokenizer.as_ref())?,
        },
        forced,
        keep_logits: args.logits.is_some(),
        keep_trace: args.trace.is_some(),
        ..Request::greedy(prompt.ids, args.max_tokens)
    };

    options.held_bytes = held_bytes();
    let engine = Engine::start(model, &options)?;
    super::say(&engine.start_line);
    for warning in &engine.warnings {
        super::say(&format!("warning: {warning}"));
    }
    if let Some(text) = prompt.shown {
        super::say(&format!("prompt: {text}"));
    }
    let answer = generate(&engine, &request, tokenizer.as_ref(), args.json)?;
    if let Some(file) = &args.logits {
        write_logits(file, &answer, vocabulary)?;
    }
    if let Some(file) = &args.trace {
        write_file(file, &serde_json::to_vec(&answer.trace).map_err(Failure::failed)?)?;
    }
    match args.json {
        true => print_object(&request, &answer, tokenizer.as_ref(), &engine),
        false => {
            super::say(&answer.statistics.to_string());
            Ok(())
        }
    }
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Failure {
        Failure::failed(error)
    }
}

/// The flags, or else the makers' advice, which is about text: ids are fed to compare engines.
fn sampling(args: &RunArgs, directory: &Path) -> Result<Sampling, Failure> {
    let advice = match args.prompt.prompt_ids {
        Some(_) => SamplingAdvice::default(),
        None => sampling_advice(directory)?,
    };
    args.sampling.sampling(&advice)
}

/// Every token that one of the model's files calls an end.
pub fn stops(
    model: &Model,
    directory: &Path,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<u32>, Failure> {
    let mut stops = stop_ids(directory, tokenizer)?;
    stops.extend(&model.stop_ids);
    stops.sort_unstable();
    stops.dedup();
    Ok(stops)
}

/// Generates; unless `quiet`, the answer goes to stdout as it comes: text, or ids where the model
/// has no tokenizer.
fn generate(
    engine: &Engine,
    request: &Request,
    tokenizer: Option<&Tokenizer>,
    quiet: bool,
) -> Result<Answer, Failure> {
    let mut stream = tokenizer.map(|tokenizer| TextStream::new(tokenizer, true));
    let mut ended_line = true;
    let mut trouble = None;
    let mut show = |piece: Result<String, TextError>| {
        let shown = piece.map_err(Failure::from).and_then(|text| {
            ended_line = if text.is_empty() { ended_line } else { text.ends_with('\n') };
            print(&text)
        });
        match shown {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                trouble = Some(failure);
                ControlFlow::Break(())
            }
        }
    };
    let answer = engine.generate(request, &mut |token| match (&mut stream, quiet) {
        (_, true) => ControlFlow::Continue(()),
        (Some(stream), false) => show(stream.push(token)),
        (None, false) => show(Ok(format!("{token} "))),
    });
    // Before the engine's outcome is looked at, so that a failed answer shows all of its text.
    if let (Some(stream), false) = (&mut stream, quiet) {
        let _ = show(stream.finish());
    }
    if !ended_line {
        print("\n")?;
    }
    match trouble {
        Some(failure) => Err(failure),
        None => Ok(answer?),
    }
}

/// The answer as one JSON object.
fn print_object(
    request: &Request,
    answer: &Answer,
    tokenizer: Option<&Tokenizer>,
    engine: &Engine,
) -> Result<(), Failure> {
    let text = tokenizer.map(|tokenizer| tokenizer.decode(&answer.answer_ids, true)).transpose()?;
    let object = serde_json::json!({
        "prompt_ids": request.prompt_ids,
        "answer_ids": answer.answer_ids,
        "text": text,
        "finish": answer.finish,
        "isa": engine.isa.name(),
        "plan": {
            "policy": engine.setting.plan.policy,
            "memory_policy": engine.setting.plan.memory_policy,
            "nodes": engine.setting.plan.nodes.len(),
            "threads": engine.setting.plan.threads,
            "fingerprint": engine.setting.plan.fingerprint(),
        },
        "stats": answer.statistics,
    });
    print(&format!("{object}\n"))
}

/// Nothing may be written over a file of the model.
fn check_not_the_models(files: [&Option<PathBuf>; 2], directory: &Path) -> Result<(), Failure> {
    for file in files.into_iter().flatten() {
        let (Ok(file), Ok(directory)) = (file.canonicalize(), directory.canonicalize()) else {
            continue;
        };
        let empty = std::fs::metadata(&file).is_ok_and(|found| found.len() == 0);
        if file.starts_with(&directory) && !empty {
            return Err(Failure::Usage(format!(
                "{} is in the model's directory; name a file elsewhere",
                file.display()
            )));
        }
    }
    Ok(())
}

/// Finds out before the work, not after it, that a file can't be written.
fn check_writable(file: &Path) -> Result<(), Failure> {
    if std::fs::metadata(file).is_ok_and(|found| found.file_type().is_fifo()) {
        return Err(Failure::Usage(format!("{} is a pipe; name a file", file.display())));
    }
    match OpenOptions::new().append(true).create(true).open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Failed(format!("can't write {}: {error}", file.display()))),
    }
}

/// `logits`, f32 `[positions, vocabulary]`, as a safetensors file.
fn write_logits(file: &Path, answer: &Answer, vocabulary: usize) -> Result<(), Failure> {
    use safetensors::tensor::{Dtype, TensorView, serialize};
    let logits = answer.logits.as_deref().expect("the request asked for them");
    let shape = vec![logits.len() / vocabulary, vocabulary];
    let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(logits));
    let view = view.map_err(Failure::failed)?;
    let bytes = serialize([("logits", view)], None).map_err(Failure::failed)?;
    write_file(file, &bytes)
}
