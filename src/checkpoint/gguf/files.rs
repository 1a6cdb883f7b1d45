//! Which GGUF files a model is in: one, or a series `NAME-00001-of-0000N.gguf`.
//!
//! Any one of a series stands for all, and a directory that holds one model stands for that. Paths
//! flow in, opened files with their headers flow out, checked to belong together.

use super::super::error::OpenError;
use super::super::shards::Shard;
use super::companions::{COMPANIONS, companion};
use super::fault::{GgufError, GgufFault};
use super::parse::{GgufHeader, parse};
use crate::families::shorten;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// What the files' names end in.
const SUFFIX: &str = ".gguf";
/// Files beside a model that aren't one: what turns pictures into tokens.
const PROJECTOR: &str = "mmproj";
/// Most files of a model.
const FILES_MAX: usize = 4096;
/// Most models of a directory that a message lists.
const LISTED_MAX: usize = 8;

/// The files of a model in GGUF, by number.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufFiles {
    /// In order.
    pub files: Vec<Shard>,
}

/// An opened file.
#[derive(Debug)]
pub struct GgufFile {
    /// The open file.
    pub file: File,
    /// Its header.
    pub header: GgufHeader,
}

impl GgufFiles {
    /// The files of the model that a path stands for; none if it stands for no GGUF model. Parts of
    /// a series that aren't there are looked for in the further directories.
    ///
    /// # Errors
    /// When files of a series are missing, or a directory holds several models.
    pub fn find(path: &Path, further: &[PathBuf]) -> Result<Option<GgufFiles>, OpenError> {
        if path.is_dir() {
            return in_directory(path, further);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !is_gguf(&name) || !path.exists() {
            return Ok(None);
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        match part(&name) {
            Some(part) => series(directory, part, further).map(Some),
            None => Ok(Some(GgufFiles { files: vec![Shard { name, path: path.to_path_buf() }] })),
        }
    }

    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// When it can't be read or is malformed.
    pub fn open(&self, number: usize) -> Result<GgufFile, OpenError> {
        let path = &self.files[number].path;
        let io = |e: std::io::Error| OpenError::Io { path: path.clone(), reason: e.to_string() };
        // Looked at before it is opened: opening a pipe waits for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            let reason = "not a regular file; download the model again".to_owned();
            return Err(OpenError::Io { path: path.clone(), reason });
        }
        let file = File::open(path).map_err(io)?;
        let file_bytes = file.metadata().map_err(io)?.len();
        let parsed = parse(BufReader::with_capacity(1 << 16, &file), file_bytes);
        let header = parsed.map_err(|fault| self.error(number, fault))?;
        Ok(GgufFile { file, header })
    }

    /// Opens all files and checks that they belong together.
    ///
    /// # Errors
    /// As [`GgufFiles::open`], and when the files say that they don't.
    pub fn open_all(&self) -> Result<Vec<GgufFile>, OpenError> {
        let mut opened = Vec::with_capacity(self.files.len());
        for number in 0..self.files.len() {
            let file = self.open(number)?;
            check_place(&file.header, number, self.files.len())
                .map_err(|fault| self.error(number, fault))?;
            opened.push(file);
        }
        let found: usize = opened.iter().map(|file| file.header.tensors.len()).sum();
        match opened[0].header.metadata.count("split.tensors.count") {
            Ok(Some(count)) if count != found as u64 => {
                let reason = format!("its files have {found} tensors together, not {count}");
                Err(self.error(0, GgufFault::Split { reason }))
            }
            Ok(_) => Ok(opened),
            Err(fault) => Err(self.error(0, fault)),
        }
    }

    /// A small file of the model by its name, made from the first file's metadata and the tensors
    /// of all.
    ///
    /// # Errors
    /// As [`GgufFiles::open_all`], and when the metadata isn't there or isn't understood.
    pub fn companion(&self, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
        if !COMPANIONS.contains(&name) {
            return Ok(None);
        }
        let mut headers = self.open_all()?.into_iter().map(|file| file.header);
        let mut header = headers.next().expect("a model is in one file at least");
        header.tensors.extend(headers.flat_map(|header| header.tensors));
        companion(&header, name).map_err(|fault| self.error(0, fault))
    }

    fn error(&self, number: usize, fault: GgufFault) -> OpenError {
        OpenError::Gguf(GgufError { file: self.files[number].path.display().to_string(), fault })
    }
}

/// Whether a file name is that of a GGUF file.
pub fn is_gguf(name: &str) -> bool {
    name.len() > SUFFIX.len() && name.to_ascii_lowercase().ends_with(SUFFIX)
}

/// A file of a series by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    prefix: &'a str,
    number: usize,
    count: usize,
}

impl Part<'_> {
    fn name(&self, number: usize) -> String {
        format!("{}-{number:05}-of-{:05}{SUFFIX}", self.prefix, self.count)
    }
}

/// The place in a series that a file's name says, such as `x-00002-of-00003.gguf`.
fn part(name: &str) -> Option<Part<'_>> {
    let stem = name.strip_suffix(SUFFIX)?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = stem.rsplit_once('-')?;
    let digits = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<usize>().ok()).flatten()
    };
    let (number, count) = (digits(number)?, digits(count)?);
    (1..=count.min(FILES_MAX)).contains(&number).then_some(Part { prefix, number, count })
}

fn series(directory: &Path, part: Part<'_>, further: &[PathBuf]) -> Result<GgufFiles, OpenError> {
    let (mut files, mut missing) = (vec![], vec![]);
    for number in 1..=part.count {
        let name = part.name(number);
        let directories = [directory].into_iter().chain(further.iter().map(PathBuf::as_path));
        let mut places = directories.map(|directory| directory.join(&name));
        match places.find(|path| path.exists()) {
            Some(path) => files.push(Shard { name, path }),
            None if missing.len() < LISTED_MAX => missing.push(name),
            None => {}
        }
    }
    match missing.is_empty() {
        true => Ok(GgufFiles { files }),
        false => Err(OpenError::ShardsMissing { path: directory.to_path_buf(), files: missing }),
    }
}

/// The one model that a directory holds, if it holds no safetensors files.
fn in_directory(directory: &Path, further: &[PathBuf]) -> Result<Option<GgufFiles>, OpenError> {
    let io =
        |e: std::io::Error| OpenError::Io { path: directory.to_path_buf(), reason: e.to_string() };
    // For each model the name of one of its files.
    let mut models: BTreeMap<String, String> = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            return Ok(None);
        }
        if is_gguf(&name) && !name.starts_with('.') && !name.starts_with(PROJECTOR) {
            let model = part(&name).map_or(name.as_str(), |part| part.prefix).to_owned();
            models.insert(model, name);
        }
        if models.len() > FILES_MAX {
            break;
        }
    }
    let mut names = models.into_values();
    match (names.next(), names.next()) {
        (None, _) => Ok(None),
        (Some(name), None) => GgufFiles::find(&directory.join(name), further),
        (Some(first), Some(second)) => {
            let listed: Vec<String> =
                [first, second].into_iter().chain(names).take(LISTED_MAX).collect();
            let listed: Vec<String> = listed.iter().map(|name| shorten(name)).collect();
            let (path, found) = (directory.to_path_buf(), listed.join(", "));
            Err(OpenError::SeveralModels { path, found })
        }
    }
}

/// Checks that a file is the one of its series that its name says.
fn check_place(header: &GgufHeader, number: usize, count: usize) -> Result<(), GgufFault> {
    for (key, expected) in [("split.no", number), ("split.count", count)] {
        let found = header.metadata.count(key)?;
        // A file by itself says nothing, or that it is the only one.
        let alone = count == 1 && (found == Some(0) || found.is_none());
        if found != Some(expected as u64) && !alone {
            let found = found.map_or("missing".to_owned(), |found| found.to_string());
            let reason = format!("\"{key}\" is {found}, and by the files' names it is {expected}");
            return Err(GgufFault::Split { reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_says_its_place_in_a_series() {
        let found = part("a-b-00002-of-00003.gguf").expect("a part");
        assert_eq!(found, Part { prefix: "a-b", number: 2, count: 3 });
        assert_eq!(found.name(3), "a-b-00003-of-00003.gguf");
        for name in [
            "a.gguf",
            "a-2-of-3.gguf",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "a-00001-of-99999.safetensors",
            "a-0000x-of-00003.gguf",
        ] {
            assert_eq!(part(name), None, "{name}");
        }
    }

    #[test]
    fn directory_with_two_models_is_refused_with_their_names() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(GgufFiles::find(directory.path(), &[]).expect("looked"), None);
        for name in ["one-00001-of-00002.gguf", "one-00002-of-00002.gguf", "mmproj-x.gguf"] {
            std::fs::write(directory.path().join(name), "").expect("written");
        }
        let found = GgufFiles::find(directory.path(), &[]).expect("looked").expect("found");
        assert_eq!(found.files.len(), 2);
        std::fs::write(directory.path().join("two.gguf"), "").expect("written");
        let error = GgufFiles::find(directory.path(), &[]).unwrap_err().to_string();
        assert!(error.contains("two.gguf") && error.contains("one-0000"), "{error}");
        std::fs::write(directory.path().join("model.safetensors"), "").expect("written");
        assert_eq!(GgufFiles::find(directory.path(), &[]).expect("looked"), None);
    }

    #[test]
    fn missing_part_of_a_series_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x-00001-of-00003.gguf");
        std::fs::write(&path, "").expect("written");
        let error = GgufFiles::find(&path, &[]).unwrap_err().to_string();
        assert!(error.contains("x-00002-of-00003.gguf"), "{error}");
        let further = tempfile::tempdir().expect("a directory");
        for number in 2..=3 {
            let name = format!("x-0000{number}-of-00003.gguf");
            std::fs::write(further.path().join(name), "").expect("written");
        }
        let found = GgufFiles::find(&path, &[further.path().to_path_buf()]);
        assert_eq!(found.expect("looked").expect("found").files.len(), 3);
    }
}
