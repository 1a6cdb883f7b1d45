//! Loader(L): fills expert slots from the model's files.
//!
//! The loader of a layer gets a slot's fill lease and an expert's number (a note, never the wave),
//! puts both into a job, has the job read and says so to the prefetcher. An expert that lies in its
//! file as in its slot is read straight into the slot; others go through a bounce buffer and are
//! unpacked. [`LoadDesk`] belongs to the I/O seat: it deals the jobs by class and owns the
//! [`Reader`]. A read that fails gives the slot back empty and names file, offset, wanted and got;
//! only the rows that needed the expert are lost.
//!
//! | file | what |
//! |---|---|
//! | `loader` | the actor |
//! | `desk` | who may read next |
//! | `needs` | which layers are read straight, and how large a job must be |
//! | `job` | one expert on its way: lease, buffer, progress |
//! | `progress` | pieces, chunks, short reads, retries: pure bookkeeping |
//! | `reader` | what every reader does, and the files |
//! | `uring`, `pread` | the readers |
//! | `shape` | what lies where in a slot |

mod desk;
mod job;
mod loader;
mod needs;
mod pread;
mod progress;
mod reader;
mod shape;
mod uring;

pub use desk::LoadDesk;
pub use job::{JobRoom, ReadJob};
pub use loader::Loader;
pub use needs::ReadNeeds;
pub use pread::PreadReader;
pub use progress::{ChunkRead, Geometry, Piece, Progress, RETRIES_MAX, ReadFailure};
pub use reader::{CHUNK_BYTES, ReadFiles, Reader};
pub use shape::{
    DIRECT_ALIGN_BYTES, DIRECT_SLICE_BYTES_MIN, EXPERT_MATRICES, ExpertMatrix, ExpertShape,
};
pub use uring::{DEPTH_MAX, UringReader};

use crate::ids::{ExpertId, LayerId, Tag};
use millstream_topology::arena::FillLease;
use std::fmt;

/// How urgent a load is; lower is sooner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LoadClass {
    /// A wave with a decoding row waits for it.
    Decode,
    /// A wave of prompt rows waits for it.
    Prefill,
    /// Nobody waits yet.
    Hint,
}

/// Fill this slot with that expert.
#[derive(Debug)]
pub struct LoadOrder {
    /// Which expert of the loader's layer.
    pub expert: ExpertId,
    /// The exclusive right to the slot.
    pub lease: FillLease,
    /// How urgent.
    pub class: LoadClass,
    /// Since when a wave waits for it ([`crate::gauge::now_ns`]); 0 if none does.
    pub wanted_ns: u64,
}

impl LoadOrder {
    /// The slot, in the life that is being filled.
    pub fn tag(&self) -> Tag {
        Tag { index: self.lease.slot(), generation: self.lease.generation() }
    }
}

/// A read that failed: what the rows that needed it are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadFault {
    /// Layer of the expert.
    pub layer: LayerId,
    /// The expert.
    pub expert: ExpertId,
    /// Name of the file.
    pub file: String,
    /// Where the expert's extent starts.
    pub offset: u64,
    /// Bytes wanted from there.
    pub wanted: usize,
    /// Bytes that came.
    pub got: usize,
    /// What the system said; none at the end of the file.
    pub error: Option<String>,
}

impl fmt::Display for ReadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadFault { layer, expert, file, offset, wanted, got, error } = self;
        write!(f, "{layer} {expert}: read {got} of {wanted} bytes at offset {offset} of {file}; ")?;
        match error {
            Some(error) => write!(f, "{error}; check the drive and the file's permissions"),
            None => write!(f, "the file may be truncated: compare its size with the original's"),
        }
    }
}

impl std::error::Error for ReadFault {}
