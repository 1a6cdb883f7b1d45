//! `convert`: any readable model into a Millstream pack.
//!
//! The plan goes to stdout, warnings and progress to stderr: a bar on a terminal, a line per file
//! elsewhere.

use super::{Failure, print, say};
use crate::convert::{
    Bits, Choice, Conversion, ConvertError, Event, Observer, Options, Scales, size,
};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Arguments of `convert`.
#[derive(Args, Debug)]
pub struct ConvertArgs {
    /// Model: a GGUF file, or a directory with a Hugging Face snapshot or a colibri container
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where the pack goes: a directory that is new, empty, or this conversion's own
    #[arg(value_name = "DST")]
    destination: PathBuf,
    /// Routed experts: keep, or a format such as int4, int4-g128, int3-g64:f16, mxfp4 [default:
    /// keep where the source is integers or mxfp4, else int4-g64]
    #[arg(long, value_name = "FORMAT")]
    experts: Option<Choice>,
    /// Every other matrix [default: keep as above, else int8-row]
    #[arg(long, value_name = "FORMAT")]
    dense: Option<Choice>,
    /// Embedding and output head [default: keep as above, else int8-row]
    #[arg(long, value_name = "FORMAT")]
    io: Option<Choice>,
    /// Tensors for multi-token prediction [default: keep as above, else int8-row]
    #[arg(long, value_name = "FORMAT")]
    mtp: Option<Choice>,
    /// Bits of the experts' gate: 2, 3, 4 or 8
    #[arg(long, value_name = "N")]
    gate_bits: Option<Bits>,
    /// Bits of the experts' up projection
    #[arg(long, value_name = "N")]
    up_bits: Option<Bits>,
    /// Bits of the experts' down projection
    #[arg(long, value_name = "N")]
    down_bits: Option<Bits>,
    /// Type of new scales: f32 or f16 [default: f32]
    #[arg(long, value_name = "TYPE")]
    scales: Option<Scales>,
    /// Show the plan and check the room, and stop
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
pub fn run(args: &ConvertArgs) -> Result<(), Failure> {
    let conversion = Conversion::prepare(&args.source, &args.destination, &args.options())?;
    for warning in &conversion.plan.warnings {
        say(&format!("warning: {warning}"));
    }
    print(&format!("{}\n", conversion.plan))?;
    conversion.check_room()?;
    if args.dry_run {
        return Ok(());
    }
    let (bytes, files) = (conversion.bytes(), conversion.files());
    let observer = Progress::new(bytes, files);
    let outcome = conversion.run(&observer);
    observer.bar.finish_and_clear();
    let outcome = outcome?;
    let what = if outcome.was_complete { "was complete already" } else { "is complete" };
    let fingerprint = outcome.manifest.fingerprint.unwrap_or_default();
    print(&format!("{} {what}: {fingerprint}\n", args.destination.display()))
}

impl ConvertArgs {
    fn options(&self) -> Options {
        Options {
            experts: self.experts.unwrap_or_default(),
            dense: self.dense.unwrap_or_default(),
            io: self.io.unwrap_or_default(),
            mtp: self.mtp.unwrap_or_default(),
            gate_bits: self.gate_bits,
            up_bits: self.up_bits,
            down_bits: self.down_bits,
            scales: self.scales,
        }
    }
}

impl From<ConvertError> for Failure {
    fn from(error: ConvertError) -> Failure {
        use ConvertError as E;
        match error {
            E::SourceIsPack { .. } | E::Taken { .. } | E::Differs { .. } => {
                Failure::Usage(error.to_string())
            }
            E::Open(_)
            | E::Read(_)
            | E::Rounding { .. }
            | E::Busy { .. }
            | E::Room { .. }
            | E::Pack(_)
            | E::Io { .. }
            | E::Unfaithful { .. }
            | E::Stopped => Failure::failed(error),
        }
    }
}

/// Progress for people.
struct Progress {
    bar: ProgressBar,
    terminal: bool,
    files: usize,
    done: AtomicUsize,
}

impl Progress {
    fn new(bytes: u64, files: usize) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let target =
            if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template(
            "{msg:30} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        );
        let bar = ProgressBar::with_draw_target(Some(bytes), target);
        let bar = bar.with_style(style.expect("a template of our own"));
        Progress { bar, terminal, files, done: AtomicUsize::new(0) }
    }

    /// A line where there is no bar.
    fn line(&self, done: usize, text: &str) {
        if !self.terminal {
            say(&format!("[{done}/{}] {text}", self.files));
        }
    }
}

impl Observer for Progress {
    fn event(&self, event: Event<'_>) -> ControlFlow<()> {
        let next = || 1 + self.done.fetch_add(1, Ordering::Relaxed);
        match event {
            Event::Kept { file, bytes } => {
                self.bar.inc(bytes);
                self.line(next(), &format!("{file}: finished before"));
            }
            Event::Begin { file, bytes } => {
                self.bar.set_message(file.to_owned());
                let now = 1 + self.done.load(Ordering::Relaxed);
                self.line(now, &format!("{file}: {}", size(bytes)));
            }
            Event::Write { bytes } => self.bar.inc(bytes),
            Event::Sync => self.bar.set_message("to the drive and back"),
            Event::Finished { file } => self.line(next(), &format!("{file}: written, read back")),
            Event::ReadBack { .. } | Event::Rename { .. } => {}
        }
        ControlFlow::Continue(())
    }
}
