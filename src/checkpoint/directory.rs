//! A directory of safetensors files, or a model in GGUF, opened: the files, and where each tensor
//! lies.
//!
//! Opens each of the files that `shards.rs` or `gguf/files.rs` finds once and for all, and checks
//! every header. Nothing of the data is read. The result is a [`Checkpoint`]; what the tensors mean is
//! `source.rs`'s business.

use super::error::{OpenError, TensorFault};
use super::gguf::files::GgufFiles;
use super::header::{self, HEADER_LIMITS, HeaderError, HeaderFault, LENGTH_BYTES, Shape};
use super::index::ShardIndex;
use super::shards::{self, Shard, Shards};
use super::stamps::{STAMPS_MAX, Stamps, StampsFault};
use super::stored::Run;
use millstream_kernels::formats::GgmlType;
use millstream_stages::ids::FileId;
use rayon::prelude::*;
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most tensors of all files together.
const TENSORS_MAX: usize = 1 << 20;
/// Bytes of a file that one thread reads at a time.
const READ_BYTES: usize = 4 << 20;
/// No file is longer; offsets up to here add up without overflow.
const FILE_BYTES_MAX: u64 = 1 << 60;
/// What the scales of a container's tensors end in: the mark of a container.
pub(super) const CONTAINER_SCALES: &str = ".qs";

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlace {
    /// Its file.
    pub file: FileId,
    /// Type of an element; U8 for blocks of GGUF.
    pub dtype: Dtype,
    /// How a tensor of a GGUF file is stored.
    pub ggml: Option<GgmlType>,
    /// Its shape.
    pub shape: Shape,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// What happens at a fault: what it returns as an error ends the opening, else that goes on without
/// what is at fault.
pub(super) type OnFault<'a> = &'a mut dyn FnMut(OpenError) -> Result<(), OpenError>;

/// An open checkpoint: files, and the tensors in them.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    shards: Vec<Shard>,
    files: Vec<Arc<File>>,
    tensors: BTreeMap<String, TensorPlace>,
    unindexed: Vec<String>,
    stamps: BTreeMap<String, (String, FileId)>,
    container: bool,
    gguf: Option<Gguf>,
}

/// A model in GGUF.
#[derive(Debug)]
struct Gguf {
    files: GgufFiles,
    /// Bytes of each file's header.
    headers_bytes: Vec<u64>,
}

impl Checkpoint {
    /// Opens the files of a directory, and of those that `MILLSTREAM_MODEL_DIRS` names, and reads
    /// their headers.
    ///
    /// # Errors
    /// As [`Checkpoint::open_with`].
    pub fn open(directory: &Path) -> Result<Checkpoint, OpenError> {
        Checkpoint::open_with(directory, &shards::model_dirs())
    }

    /// Opens the files of a directory and reads their headers. Shards that aren't in it are looked
    /// for in the further directories, in their order.
    ///
    /// # Errors
    /// When files are missing, unreadable, malformed, or of another format.
    pub fn open_with(directory: &Path, further: &[PathBuf]) -> Result<Checkpoint, OpenError> {
        Checkpoint::open_past(directory, further, &mut Err)
    }

    /// Opens what can be opened: past a file, a tensor or a stamp at fault, if `on_fault` says so.
    /// Tensors may then lie beyond the end of their file.
    ///
    /// # Errors
    /// As `on_fault` has it, and when there is nothing to open.
    pub(super) fn open_past(
        directory: &Path,
        further: &[PathBuf],
        on_fault: OnFault<'_>,
    ) -> Result<Checkpoint, OpenError> {
        if let Some(files) = GgufFiles::find(directory, further)? {
            return Checkpoint::open_gguf(directory, files);
        }
        check_directory(directory)?;
        let Shards { files: shards, index } = Shards::find(directory, further, on_fault)?;
        let (shards, files) = open_all(directory, shards, on_fault)?;
        let mut checkpoint = Checkpoint {
            directory: directory.to_path_buf(),
            shards,
            files,
            tensors: BTreeMap::new(),
            unindexed: Vec::new(),
            stamps: BTreeMap::new(),
            container: false,
            gguf: None,
        };
        for file in 0..checkpoint.files.len() {
            checkpoint.read_header(FileId(file as u32), on_fault).or_else(&mut *on_fault)?;
        }
        if let Some(index) = index {
            checkpoint.apply_index(&index, on_fault)?;
        }
        checkpoint.container =
            checkpoint.tensors.keys().any(|name| name.ends_with(CONTAINER_SCALES));
        Ok(checkpoint)
    }

    fn open_gguf(directory: &Path, found: GgufFiles) -> Result<Checkpoint, OpenError> {
        let opened = found.open_all()?;
        let headers_bytes = opened.iter().map(|file| file.header.header_bytes).collect();
        let mut tensors = BTreeMap::new();
        let mut files = Vec::with_capacity(opened.len());
        for (number, file) in opened.into_iter().enumerate() {
            for tensor in file.header.tensors {
                let place = TensorPlace {
                    file: FileId(number as u32),
                    dtype: dtype_of(tensor.ggml),
                    ggml: Some(tensor.ggml),
                    shape: Shape::from_innermost(&tensor.lengths),
                    offset: tensor.offset,
                    bytes: tensor.bytes,
                };
                let first = tensors.insert(tensor.name.clone(), place).map(|place| place.file);
                if let Some(first) = first {
                    let [first, second] = [first.index(), number];
                    let [first, second] = [first, second].map(|at| found.files[at].name.clone());
                    let tensor = tensor.name;
                    return Err(OpenError::TensorInTwoShards { tensor, first, second });
                }
            }
            files.push(Arc::new(file.file));
        }
        Ok(Checkpoint {
            directory: directory.to_path_buf(),
            shards: found.files.clone(),
            files,
            tensors,
            unindexed: Vec::new(),
            stamps: BTreeMap::new(),
            container: false,
            gguf: Some(Gguf { files: found, headers_bytes }),
        })
    }

    /// Whether this is a model in GGUF.
    pub fn is_gguf(&self) -> bool {
        self.gguf.is_some()
    }

    /// The header of a file, as it lies there.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read_header_bytes(&self, id: FileId) -> std::io::Result<Vec<u8>> {
        let file = &self.files[id.index()];
        let (offset, bytes) = match &self.gguf {
            Some(gguf) => (0, gguf.headers_bytes[id.index()]),
            None => {
                let mut length = [0; LENGTH_BYTES as usize];
                file.read_exact_at(&mut length, 0)?;
                (LENGTH_BYTES, u64::from_le_bytes(length))
            }
        };
        // The checkpoint was opened, so the header's length is within its bound.
        let mut header = vec![0; bytes as usize];
        file.read_exact_at(&mut header, offset)?;
        Ok(header)
    }

    /// The directory, or the file of a model in GGUF.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The open files; a [`FileId`] is an index into them.
    pub fn files(&self) -> &[Arc<File>] {
        &self.files
    }

    /// The path of a file, for opening it once more with other flags.
    pub fn file_path(&self, file: FileId) -> &Path {
        &self.shards[file.index()].path
    }

    /// The name of a file within its directory.
    pub fn file_name(&self, file: FileId) -> &str {
        &self.shards[file.index()].name
    }

    /// Whether this is a colibri container: tensors have scales beside them under `.qs`.
    pub fn is_container(&self) -> bool {
        self.container
    }

    /// What the files' metadata calls the format of a tensor.
    pub fn stamp(&self, tensor: &str) -> Option<&str> {
        self.stamps.get(tensor).map(|(stamp, _)| stamp.as_str())
    }

    /// Which shards there are, and the gaps in their numbers, for a message.
    pub fn shards_listed(&self) -> String {
        shards::listed(self.shards.iter().map(|shard| shard.name.as_str()))
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

    /// Reads a file that belongs to the model, such as `config.json`; None when it isn't there. For
    /// a model in GGUF it is made from the metadata.
    ///
    /// # Errors
    /// When it is longer than `bytes_max`, no regular file, or can't be read or made.
    pub fn read_small(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, OpenError> {
        if let Some(gguf) = &self.gguf {
            return gguf.files.companion(name);
        }
        read_bounded(&self.directory.join(name), bytes_max)
    }

    /// Reads a run into `out`, which has its length; a long one in parts, by several threads.
    ///
    /// # Errors
    /// When the file ends before, or the system refuses.
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn read(&self, run: Run, out: &mut [u8]) -> Result<(), TensorFault> {
        assert_eq!(out.len(), run.bytes, "a buffer for the run");
        let file = &self.files[run.file.index()];
        if out.len() <= READ_BYTES {
            return read_at(file, run.offset, out);
        }
        out.par_chunks_mut(READ_BYTES).enumerate().try_for_each(|(number, out)| {
            read_at(file, run.offset + (number * READ_BYTES) as u64, out)
        })
    }

    fn read_header(&mut self, id: FileId, on_fault: OnFault<'_>) -> Result<(), OpenError> {
        let path = self.file_path(id).to_path_buf();
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
        let header = match header::parse_header(&json, file_bytes - data_start) {
            Err(fault @ HeaderFault::PastEnd { .. }) => {
                on_fault(fail(fault))?;
                // What the header of a truncated file says still holds.
                header::parse_header(&json, FILE_BYTES_MAX).map_err(fail)?
            }
            parsed => parsed.map_err(fail)?,
        };
        let entries = header.tensors;
        if self.tensors.len() + entries.len() > TENSORS_MAX {
            let path = self.directory.clone();
            return Err(OpenError::TooManyTensors { path, max: TENSORS_MAX });
        }
        for entry in entries {
            let place = TensorPlace {
                file: id,
                dtype: entry.dtype,
                ggml: None,
                shape: entry.shape,
                offset: data_start + entry.begin,
                bytes: entry.bytes,
            };
            if let Some(first) = self.tensors.get(&entry.name) {
                let [first, second] = [first.file, id].map(|file| self.file_name(file).to_string());
                on_fault(OpenError::TensorInTwoShards { tensor: entry.name, first, second })?;
                continue;
            }
            self.tensors.insert(entry.name, place);
        }
        self.add_stamps(id, header.stamps, on_fault)
    }

    /// Adds a file's stamps to those of the others, which they must not contradict.
    fn add_stamps(
        &mut self,
        id: FileId,
        stamps: Stamps,
        on_fault: OnFault<'_>,
    ) -> Result<(), OpenError> {
        for (tensor, stamp) in stamps {
            match self.stamps.get(&tensor) {
                Some((known, _)) if *known == stamp => {}
                Some((known, file)) => {
                    let first = format!("\"{known}\" in {}", self.file_name(*file));
                    let second = format!("\"{stamp}\" in {}", self.file_name(id));
                    on_fault(OpenError::StampsContradict { tensor, first, second })?;
                }
                None => {
                    self.stamps.insert(tensor, (stamp, id));
                }
            }
        }
        if self.stamps.len() > STAMPS_MAX {
            let file = self.file_path(id).display().to_string();
            let fault = HeaderFault::Stamps(StampsFault::TooMany { max: STAMPS_MAX });
            return Err(OpenError::Header(HeaderError { file, fault }));
        }
        Ok(())
    }

    /// Checks the index against the files, and drops what it doesn't list.
    fn apply_index(&mut self, index: &ShardIndex, on_fault: OnFault<'_>) -> Result<(), OpenError> {
        let file_of = |name: &str| self.tensor(name).map(|place| self.file_name(place.file));
        let entries = index.tensors.iter().map(|(name, &shard)| (name, &index.shards[shard]));
        let mut misplaced: Vec<_> =
            entries.filter(|(name, shard)| file_of(name) != Some(shard.as_str())).collect();
        misplaced.sort_unstable();
        for (tensor, file) in misplaced {
            let (file, tensor) = (file.clone(), tensor.clone());
            on_fault(OpenError::TensorNotInShard { file, tensor })?;
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

/// The type of the elements of a GGUF tensor, or of the bytes of its blocks.
fn dtype_of(ggml: GgmlType) -> Dtype {
    match ggml {
        GgmlType::F32 => Dtype::F32,
        GgmlType::F16 => Dtype::F16,
        GgmlType::Bf16 => Dtype::BF16,
        _ => Dtype::U8,
    }
}

/// Reads bytes of a file, all of them or none.
fn read_at(file: &File, offset: u64, out: &mut [u8]) -> Result<(), TensorFault> {
    let mut got = 0;
    while got < out.len() {
        let reason = match file.read_at(&mut out[got..], offset + got as u64) {
            Ok(0) => "the file ends there; it was truncated after it was opened".to_string(),
            Ok(bytes) => {
                got += bytes;
                continue;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => e.to_string(),
        };
        return Err(TensorFault::Read { got, wanted: out.len(), offset, reason });
    }
    Ok(())
}

/// Reads a whole file, if it is there and not longer than `bytes_max`.
pub(super) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, OpenError> {
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
    if shards::is_foreign(&name) {
        return Err(OpenError::NotSafetensors { path, found: name });
    }
    Err(OpenError::NotADirectory { path, found })
}

/// Opens all files, or names all that are missing.
fn open_all(
    directory: &Path,
    shards: Vec<Shard>,
    on_fault: OnFault<'_>,
) -> Result<(Vec<Shard>, Vec<Arc<File>>), OpenError> {
    let (mut found, mut files, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for shard in shards {
        match open_regular(&shard.path) {
            Ok(Some(file)) => {
                files.push(Arc::new(file));
                found.push(shard);
            }
            Ok(None) => missing.push(shard.name),
            Err(fault) => on_fault(fault)?,
        }
    }
    if !missing.is_empty() {
        on_fault(OpenError::ShardsMissing { path: directory.to_path_buf(), files: missing })?;
    }
    Ok((found, files))
}

const _: () = assert!(HEADER_LIMITS.tensors_max <= TENSORS_MAX);
