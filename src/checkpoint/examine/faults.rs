//! The errors of opening, as findings: the words are the errors' own, the remedies complete them.
//!
//! An error's text is "what; why or what to do". A finding keeps the first part, and the remedy is
//! the second, with a clearer word on what to do where the error has none. The place goes into
//! fields of its own.

use super::finding::{Finding, Place};
use crate::checkpoint::colibri::ColibriFault;
use crate::checkpoint::header_fault::{HeaderError, HeaderFault};
use crate::checkpoint::pack::{self, PackError};
use crate::checkpoint::{OpenError, TensorError, TensorFault};
use crate::families::{ConfigError, ConfigFault};
use std::path::Path;

/// For a file that isn't what it was.
const AGAIN: &str = "get this file again from where it came (download, copy or convert it)";
/// For files that aren't there.
const COMPLETE: &str = "get the missing files from where the others came";
/// For a configuration.
const CONFIG: &str = "take this file from the model's source again";
/// For a configuration of another model.
const OTHER_CONFIG: &str = "put the config.json that came with these weights beside them";
/// For formats that this build doesn't read.
const CONVERT: &str = "convert the original model again, with a format that is read here";
/// For the system's refusals.
const ACCESS: &str = "check that the file may be read and that its drive is well (dmesg)";
/// For packs.
const RESTORE: &str = "restore the file from a copy, or convert the model again";

/// Turns errors about the model in a directory into findings.
#[derive(Clone, Copy, Debug)]
pub struct Faults<'a> {
    /// The model's directory: files in it are named without it.
    pub directory: &'a Path,
}

impl Faults<'_> {
    /// What an error says; several findings where it names several files.
    pub fn open(self, error: &OpenError) -> Vec<Finding> {
        let text = error.to_string();
        let place = |path: &Path| Place::file(self.shown(path));
        let one = |path: &Path, more| vec![said(place(path), without(&text, path), more)];
        match error {
            OpenError::NotADirectory { path, .. }
            | OpenError::NotSafetensors { path, .. }
            | OpenError::ModelDirMissing { path } => one(path, ""),
            // Some texts name several files, one of which is wanted.
            OpenError::FileMissing { path, file } if file.contains(' ') => one(path, ""),
            OpenError::FileMissing { path, file } => {
                vec![said(Place::file(file), without(&text, path), "")]
            }
            OpenError::ShardsMissing { files, .. } => {
                let missing =
                    |file: &String| Finding::error(Place::file(file), "missing", COMPLETE);
                files.iter().map(missing).collect()
            }
            OpenError::TooManyDirectories { .. } => {
                vec![said(Place::default(), &text, "name fewer")]
            }
            OpenError::TooManyShards { path, .. } => {
                one(path, "name another directory, or add its index")
            }
            // Some of these say what to do themselves.
            OpenError::Io { path, .. } if text.contains("; ") => one(path, ""),
            OpenError::Io { path, .. } => one(path, ACCESS),
            OpenError::FileTooLong { path, .. } | OpenError::Index { path, .. } => one(path, AGAIN),
            OpenError::SeveralModels { path, .. } => one(path, ""),
            OpenError::Gguf(error) => {
                let place = Place::file(self.shown(Path::new(&error.file)));
                vec![said(place, &error.fault.to_string(), "")]
            }
            OpenError::Header(error) => vec![self.header(error)],
            OpenError::Config(error) => vec![self.config(error)],
            OpenError::TensorNotInShard { file, tensor } => {
                let text = "the index says that it is in this file, and it isn't";
                vec![Finding::error(Place::tensor(file, tensor), text, "download both again")]
            }
            OpenError::TensorInTwoShards { tensor, first, second } => {
                let text = format!("it is also in {first}; files of two models are mixed");
                let more = "keep the files of one model";
                vec![said(Place::tensor(second, tensor), &text, more)]
            }
            OpenError::StampsContradict { tensor, .. } => {
                let place = Place { tensor: Some(tensor.clone()), ..Place::default() };
                vec![said(place, &text, "keep the files of one model")]
            }
            OpenError::TooManyTensors { path, .. } => one(path, AGAIN),
            OpenError::TensorsMissing { path, .. } => one(path, COMPLETE),
            OpenError::Tensor(error) => vec![self.tensor(error)],
            OpenError::Pack(error) => vec![self.pack(error)],
        }
    }

    /// What is wrong with a safetensors file.
    fn header(self, error: &HeaderError) -> Finding {
        let place = Place::file(self.shown(Path::new(&error.file)));
        let more = match &error.fault {
            HeaderFault::TooShort { .. }
            | HeaderFault::NotJson { .. }
            | HeaderFault::PastEnd { .. } => "",
            HeaderFault::DtypeUnknown { .. } => "use a newer build, or convert the model",
            HeaderFault::HeaderTooLong { .. }
            | HeaderFault::Malformed { .. }
            | HeaderFault::TooManyTensors { .. }
            | HeaderFault::NameTooLong { .. }
            | HeaderFault::Duplicate { .. }
            | HeaderFault::SizeOverflow { .. }
            | HeaderFault::OffsetsReversed { .. }
            | HeaderFault::SizeMismatch { .. }
            | HeaderFault::Stamps(_)
            | HeaderFault::Overlap { .. } => AGAIN,
        };
        said(place, &error.fault.to_string(), more)
    }

    /// What is wrong with a configuration.
    fn config(self, error: &ConfigError) -> Finding {
        let place = Place::file(self.shown(Path::new(&error.file)));
        let more = match &error.fault {
            ConfigFault::NotJson { .. } | ConfigFault::Duplicate { .. } => "",
            ConfigFault::Unsupported { .. } => "use another model, or a build that supports it",
            ConfigFault::TooLong { .. }
            | ConfigFault::NoValue { .. }
            | ConfigFault::Missing { .. }
            | ConfigFault::Unusable { .. }
            | ConfigFault::Contradiction { .. }
            | ConfigFault::ProductTooLarge { .. } => CONFIG,
        };
        said(place, &error.fault.to_string(), more)
    }

    /// What is wrong with a tensor.
    pub fn tensor(self, error: &TensorError) -> Finding {
        let file = Path::new(&error.file);
        let mut place = Place::tensor(self.shown(file), &error.tensor);
        if file == self.directory {
            place.file = None;
        }
        let more = match &error.fault {
            TensorFault::Missing | TensorFault::ScalesMissing { .. } => COMPLETE,
            TensorFault::Shape { .. } | TensorFault::NoScheme => OTHER_CONFIG,
            TensorFault::Dtype { .. } | TensorFault::NoWholeBlocks { .. } => CONVERT,
            TensorFault::GgmlType { .. } => "",
            TensorFault::Colibri(fault) => match fault {
                ColibriFault::Ambiguous { .. } | ColibriFault::Unsupported { .. } => "",
                ColibriFault::StampUnknown { .. } => CONVERT,
                ColibriFault::NoFormat { .. } | ColibriFault::StampContradicted { .. } => AGAIN,
            },
            TensorFault::StampOfFloats { .. } => AGAIN,
            TensorFault::NotFloats { .. }
            | TensorFault::MixedExperts { .. }
            | TensorFault::NoSuchPart => "",
            TensorFault::Read { .. } => ACCESS,
        };
        said(place, &error.fault.to_string(), more)
    }

    /// What is wrong with a pack.
    fn pack(self, error: &PackError) -> Finding {
        let text = error.to_string();
        let (path, more) = match error {
            PackError::Io { path, .. } => (path, ACCESS),
            PackError::FileLength { path, .. }
            | PackError::Manifest { path, .. }
            | PackError::Version { path, .. }
            | PackError::Mismatch { path, .. } => (path, ""),
            PackError::Incomplete { path, .. } => {
                return said(Place::file(pack::MANIFEST_FILE), without(&text, path), "");
            }
            PackError::FileMissing { file, .. } => {
                return Finding::error(Place::file(file), "missing", RESTORE);
            }
            PackError::Damaged(damage) => return self.damaged(damage),
        };
        said(Place::file(self.shown(path)), without(&text, path), more)
    }

    /// Damage in a pack.
    pub fn damaged(self, damage: &pack::Finding) -> Finding {
        let mut place = Place::file(&damage.file);
        match &damage.place {
            pack::Place::Tensor { name, .. } | pack::Place::Filling { name, .. } => {
                place.tensor = Some(name.clone());
            }
            pack::Place::Slice { layer, expert, .. } => {
                (place.layer, place.expert) = (Some(layer.0), Some(expert.0));
            }
            pack::Place::File | pack::Place::Header | pack::Place::Checksums => {}
        }
        let (finding, remedy) = split(&damage.fault);
        let finding = match &damage.place {
            pack::Place::File => {
                let named = without(finding, &self.directory.join(&damage.file));
                without(named, self.directory).to_owned()
            }
            within => format!("{within}: {finding}"),
        };
        Finding::error(place, finding, remedy.unwrap_or(RESTORE))
    }

    /// A path as the user knows it: files of the directory by their names.
    pub fn shown(self, path: &Path) -> String {
        match path.strip_prefix(self.directory) {
            Ok(name) if !name.as_os_str().is_empty() => name.display().to_string(),
            _ => path.display().to_string(),
        }
    }
}

/// An error in its own words: what is wrong, and what to do, to which `more` is added.
fn said(place: Place, text: &str, more: &str) -> Finding {
    let (finding, why) = split(text);
    let remedy = match why {
        None => more.to_owned(),
        Some(why) if more.is_empty() => why.to_owned(),
        Some(why) => format!("{why}: {more}"),
    };
    Finding::error(place, finding, remedy)
}

fn split(text: &str) -> (&str, Option<&str>) {
    text.split_once("; ").map_or((text, None), |(what, why)| (what, Some(why)))
}

/// A text without the path that it begins with.
fn without<'a>(text: &'a str, path: &Path) -> &'a str {
    text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(text)
}
