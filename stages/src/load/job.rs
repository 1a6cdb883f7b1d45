//! One expert on its way from the files into its slot.
//!
//! A job is the load's parcel: it holds the slot's fill lease and, where the files don't lie as the
//! slot does, a bounce buffer. It moves from the desk to a loader, to the reader and back, and is
//! recycled. While a kernel writes, the job stays with its reader: memory is given back only after
//! the completion has been seen.

use super::progress::{ChunkRead, Geometry, Piece, Progress};
use super::{LoadClass, LoadOrder};
use crate::ids::{ExpertId, LayerId, Tag};
use crate::weights::{Extent, Staged};
use millstream_topology::arena::{ArenaError, Bounce, FillLease};
use millstream_topology::cpuset::NodeId;
use std::fmt;
use std::ops::Range;

/// A load in progress: whose it is, where its bytes go, and how far they have come.
pub struct ReadJob {
    /// The loader's layer.
    pub layer: LayerId,
    /// The expert.
    pub expert: ExpertId,
    /// The slot that is being filled, in the life of the fill.
    pub slot: Tag,
    /// How urgent.
    pub class: LoadClass,
    /// Which copy of the files is read.
    pub copy: usize,
    /// Another copy was tried before and failed.
    pub retried: bool,
    /// How far it has come.
    pub progress: Progress,
    lease: Option<FillLease>,
    /// The target where there is one; else the slot itself.
    bounce: Option<Bounce>,
    /// By extent: where in the bounce buffer its wanted bytes are.
    places: Vec<Range<usize>>,
}

/// Room that a recycled job must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobRoom {
    /// Pieces of one expert.
    pub pieces_max: usize,
    /// Reads of one expert.
    pub chunks_max: usize,
    /// Bytes of a bounce buffer; 0 for a job that reads into slots.
    pub bounce_bytes: usize,
}

impl ReadJob {
    /// An idle job.
    ///
    /// # Errors
    /// When the bounce buffer can't be had.
    pub fn new(room: JobRoom) -> Result<ReadJob, ArenaError> {
        ReadJob::near(room, None)
    }

    /// An idle job whose buffer lies on a node: that of the drive.
    ///
    /// # Errors
    /// When the bounce buffer can't be had.
    pub fn near(room: JobRoom, node: Option<NodeId>) -> Result<ReadJob, ArenaError> {
        let bounce = match room.bounce_bytes {
            0 => None,
            bytes => Some(Bounce::near(bytes, node)?),
        };
        Ok(ReadJob {
            layer: LayerId(0),
            expert: ExpertId(0),
            slot: Tag::default(),
            class: LoadClass::Hint,
            copy: 0,
            retried: false,
            progress: Progress::new(room.pieces_max, room.chunks_max),
            lease: None,
            bounce,
            places: Vec::with_capacity(room.pieces_max),
        })
    }

    /// Takes an order over; pieces follow with [`ReadJob::read_into_slot`] or
    /// [`ReadJob::read_through_bounce`].
    ///
    /// # Panics
    /// When the job isn't idle.
    pub fn take(&mut self, layer: LayerId, order: LoadOrder) {
        assert!(self.lease.is_none(), "a job carries one load at a time");
        (self.layer, self.expert, self.slot) = (layer, order.expert, order.tag());
        (self.class, self.copy, self.retried) = (order.class, 0, false);
        self.lease = Some(order.lease);
    }

    /// The bytes go into the slot as they are: for each node one run.
    pub fn read_into_slot(&mut self, pieces: impl Iterator<Item = Piece>, geometry: Geometry) {
        assert!(self.bounce.is_none(), "a job with a buffer reads into it");
        self.progress.begin(pieces, geometry);
    }

    /// The extents go into the bounce buffer, each in whole aligned blocks.
    pub fn read_through_bounce(&mut self, extents: &[Extent], geometry: Geometry) {
        self.places.clear();
        let mut at = 0;
        for extent in extents {
            let piece = bounced_piece(extent, at, geometry.align_bytes);
            let first = at + piece.lead;
            self.places.push(first..first + piece.wanted);
            at = end_of(&piece, geometry.align_bytes);
        }
        let mut at = 0;
        let pieces = extents.iter().map(|extent| {
            let piece = bounced_piece(extent, at, geometry.align_bytes);
            at = end_of(&piece, geometry.align_bytes);
            piece
        });
        self.progress.begin(pieces, geometry);
    }

    /// What was read through the bounce buffer, extent by extent; none where the slot took it.
    pub fn staged(&self) -> Option<Staged<'_>> {
        self.bounce.as_ref().map(|bounce| Staged::new(bounce.bytes(), &self.places))
    }

    /// The buffer's extents and the slot, for unpacking one into the other.
    pub fn unpacking(&mut self) -> (Option<Staged<'_>>, &mut FillLease) {
        let places = &self.places;
        let staged = self.bounce.as_ref().map(|bounce| Staged::new(bounce.bytes(), places));
        (staged, self.lease.as_mut().expect("a job in progress has its lease"))
    }

    /// Where a read puts its bytes, to write.
    ///
    /// # Panics
    /// When the target has no such place.
    pub fn room_mut(&mut self, read: &ChunkRead) -> &mut [u8] {
        let range = read.at..read.at + read.bytes;
        match &mut self.bounce {
            Some(bounce) => &mut bounce.bytes_mut()[range],
            None => {
                let lease = self.lease.as_mut().expect("a job in progress has its lease");
                &mut lease.part_mut(read.node)[range]
            }
        }
    }

    /// The address of the place where a read puts its bytes, for a kernel that writes them while
    /// nobody holds a slice. All `read.bytes` from there on belong to the target, which stays where
    /// it is for as long as this job carries its load.
    ///
    /// # Panics
    /// When the target has no such place.
    pub fn pointer_mut(&mut self, read: &ChunkRead) -> *mut u8 {
        let (first, bytes) = match &mut self.bounce {
            Some(bounce) => (bounce.pointer_mut(), bounce.len()),
            None => {
                let lease = self.lease.as_mut().expect("a job in progress has its lease");
                lease.part_pointer(read.node)
            }
        };
        let end = read.at.checked_add(read.bytes);
        assert!(end.is_some_and(|end| end <= bytes), "{read:?} leaves its target of {bytes} bytes");
        first.wrapping_add(read.at)
    }

    /// Ends the load: the lease, to publish or to drop.
    ///
    /// # Panics
    /// When the job carries no load, or reads are in flight.
    pub fn end(&mut self) -> FillLease {
        assert_eq!(self.progress.flying(), 0, "a kernel still writes into the slot");
        self.lease.take().expect("a job in progress has its lease")
    }

    /// Whether the bytes go through a buffer.
    pub fn is_bounced(&self) -> bool {
        self.bounce.is_some()
    }
}

/// An extent as it is read into a bounce buffer: in whole aligned blocks, from `at` on.
fn bounced_piece(extent: &Extent, at: usize, align_bytes: usize) -> Piece {
    let lead = (extent.offset % align_bytes as u64) as usize;
    let Extent { file, offset, bytes } = *extent;
    Piece { file, offset: offset - lead as u64, lead, wanted: bytes, node: 0, at }
}

/// Where in a bounce buffer the next piece goes; places are aligned as offsets are.
fn end_of(piece: &Piece, align_bytes: usize) -> usize {
    (piece.at + piece.lead + piece.wanted).next_multiple_of(align_bytes.max(64))
}

/// Bytes of a bounce buffer that an expert needs.
pub fn bounce_bytes(extents: &[Extent], align_bytes: usize) -> usize {
    extents
        .iter()
        .fold(0, |at, extent| end_of(&bounced_piece(extent, at, align_bytes), align_bytes))
}

impl fmt::Debug for ReadJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadJob { layer, expert, slot, class, .. } = self;
        write!(f, "ReadJob({layer} {expert}, {slot:?}, {class:?})")
    }
}
