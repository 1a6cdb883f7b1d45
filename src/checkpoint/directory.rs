//! A directory of safetensors files, opened: the files, and where each tensor lies.
//!
//! Finds the files (one `model.safetensors`, or those of the index), opens each once and for all,
//! and checks every header. Nothing of the data is read. The result is a [`Checkpoint`]; what
//! the tensors mean is `source.rs`'s business.

use super::error::OpenError;
use super::header::{self, HEADER_LIMITS, HeaderError, HeaderFault, LENGTH_BYTES, Shape};
use super::index::{self, ShardIndex};
use millstream_stages::ids::FileId;
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file of a model in one piece.
const SINGLE_FILE: &str = "model.safetensors";
/// The index of a model in several pieces.
const INDEX_FILE: &str = "model.safetensors.index.json";
/// Most tensors of all files together.
const TENSORS_MAX: usize = 1 << 20;
/// Ends of file names that mean a model in another format.
const FOREIGN_SUFFIXES: &[&str] = &[".bin", ".pt", ".pth", ".pkl", ".ckpt", ".gguf", ".ggml"];

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlace {
    /// Its file.
    pub file: FileId,
    /// Type of an element.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Shape,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// An open checkpoint: files, and the tensors in them.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    names: Vec<String>,
    files: Vec<Arc<File>>,
    tensors: BTreeMap<String, TensorPlace>,
    unindexed: Vec<String>,
}

impl Checkpoint {
    /// Opens the files of a directory and reads their headers.
    ///
    /// # Errors
    /// When files are missing, unreadable, malformed, or of another format.
    pub fn open(directory: &Path) -> Result<Checkpoint, OpenError> {
        check_directory(directory)?;
        let index = find_index(directory)?;
        let names = match &index {
            Some(index) => index.shards.clone(),
            None => vec![SINGLE_FILE.to_string()],
        };
        let files = open_all(directory, &names)?;
        let mut checkpoint = Checkpoint {
            directory: directory.to_path_buf(),
            names,
            files,
            tensors: BTreeMap::new(),
            unindexed: Vec::new(),
        };
        for file in 0..checkpoint.files.len() {
            checkpoint.read_header(FileId(file as u32))?;
        }
        if let Some(index) = index {
            checkpoint.apply_index(&index)?;
        }
        Ok(checkpoint)
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The open files; a [`FileId`] is an index into them.
    pub fn files(&self) -> &[Arc<File>] {
        &self.files
    }

    /// The path of a file, for opening it once more with other flags.
    pub fn file_path(&self, file: FileId) -> PathBuf {
        self.directory.join(&self.names[file.index()])
    }

    /// The name of a file within the directory.
    pub fn file_name(&self, file: FileId) -> &str {
        &self.names[file.index()]
    }

    /// Where a tensor lies.
    pub fn tensor(&self, name: &str) -> Option<&TensorPlace> {
        self.tensors.get(name)
    }

    /// All tensors, in order of name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorPlace)> {
        self.tensors.iter().map(|(name, place)| (name.as_str(), place))
    }

    /// Tensors that are in a file but not in the index, which is why they don't count.
    pub fn unindexed(&self) -> &[String] {
        &self.unindexed
    }

    /// Reads a file that belongs to the model, such as `config.json`; None when it isn't there.
    ///
    /// # Errors
    /// When it is longer than `bytes_max`, no regular file, or can't be read.
    pub fn read_small(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, OpenError> {
        read_bounded(&self.directory.join(name), bytes_max)
    }

    fn read_header(&mut self, id: FileId) -> Result<(), OpenError> {
        let path = self.file_path(id);
        let file = Arc::clone(&self.files[id.index()]);
        let io = |e: std::io::Error| OpenError::Io { path: path.clone(), reason: e.to_string() };
        let fail = |fault: HeaderFault| {
            OpenError::Header(HeaderError { file: path.display().to_string(), fault })
        };
        let file_bytes = file.metadata().map_err(io)?.len();
        let mut prefix = [0; LENGTH_BYTES as usize];
        let prefix = &mut prefix[..file_bytes.min(LENGTH_BYTES) as usize];
        file.read_exact_at(prefix, 0).map_err(io)?;
        let header_bytes = header::header_bytes(prefix, file_bytes).map_err(fail)?;
        let mut json = vec![0; header_bytes];
        file.read_exact_at(&mut json, LENGTH_BYTES).map_err(io)?;
        let data_start = LENGTH_BYTES + header_bytes as u64;
        let entries = header::parse_header(&json, file_bytes - data_start).map_err(fail)?;
        if self.tensors.len() + entries.len() > TENSORS_MAX {
            let path = self.directory.clone();
            return Err(OpenError::TooManyTensors { path, max: TENSORS_MAX });
        }
        for entry in entries {
            let place = TensorPlace {
                file: id,
                dtype: entry.dtype,
                shape: entry.shape,
                offset: data_start + entry.begin,
                bytes: entry.bytes,
            };
            if let Some(first) = self.tensors.get(&entry.name) {
                let [first, second] = [first.file, id].map(|file| self.file_name(file).to_string());
                return Err(OpenError::TensorInTwoShards { tensor: entry.name, first, second });
            }
            self.tensors.insert(entry.name, place);
        }
        Ok(())
    }

    /// Checks the index against the files, and drops what it doesn't list.
    fn apply_index(&mut self, index: &ShardIndex) -> Result<(), OpenError> {
        let misplaced = index
            .tensors
            .iter()
            .filter(|(name, shard)| {
                self.tensor(name).is_none_or(|place| place.file.index() != **shard)
            })
            .min();
        if let Some((tensor, &shard)) = misplaced {
            let file = self.names[shard].clone();
            return Err(OpenError::TensorNotInShard { file, tensor: tensor.clone() });
        }
        let unindexed = &mut self.unindexed;
        self.tensors.retain(|name, _| {
            let listed = index.tensors.contains_key(name);
            if !listed {
                unindexed.push(name.clone());
            }
            listed
        });
        Ok(())
    }
}

/// Reads a whole file, if it is there and not longer than `bytes_max`.
fn read_bounded(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, OpenError> {
    let Some(file) = open_regular(path)? else { return Ok(None) };
    let io = |e: std::io::Error| OpenError::Io { path: path.to_path_buf(), reason: e.to_string() };
    let bytes = file.metadata().map_err(io)?.len();
    let mut text = Vec::new();
    if bytes <= bytes_max {
        file.take(bytes_max + 1).read_to_end(&mut text).map_err(io)?;
    }
    let bytes = bytes.max(text.len() as u64);
    if bytes > bytes_max {
        return Err(OpenError::FileTooLong { path: path.to_path_buf(), bytes, max: bytes_max });
    }
    Ok(Some(text))
}

/// Opens a file unless it is absent; refuses devices, pipes and directories without opening them.
fn open_regular(path: &Path) -> Result<Option<File>, OpenError> {
    let fail = |reason: String| OpenError::Io { path: path.to_path_buf(), reason };
    match std::fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail(e.to_string())),
        Ok(found) if !found.is_file() => {
            return Err(fail("not a regular file; download the model again".to_string()));
        }
        Ok(_) => {}
    }
    File::open(path).map(Some).map_err(|e| fail(e.to_string()))
}

fn check_directory(directory: &Path) -> Result<(), OpenError> {
    let path = directory.to_path_buf();
    let found = match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "this is a file".to_string(),
        Err(e) => e.to_string(),
    };
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if is_foreign(&name) {
        return Err(OpenError::NotSafetensors { path, found: name });
    }
    Err(OpenError::NotADirectory { path, found })
}

/// The index, if the model is in several files; an error if it is in none.
fn find_index(directory: &Path) -> Result<Option<ShardIndex>, OpenError> {
    if directory.join(SINGLE_FILE).exists() {
        return Ok(None);
    }
    let path = directory.join(INDEX_FILE);
    if let Some(text) = read_bounded(&path, index::INDEX_BYTES_MAX)? {
        return index::parse_index(&text)
            .map(Some)
            .map_err(|fault| OpenError::Index { path, fault });
    }
    let entries = std::fs::read_dir(directory)
        .map_err(|e| OpenError::Io { path: directory.to_path_buf(), reason: e.to_string() })?;
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut foreign: Vec<String> = names.filter(|name| is_foreign(name)).take(4).collect();
    foreign.sort();
    let path = directory.to_path_buf();
    if foreign.is_empty() {
        let file = format!("{SINGLE_FILE} or {INDEX_FILE}");
        return Err(OpenError::FileMissing { path, file });
    }
    Err(OpenError::NotSafetensors { path, found: foreign.join(", ") })
}

fn is_foreign(name: &str) -> bool {
    FOREIGN_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Opens all files, or names all that are missing.
fn open_all(directory: &Path, names: &[String]) -> Result<Vec<Arc<File>>, OpenError> {
    let mut files = Vec::new();
    let mut missing = Vec::new();
    for name in names {
        match open_regular(&directory.join(name))? {
            Some(file) => files.push(Arc::new(file)),
            None => missing.push(name.clone()),
        }
    }
    if missing.is_empty() {
        return Ok(files);
    }
    Err(OpenError::ShardsMissing { path: directory.to_path_buf(), files: missing })
}

const _: () = assert!(HEADER_LIMITS.tensors_max <= TENSORS_MAX);
