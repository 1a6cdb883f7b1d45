//! What else lies in a model's directory: halves of downloads, links to nowhere, other formats, and
//! the records that converters leave.
//!
//! Names and lengths flow in, findings flow out. The files that the model is read from are checked
//! elsewhere; this file looks at the rest, and at the first bytes of what may stand in for a file.

use super::faults::Faults;
use super::finding::{Finding, Findings, Place, Severity};
use crate::checkpoint::OpenError;
use crate::checkpoint::directory::read_bounded;
use crate::checkpoint::gguf::files::is_gguf;
use crate::checkpoint::shards;
use crate::families::shorten;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 1 << 16;
/// Ends of names that a download has while it isn't finished, and a file that is being written.
const UNFINISHED_SUFFIXES: [&str; 7] =
    [".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".tmp", ".unfinished"];
/// What a pointer of Git's extension for large files begins with.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";
/// Longest record of a conversion that is read.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// colibri's converter: the series of shards that it writes, and what their tensors are called.
const SERIES: [(&str, Option<&str>); 3] =
    [("out", None), ("out-mtp", Some("multi-token prediction")), ("out-idx", Some("the indexer"))];

/// For conversions that stopped.
const GO_ON: &str = "run the converter again with the same arguments: it goes on where it stopped";
/// Files that a model needs beside its weights, if it has them at all.
const COMPANIONS: [&str; 4] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

/// Looks at every entry of a directory. `is_used` says which files the model is read from.
pub fn look_around(faults: Faults<'_>, is_used: &dyn Fn(&str) -> bool, findings: &mut Findings) {
    let directory = faults.directory;
    let io = |e: std::io::Error| OpenError::Io { path: directory.into(), reason: e.to_string() };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return findings.extend(faults.open(&io(error))),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        match entry {
            Ok(entry) => names.insert(entry.file_name().to_string_lossy().into_owned()),
            Err(error) => return findings.extend(faults.open(&io(error))),
        };
        if names.len() == ENTRIES_MAX {
            let finding =
                format!("it has {ENTRIES_MAX} entries or more, which aren't all looked at");
            let place = Place::file(directory.display().to_string());
            findings.add(Finding::warning(
                place,
                finding,
                "keep a model in a directory of its own",
            ));
            break;
        }
    }
    findings.extend(names.iter().filter_map(|name| look_at(directory, name, is_used)));
}

fn look_at(directory: &Path, name: &str, is_used: &dyn Fn(&str) -> bool) -> Option<Finding> {
    let path = directory.join(name);
    let is_needed = name.ends_with(".safetensors") || COMPANIONS.contains(&name);
    let severity = if is_needed { Severity::Error } else { Severity::Note };
    let place = Place::file(name);
    let found = match std::fs::metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let target = std::fs::read_link(&path).unwrap_or_default();
            let finding = format!("a link to {}, which isn't there", target.display());
            return Some(Finding::new(severity, place, finding, "download the model again"));
        }
        Err(error) => {
            let remedy = "check its permissions, and those of what it links to";
            return Some(Finding::new(severity, place, error.to_string(), remedy));
        }
    };
    let bytes = found.len();
    if !found.is_file() {
        None
    } else if is_pointer(&path) {
        // Those that the model is read from were named when they were opened.
        (!is_used(name)).then(|| Finding { severity, ..pointer(place) })
    } else if UNFINISHED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) {
        let finding = format!("a download or copy that isn't finished ({bytes} bytes)");
        Some(Finding::warning(place, finding, "let it finish, or delete it"))
    } else if shards::is_foreign(name) || is_gguf(name) {
        let finding = format!("a file of another format, which isn't read ({bytes} bytes)");
        Some(Finding::note(place, finding, "nothing: what it takes on the drive is all it costs"))
    } else if name.ends_with(".safetensors") && !is_used(name) {
        let finding = format!("not part of the model: nothing names it ({bytes} bytes)");
        Some(Finding::note(place, finding, "nothing: what it takes on the drive is all it costs"))
    } else {
        None
    }
}

/// Whether a file is a pointer that Git's extension for large files puts in the place of one.
pub fn is_pointer(path: &Path) -> bool {
    let mut start = [0; POINTER.len()];
    let mut read = || std::fs::File::open(path)?.read_exact(&mut start);
    path.is_file() && read().is_ok() && start == POINTER
}

/// The finding of such a pointer.
pub fn pointer(place: Place) -> Finding {
    let finding = "a pointer of Git LFS stands here, not the file";
    Finding::error(place, finding, "run `git lfs pull` in the directory")
}

/// The record that colibri's converter keeps while it works: which shard went into which.
#[derive(Deserialize)]
struct Record {
    #[serde(default)]
    shards: BTreeMap<String, Option<String>>,
}

/// What is known of a model when its converter's records are looked at.
pub struct Converted<'a> {
    /// Whether a directory of the model has a file of that name.
    pub has_file: &'a dyn Fn(&str) -> bool,
    /// Whether the model has a shard whose name begins so.
    pub has_series: &'a dyn Fn(&str) -> bool,
    /// Tensors that are missing.
    pub missing: usize,
}

/// Looks at the records of colibri's converter: each is left by a conversion that was interrupted,
/// or that came to its end and wasn't tidied up.
pub fn conversions(faults: Faults<'_>, converted: &Converted<'_>, findings: &mut Findings) {
    for (series, what) in SERIES {
        let progress = format!(".{series}-progress.json");
        match read_bounded(&faults.directory.join(&progress), RECORD_BYTES_MAX) {
            Ok(Some(text)) => written(&progress, &text, converted, findings),
            Ok(None) => {}
            Err(error) => findings.extend(faults.open(&error)),
        }
        let interrupted = match what {
            None => converted.missing > 0,
            Some(_) => !(converted.has_series)(&format!("{series}-")),
        };
        for name in [progress, format!(".{series}-params.json")] {
            if !faults.directory.join(&name).is_file() {
                continue;
            }
            let place = Place::file(name);
            findings.add(match (interrupted, what) {
                (true, None) => {
                    let finding = "the conversion that wrote this model was interrupted";
                    Finding::error(place, finding, GO_ON)
                }
                (true, Some(what)) => {
                    let finding =
                        format!("the conversion of {what} was interrupted: no shard has it");
                    Finding::warning(place, finding, GO_ON)
                }
                (false, _) => {
                    let finding =
                        "a converter's record of its work; nothing that it wrote is missing";
                    Finding::note(place, finding, "nothing: it may be deleted")
                }
            });
        }
    }
}

/// Checks the shards that a record says were written.
fn written(name: &str, text: &[u8], converted: &Converted<'_>, findings: &mut Findings) {
    let record: Record = match serde_json::from_slice(text) {
        Ok(record) => record,
        Err(error) => {
            let finding = format!("no record of a conversion: {}", shorten(&error.to_string()));
            let remedy = "if tensors are missing, convert again; else delete it";
            return findings.add(Finding::warning(Place::file(name), finding, remedy));
        }
    };
    for (from, into) in &record.shards {
        let into = into.as_deref().unwrap_or_default();
        let into = into.rsplit('/').next().unwrap_or_default();
        if !into.is_empty() && !(converted.has_file)(into) {
            let finding = format!("missing, though {name} says that {} is in it", shorten(from));
            findings.add(Finding::error(Place::file(shorten(into)), finding, GO_ON));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_none_are_named_and_break_nothing() {
        let converted =
            Converted { has_file: &|name| name == "a", has_series: &|_| true, missing: 0 };
        let bomb = "[".repeat(100_000);
        for text in ["", "{", "7", "{\"shards\":7}", "{\"shards\":{\"a\":7}}", &bomb] {
            let mut findings = Findings::default();
            written("record", text.as_bytes(), &converted, &mut findings);
            assert!(!findings.has_error() && findings.into_sorted().len() == 1, "{text:.20}");
        }
        let mut findings = Findings::default();
        let text = br#"{"shards":{"x":"a","y":"","z":null,"v":"dir/b","w":"../a"},"params":{}}"#;
        written("record", text, &converted, &mut findings);
        let found = findings.into_sorted();
        assert_eq!(found.len(), 1);
        assert!(found[0].place.to_string() == "b" && found[0].finding.contains("that v is in it"));
    }
}
