//! How far the reads of one expert have come: pure bookkeeping, the same for every reader.
//!
//! ```text
//!   piece   a run of a file and where it goes     lead | wanted | tail    lead and tail: alignment
//!   chunk   a part of a piece that is read at once    Ready -> Flying -> Done
//! ```
//!
//! A reader takes chunks with [`Progress::next_chunk`], reads them in any order, and reports each with
//! [`Progress::done`]. EINTR and EAGAIN are tried again within a bound, a short read goes on where
//! it stopped, the file's end and every other error fail the whole. Direct reads must start at
//! aligned offsets, so a read that stops within a block is taken up at the block's start; if it
//! stops there once more, the file ends there.

use crate::gauge::now_ns;
use crate::ids::FileId;
use crate::queue::faults::{self, Fault};
use std::io::{Error, ErrorKind};

/// How often one chunk is tried again after EINTR or EAGAIN before it counts as failed.
pub const RETRIES_MAX: u32 = 1000;

/// A run of a file, and where in a slot or a bounce buffer it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Which file.
    pub file: FileId,
    /// First byte that is read: a multiple of the reader's alignment.
    pub offset: u64,
    /// Bytes from there on that nobody wants.
    pub lead: usize,
    /// Bytes after those that are wanted, never 0.
    pub wanted: usize,
    /// The node whose part of the slot takes them; 0 for a bounce buffer.
    pub node: usize,
    /// Where in that part (or buffer) the first byte that is read goes.
    pub at: usize,
}

/// One read: bytes of a file into a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkRead {
    /// Which chunk of the job, for [`Progress::done`].
    pub chunk: u32,
    /// Which file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Node of the place.
    pub node: usize,
    /// Where the bytes go.
    pub at: usize,
    /// How many, never 0. The file may end before, if nothing wanted is missing.
    pub bytes: usize,
}

/// What reads are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Offsets, lengths and places are multiples of this; 1 where anything goes.
    pub align_bytes: usize,
    /// Most bytes of one read: a multiple of the alignment.
    pub chunk_bytes: usize,
}

/// Why the reads of an expert failed.
#[derive(Debug)]
pub struct ReadFailure {
    /// Which file.
    pub file: FileId,
    /// The first byte that was wanted of the piece.
    pub offset: u64,
    /// Bytes wanted from there on.
    pub wanted: usize,
    /// Bytes up to the place where it failed.
    pub got: usize,
    /// What the system said; none at the end of the file.
    pub error: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    Flying,
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    piece: u32,
    /// From the piece's first byte that is read.
    first: usize,
    /// Bytes to ask for.
    bytes: usize,
    /// Bytes that must come.
    needed: usize,
    /// Bytes that have come and count.
    got: usize,
    tries: u32,
    /// The last read ended within the block that it began with.
    stalled: bool,
    state: State,
    /// When its last read was started, and when that one's end was seen ([`now_ns`]).
    started_ns: u64,
    ended_ns: u64,
}

/// The pieces of one expert and how far each has come.
#[derive(Debug)]
pub struct Progress {
    pieces: Vec<Piece>,
    chunks: Vec<Chunk>,
    align_bytes: usize,
    /// Chunks that are not done.
    left: usize,
    flying: usize,
    bytes_read: u64,
    failure: Option<ReadFailure>,
}

impl Progress {
    /// Room for so many pieces and chunks; nothing to read.
    pub fn new(pieces_max: usize, chunks_max: usize) -> Progress {
        Progress {
            pieces: Vec::with_capacity(pieces_max),
            chunks: Vec::with_capacity(chunks_max),
            align_bytes: 1,
            left: 0,
            flying: 0,
            bytes_read: 0,
            failure: None,
        }
    }

    /// Takes the pieces of a new job and cuts them into chunks.
    ///
    /// # Panics
    /// When there are more than there is room for, or chunks of the last job are in flight.
    pub fn begin(&mut self, pieces: impl Iterator<Item = Piece>, geometry: Geometry) {
        assert_eq!(self.flying, 0, "the last job's reads are not over");
        self.align_bytes = geometry.align_bytes;
        self.pieces.clear();
        self.chunks.clear();
        for piece in pieces {
            assert!(self.pieces.len() < self.pieces.capacity(), "more pieces than planned");
            self.pieces.push(piece);
        }
        for (index, piece) in self.pieces.iter().enumerate() {
            assert!(piece.offset.is_multiple_of(geometry.align_bytes as u64), "{piece:?}");
            let needed = piece.lead + piece.wanted;
            let bytes = needed.next_multiple_of(geometry.align_bytes);
            for first in (0..bytes).step_by(geometry.chunk_bytes) {
                assert!(self.chunks.len() < self.chunks.capacity(), "more chunks than planned");
                let end = (first + geometry.chunk_bytes).min(bytes);
                self.chunks.push(Chunk {
                    piece: index as u32,
                    first,
                    bytes: end - first,
                    needed: end.min(needed) - first,
                    got: 0,
                    tries: 0,
                    stalled: false,
                    state: State::Ready,
                    started_ns: 0,
                    ended_ns: 0,
                });
            }
        }
        self.restart();
    }

    /// Forgets what has come: everything is read again, for example from another copy.
    ///
    /// # Panics
    /// When chunks are in flight.
    pub fn restart(&mut self) {
        assert_eq!(self.flying, 0, "reads are not over");
        self.left = self.chunks.len();
        self.bytes_read = 0;
        self.failure = None;
        for chunk in &mut self.chunks {
            *chunk = Chunk {
                got: 0,
                tries: 0,
                stalled: false,
                state: State::Ready,
                ended_ns: 0,
                ..*chunk
            };
        }
    }

    /// The next read to start, if there is one; none after a failure.
    pub fn next_chunk(&mut self) -> Option<ChunkRead> {
        if self.failure.is_some() || self.left == self.flying {
            return None;
        }
        let index = self.chunks.iter().position(|chunk| chunk.state == State::Ready)?;
        let chunk = &mut self.chunks[index];
        chunk.state = State::Flying;
        chunk.started_ns = now_ns();
        self.flying += 1;
        let piece = self.pieces[chunk.piece as usize];
        let from = chunk.first + chunk.got;
        Some(ChunkRead {
            chunk: index as u32,
            file: piece.file,
            offset: piece.offset + from as u64,
            node: piece.node,
            at: piece.at + from,
            bytes: chunk.bytes - chunk.got,
        })
    }

    /// Takes what became of a read: bytes (0 at the file's end), or the error.
    ///
    /// # Panics
    /// When the chunk is not in flight, or more bytes came than were asked for.
    pub fn done(&mut self, chunk: u32, outcome: std::io::Result<usize>) {
        let place = &mut self.chunks[chunk as usize];
        assert_eq!(place.state, State::Flying, "a completion of a read that isn't in flight");
        place.state = State::Ready;
        place.ended_ns = now_ns();
        self.flying -= 1;
        match outcome {
            Ok(got) => self.take(chunk, got),
            Err(error) => {
                place.tries += 1;
                let passing =
                    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock);
                if !passing || place.tries > RETRIES_MAX {
                    let got = place.got;
                    self.fail_chunk(chunk, got, Some(error));
                }
            }
        }
    }

    fn take(&mut self, index: u32, got: usize) {
        let chunk = &mut self.chunks[index as usize];
        assert!(got <= chunk.bytes - chunk.got, "the reader gave more than was asked for");
        self.bytes_read += got as u64;
        chunk.tries = 0;
        let reached = chunk.got + got;
        let taken_as_full = got > 0 && faults::active(Fault::ShortReadTakenAsFull);
        if reached >= chunk.needed || taken_as_full {
            chunk.state = State::Done;
            self.left -= 1;
            return;
        }
        let kept = reached - reached % self.align_bytes;
        let stands = kept <= chunk.got;
        if got == 0 || stands && chunk.stalled {
            return self.fail_chunk(index, reached, None);
        }
        chunk.stalled = stands;
        chunk.got = kept;
    }

    /// Fails the whole at a chunk whose first `reached` bytes have come. The first failure stands.
    fn fail_chunk(&mut self, index: u32, reached: usize, error: Option<Error>) {
        let chunk = &self.chunks[index as usize];
        let piece = &self.pieces[chunk.piece as usize];
        if self.failure.is_none() {
            self.failure = Some(ReadFailure {
                file: piece.file,
                offset: piece.offset + piece.lead as u64,
                wanted: piece.wanted,
                got: (chunk.first + reached).saturating_sub(piece.lead),
                error,
            });
        }
    }

    /// Fails the whole at its first piece, whatever has come: damage, or an injected fault.
    ///
    /// # Panics
    /// When there is nothing to read.
    pub fn fail(&mut self, got: usize, error: Option<Error>) {
        let piece = &self.pieces[0];
        self.fail_chunk(0, piece.lead + got.min(piece.wanted), error);
    }

    /// No read is in flight, and none will follow.
    pub fn is_over(&self) -> bool {
        self.flying == 0 && (self.left == 0 || self.failure.is_some())
    }

    /// Reads in flight.
    pub fn flying(&self) -> usize {
        self.flying
    }

    /// Bytes that came, those of repeated reads too.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<&ReadFailure> {
        self.failure.as_ref()
    }

    /// Of every read that has ended: the node of its place, when it was started and when its end was
    /// seen ([`now_ns`]).
    pub fn times_ns(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let ended = self.chunks.iter().filter(|chunk| chunk.ended_ns > 0);
        ended
            .map(|chunk| (self.pieces[chunk.piece as usize].node, chunk.started_ns, chunk.ended_ns))
    }

    /// The pieces.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

#[cfg(test)]
mod tests;
