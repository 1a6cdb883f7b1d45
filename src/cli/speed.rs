//! Plain `bench`: prefill and decode of a model, beside what memory and drive give in the same run.
//!
//! Memory is measured before the engine starts, the drive before it and after the last test. The engine
//! starts as `run` would start it, but nothing is learned.

use super::bench::Output;
use super::flags::{EngineFlags, ModelFlag, held_bytes};
use super::plan::expert_files;
use super::{Failure, print, say};
use crate::bench::findings::{Facts, findings};
use crate::bench::{
    Best, Measured, Provenance, Recorded, SpeedBench, SpeedReport, SpeedRow, Stretch, Test,
    TestKind, pictures,
};
use crate::engine::{Engine, Model, Options, Request, Setup, bandwidth};
use clap::Args;
use clap::builder::FalseyValueParser;
use millstream_stages::gauge::{Event, cost_ns_per_message};
use millstream_topology::plan_file;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

/// Context before the deep test when the user names none.
const DEPTH_DEFAULT: usize = 4096;
/// A deep test that nobody asked for is left out if reading its context takes longer than this.
const DEPTH_SECONDS_MAX: f64 = 20.0;
/// Events that a timeline of a few tokens may have.
const TIMELINE_EVENTS_MAX: usize = 1 << 16;
/// Tokens of which the last whole one is drawn.
const TIMELINE_TOKENS: usize = 4;

/// Arguments of plain `bench`.
#[derive(Args, Debug)]
pub struct SpeedArgs {
    /// Tokens of prompts, a list; 0 measures none [default: 512]
    #[arg(
        short = 'p',
        long,
        env = "MILLSTREAM_N_PROMPT",
        value_name = "LIST",
        value_delimiter = ','
    )]
    n_prompt: Vec<usize>,
    /// Tokens of answers, a list; 0 measures none [default: 128]
    #[arg(short = 'n', long, env = "MILLSTREAM_N_GEN", value_name = "LIST", value_delimiter = ',')]
    n_gen: Vec<usize>,
    /// Tokens of context before each test, a list [default: 0, and 4096 for answers if that is read
    /// within 20 s]
    #[arg(
        short = 'd',
        long,
        env = "MILLSTREAM_N_DEPTH",
        value_name = "LIST",
        value_delimiter = ','
    )]
    n_depth: Vec<usize>,
    /// How often each test runs, once to warm up aside [default: 5]
    #[arg(short, long, env = "MILLSTREAM_REPETITIONS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Write everything that was recorded: HdrHistogram logs and percentiles of each series, pictures
    #[arg(long, env = "MILLSTREAM_HISTOGRAMS", value_name = "DIR")]
    histograms: Option<PathBuf>,
    /// Say what could be better, each with the flag that would change it
    #[arg(long, env = "MILLSTREAM_REPORT", value_parser = FalseyValueParser::new())]
    report: bool,
}

impl SpeedArgs {
    /// Other kinds of bench take none of these.
    pub fn refuse_beside_others(&self) -> Result<(), Failure> {
        let given = [
            ("--n-prompt", !self.n_prompt.is_empty()),
            ("--n-gen", !self.n_gen.is_empty()),
            ("--n-depth", !self.n_depth.is_empty()),
            ("--repetitions", self.repetitions.is_some()),
            ("--histograms", self.histograms.is_some()),
            ("--report", self.report),
        ];
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((flag, _)) => {
                Err(Failure::Usage(format!("{flag} is for plain `bench`; leave it out here")))
            }
        }
    }

    fn tests(&self, context_max: usize) -> Result<Tests, Failure> {
        let or = |list: &[usize], default: usize| {
            if list.is_empty() { vec![default] } else { list.to_vec() }
        };
        let depths = or(&self.n_depth, 0);
        let kinds =
            [(TestKind::Prompt, or(&self.n_prompt, 512)), (TestKind::Answer, or(&self.n_gen, 128))];
        let mut sure = vec![];
        for &depth in &depths {
            for (kind, lengths) in &kinds {
                for &tokens in lengths.iter().filter(|&&tokens| tokens > 0) {
                    sure.push(capped(Test { kind: *kind, tokens, depth }, context_max)?);
                }
            }
        }
        let deep = |&tokens: &usize| {
            let test = Test { kind: TestKind::Answer, tokens, depth: DEPTH_DEFAULT };
            capped(test, context_max).ok().filter(|test| test.depth > tokens)
        };
        let perhaps = match self.n_depth.is_empty() {
            true => kinds[1].1.iter().filter(|&&tokens| tokens > 0).filter_map(deep).collect(),
            false => vec![],
        };
        match sure.is_empty() {
            true => Err(Failure::Usage("-p 0 -n 0: nothing to measure".into())),
            false => Ok(Tests { sure, perhaps }),
        }
    }
}

/// What is measured in any case, and what if there is time.
struct Tests {
    sure: Vec<Test>,
    perhaps: Vec<Test>,
}

/// A test whose depth is cut to what the context allows.
fn capped(test: Test, context_max: usize) -> Result<Test, Failure> {
    let over = test.context().saturating_sub(context_max);
    if over > test.depth {
        return Err(Failure::Usage(format!("{test} doesn't fit a context of {context_max}")));
    }
    let capped = Test { depth: test.depth - over, ..test };
    if over > 0 {
        say(&format!("{test} becomes {capped}: the context has {context_max} positions"));
    }
    Ok(capped)
}

/// Runs it.
pub fn run(
    args: &SpeedArgs,
    model_flag: &ModelFlag,
    flags: &EngineFlags,
    seed: u64,
    output: Output,
) -> Result<(), Failure> {
    let directory = model_flag.directory()?;
    let mut options = flags.tuned_options(&directory)?;
    options.held_bytes = held_bytes();
    if let Some(place) = &args.histograms {
        // Now, because what was measured would be lost later.
        std::fs::create_dir_all(place).map_err(|error| {
            Failure::Failed(format!(
                "--histograms {}: {error}; name a directory that can be written",
                place.display()
            ))
        })?;
        options.timeline_events_max = TIMELINE_EVENTS_MAX;
    }
    let model = Model::open_with(&directory, flags.checks())?;
    let context_max = options.context.unwrap_or(model.spec.context_max).min(model.spec.context_max);
    let tests = args.tests(context_max)?;
    if options.context.is_none() {
        let needed = tests.sure.iter().chain(&tests.perhaps).map(Test::context).max();
        options.context = needed.map(|needed| needed.min(context_max));
    }
    let session = Session::start(model, &directory, &options, args, seed)?;
    let report = session.run(&tests, &directory)?;
    print(&match output {
        Output::Markdown => report.markdown(),
        Output::Json => report.json().map_err(Failure::failed)? + "\n",
        Output::Jsonl => report.jsonl().map_err(Failure::failed)?,
        Output::Csv => report.csv().map_err(Failure::failed)?,
    })
}

/// A running engine, and what was measured before it started.
struct Session<'a> {
    args: &'a SpeedArgs,
    seed: u64,
    engine: Engine,
    vocabulary: usize,
    files: Vec<PathBuf>,
    memory_gb_s: Option<f64>,
    drive_before: Result<f64, String>,
}

impl<'a> Session<'a> {
    fn start(
        model: Model,
        directory: &Path,
        options: &Options,
        args: &'a SpeedArgs,
        seed: u64,
    ) -> Result<Session<'a>, Failure> {
        let files = expert_files(&model, directory);
        let setup = Setup::new(&model, options)?;
        say("measuring memory and drive");
        let memory_gb_s = bandwidth::memory_bytes_s(&setup.plan, setup.kernels).ok();
        let drive_before = bandwidth::drive_bytes_s(&files, options.reads.at_once(&setup.reads));
        drop(setup);
        let vocabulary = model.spec.vocabulary;
        let engine = Engine::start(model, options)?;
        for warning in &engine.warnings {
            say(&format!("warning: {warning}"));
        }
        let memory_gb_s = memory_gb_s.map(|bytes_s| bytes_s / 1e9);
        Ok(Session { args, seed, engine, vocabulary, files, memory_gb_s, drive_before })
    }

    fn run(&self, tests: &Tests, directory: &Path) -> Result<SpeedReport, Failure> {
        let (since, start) = (Instant::now(), SystemTime::now());
        let best = Best {
            memory_gb_s: self.memory_gb_s,
            disk_gb_s: self.drive_before.as_ref().ok().map(|bytes_s| bytes_s / 1e9),
        };
        let bench = SpeedBench {
            engine: &self.engine,
            vocabulary: self.vocabulary,
            repetitions: self.args.repetitions.unwrap_or(5) as usize,
            seed: self.seed,
            best,
            since,
        };
        let (mut rows, mut stretches): (Vec<SpeedRow>, Vec<Stretch>) = (vec![], vec![]);
        let mut measure = |test: Test, rows: &mut Vec<SpeedRow>| -> Result<(), Failure> {
            say(&format!("{test}, {} times", bench.repetitions));
            let (row, mut recorded) = bench.run(test)?;
            rows.push(row);
            stretches.append(&mut recorded);
            Ok(())
        };
        for &test in &tests.sure {
            measure(test, &mut rows)?;
        }
        for &test in &tests.perhaps {
            match seconds_to_read(test.depth, &rows) {
                Some(seconds) if seconds <= DEPTH_SECONDS_MAX => measure(test, &mut rows)?,
                Some(seconds) => say(&format!(
                    "{test} is left out: reading its context would take {seconds:.0} s each time; -d {} measures it",
                    test.depth
                )),
                None => {}
            }
        }
        let (measured, provenance) = (self.measured(&mut rows), self.provenance(directory));
        if let Some(place) = &self.args.histograms {
            let comments: Vec<String> = provenance.to_string().lines().map(str::to_owned).collect();
            let events = self.timeline()?;
            let recorded = Recorded {
                comments: &comments,
                start,
                stretches: &stretches,
                rows: &rows,
                events: pictures::last_token(&events),
                plan_toml: &plan_file::to_text(&self.engine.setting.plan),
            };
            let names = recorded.write(place).map_err(Failure::failed)?;
            say(&format!("{} files in {}", names.len(), place.display()));
        }
        let facts = Facts {
            provenance: &provenance,
            measured: &measured,
            setting: &self.engine.setting,
            rows: &rows,
        };
        let findings = self.args.report.then(|| findings(&facts));
        Ok(SpeedReport { provenance, measured, rows, findings })
    }

    fn provenance(&self, directory: &Path) -> Provenance {
        Provenance::of(&self.engine, directory)
    }

    /// The ceilings, the drive's as the mean of before and now; rows get their shares of them.
    fn measured(&self, rows: &mut [SpeedRow]) -> Measured {
        let at_once = self.engine.setting.reads_at_once;
        let after = match &self.drive_before {
            Ok(_) => bandwidth::drive_bytes_s(&self.files, at_once),
            Err(reason) => Err(reason.clone()),
        };
        let disk = match (&self.drive_before, &after) {
            (Ok(before), Ok(after)) => Ok(f64::midpoint(*before, *after) / 1e9),
            (Err(reason), _) | (_, Err(reason)) => Err(reason.clone()),
        };
        for row in rows.iter_mut() {
            row.disk_share = disk.as_ref().ok().map(|best| row.disk_read_gb_s / best);
        }
        let gauge_ns_per_message = cost_ns_per_message();
        let answer = rows.iter().find(|row| row.kind == TestKind::Answer);
        Measured {
            memory_best_gb_s: self.memory_gb_s,
            disk_best_gb_s: disk.as_ref().ok().copied(),
            disk_not_measured: disk.err(),
            gauge_ns_per_message,
            gauge_messages_per_token: answer.map(|row| row.messages_per_token),
            gauge_share: answer
                .map(|row| gauge_ns_per_message * row.messages_per_token * row.tok_s / 1e9),
        }
    }

    /// What happened when during a few tokens.
    fn timeline(&self) -> Result<Vec<Event>, Failure> {
        let Some(timeline) = self.engine.gauges().timeline() else { return Ok(vec![]) };
        timeline.begin();
        let request = Request::greedy(vec![0], TIMELINE_TOKENS);
        self.engine.generate(&request, &mut |_| ControlFlow::Continue(()))?;
        timeline.end();
        Ok(timeline.events())
    }
}

/// How long a context takes to read, by the fastest prompt that was measured.
fn seconds_to_read(depth: usize, rows: &[SpeedRow]) -> Option<f64> {
    let speed = rows.iter().filter_map(|row| row.prefill_tok_s).fold(0.0, f64::max);
    (speed > 0.0).then(|| depth as f64 / speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_cut_to_the_context_and_what_never_fits_is_refused() {
        let test = |tokens, depth| Test { kind: TestKind::Answer, tokens, depth };
        assert_eq!(capped(test(128, 4096), 8192).expect("fits"), test(128, 4096));
        let cut = capped(test(128, 4096), 4096).expect("fits with less depth");
        assert_eq!((cut.tokens, cut.context()), (128, 4096));
        assert!(matches!(capped(test(128, 0), 100), Err(Failure::Usage(_))));
    }
}
