//! How a model's files are read: from what the user asked and what the system allows to a reader.
//!
//! In: the model's files (open already) and [`ReadOptions`]. Out: an [`OpenedReader`], the words
//! for the start line, and what went other than wished. Direct reads (O_DIRECT) pass the page cache:
//! a file is opened once more for them and tried with one block. io_uring needs no threads; where it
//! is refused, or reads go through the page cache, a few threads read with `pread`.

use super::mirror::{MirrorError, open_mirror, share_of_first};
use crate::checkpoint::pack::open_direct;
use millstream_stages::load::{
    DEPTH_MAX, DIRECT_ALIGN_BYTES, PreadReader, ReadFiles, Reader, UringReader,
};
use millstream_topology::arena::Bounce;
use millstream_topology::cpuset::NodeId;
use millstream_topology::drive::node_of_file;
use std::fs::File;
use std::io::Error;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Reads in flight when the user names no number: what a drive delivers in some 15 ms, for the thread
/// that starts the next ones may be computing.
pub const IO_DEPTH_DEFAULT: usize = 16;
/// Threads of the `pread` reader when the user names no number: one saturates a fast drive, the
/// second reads while the first is being dealt its next expert.
pub const READERS_DEFAULT: usize = 2;
/// Bytes of one read of the probe that shares experts between two drives.
const PROBE_BYTES: usize = 4 << 20;
/// Threads of the `pread` reader that may be asked for.
pub const READERS_MAX: usize = 64;
/// Reads in flight that may be asked for.
pub const IO_DEPTH_MAX: usize = DEPTH_MAX;

/// Which system interface reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoChoice {
    /// io_uring for direct reads where it is allowed, else `pread`.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Threads with `pread`.
    Pread,
}

impl IoChoice {
    /// The choice with a name: auto, uring or pread.
    pub fn named(name: &str) -> Option<IoChoice> {
        match name {
            "auto" => Some(IoChoice::Auto),
            "uring" => Some(IoChoice::Uring),
            "pread" => Some(IoChoice::Pread),
            _ => None,
        }
    }
}

impl DirectChoice {
    /// The choice with a name: auto, on or off.
    pub fn named(name: &str) -> Option<DirectChoice> {
        match name {
            "auto" => Some(DirectChoice::Auto),
            "on" => Some(DirectChoice::On),
            "off" => Some(DirectChoice::Off),
            _ => None,
        }
    }
}

/// Whether reads pass the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirectChoice {
    /// Where the file system allows it.
    #[default]
    Auto,
    /// They do, or it is an error.
    On,
    /// They go through the page cache.
    Off,
}

/// What the user asked of reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadOptions {
    /// Which system interface.
    pub io: IoChoice,
    /// Past the page cache or through it.
    pub direct: DirectChoice,
    /// Reads in flight with io_uring.
    pub io_depth: usize,
    /// Threads of the `pread` reader.
    pub readers: usize,
    /// A directory with a second copy of the files, on another drive.
    pub mirror: Option<PathBuf>,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            io: IoChoice::Auto,
            direct: DirectChoice::Auto,
            io_depth: IO_DEPTH_DEFAULT,
            readers: READERS_DEFAULT,
            mirror: None,
        }
    }
}

impl ReadOptions {
    /// Reads in flight at most, or threads that read, of a reader that was opened with these.
    pub fn at_once(&self, opened: &OpenedReader) -> usize {
        if opened.words.contains("uring") { self.io_depth } else { self.readers }
    }
}

/// A file of a model.
#[derive(Clone, Debug)]
pub struct FileToRead {
    /// Where it is.
    pub path: PathBuf,
    /// Open for reads through the page cache.
    pub handle: Arc<File>,
}

/// A reader, and what to say of it.
pub struct OpenedReader {
    /// The reader.
    pub reader: Box<dyn Reader>,
    /// For the start line.
    pub words: String,
    /// What went other than wished.
    pub warnings: Vec<String>,
    /// Its reads cost the thread that polls it next to nothing.
    pub is_light: bool,
    /// The node that the files' drive hangs on, where known and several nodes are.
    pub drive_node: Option<NodeId>,
}

/// Why files can't be read as asked.
#[derive(Debug, thiserror::Error)]
pub enum ReadsError {
    /// io_uring was asked for and is refused.
    #[error(
        "--io uring: the kernel refuses io_uring with deferred completions (since Linux 6.1): \
         {source}; allow it (sysctl kernel.io_uring_disabled=0; in a container, the io_uring system \
         calls) or use --io pread"
    )]
    Uring {
        /// What the kernel said.
        source: Error,
    },
    /// Direct reads were asked for and are refused.
    #[error("--direct on: {}: the file system refuses direct reads: {source}; use --direct auto", path.display())]
    Direct {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: Error,
    },
    /// The second copy isn't one.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// Threads can't be started.
    #[error(
        "starting a reader's thread failed: {source}; allow more threads (ulimit -u, the cgroup's pids.max)"
    )]
    Thread {
        /// What the system said.
        source: Error,
    },
}

/// Opens a reader of a model's files.
///
/// # Errors
/// When what was asked for by name is refused.
pub fn open_reader(
    files: &[FileToRead],
    options: &ReadOptions,
) -> Result<OpenedReader, ReadsError> {
    let mut warnings = vec![];
    let drive_node = files.first().and_then(|file| node_of_file(&file.path));
    let mut copies = vec![files.to_vec()];
    if let Some(directory) = &options.mirror {
        copies.push(open_mirror(files, directory)?);
    }
    let all: Vec<FileToRead> = copies.iter().flatten().cloned().collect();
    let direct = open_all_direct(&all, options.direct, &mut warnings)?;
    let is_direct = direct.is_some();
    let handles = direct.unwrap_or_else(|| all.iter().map(|file| file.handle.clone()).collect());
    let align_bytes = if is_direct { DIRECT_ALIGN_BYTES } else { 1 };
    let copies = handles.chunks(files.len().max(1)).map(<[_]>::to_vec).collect();
    let (files, mirrored) = share(copies, align_bytes);
    let how = if is_direct { "direct" } else { "buffered" };
    let how = format!("{how}{mirrored}");
    let uring = match options.io {
        IoChoice::Uring => true,
        IoChoice::Auto => is_direct,
        IoChoice::Pread => false,
    };
    if uring {
        match UringReader::new(files.clone(), options.io_depth) {
            Ok(reader) => {
                let words = format!("io uring {how} depth {}", options.io_depth);
                let reader = Box::new(reader);
                let is_light = is_direct;
                return Ok(OpenedReader { reader, words, warnings, is_light, drive_node });
            }
            Err(source) if options.io == IoChoice::Uring => {
                return Err(ReadsError::Uring { source });
            }
            Err(error) => warnings.push(format!(
                "experts are read with pread: the kernel refuses io_uring ({error}); in a \
                 container, allow its system calls"
            )),
        }
    }
    let reader = PreadReader::start(files, options.readers, drive_node);
    let reader = Box::new(reader.map_err(|source| ReadsError::Thread { source })?);
    let words = format!("io pread {how} readers {}", options.readers);
    Ok(OpenedReader { reader, words, warnings, is_light: false, drive_node })
}

/// The copies, each with its share of the experts, and words about that.
fn share(copies: Vec<Vec<Arc<File>>>, align_bytes: usize) -> (ReadFiles, String) {
    let [first, second] = &copies[..] else {
        return (ReadFiles::new(copies, align_bytes), String::new());
    };
    let room = Bounce::new(PROBE_BYTES);
    let share = room.map_or(0.5, |mut room| share_of_first([first, second], room.bytes_mut()));
    let words = format!(" mirrored {:.0}:{:.0}", share * 100.0, 100.0 - share * 100.0);
    (ReadFiles::new(copies, align_bytes).share_first(share), words)
}

/// All files once more, for direct reads; none where they are not wanted or not possible.
fn open_all_direct(
    files: &[FileToRead],
    choice: DirectChoice,
    warnings: &mut Vec<String>,
) -> Result<Option<Vec<Arc<File>>>, ReadsError> {
    if choice == DirectChoice::Off {
        return Ok(None);
    }
    let mut handles = Vec::with_capacity(files.len());
    for file in files {
        match open_one_direct(file) {
            Ok(handle) => handles.push(Arc::new(handle)),
            Err(source) if choice == DirectChoice::On => {
                return Err(ReadsError::Direct { path: file.path.clone(), source });
            }
            Err(error) => {
                warnings.push(format!(
                    "experts are read through the page cache: {} can't be read directly ({error})",
                    file.path.display()
                ));
                return Ok(None);
            }
        }
    }
    Ok(Some(handles))
}

/// A file once more, for direct reads; tries one block, for some file systems take the flag and
/// refuse the reads.
fn open_one_direct(file: &FileToRead) -> Result<File, Error> {
    let direct = open_direct(&file.path)?;
    let (ours, theirs) = (file.handle.metadata()?, direct.metadata()?);
    if (ours.dev(), ours.ino()) != (theirs.dev(), theirs.ino()) {
        return Err(Error::other("the file was replaced while it was being opened"));
    }
    let mut block = Bounce::new(DIRECT_ALIGN_BYTES).map_err(Error::other)?;
    direct.read_at(block.bytes_mut(), 0)?;
    Ok(direct)
}
