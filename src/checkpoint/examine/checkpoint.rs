//! A checkpoint of safetensors files, snapshot or container, looked at as a whole.
//!
//! [`Opened`] takes the faults of opening, which goes on past each; [`Model`] looks at what could be
//! opened: configuration, tensors, the directory around them, and on request every byte.

use super::faults::Faults;
use super::files::{self, Converted};
use super::finding::{Finding, Findings, Place};
use super::tensors::{Purposes, Walk};
use super::{Checked, Kind, Progress, deep};
use crate::checkpoint::directory::Checkpoint;
use crate::checkpoint::error::OpenError;
use crate::checkpoint::header::{HeaderError, HeaderFault};
use crate::checkpoint::shards;
use crate::checkpoint::source::{ModelFiles, read_blueprint, read_config};
use crate::families::Blueprint;
use millstream_stages::ids::FileId;
use millstream_stages::parts::resident_parts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What went wrong while the files were opened.
#[derive(Debug, Default)]
pub struct Opened {
    /// Files that aren't there, and how many tensors the index has in each.
    missing: BTreeMap<String, usize>,
    /// Files that are there and can't be read.
    unreadable: BTreeSet<String>,
    /// Tensors that aren't where the index says.
    misplaced: BTreeSet<String>,
}

impl Opened {
    /// Takes a fault of opening.
    pub fn take(&mut self, faults: Faults<'_>, fault: &OpenError, findings: &mut Findings) {
        match fault {
            OpenError::ShardsMissing { files, .. } => {
                self.missing.extend(files.iter().map(|file| (file.clone(), 0)));
                return;
            }
            OpenError::TensorNotInShard { file, tensor } => {
                self.misplaced.insert(tensor.clone());
                if let Some(tensors) = self.missing.get_mut(file) {
                    *tensors += 1;
                    return;
                }
                if self.unreadable.contains(file) {
                    return;
                }
            }
            OpenError::Header(HeaderError { file, fault }) => {
                let path = Path::new(file);
                if !matches!(fault, HeaderFault::PastEnd { .. }) {
                    self.unreadable.extend(name_of(path));
                }
                if files::is_pointer(path) {
                    return findings.add(files::pointer(Place::file(faults.shown(path))));
                }
            }
            OpenError::Io { path, .. } => self.unreadable.extend(name_of(path)),
            _ => {}
        }
        findings.extend(faults.open(fault));
    }

    /// Names the files that aren't there.
    fn name_missing(&self, faults: Faults<'_>, findings: &mut Findings) {
        for (file, tensors) in &self.missing {
            let (path, files) = (faults.directory.to_path_buf(), vec![file.clone()]);
            for mut finding in faults.open(&OpenError::ShardsMissing { path, files }) {
                if *tensors > 0 {
                    finding.finding = format!("{}, and {tensors} tensors with it", finding.finding);
                }
                findings.add(finding);
            }
        }
    }
}

fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// An open checkpoint, or what there is of one.
pub struct Model<'a> {
    /// Its files.
    pub checkpoint: Checkpoint,
    /// What went wrong before.
    pub opened: Opened,
    /// Names its directory.
    pub faults: Faults<'a>,
    /// Further directories of shards.
    pub further: &'a [PathBuf],
}

impl Model<'_> {
    /// Looks at everything; with `deep`, at every byte.
    pub fn examine(
        &self,
        deep: bool,
        progress: &dyn Progress,
        findings: &mut Findings,
        checked: &mut Checked,
    ) {
        let checkpoint = &self.checkpoint;
        checked.kind = Some(match (checkpoint.is_gguf(), checkpoint.is_container()) {
            (true, _) => Kind::Gguf,
            (_, true) => Kind::Container,
            _ => Kind::Snapshot,
        });
        checked.files = checkpoint.files().len();
        let length =
            |file: &std::sync::Arc<std::fs::File>| file.metadata().map_or(0, |of| of.len());
        checked.files_bytes = checkpoint.files().iter().map(length).fold(0, u64::saturating_add);
        checked.tensors = checkpoint.tensors().count();
        self.opened.name_missing(self.faults, findings);
        let blueprint = self.blueprint(findings);
        let (mut purposes, mut missing) = (Purposes::new(), 0);
        if let Some(blueprint) = &blueprint {
            checked.family = Some(blueprint.family.clone());
            checked.vocabulary = Some(blueprint.spec.vocabulary);
            let accounted = &self.opened.misplaced;
            let walk = Walk::new(checkpoint, blueprint, self.faults, accounted, findings);
            (purposes, missing) = walk.run();
            self.optional(blueprint, findings);
        }
        self.gaps(missing, findings);
        self.around(missing, findings);
        if deep {
            let is_used = |name: &str, place: &crate::checkpoint::TensorPlace| {
                blueprint.as_ref().is_none_or(|blueprint| {
                    purposes.contains_key(&(place.file, place.offset))
                        && !blueprint.skipped.covers(name)
                })
            };
            checked.read_bytes =
                deep::read_all(checkpoint, &purposes, &is_used, self.faults, progress, findings);
        }
        if !findings.has_error()
            && let Err(error) = ModelFiles::open_with(checkpoint.directory(), self.further)
        {
            findings.extend(self.faults.open(&error));
        }
    }

    /// The configuration, if it is one; both of its files are looked at.
    fn blueprint(&self, findings: &mut Findings) -> Option<Blueprint> {
        let checkpoint = &self.checkpoint;
        let exists =
            |name: &str| checkpoint.tensor(name).is_some() || self.opened.misplaced.contains(name);
        let mut blueprint = match read_blueprint(checkpoint, &exists) {
            Ok(blueprint) => Some(blueprint),
            Err(error) => {
                findings.extend(self.faults.open(&error));
                None
            }
        };
        let generation = match read_config(checkpoint, "generation_config.json") {
            Ok(Some(generation)) => match &mut blueprint {
                Some(blueprint) => blueprint.add_end_tokens(&generation).map_err(OpenError::from),
                None => Ok(()),
            },
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        findings.extend(generation.err().iter().flat_map(|error| self.faults.open(error)));
        blueprint
    }

    /// Tells parts that the configuration speaks of and that the model is run without.
    fn optional(&self, blueprint: &Blueprint, findings: &mut Findings) {
        let Ok(whole) = read_blueprint(&self.checkpoint, &|_| true) else { return };
        let here: BTreeSet<String> = names(blueprint).collect();
        let absent: Vec<String> = names(&whole).filter(|name| !here.contains(name)).collect();
        if let Some(first) = absent.first() {
            let finding = format!(
                "config.json speaks of {} tensors that aren't there, such as {first}; the model is run \
                 without them",
                absent.len()
            );
            let remedy = "it is slower on long texts than it need be: get the files that hold them \
                          (out-idx-*.safetensors of a container)";
            findings.add(Finding::warning(Place::file("config.json"), finding, remedy));
        }
    }

    /// Tells numbers that are missing between those of the shards: the cause, where tensors lack.
    fn gaps(&self, missing: usize, findings: &mut Findings) {
        let files = 0..self.checkpoint.files().len() as u32;
        let names = files.map(|file| self.checkpoint.file_name(FileId(file)));
        let at_fault = self.opened.missing.keys().chain(&self.opened.unreadable);
        for name in shards::gaps(names.chain(at_fault.map(String::as_str))) {
            let place = Place::file(name);
            findings.add(match missing {
                0 => {
                    let finding = "no shard has this number, and no tensor is missing";
                    Finding::note(place, finding, "nothing: a converter may have had none to write")
                }
                count => {
                    let finding =
                        format!("no shard has this number, and {count} tensors are missing");
                    Finding::error(place, finding, "get this shard from where the others came")
                }
            });
        }
    }

    /// Looks at the directory around the files.
    fn around(&self, missing: usize, findings: &mut Findings) {
        for name in self.checkpoint.unindexed() {
            let place = Place { tensor: Some(name.clone()), ..Place::default() };
            let finding = "in a file, but not in the index, which is why it isn't read";
            let remedy = "if it belongs to the model, get the index again";
            findings.add(Finding::note(place, finding, remedy));
        }
        if self.checkpoint.is_gguf() {
            // What lies beside a file isn't its model's.
            return;
        }
        let files = 0..self.checkpoint.files().len() as u32;
        let shards: BTreeSet<&Path> =
            files.map(|file| self.checkpoint.file_path(FileId(file))).collect();
        let directory = self.faults.directory;
        let is_used = |name: &str| {
            shards.contains(directory.join(name).as_path()) || self.opened.unreadable.contains(name)
        };
        files::look_around(self.faults, &is_used, findings);
        let has_file = |name: &str| {
            let mut directories =
                [directory].into_iter().chain(self.further.iter().map(PathBuf::as_path));
            directories.any(|directory| directory.join(name).is_file())
        };
        let has_series = |start: &str| {
            shards.iter().any(|path| name_of(path).is_some_and(|n| n.starts_with(start)))
        };
        let converted = Converted { has_file: &has_file, has_series: &has_series, missing };
        files::conversions(self.faults, &converted, findings);
    }
}

/// The names of a model's tensors that stay in memory.
fn names(blueprint: &Blueprint) -> impl Iterator<Item = String> {
    let name = blueprint.tensor_name;
    resident_parts(&blueprint.spec).into_iter().map(move |(layer, part)| name(layer, part))
}
