//! Which files a model is in: one, those of an index, or every safetensors file of a directory.
//!
//! Hugging Face snapshots are `model.safetensors` or the files that an index names. Containers
//! have neither: all their safetensors files count, in order of name. Shards may lie in further
//! directories, which are searched after the model's own; of two files of one name the first is
//! taken. Directories flow in, paths flow out; nothing is opened here but the index.

use super::directory::{OnFault, read_bounded};
use super::error::OpenError;
use super::index::{self, ShardIndex};
use crate::families::shorten;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file of a model in one piece.
const SINGLE_FILE: &str = "model.safetensors";
/// The index of a model in several pieces.
const INDEX_FILE: &str = "model.safetensors.index.json";
/// What files of tensors end in.
const SUFFIX: &str = ".safetensors";
/// Most files of a model without an index.
const LOOSE_SHARDS_MAX: usize = 512;
/// Most further directories.
const DIRECTORIES_MAX: usize = 64;
/// Longest name that a message gives in full.
const LISTED_BYTES_MAX: usize = 40;
/// Most shards, gaps or series of shards that a message lists.
const LISTED_MAX: usize = 8;
/// Ends of file names that mean a model in another format.
const FOREIGN_SUFFIXES: &[&str] = &[".bin", ".pt", ".pth", ".pkl", ".ckpt", ".ggml"];

/// The environment's list of further directories, divided as `PATH` is.
pub const MODEL_DIRS: &str = "MILLSTREAM_MODEL_DIRS";

/// A file of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// The files of a model.
#[derive(Clone, Debug)]
pub struct Shards {
    /// In order of name.
    pub files: Vec<Shard>,
    /// What the index says of them, if there is one.
    pub index: Option<ShardIndex>,
}

/// The further directories that the environment names.
pub fn model_dirs() -> Vec<PathBuf> {
    let list = std::env::var_os(MODEL_DIRS).unwrap_or_default();
    std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect()
}

impl Shards {
    /// Finds the files of a model, in its directory and then in further ones.
    ///
    /// # Errors
    /// When there are none, too many, or files of the index are missing.
    pub(super) fn find(
        directory: &Path,
        further: &[PathBuf],
        on_fault: OnFault<'_>,
    ) -> Result<Shards, OpenError> {
        let path = directory.join(SINGLE_FILE);
        if path.exists() {
            let files = vec![Shard { name: SINGLE_FILE.to_string(), path }];
            return Ok(Shards { files, index: None });
        }
        if further.len() > DIRECTORIES_MAX {
            return Err(OpenError::TooManyDirectories { max: DIRECTORIES_MAX });
        }
        for path in further {
            if !path.is_dir() {
                return Err(OpenError::ModelDirMissing { path: path.clone() });
            }
        }
        let directories: Vec<&Path> =
            [directory].into_iter().chain(further.iter().map(PathBuf::as_path)).collect();
        let path = directory.join(INDEX_FILE);
        if let Some(text) = read_bounded(&path, index::INDEX_BYTES_MAX)? {
            let index =
                index::parse_index(&text).map_err(|fault| OpenError::Index { path, fault })?;
            let files = indexed(&directories, &index, on_fault)?;
            return Ok(Shards { files, index: Some(index) });
        }
        let files = loose(&directories)?;
        if files.is_empty() {
            return Err(nothing_found(directory));
        }
        Ok(Shards { files, index: None })
    }
}

/// The files that an index names; those that are missing are one complaint.
fn indexed(
    directories: &[&Path],
    index: &ShardIndex,
    on_fault: OnFault<'_>,
) -> Result<Vec<Shard>, OpenError> {
    let mut files = Vec::new();
    let mut missing = Vec::new();
    for name in &index.shards {
        let mut places = directories.iter().map(|directory| directory.join(name));
        match places.find(|path| path.exists()) {
            Some(path) => files.push(Shard { name: name.clone(), path }),
            None => missing.push(name.clone()),
        }
    }
    if !missing.is_empty() {
        on_fault(OpenError::ShardsMissing { path: directories[0].to_path_buf(), files: missing })?;
    }
    Ok(files)
}

/// Every safetensors file, in order of name.
fn loose(directories: &[&Path]) -> Result<Vec<Shard>, OpenError> {
    let mut files = BTreeMap::new();
    for directory in directories {
        let io = |e: std::io::Error| OpenError::Io {
            path: directory.to_path_buf(),
            reason: e.to_string(),
        };
        for entry in std::fs::read_dir(directory).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(SUFFIX) && !name.starts_with('.') {
                files.entry(name).or_insert_with(|| entry.path());
            }
            if files.len() > LOOSE_SHARDS_MAX {
                let path = directory.to_path_buf();
                return Err(OpenError::TooManyShards { path, max: LOOSE_SHARDS_MAX });
            }
        }
    }
    Ok(files.into_iter().map(|(name, path)| Shard { name, path }).collect())
}

/// The complaint about a directory without safetensors files.
fn nothing_found(directory: &Path) -> OpenError {
    let path = directory.to_path_buf();
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) => return OpenError::Io { path, reason: e.to_string() },
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut foreign: Vec<String> = names.filter(|name| is_foreign(name)).take(4).collect();
    foreign.sort();
    if foreign.is_empty() {
        let file = format!("{SINGLE_FILE}, {INDEX_FILE} or other {SUFFIX} file");
        return OpenError::FileMissing { path, file };
    }
    OpenError::NotSafetensors { path, found: foreign.join(", ") }
}

/// Whether a file name is that of a model in another format.
pub fn is_foreign(name: &str) -> bool {
    FOREIGN_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Which shards there are and which numbers between them are missing, for a message:
/// `out-00000 to out-00099, out-00101 (missing out-00100), out-mtp-00000`.
pub fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let (series, others) = by_series(names);
    let series = series.into_iter().map(|(prefix, numbers)| one_series(prefix, &numbers));
    shortened(series.chain(others).collect())
}

/// Which shards are missing between others, a few for each gap.
pub(super) fn gaps<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let (series, _) = by_series(names);
    series.iter().flat_map(|(prefix, numbers)| gaps_of(prefix, numbers)).collect()
}

/// The numbers of a series, each with its width.
type Numbers = BTreeMap<u64, usize>;

/// The series of shards by their prefixes, and the names without a number.
fn by_series<'a>(
    names: impl Iterator<Item = &'a str>,
) -> (BTreeMap<&'a str, Numbers>, Vec<String>) {
    let mut series: BTreeMap<&str, Numbers> = BTreeMap::new();
    let mut others = Vec::new();
    for name in names {
        match numbered(name) {
            Some((prefix, (number, width))) if name.len() <= LISTED_BYTES_MAX => {
                series.entry(prefix).or_default().insert(number, width);
            }
            _ => others.push(shorten(name)),
        }
    }
    (series, others)
}

/// The parts of a list, the first few of them.
fn shortened(mut parts: Vec<String>) -> String {
    if parts.len() > LISTED_MAX {
        parts.truncate(LISTED_MAX);
        parts.push("...".to_string());
    }
    parts.join(", ")
}

/// The prefix, number and width of a shard's name such as `out-00012.safetensors` or
/// `model-00012-of-00100.safetensors`.
fn numbered(name: &str) -> Option<(&str, (u64, usize))> {
    let stem = name.strip_suffix(SUFFIX)?;
    let stem = match stem.rsplit_once("-of-") {
        Some((stem, total)) if total.parse::<u64>().is_ok() => stem,
        _ => stem,
    };
    let prefix = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &stem[prefix.len()..];
    Some((prefix, (digits.parse().ok()?, digits.len())))
}

/// The names that are missing in a series before its last, a few for each gap.
fn gaps_of(prefix: &str, numbers: &Numbers) -> Vec<String> {
    let mut gaps = Vec::new();
    // Numbering starts with 0 or 1; a first shard that is missing is a gap too.
    let (first, digits) =
        numbers.first_key_value().map_or((0, 1), |(&number, &width)| (number, width));
    let mut expected = first.min(1);
    for &number in numbers.keys() {
        let gap = expected..number.min(expected.saturating_add(LISTED_MAX as u64 + 1));
        gaps.extend(gap.map(|number| format!("{prefix}{number:0digits$}")));
        expected = number.saturating_add(1);
    }
    gaps
}

/// The numbers of a series and the gaps between them.
fn one_series(prefix: &str, numbers: &Numbers) -> String {
    let each = numbers.len() <= LISTED_MAX;
    let (mut runs, gaps) = (Vec::<[String; 2]>::new(), gaps_of(prefix, numbers));
    let mut expected = None;
    for (&number, &width) in numbers {
        let shown = format!("{prefix}{number:0width$}");
        match runs.last_mut() {
            Some([_, last]) if Some(number) == expected && !each => *last = shown,
            _ => runs.push([shown.clone(), shown]),
        }
        expected = number.checked_add(1);
    }
    let run = |[first, last]: [String; 2]| match first == last {
        true => first,
        false => format!("{first} to {last}"),
    };
    let shards = shortened(runs.into_iter().map(run).collect());
    match gaps.is_empty() {
        true => shards,
        false => format!("{shards} (missing {})", shortened(gaps)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> String {
        listed(names.iter().copied())
    }

    #[test]
    fn gaps_in_the_numbering_are_listed() {
        let text = of(&["out-00000.safetensors", "out-00002.safetensors"]);
        assert_eq!(text, "out-00000, out-00002 (missing out-00001)");
        let text = of(&["out-00002.safetensors", "out-mtp-00000.safetensors", "x.safetensors"]);
        assert_eq!(text, "out-00002 (missing out-00001), out-mtp-00000, x.safetensors");
        let text = of(&["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"]);
        assert_eq!(text, "model-00001, model-00003 (missing model-00002)");
    }

    #[test]
    fn lists_stay_short() {
        let names: Vec<String> = (0..141)
            .filter(|number| *number != 57)
            .map(|number| format!("out-{number:05}.safetensors"))
            .collect();
        let text = listed(names.iter().map(String::as_str));
        assert_eq!(text, "out-00000 to out-00056, out-00058 to out-00140 (missing out-00057)");
        let text = of(&["a-0.safetensors", "a-18446744073709551615.safetensors", "b.safetensors"]);
        assert!(text.len() < 200 && text.contains("missing a-1, a-2"), "{text}");
        let names: Vec<String> = (0..500).map(|i| format!("x{i}y.safetensors")).collect();
        assert!(listed(names.iter().map(String::as_str)).len() < 400);
        let names: Vec<String> = (0..500).map(|i| format!("x{}.safetensors", 2 * i)).collect();
        assert!(listed(names.iter().map(String::as_str)).len() < 400);
    }
}
