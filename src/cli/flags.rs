//! Flags that several commands share. Each can also be set by `MILLSTREAM_<FLAG>`; the flag wins.

use super::Failure;
use crate::checkpoint::pack::PackChecks;
use crate::engine::{
    DirectChoice, IO_DEPTH_DEFAULT, IO_DEPTH_MAX, IoChoice, MemoryBudget, Options, READERS_DEFAULT,
    READERS_MAX, ReadOptions,
};
use crate::learn::UseFile;
use crate::tune::{Profile, ProfileError, ProfileFile};
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use millstream_kernels::Isa;
use millstream_stages::foresight::Recording;
use millstream_stages::prefetch::eviction::{EVICTIONS, EvictionPolicy};
use millstream_stages::prefetch::{LOOKAHEADS, Lookahead};
use millstream_topology::memory::OwnMemory;
use millstream_topology::pin::stay_off;
use millstream_topology::{CpuSet, MachineSource, PlanRequest, TopologyArg};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest trace that guesses are taken from.
const TRACE_BYTES_MAX: u64 = 4 << 30;
/// Longest prompt chunk that may be asked for, in rows.
const PREFILL_CHUNK_MAX: usize = 4096;

/// Which model.
#[derive(Args, Debug)]
pub struct ModelFlag {
    /// Model: a GGUF file, or a directory with a Millstream pack, a Hugging Face snapshot
    /// (safetensors), a colibri container or one model in GGUF. Left out: the small model inside the
    /// binary
    #[arg(short, long, env = "MILLSTREAM_MODEL", value_name = "DIR")]
    pub model: Option<PathBuf>,
}

impl ModelFlag {
    /// The model's directory; the embedded model is unpacked if none is named.
    pub fn directory(&self) -> Result<PathBuf, Failure> {
        match &self.model {
            Some(directory) => Ok(directory.clone()),
            None => {
                let unpacked = crate::embedded::unpack(None).map_err(Failure::failed)?;
                if let Some(warning) = unpacked.warning {
                    super::say(&format!("warning: {warning}"));
                }
                Ok(unpacked.directory)
            }
        }
    }
}

/// Who sits where.
#[derive(Args, Debug)]
pub struct PlanFlags {
    /// auto (striped on several nodes, else compact), striped, interleaved, spread, compact, single,
    /// a PLAN.toml that `topology --save` wrote, a MACHINE.xml, or a machine such as "pack:2 numa:1 core:8 pu:2" (a machine that isn't this
    /// one runs with virtual nodes) [default: auto]
    #[arg(long, env = "MILLSTREAM_TOPOLOGY", value_name = "WHAT")]
    pub topology: Option<TopologyArg>,
    /// Compute threads in all [default: physical cores allowed to us]
    #[arg(long, env = "MILLSTREAM_THREADS", allow_negative_numbers = true, value_name = "N")]
    pub threads: Option<usize>,
    /// How long an idle thread spins before it parks; 0 always parks [default: the plan's]
    #[arg(long, env = "MILLSTREAM_SPIN_US", allow_negative_numbers = true, value_name = "N")]
    pub spin_us: Option<u32>,
    /// CPUs to leave alone, such as those that serve interrupts: 0-1,16
    #[arg(long, env = "MILLSTREAM_AVOID_CPUS", default_value = "", hide_default_value = true)]
    #[arg(value_name = "LIST")]
    pub avoid_cpus: CpuSet,
}

impl PlanFlags {
    /// The machine and the policy: `auto` where none is named.
    pub fn topology(&self) -> TopologyArg {
        self.topology.clone().unwrap_or_default()
    }

    /// The plan is one of a file, which says everything.
    fn is_file(&self) -> bool {
        matches!(self.topology().source, MachineSource::Plan(_))
    }

    /// What they ask of a plan. From here on this thread, and those that it starts, stay off the CPUs
    /// to avoid; of another machine's CPUs only the plan knows.
    pub fn request(&self) -> Result<PlanRequest, Failure> {
        let here = matches!(self.topology().source, MachineSource::Live);
        if here && !self.avoid_cpus.is_empty() {
            stay_off(&self.avoid_cpus).map_err(|error| {
                Failure::Usage(format!("--avoid-cpus {}: {error}", self.avoid_cpus))
            })?;
        }
        Ok(PlanRequest {
            threads: self.threads,
            spin_us: self.spin_us,
            avoid: self.avoid_cpus.clone(),
            ..PlanRequest::default()
        })
    }
}

/// How threads, memory and kernels are chosen.
#[derive(Args, Debug)]
pub struct EngineFlags {
    #[command(flatten)]
    pub plan: PlanFlags,
    /// Expert slots per layer [default: what memory allows]
    #[arg(
        long,
        env = "MILLSTREAM_EXPERTS_PER_LAYER",
        allow_negative_numbers = true,
        value_name = "N"
    )]
    pub experts_per_layer: Option<usize>,
    /// All that the process may hold: 20GiB, 500MB or 80% of what is available [default: 80%]
    #[arg(long, env = "MILLSTREAM_MEMORY", allow_negative_numbers = true, value_parser = parse_memory, value_name = "SIZE")]
    pub memory: Option<MemoryBudget>,
    /// Positions of a sequence, prompt and answer [default: the model's, at most 4096]
    #[arg(long, env = "MILLSTREAM_CONTEXT", allow_negative_numbers = true, value_name = "N")]
    pub context: Option<usize>,
    /// Kernels: auto, scalar, avx2, avx-vnni or avx512; the answer is the same bytes with each
    #[arg(long, env = "MILLSTREAM_ISA", default_value = "auto", value_parser = parse_isa)]
    pub isa: IsaChoice,
    /// Check each slice of an expert against the pack's checksums whenever it is read (resident
    /// weights always are); models that aren't packs have none
    #[arg(long, env = "MILLSTREAM_VERIFY_READS", value_parser = FalseyValueParser::new())]
    pub verify_reads: bool,
    /// How experts are guessed ahead: off, repeat (those of the last step), gate (the next layer's
    /// gate is asked early), gate2 (those of two layers) or auto (gate, where it pays) [default: auto]
    #[arg(long, env = "MILLSTREAM_LOOKAHEAD", value_parser = parse_lookahead)]
    pub lookahead: Option<Lookahead>,
    /// Guess from a --trace of an earlier run instead: right wherever this run repeats it, which
    /// shows what guessing can gain at most
    #[arg(long, env = "MILLSTREAM_FORESEE", value_name = "FILE", conflicts_with = "lookahead")]
    pub foresee: Option<PathBuf>,
    /// Which expert goes when a slot is needed: recency, frequency, least-stale or mixed [default:
    /// frequency]
    #[arg(long, env = "MILLSTREAM_EVICTION", value_parser = parse_eviction)]
    pub eviction: Option<EvictionPolicy>,
    /// Whether uses of experts are counted from session to session, so that the next one starts with
    /// the most used in memory [default: on, off for the model inside]
    #[arg(long, env = "MILLSTREAM_LEARN", value_name = "on|off")]
    pub learn: Option<LearnChoice>,
    /// Prompt tokens that are read at once [default: 128]
    #[arg(long, env = "MILLSTREAM_PREFILL_CHUNK", allow_negative_numbers = true, value_name = "N")]
    pub prefill_chunk: Option<usize>,
    /// How experts are read: io_uring, threads with pread, or what the system allows: auto, uring,
    /// pread [default: auto]
    #[arg(long, env = "MILLSTREAM_IO", value_parser = parse_io)]
    pub io: Option<IoChoice>,
    /// Whether reads pass the page cache (O_DIRECT): auto, on, off [default: auto]
    #[arg(long, env = "MILLSTREAM_DIRECT", value_parser = parse_direct)]
    pub direct: Option<DirectChoice>,
    /// Reads in flight with io_uring [default: 16]
    #[arg(long, env = "MILLSTREAM_IO_DEPTH", value_name = "N")]
    pub io_depth: Option<usize>,
    /// Threads that read with pread [default: 2]
    #[arg(long, env = "MILLSTREAM_READERS", value_name = "N")]
    pub readers: Option<usize>,
    /// Whether what `tune` found for this model on this machine is used where no flag and no variable
    /// says otherwise
    #[arg(long, env = "MILLSTREAM_TUNED", default_value = "on", value_name = "on|off")]
    pub tuned: TunedChoice,
    /// Directory with a copy of the model's files on another drive: experts are read from both
    #[arg(long, env = "MILLSTREAM_MIRROR", value_name = "DIR")]
    pub mirror: Option<PathBuf>,
}

/// The value of `--isa`; none is `auto`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IsaChoice(pub Option<Isa>);

/// The value of `--tuned`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TunedChoice {
    /// Use it.
    On,
    /// Don't.
    Off,
}

/// The value of `--learn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LearnChoice {
    /// Learn.
    On,
    /// Neither use nor keep what was learned.
    Off,
}

impl EngineFlags {
    /// Where uses of experts are kept; nowhere if nothing is to be learned, or, with a word, if
    /// no place can be had.
    pub fn use_file(&self, model: &ModelFlag, directory: &Path) -> Option<UseFile> {
        let usual = if model.model.is_some() { LearnChoice::On } else { LearnChoice::Off };
        if self.learn.unwrap_or(usual) == LearnChoice::Off {
            return None;
        }
        match UseFile::of_model(directory) {
            Ok(Some(file)) => Some(file),
            Ok(None) => {
                super::say(
                    "warning: uses of experts aren't learned: neither the model's directory nor a \
                     state directory can be written",
                );
                None
            }
            // What can't be read for a fingerprint can't be opened either, and that says why.
            Err(_) => None,
        }
    }

    /// What is checked of a pack's weights as they are read.
    pub fn checks(&self) -> PackChecks {
        PackChecks { experts: self.verify_reads, ..PackChecks::default() }
    }

    /// What they mean for the engine; nothing that was tuned comes into it.
    pub fn options(&self) -> Result<Options, Failure> {
        if self.experts_per_layer == Some(0) {
            return Err(Failure::Usage(
                "--experts-per-layer 0: one slot a layer is the least".into(),
            ));
        }
        let PlanRequest { threads, spin_us, avoid, .. } = self.plan.request()?;
        let recording = self.foresee.as_deref().map(read_recording).transpose()?;
        let defaults = Options::default();
        let within = |flag: &str, value: Option<usize>, default: usize, most: usize| match value {
            None => Ok(default),
            Some(value) if (1..=most).contains(&value) => Ok(value),
            Some(value) => Err(Failure::Usage(format!("{flag} {value}: use 1 to {most}"))),
        };
        let chunk = (self.prefill_chunk, defaults.prefill_chunk);
        Ok(Options {
            topology: self.plan.topology(),
            threads,
            spin_us,
            avoid_cpus: avoid,
            experts_per_layer: self.experts_per_layer,
            memory: self.memory,
            context: self.context,
            isa: self.isa.0,
            prefill_chunk: within("--prefill-chunk", chunk.0, chunk.1, PREFILL_CHUNK_MAX)?,
            lookahead: match recording {
                Some(_) => Lookahead::Recorded,
                None => self.lookahead.unwrap_or(Lookahead::Auto),
            },
            recording: recording.map(Arc::new),
            eviction: self.eviction.unwrap_or_default(),
            reads: ReadOptions {
                io: self.io.unwrap_or_default(),
                direct: self.direct.unwrap_or_default(),
                io_depth: within("--io-depth", self.io_depth, IO_DEPTH_DEFAULT, IO_DEPTH_MAX)?,
                readers: within("--readers", self.readers, READERS_DEFAULT, READERS_MAX)?,
                mirror: self.mirror.clone(),
            },
            ..defaults
        })
    }

    /// What they mean for the engine with this model: what was tuned for it on this machine comes in
    /// where neither a flag nor a variable says otherwise. Says so.
    pub fn tuned_options(&self, directory: &Path) -> Result<Options, Failure> {
        let mut options = self.options()?;
        if self.tuned == TunedChoice::Off {
            return Ok(options);
        }
        match self.profile(directory) {
            Ok(None) => {}
            Ok(Some(mut profile)) => {
                profile.settings.retain(|name| !self.is_given(name));
                let applied = profile.settings.apply(&mut options);
                applied.expect("a profile's settings were looked at when it was read");
                if !profile.settings.is_empty() {
                    let checked = if profile.checked { "" } else { " (its last check is missing)" };
                    super::say(&format!("tuned: {}{checked}", profile.settings));
                }
            }
            Err(error) => super::say(&format!("warning: {error}")),
        }
        Ok(options)
    }

    /// What was tuned for this model on this machine.
    fn profile(&self, directory: &Path) -> Result<Option<Profile>, ProfileError> {
        // A machine is looked at only where there may be a profile.
        if !ProfileFile::may_exist(directory) {
            return Ok(None);
        }
        let Ok(machine) = millstream_topology::probe(&self.plan.topology().source) else {
            return Ok(None);
        };
        ProfileFile::of(directory, &machine.fingerprint())?.load()
    }

    /// A flag or its variable says what this knob is to be.
    pub fn is_given(&self, knob: &str) -> bool {
        match knob {
            "topology" => self.plan.topology.is_some(),
            "threads" => self.plan.threads.is_some() || self.plan.is_file(),
            "spin-us" => self.plan.spin_us.is_some() || self.plan.is_file(),
            "lookahead" => self.lookahead.is_some() || self.foresee.is_some(),
            "eviction" => self.eviction.is_some(),
            "io" => self.io.is_some(),
            "io-depth" => self.io_depth.is_some(),
            "readers" => self.readers.is_some(),
            "direct" => self.direct.is_some(),
            "prefill-chunk" => self.prefill_chunk.is_some(),
            other => unreachable!("{other} is no knob"),
        }
    }
}

fn parse_isa(text: &str) -> Result<IsaChoice, String> {
    match text {
        "auto" => Ok(IsaChoice(None)),
        name => name.parse().map(|isa| IsaChoice(Some(isa))).map_err(|error| format!("{error}")),
    }
}

fn parse_io(text: &str) -> Result<IoChoice, String> {
    IoChoice::named(text).ok_or_else(|| "use one of auto, uring, pread".to_owned())
}

fn parse_direct(text: &str) -> Result<DirectChoice, String> {
    DirectChoice::named(text).ok_or_else(|| "use one of auto, on, off".to_owned())
}

fn parse_lookahead(text: &str) -> Result<Lookahead, String> {
    let known = || LOOKAHEADS.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ");
    let found = LOOKAHEADS.iter().find(|(_, name, _)| *name == text);
    found.map(|found| found.0).ok_or_else(|| format!("use one of {}", known()))
}

/// What `--trace` wrote: the experts by position and layer.
fn read_recording(file: &Path) -> Result<Recording, Failure> {
    #[derive(serde::Deserialize)]
    struct Position {
        experts: Vec<Vec<u32>>,
    }
    let place = |error: &dyn std::fmt::Display| {
        let file = file.display();
        Failure::Failed(format!("--foresee {file}: {error}; name a file that `run --trace` wrote"))
    };
    let found = std::fs::metadata(file).map_err(|error| place(&error))?;
    if !found.is_file() || found.len() > TRACE_BYTES_MAX {
        return Err(place(&"it is no file of at most 4 GiB"));
    }
    let text = std::fs::read(file).map_err(|error| place(&error))?;
    let positions: Vec<Position> = serde_json::from_slice(&text).map_err(|error| place(&error))?;
    Ok(Recording { positions: positions.into_iter().map(|position| position.experts).collect() })
}

fn parse_eviction(text: &str) -> Result<EvictionPolicy, String> {
    let known = || EVICTIONS.map(|policy| policy.name).join(", ");
    EvictionPolicy::named(text).ok_or_else(|| format!("use one of {}", known()))
}

/// `20GiB`, `1.5GB`, `4096` (bytes) or `80%`.
pub fn parse_memory(text: &str) -> Result<MemoryBudget, String> {
    let how = "use a size such as 20GiB or 500MB, or a share such as 80%";
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let number: f64 = number.parse().map_err(|_| how.to_owned())?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "%" if (0.0..=100.0).contains(&number) => return Ok(MemoryBudget::Share(number / 100.0)),
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(how.to_owned()),
    };
    Ok(MemoryBudget::Bytes((number * factor) as u64))
}

/// What the process holds already, so that the engine's budget counts it.
pub fn held_bytes() -> Option<u64> {
    OwnMemory::read(Path::new("/")).map(|own| own.resident_bytes)
}

/// Writes a file that the user named; the message names it.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes)
        .map_err(|error| Failure::Failed(format!("can't write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_takes_sizes_and_shares() {
        assert_eq!(parse_memory("20GiB"), Ok(MemoryBudget::Bytes(20 << 30)));
        assert_eq!(parse_memory("1.5gb"), Ok(MemoryBudget::Bytes(1_500_000_000)));
        assert_eq!(parse_memory("4096"), Ok(MemoryBudget::Bytes(4096)));
        assert_eq!(parse_memory("80%"), Ok(MemoryBudget::Share(0.8)));
        for wrong in ["", "-1GiB", "20 apples", "101%", "GiB", "1e3MB", "nan"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_knob_has_its_flag() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: EngineFlags,
        }
        use clap::Parser;
        for knob in crate::tune::KNOBS {
            let room = crate::tune::Room { cores: 4, nodes: 2, streams: true, uring: true };
            let value = (knob.values)(&room).remove(0);
            let flag = format!("--{}", knob.name);
            let flags = |words: &[&str]| Line::try_parse_from(words).expect(knob.name).flags;
            assert!(flags(&["x", &flag, &value]).is_given(knob.name), "{flag}");
            assert!(!flags(&["x"]).is_given(knob.name), "{flag}");
        }
    }

    #[test]
    fn isa_lookahead_and_eviction_name_what_they_know() {
        assert_eq!(parse_isa("auto"), Ok(IsaChoice(None)));
        assert_eq!(parse_isa("scalar"), Ok(IsaChoice(Some(Isa::Scalar))));
        assert!(parse_isa("sse9").is_err());
        assert!(parse_lookahead("psychic").unwrap_err().contains("repeat"));
        assert!(parse_eviction("psychic").unwrap_err().contains("least-stale"));
        assert_eq!(
            parse_eviction("frequency"),
            Ok(EvictionPolicy::default()),
            "the flag's default"
        );
    }
}
