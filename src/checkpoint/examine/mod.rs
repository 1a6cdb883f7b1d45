//! Examining a model on disk: everything that is wrong with it, not only the first thing.
//!
//! | file | what it does |
//! |---|---|
//! | `finding.rs` | a finding: severity, place, what is wrong, what to do |
//! | `faults.rs` | the errors of opening as findings |
//! | `checkpoint.rs` | a snapshot or container as a whole |
//! | `packs.rs` | a Millstream pack as a whole |
//! | `tensors.rs` | every tensor against the configuration |
//! | `files.rs` | what else lies in the directory; records of interrupted conversions |
//! | `deep.rs`, `values.rs` | every byte read, every value looked at |
//!
//! [`examine`] takes any directory and never fails: what can't be read is a finding. The checks
//! are those of opening, which go on past their first fault here. At the end, a model without
//! errors is opened as the engine opens it, so that both agree.

mod checkpoint;
mod deep;
mod faults;
mod files;
mod finding;
mod packs;
mod tensors;
mod values;

pub use finding::{FINDINGS_MAX, Finding, Findings, Place, Severity};

use super::directory::Checkpoint;
use super::pack::PackFiles;
use checkpoint::{Model, Opened};
use faults::Faults;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Kinds of models on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A Hugging Face snapshot.
    Snapshot,
    /// A colibri container.
    Container,
    /// A model in GGUF.
    Gguf,
    /// A Millstream pack.
    Pack,
}

/// What was looked at.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Checked {
    /// What kind of model it is; None when there is none.
    pub kind: Option<Kind>,
    /// The family, if the configuration is one of a known family.
    pub family: Option<String>,
    /// Tokens of the model.
    pub vocabulary: Option<usize>,
    /// Files that the model is read from.
    pub files: usize,
    /// Their length in bytes.
    pub files_bytes: u64,
    /// Tensors in them.
    pub tensors: usize,
    /// Bytes that were read and looked at, beyond headers.
    pub read_bytes: u64,
}

/// What an examination says.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Examination {
    /// What was found.
    pub findings: Findings,
    /// What was looked at.
    pub checked: Checked,
}

/// Is told how a deep examination goes on, from several threads.
pub trait Progress: Sync {
    /// So many bytes will be read.
    fn expect(&self, bytes: u64);
    /// So many more were read.
    fn read(&self, bytes: u64);
}

/// Nobody is told.
impl Progress for () {
    fn expect(&self, _: u64) {}
    fn read(&self, _: u64) {}
}

/// Examines the model in a directory; shards may also lie in `further` ones. With `deep`, every
/// byte is read.
pub fn examine(
    directory: &Path,
    further: &[PathBuf],
    deep: bool,
    progress: &dyn Progress,
) -> Examination {
    let mut examination = Examination::default();
    let Examination { findings, checked } = &mut examination;
    let faults = Faults { directory };
    if PackFiles::is_pack(directory) {
        let manifest = packs::examine(faults, deep, progress, findings, checked);
        let is_used = |name: &str| manifest.as_ref().is_some_and(|of| of.file(name).is_some());
        files::look_around(faults, &is_used, findings);
        return examination;
    }
    let mut opened = Opened::default();
    let outcome = Checkpoint::open_past(directory, further, &mut |fault| {
        opened.take(faults, &fault, findings);
        Ok(())
    });
    match outcome {
        Ok(checkpoint) => {
            let model = Model { checkpoint, opened, faults, further };
            model.examine(deep, progress, findings, checked);
        }
        Err(error) => {
            findings.extend(faults.open(&error));
            if directory.is_dir() {
                files::look_around(faults, &|_| false, findings);
            }
        }
    }
    examination
}
