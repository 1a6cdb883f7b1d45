//! A second copy of a model's files on another drive: is it the same, and how fast is each drive?
//!
//! In: the model's files and a directory. Out: the copy's files, in the same order. A copy with a
//! missing, shorter or different file is refused by name: reading it would give wrong answers.
//! Bytes of weights are not compared; `doctor --deep` on the copy does that for packs.

use super::reads::FileToRead;
use crate::checkpoint::pack::MANIFEST_FILE;
use std::fs::File;
use std::io::Error;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Bytes at the start of a file that are compared when it has no header that says its length.
const HEAD_BYTES: u64 = 1 << 20;
/// Longest header that is compared.
const HEADER_BYTES_MAX: u64 = 64 << 20;
/// Bytes that are compared or probed at once.
const STEP_BYTES: usize = 4 << 20;
/// Reads of a probe.
const PROBE_READS: u64 = 8;

/// Why a mirror can't be used.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// A file can't be read.
    #[error("--mirror: {}: {source}; copy the model's files there, all with their names", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: Error,
    },
    /// A file is another one.
    #[error("--mirror: {}: {what}; it isn't a copy of {}: copy it anew", path.display(), original.display())]
    Differs {
        /// The mirror's file.
        path: PathBuf,
        /// The model's file.
        original: PathBuf,
        /// How it differs.
        what: String,
    },
}

/// Opens the copies of these files in a directory.
///
/// # Errors
/// When one is missing, has another length or begins with other bytes.
pub fn open_mirror(files: &[FileToRead], directory: &Path) -> Result<Vec<FileToRead>, MirrorError> {
    let manifest = files.first().and_then(|file| file.path.parent()).map(|d| d.join(MANIFEST_FILE));
    if let Some(path) = manifest.filter(|path| path.is_file()) {
        let handle = open(&path)?;
        open_copy(&FileToRead { path, handle }, directory, u64::MAX)?;
    }
    files.iter().map(|file| open_copy(file, directory, HEAD_BYTES)).collect()
}

fn open(path: &Path) -> Result<Arc<File>, MirrorError> {
    let fail = |source| MirrorError::Read { path: path.to_path_buf(), source };
    if !std::fs::metadata(path).map_err(fail)?.is_file() {
        return Err(fail(Error::other("not a regular file")));
    }
    File::open(path).map(Arc::new).map_err(fail)
}

fn open_copy(
    original: &FileToRead,
    directory: &Path,
    head_bytes: u64,
) -> Result<FileToRead, MirrorError> {
    let name = original.path.file_name().expect("an open file has a name");
    let path = directory.join(name);
    let copy = FileToRead { handle: open(&path)?, path };
    let differs = |what: String| MirrorError::Differs {
        path: copy.path.clone(),
        original: original.path.clone(),
        what,
    };
    let [expected, found] = [bytes_of(original)?, bytes_of(&copy)?];
    if expected != found {
        return Err(differs(format!("it has {found} bytes, not {expected}")));
    }
    let head = header_bytes(original, expected)?.unwrap_or(head_bytes).min(expected);
    let mut at = 0;
    while at < head {
        let step = (head - at).min(STEP_BYTES as u64);
        let [ours, theirs] = [read(original, at, step)?, read(&copy, at, step)?];
        if let Some(offset) = ours.iter().zip(&theirs).position(|(a, b)| a != b) {
            return Err(differs(format!("it differs at byte {}", at + offset as u64)));
        }
        at += step;
    }
    Ok(copy)
}

fn bytes_of(file: &FileToRead) -> Result<u64, MirrorError> {
    let fail = |source| MirrorError::Read { path: file.path.clone(), source };
    Ok(file.handle.metadata().map_err(fail)?.len())
}

/// Length of a safetensors header, if the file begins with a believable one.
fn header_bytes(file: &FileToRead, bytes: u64) -> Result<Option<u64>, MirrorError> {
    if bytes < 8 {
        return Ok(None);
    }
    let length = read(file, 0, 8)?;
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
    Ok(length.checked_add(8).filter(|&end| end <= bytes.min(HEADER_BYTES_MAX)))
}

fn read(file: &FileToRead, offset: u64, bytes: u64) -> Result<Vec<u8>, MirrorError> {
    let mut out = vec![0; bytes as usize];
    let fail = |source| MirrorError::Read { path: file.path.clone(), source };
    file.handle.read_exact_at(&mut out, offset).map_err(fail)?;
    Ok(out)
}

/// Share of the experts that the first of two copies should serve: its speed in a short probe, of
/// both speeds together. One half where files are too small to tell.
pub fn share_of_first(copies: [&[Arc<File>]; 2], room: &mut [u8]) -> f64 {
    let largest = |files: &[Arc<File>]| {
        let bytes = |file: &Arc<File>| file.metadata().map_or(0, |it| it.len());
        (0..files.len()).max_by_key(|&index| bytes(&files[index]))
    };
    let Some(index) = largest(copies[0]) else { return 0.5 };
    let speeds = copies.map(|files| speed(&files[index], room));
    match speeds {
        [Some(first), Some(second)] => first / (first + second),
        _ => 0.5,
    }
}

/// Bytes per second of reads spread over a file; none when it is too small or a read fails.
fn speed(file: &File, room: &mut [u8]) -> Option<f64> {
    let bytes = file.metadata().ok()?.len();
    let stride = bytes / PROBE_READS / room.len() as u64 * room.len() as u64;
    if stride == 0 {
        return None;
    }
    let started = Instant::now();
    for number in 0..PROBE_READS {
        file.read_exact_at(room, number * stride).ok()?;
    }
    Some(PROBE_READS as f64 * room.len() as f64 / started.elapsed().as_secs_f64())
}
