//! Loader(L): fills expert slots from the model's files.
//!
//! The loader of a layer gets a slot's fill lease and an expert's number (a note, never the wave),
//! reads the expert's extents into a staging buffer, unpacks them into the slot's slices and says
//! so to the prefetcher. [`LoadDesk`] belongs to the I/O seat: it deals the staging buffers by
//! class and owns the [`Reader`]. A read that fails gives the slot back empty and names file,
//! offset, wanted and got; only the rows that needed the expert are lost.

mod desk;
mod loader;
mod pread;
mod shape;

pub use desk::LoadDesk;
pub use loader::Loader;
pub use pread::PreadReader;
pub use shape::{
    DIRECT_ALIGN_BYTES, DIRECT_SLICE_BYTES_MIN, EXPERT_MATRICES, ExpertMatrix, ExpertShape,
};

use crate::ids::{ExpertId, FileId, LayerId, Tag};
use crate::weights::{Line, aligned_bytes};
use millstream_topology::arena::FillLease;
use std::fmt;
use std::ops::Range;

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
}

impl LoadOrder {
    /// The slot, in the life that is being filled.
    pub fn tag(&self) -> Tag {
        Tag { index: self.lease.slot(), generation: self.lease.generation() }
    }
}

/// A buffer that files are read into: as long as the largest expert. Moves from the desk to a
/// loader, to the reader, and back.
pub struct Staging(Vec<Line>);

impl Staging {
    /// A buffer of at least so many bytes.
    pub fn new(bytes: usize) -> Staging {
        Staging(aligned_bytes(bytes))
    }

    /// The buffer as bytes.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    /// The buffer as bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} bytes)", self.bytes().len())
    }
}

/// One read: bytes of a file into a range of a staging buffer.
#[derive(Debug)]
pub struct ReadRequest {
    /// The loader's layer.
    pub layer: LayerId,
    /// The slot that is being filled, in the life of the fill.
    pub slot: Tag,
    /// How urgent.
    pub class: LoadClass,
    /// Which file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Where in the buffer the bytes go; never empty.
    pub range: Range<usize>,
    /// The buffer.
    pub staging: Staging,
}

/// A finished read; the buffer comes back whatever happened.
#[derive(Debug)]
pub struct ReadDone {
    /// What was asked.
    pub request: ReadRequest,
    /// Bytes read (fewer than asked is a short read, 0 the end of the file), or the error.
    pub outcome: std::io::Result<usize>,
}

/// Reads files, in its own order and time.
pub trait Reader: Send {
    /// Takes a read; its completion comes out of [`Reader::poll`].
    fn submit(&mut self, request: ReadRequest);

    /// A completion, if there is one now. A blocking reader reads here.
    fn poll(&mut self) -> Option<ReadDone>;

    /// Reads taken and not yet handed out.
    fn pending(&self) -> usize;
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
