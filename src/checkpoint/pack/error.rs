//! Everything that can be wrong with a pack, in words that name place and remedy.

use millstream_stages::ids::{ExpertId, LayerId};
use std::fmt;
use std::path::PathBuf;

/// Why a pack can't be opened.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PackError {
    /// The operating system refused.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// A manifest that isn't one.
    #[error("{}: {reason}; convert the model again, or restore this file from a copy", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A manifest of another version.
    #[error(
        "{}: this is a pack of version {found}, and this build reads version {known}; convert the \
         model again with this build, or use the one that made it", path.display()
    )]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// Ours.
        known: u32,
    },
    /// A conversion that hasn't come to its end.
    #[error(
        "{}: the conversion into this pack isn't finished: {} of {files} files are missing ({}); \
         run `millstream convert` again with the same arguments, and it goes on where it stopped",
        path.display(), missing.len(), listed(missing)
    )]
    Incomplete {
        /// The directory.
        path: PathBuf,
        /// Files that a complete pack has.
        files: usize,
        /// Those that aren't there yet.
        missing: Vec<String>,
    },
    /// A file of the pack is absent.
    #[error("{}: {file} is missing; restore it from a copy, or convert the model again", path.display())]
    FileMissing {
        /// The directory.
        path: PathBuf,
        /// The file.
        file: String,
    },
    /// A file of another length.
    #[error(
        "{}: {found} bytes, and the manifest calls for {expected}; the copy isn't complete, or the \
         file was changed: restore it from a copy, or convert the model again", path.display()
    )]
    FileLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// Its length by the manifest.
        expected: u64,
    },
    /// The manifest and `config.json` are of two models.
    #[error(
        "{}: {what}; millstream.json and config.json don't belong together: convert the model \
         again", path.display()
    )]
    Mismatch {
        /// The directory.
        path: PathBuf,
        /// What contradicts what.
        what: String,
    },
    /// Bytes that aren't the ones that were written.
    #[error(transparent)]
    Damaged(#[from] Finding),
}

/// Damage that was found, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {place}: {fault}; restore the file from a copy, or convert the model again")]
pub struct Finding {
    /// The file's name in the pack.
    pub file: String,
    /// Where in it.
    pub place: Place,
    /// What is wrong there.
    pub fault: String,
}

/// A place in a file of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    File,
    /// Everything in front of the data.
    Header,
    /// The checksums at the end.
    Checksums,
    /// Bytes of a tensor.
    Tensor {
        /// Its name.
        name: String,
        /// Which of its pieces.
        piece: usize,
        /// First byte in the file.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// A slice of an expert.
    Slice {
        /// The layer.
        layer: LayerId,
        /// The expert.
        expert: ExpertId,
        /// Which of its slices.
        slice: usize,
        /// First byte in the file.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// What fills up the space between a tensor's sections.
    Filling {
        /// The tensor.
        name: String,
        /// First byte in the file.
        offset: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File => f.write_str("the file"),
            Place::Header => f.write_str("the header"),
            Place::Checksums => f.write_str("the checksums at the end"),
            Place::Tensor { name, piece, offset, bytes } => {
                write!(f, "tensor \"{name}\" piece {piece} ({bytes} bytes at offset {offset})")
            }
            Place::Slice { layer, expert, slice, offset, bytes } => {
                write!(f, "{layer} {expert} slice {slice} ({bytes} bytes at offset {offset})")
            }
            Place::Filling { name, offset } => {
                write!(f, "the filling of tensor \"{name}\" (offset {offset})")
            }
        }
    }
}

impl PackError {
    /// A refusal of the system.
    pub fn io(path: impl Into<PathBuf>, error: &std::io::Error) -> PackError {
        PackError::Io { path: path.into(), reason: error.to_string() }
    }
}

/// The first few names.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}
