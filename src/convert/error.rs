//! Everything that can stop a conversion, in words that name place and remedy.

use crate::checkpoint::OpenError;
use crate::checkpoint::pack::{Finding, PackError};
use millstream_kernels::formats::CannotRound;
use millstream_stages::weights::SourceError;
use std::path::{Path, PathBuf};

/// Why a conversion stopped.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The source can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The source can't be read.
    #[error(transparent)]
    Read(#[from] SourceError),
    /// The source is a pack.
    #[error(
        "{}: this is a pack already; convert from the model that it was made from ({from})",
        path.display()
    )]
    SourceIsPack {
        /// The directory.
        path: PathBuf,
        /// What its manifest says.
        from: String,
    },
    /// A weight that can't be rounded.
    #[error(
        "{file}: tensor \"{tensor}\": {fault}; the file is damaged: download it again, or choose \
         another format for this class of tensors"
    )]
    Rounding {
        /// The source's file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Where in it, and the value.
        fault: CannotRound,
    },
    /// The destination is taken.
    #[error(
        "{}: {found}; a conversion only writes into a directory that is new, empty, or its own: \
         name another", path.display()
    )]
    Taken {
        /// The directory.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// A conversion with other parameters was begun there.
    #[error(
        "{}: another conversion was begun here, and it differs in {}; give the same arguments as \
         then, or name another directory", path.display(), differences.join(", ")
    )]
    Differs {
        /// The directory.
        path: PathBuf,
        /// What differs, from then to now.
        differences: Vec<String>,
    },
    /// Somebody is writing there.
    #[error("{}: another process is converting into it; wait until it is done", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The drive is too small.
    #[error(
        "{}: {needed} bytes are still to be written and {free} are free; make room, choose smaller \
         formats, or name a directory on another drive", path.display()
    )]
    Room {
        /// The directory.
        path: PathBuf,
        /// What is needed.
        needed: u64,
        /// What there is.
        free: u64,
    },
    /// The manifest of the destination.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The operating system refused.
    #[error("{}: {action}: {reason}; what is finished stays, and the same command goes on from there", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was to be done.
        action: &'static str,
        /// The system's words.
        reason: String,
    },
    /// What was written isn't what comes back.
    #[error("{}: after writing, the drive gives other bytes back: {finding}", path.display())]
    Unfaithful {
        /// The file.
        path: PathBuf,
        /// The first damage.
        finding: Box<Finding>,
    },
    /// The observer stopped it.
    #[error("stopped; what is finished stays, and the same command goes on from there")]
    Stopped,
}

impl ConvertError {
    /// A refusal of the system, for use with `map_err`.
    pub fn io(path: &Path, action: &'static str) -> impl Fn(std::io::Error) -> ConvertError {
        let path = path.to_path_buf();
        move |error| ConvertError::Io { path: path.clone(), action, reason: error.to_string() }
    }
}
