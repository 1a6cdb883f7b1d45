//! `tune`: finds settings that make a model faster on this machine, and keeps them.
//!
//! Flags that are given stay as they are; everything else that is a knob is tried. Progress goes to
//! stderr, the outcome to stdout. What is found is saved at every step, so the command can be stopped at
//! any time; `run`, `bench` and `plan` use it from then on and say so.

use super::flags::{EngineFlags, ModelFlag, held_bytes};
use super::{Failure, print, say};
use crate::engine::Model;
use crate::tune::{
    EngineTrial, Judgement, KNOBS, Knob, Outcome, ProfileError, ProfileFile, Room, Search,
    Settings, Step, StepEnd,
};
use clap::Args;
use clap::builder::FalseyValueParser;
use millstream_topology::machine::Machine;
use std::time::{Duration, Instant};

/// Arguments of `tune`.
#[derive(Args, Debug)]
pub struct TuneArgs {
    #[command(flatten)]
    model: ModelFlag,
    #[command(flatten)]
    engine: EngineFlags,
    /// How long it may take: 90s, 10m, 2h
    #[arg(long, env = "MILLSTREAM_BUDGET", default_value = "10m", value_parser = parse_duration, value_name = "TIME")]
    budget: Duration,
    /// Try these settings only (names of flags without dashes), a list
    #[arg(long, env = "MILLSTREAM_ONLY", value_name = "LIST", value_delimiter = ',', value_parser = parse_knob)]
    only: Vec<&'static str>,
    /// Begin with these settings instead of the defaults, for example spin-us=0: they are what the
    /// outcome must beat
    #[arg(
        long,
        env = "MILLSTREAM_START",
        default_value = "",
        hide_default_value = true,
        value_name = "NAME=VALUE,.."
    )]
    start: Settings,
    /// Tokens of the prompt of each run
    #[arg(long, env = "MILLSTREAM_PROMPT_TOKENS", default_value = "128", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: u32,
    /// Tokens of the answer of each run
    #[arg(long, env = "MILLSTREAM_ANSWER_TOKENS", default_value = "64", value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    answer_tokens: u32,
    /// Of the ids that are fed
    #[arg(long, env = "MILLSTREAM_SEED", default_value = "0", value_name = "N")]
    seed: u64,
    /// Find, but keep nothing
    #[arg(long, env = "MILLSTREAM_DRY_RUN", value_parser = FalseyValueParser::new())]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long, env = "MILLSTREAM_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

impl From<ProfileError> for Failure {
    fn from(error: ProfileError) -> Failure {
        Failure::failed(error)
    }
}

/// Runs the command.
pub fn run(args: &TuneArgs) -> Result<(), Failure> {
    let mut options = args.engine.options()?;
    options.held_bytes = held_bytes();
    let directory = args.model.directory()?;
    let machine = millstream_topology::probe(&options.topology.source)?;
    if machine.is_foreign() {
        return Err(Failure::Usage(
            "tune measures this machine; leave --topology out, or name a policy".into(),
        ));
    }
    let file = match args.dry_run {
        true => None,
        false => Some(ProfileFile::of(&directory, &machine.fingerprint())?),
    };
    let open = || Model::open_with(&directory, args.engine.checks());
    let mut trial = EngineTrial {
        open: &open,
        options,
        prompt_tokens: args.prompt_tokens as usize,
        answer_tokens: args.answer_tokens as usize,
        seed: args.seed,
        since: Instant::now(),
    };
    let knobs = args.knobs(&trial, &machine)?;
    let (mut trouble, mut tried) = (None, 0);
    let mut on_step = |step: &Step| {
        say(&describe(step));
        tried += usize::from(matches!(step.end, StepEnd::Taken(_) | StepEnd::Left(_)));
        if let (StepEnd::Taken(_), Some(file)) = (&step.end, &file) {
            trouble = file.save(&step.best, None).err().or(trouble.take());
            say(&format!(
                "kept so far in {}, not yet checked against the beginning; --tuned off leaves it out",
                file.path().display()
            ));
        }
    };
    let outcome = Search::new(&mut trial, args.budget, &mut on_step).run(&args.start, &knobs);
    if let Some(error) = trouble {
        return Err(error.into());
    }
    if let Some(file) = &file {
        keep(file, &outcome, &args.start)?;
    }
    args.print(&outcome, tried, file.as_ref())
}

impl TuneArgs {
    /// What will be tried; says what won't.
    fn knobs(
        &self,
        trial: &EngineTrial<'_>,
        machine: &Machine,
    ) -> Result<Vec<(&'static Knob, Vec<String>)>, Failure> {
        let (options, setting) = trial.look(&self.start).map_err(Failure::Failed)?;
        let (tokens, context) =
            (self.prompt_tokens as usize + self.answer_tokens as usize, setting.limits.context_max);
        if tokens > context {
            return Err(Failure::Usage(format!(
                "--prompt-tokens and --answer-tokens are {tokens} in all, and the context is {context}; use fewer, or a \
                 larger --context"
            )));
        }
        let memory = &setting.memory;
        let mut nodes: Vec<usize> = machine.usable_cores().map(|core| core.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let room = Room {
            cores: machine.physical_cores(),
            nodes: nodes.len(),
            streams: memory
                .slots
                .iter()
                .zip(&memory.experts)
                .any(|(slots, experts)| slots < experts),
            uring: setting.reads.contains("uring"),
        };
        let mut tried = vec![];
        for knob in KNOBS {
            if !self.only.is_empty() && !self.only.contains(&knob.name) {
                continue;
            }
            if self.engine.is_given(knob.name) {
                say(&format!("{}: as given", knob.name));
                continue;
            }
            if !(knob.fits)(&room) {
                say(&format!("{}: nothing to gain here", knob.name));
                continue;
            }
            let now = (knob.now)(&options, &setting);
            let mut values = (knob.values)(&room);
            values.retain(|value| *value != now);
            say(&format!("{}: {now}; to try: {}", knob.name, values.join(", ")));
            tried.push((knob, values));
        }
        Ok(tried)
    }

    fn print(
        &self,
        outcome: &Outcome,
        tried: usize,
        file: Option<&ProfileFile>,
    ) -> Result<(), Failure> {
        let gain = outcome.check.as_ref().map(|check| check.gain);
        if self.json {
            let object = serde_json::json!({
                "settings": outcome.best,
                "start": self.start,
                "tried": tried,
                "gain_share": gain,
                "gain_low_share": outcome.check.as_ref().map(|check| check.gain_low),
                "p99_longer_share": outcome.check.as_ref().map(|check| check.p99_worse),
                "checked": outcome.check.is_some() && !outcome.taken_back,
                "out_of_time": outcome.out_of_time,
                "profile": file.map(|file| file.path()),
            });
            return print(&format!("{object}\n"));
        }
        let start = match self.start.is_empty() {
            true => "the default".to_owned(),
            false => self.start.to_string(),
        };
        let mut text = match (&outcome.check, outcome.best == self.start) {
            (_, true) if outcome.taken_back => {
                format!("what was found doesn't hold against {start}: nothing is changed\n")
            }
            (_, true) if tried == 0 => "nothing was tried\n".to_owned(),
            (_, true) => format!("nothing is faster than {start}\n"),
            (Some(check), _) => format!("{}: {}\n", outcome.best, words(check)),
            (None, _) => {
                format!("{}: not checked against {start}, there was no time\n", outcome.best)
            }
        };
        if outcome.out_of_time {
            text += "the time was too short to try everything; a longer --budget tries more\n";
        }
        if let Some(file) = file.filter(|_| outcome.best != self.start) {
            text += &format!("kept in {}; --tuned off leaves it out\n", file.path().display());
        }
        print(&text)
    }
}

/// Keeps what was found. A profile of before goes when everything was tried and nothing is better.
fn keep(file: &ProfileFile, outcome: &Outcome, start: &Settings) -> Result<(), Failure> {
    let gain = outcome.check.as_ref().map(|check| check.gain);
    if outcome.best != *start {
        file.save(&outcome.best, gain)?;
    } else if outcome.taken_back || !outcome.out_of_time {
        file.remove()?;
    }
    Ok(())
}

fn describe(step: &Step) -> String {
    let Step { knob, value, end, .. } = step;
    match end {
        StepEnd::Taken(judgement) => format!("{knob} {value}: {}: taken", words(judgement)),
        StepEnd::Left(judgement) => {
            format!("{knob} {value}: {}: left, {}", words(judgement), judgement.reason())
        }
        StepEnd::Refused(reason) => format!("{knob} {value}: can't be had: {reason}"),
        StepEnd::OutOfTime => format!("{knob} {value}: no time left for it"),
    }
}

fn words(judgement: &Judgement) -> String {
    let percent = |share: f64| share * 100.0;
    format!(
        "{:+.1} % ({:+.1} to {:+.1}), 99th percentile {:+.1} %, {} runs each",
        percent(judgement.gain),
        percent(judgement.gain_low),
        percent(judgement.gain_high),
        percent(judgement.p99_worse),
        judgement.runs
    )
}

fn parse_knob(text: &str) -> Result<&'static str, String> {
    let known = || KNOBS.iter().map(|knob| knob.name).collect::<Vec<_>>().join(", ");
    Knob::named(text).map(|knob| knob.name).ok_or_else(|| format!("use some of {}", known()))
}

/// `90s`, `10m` or `2h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let how = || "use a time such as 90s, 10m or 2h".to_owned();
    let (number, unit) = text.split_at(text.len() - text.chars().last().map_or(0, char::len_utf8));
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(how()),
    };
    let number: u64 = number.parse().map_err(|_| how())?;
    match number.checked_mul(seconds) {
        Some(seconds @ 1..) => Ok(Duration::from_secs(seconds)),
        _ => Err(how()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_have_their_unit() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "10", "m", "0s", "-3m", "1.5h", "5µ", "99999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
