//! The command line: words in, an exit code out.
//!
//! | file | what it does |
//! |---|---|
//! | `flags.rs` | flags that several commands share, and what they mean for the engine |
//! | `run.rs`, `prompt.rs` | `run`: generate once |
//! | `serve.rs` | `serve`: a model for the clients of public APIs |
//! | `sampling.rs` | flags that say how tokens are chosen |
//! | `chat.rs`, `conversation.rs`, `lines.rs`, `interrupt.rs` | `chat`: a conversation in the terminal |
//! | `plan.rs` | `plan`: memory, slots and ceilings of a model on this machine |
//! | `inspect.rs` | `inspect`: what is in a model |
//! | `convert.rs` | `convert`: a model into a pack |
//! | `doctor.rs` | `doctor`: everything that is wrong with a model |
//! | `bench.rs`, `speed.rs`, `stream.rs` | `bench`: speed, and what could be better, measured |
//! | `tune.rs` | `tune`: settings that are faster on this machine |
//! | `topology.rs` | `topology`: the machine, who would sit where, and where memory really lies |
//! | `guard.rs` | ids that belong to another model are refused |
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 used wrongly.

mod bench;
mod chat;
mod conversation;
mod convert;
mod doctor;
mod flags;
mod guard;
mod inspect;
mod interrupt;
mod lines;
mod plan;
mod prompt;
mod run;
mod sampling;
mod serve;
mod speed;
mod stream;
mod topology;
mod tune;

use crate::checkpoint::OpenError;
use crate::engine::EngineError;
use clap::{Parser, Subcommand};
use std::fmt;
use std::process::ExitCode;

/// Runs Mixture-of-Experts language models whose experts do not fit in memory.
#[derive(Parser, Debug)]
#[command(name = "millstream", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Generate once, streaming to stdout; statistics go to stderr
    Run(Box<run::RunArgs>),
    /// Serve a model over HTTP to clients of OpenAI's and Anthropic's APIs
    Serve(Box<serve::ServeArgs>),
    /// Talk with a model, in the terminal or over a pipe
    Chat(Box<chat::ChatArgs>),
    /// Show where memory would go, and how fast memory and drive could let a model run
    Plan(Box<plan::PlanArgs>),
    /// Show a model's family, dimensions, formats and sizes
    Inspect(inspect::InspectArgs),
    /// Turn a model into a Millstream pack: resumable, read back, never overwrites another
    Convert(convert::ConvertArgs),
    /// Say everything that is wrong with a model, and what to do about each
    Doctor(doctor::DoctorArgs),
    /// Measure prefill and decode, beside what memory and drive give
    Bench(Box<bench::BenchArgs>),
    /// Find faster settings for a model on this machine, and keep them
    Tune(Box<tune::TuneArgs>),
    /// Show the machine and who would sit where
    Topology(topology::TopologyArgs),
}

/// Why a command didn't do what was asked.
#[derive(Debug)]
enum Failure {
    /// It was used wrongly: exit code 2.
    Usage(String),
    /// It failed: exit code 1.
    Failed(String),
}

impl Failure {
    fn failed(error: impl fmt::Display) -> Failure {
        Failure::Failed(error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        use EngineError as E;
        match error {
            E::Isa { .. }
            | E::Context { .. }
            | E::Memory { .. }
            | E::EmptyPrompt
            | E::Token { .. }
            | E::ContextExceeded { .. }
            | E::NoTrace
            | E::Recording { .. }
            | E::LogProbabilities { .. }
            | E::Topology(_) => Failure::Usage(error.to_string()),
            E::Open(_)
            | E::Reads(_)
            | E::Arena(_)
            | E::Start(_)
            | E::Sampling(_)
            | E::Read { .. }
            | E::QueueFull { .. }
            | E::QueueTimeout { .. }
            | E::Stopped => Failure::failed(error),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::failed(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::failed(error)
    }
}

/// Reads the arguments and runs the command.
pub fn main() -> ExitCode {
    // The user's own affinity, before any thread pins itself.
    millstream_topology::AffinityMask::capture();
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Topology(args) => topology::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            say(&format!("error: {message}"));
            ExitCode::from(2)
        }
        Err(Failure::Failed(message)) => {
            say(&format!("error: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// Says something on stderr. If nobody can hear it, the work goes on.
fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes a result to stdout. A reader that has gone away (`| head`) ends the command quietly.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        outcome => outcome.map_err(|error| {
            Failure::Failed(format!("can't write to stdout: {error}; send it where there is room"))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert!(Cli::try_parse_from(["millstream", "run", "--fast", "hello"]).is_err());
    }

    #[test]
    fn every_engine_flag_has_its_variable() {
        let command = Cli::command();
        for name in ["run", "chat", "serve"] {
            let command = command.find_subcommand(name).expect("the command");
            let flags = command.get_arguments().filter(|argument| argument.get_long().is_some());
            for argument in flags {
                let long = argument.get_long().expect("filtered above");
                if ["help", "version"].contains(&long) {
                    continue;
                }
                let expected = format!("MILLSTREAM_{}", long.replace('-', "_").to_uppercase());
                let variable = argument.get_env().and_then(|variable| variable.to_str());
                assert_eq!(variable, Some(expected.as_str()), "--{long}");
            }
        }
    }
}
