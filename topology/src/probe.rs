//! The front door: the value of `--topology` to a machine, and a policy's name or a plan's file.
//!
//! [`TopologyArg`] parses the text, [`probe`] looks. The live machine is probed through hwloc where
//! that is built in, and through the kernel's files where it isn't or fails.

use crate::machine::Machine;
use crate::plan::{PlacementPlan, PlanRequest};
use crate::policy::{self, PolicyName};
use crate::{plan_file, synthetic, sysfs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Why there is no machine or no plan.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// Neither a policy nor a machine.
    #[error(
        "--topology {text}: not known; use one of {known}, a PLAN.toml that \
         `millstream topology --save PLAN.toml` wrote, a MACHINE.xml that \
         `lstopo MACHINE.xml` wrote, or a machine like \"pack:2 numa:1 core:8 pu:2\""
    )]
    UnknownName {
        /// The text.
        text: String,
        /// Names that are known.
        known: String,
    },
    /// A synthetic machine that can't be built.
    #[error("synthetic machine \"{text}\": {reason}")]
    Synthetic {
        /// The text.
        text: String,
        /// What is wrong with it and how it would be right.
        reason: String,
    },
    /// An XML file that can't be read.
    #[error("machine file {path}: {reason}; write one with `lstopo {path}` on that machine")]
    Xml {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An XML file, and hwloc isn't built in.
    #[error(
        "machine file {path}: this build has no hwloc, which reads such files; build with \
         `--features hwloc` (needs libhwloc-dev, libudev-dev, pkg-config), or describe the machine \
         as text like \"pack:2 numa:1 core:8 pu:2\""
    )]
    XmlNeedsHwloc {
        /// The file.
        path: String,
    },
    /// A plan in a file that can't be run under.
    #[error("plan {}: {reason}", path.display())]
    PlanFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
    /// A wish that no plan for this machine can grant.
    #[error("{0}")]
    Request(String),
}

/// Where a machine comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineSource {
    /// The machine that this process runs on.
    Live,
    /// A text in the synthetic grammar.
    Synthetic(String),
    /// A file that hwloc wrote.
    Xml(PathBuf),
    /// The machine that this process runs on, under the plan in a file.
    Plan(PathBuf),
}

/// The value of `--topology`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyArg {
    /// The machine to plan for.
    pub source: MachineSource,
    /// The policy to plan with.
    pub policy: PolicyName,
}

impl Default for TopologyArg {
    /// `auto`.
    fn default() -> TopologyArg {
        TopologyArg { source: MachineSource::Live, policy: PolicyName::AUTO }
    }
}

impl FromStr for TopologyArg {
    type Err = TopologyError;

    /// A policy's name means this machine; a file or a synthetic text means policy `auto`.
    fn from_str(text: &str) -> Result<TopologyArg, TopologyError> {
        let text = text.trim();
        let on = |source| TopologyArg { source, policy: PolicyName::AUTO };
        if let Some(policy) = PolicyName::find(text) {
            return Ok(TopologyArg { source: MachineSource::Live, policy });
        }
        if Path::new(text).extension().is_some_and(|ext| ext.eq_ignore_ascii_case("xml")) {
            return Ok(on(MachineSource::Xml(PathBuf::from(text))));
        }
        if Path::new(text).extension().is_some_and(|ext| ext.eq_ignore_ascii_case("toml")) {
            return Ok(on(MachineSource::Plan(PathBuf::from(text))));
        }
        if text.contains(':') {
            return Ok(on(MachineSource::Synthetic(text.to_owned())));
        }
        let known = policy::names().collect::<Vec<_>>().join(", ");
        Err(TopologyError::UnknownName { text: text.to_owned(), known })
    }
}

impl TopologyArg {
    /// Looks at the machine and plans for it.
    ///
    /// # Errors
    /// When the machine can't be read, or no plan for it can grant the request.
    pub fn place(&self, request: &PlanRequest) -> Result<(Machine, PlacementPlan), TopologyError> {
        let machine = probe(&self.source)?;
        let plan = match &self.source {
            MachineSource::Plan(path) => plan_file::read(path, &machine, request)?,
            _ => policy::plan(&machine, self.policy, request)?,
        };
        Ok((machine, plan))
    }
}

/// Looks at a machine.
///
/// # Errors
/// When a synthetic text or XML file can't be read. The live machine always gives something, with
/// warnings where it had to be guessed.
pub fn probe(source: &MachineSource) -> Result<Machine, TopologyError> {
    match source {
        MachineSource::Live | MachineSource::Plan(_) => Ok(probe_live()),
        MachineSource::Synthetic(text) => synthetic::probe(text),
        MachineSource::Xml(path) => probe_xml(path),
    }
}

#[cfg(feature = "hwloc")]
fn probe_live() -> Machine {
    crate::hwloc::probe_live().unwrap_or_else(|reason| {
        let mut machine = sysfs::probe(Path::new("/"));
        machine.warnings.push(format!("hwloc failed ({reason}); used the kernel's files instead"));
        machine
    })
}

#[cfg(not(feature = "hwloc"))]
fn probe_live() -> Machine {
    sysfs::probe(Path::new("/"))
}

/// Longest machine file that is read; those of the largest machines have a few million bytes.
#[cfg(feature = "hwloc")]
const XML_BYTES_MAX: u64 = 64 << 20;

#[cfg(feature = "hwloc")]
fn probe_xml(path: &Path) -> Result<Machine, TopologyError> {
    let wrong = |reason: String| TopologyError::Xml { path: path.display().to_string(), reason };
    let file = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !file.is_file() {
        return Err(wrong("not a regular file".to_owned()));
    }
    if file.len() > XML_BYTES_MAX {
        return Err(wrong(format!("longer than {XML_BYTES_MAX} bytes")));
    }
    let xml = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    crate::hwloc::probe_xml(path, &xml)
}

#[cfg(not(feature = "hwloc"))]
fn probe_xml(path: &Path) -> Result<Machine, TopologyError> {
    Err(TopologyError::XmlNeedsHwloc { path: path.display().to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_files_and_texts_are_told_apart() {
        let parse = |text: &str| text.parse::<TopologyArg>().unwrap();
        assert_eq!(parse("auto"), TopologyArg::default());
        for policy in policy::POLICIES {
            assert_eq!(parse(policy.name()).policy.to_string(), policy.name());
            assert_eq!(parse(policy.name()).source, MachineSource::Live);
            assert!(!policy.story().is_empty());
        }
        assert_eq!(parse("a/big.XML").source, MachineSource::Xml("a/big.XML".into()));
        assert_eq!(parse("my/plan.toml").source, MachineSource::Plan("my/plan.toml".into()));
        let text = "pack:2 numa:1 core:8 pu:2";
        assert_eq!(parse(text).source, MachineSource::Synthetic(text.to_owned()));
    }

    #[test]
    fn unknown_name_lists_the_known_ones() {
        let error = "sprad".parse::<TopologyArg>().unwrap_err().to_string();
        for name in [
            "sprad",
            "auto",
            "compact",
            "striped",
            "interleaved",
            "single",
            ".toml",
            ".xml",
            "pack:2",
        ] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn live_machine_is_seen_with_its_memory() {
        let machine = probe(&MachineSource::Live).unwrap();
        assert!(!machine.is_foreign());
        assert!(machine.allowed.len() >= machine.physical_cores());
        let memory = machine.memory;
        assert!(memory.available_bytes.unwrap() <= memory.total_bytes.unwrap());
    }

    #[cfg(not(feature = "hwloc"))]
    #[test]
    fn machine_file_without_hwloc_is_refused_with_the_remedy() {
        let error = probe(&MachineSource::Xml("big.xml".into())).unwrap_err().to_string();
        assert!(error.contains("big.xml") && error.contains("--features hwloc"), "{error}");
    }

    #[cfg(feature = "hwloc")]
    #[test]
    fn missing_or_broken_machine_file_is_never_the_live_machine() {
        let missing = probe(&MachineSource::Xml("/nowhere/big.xml".into()));
        assert!(missing.unwrap_err().to_string().contains("/nowhere/big.xml"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("broken.xml");
        std::fs::write(&path, "<topology><oops").unwrap();
        let broken = probe(&MachineSource::Xml(path)).unwrap_err().to_string();
        assert!(broken.contains("broken.xml"), "{broken}");
    }
}
