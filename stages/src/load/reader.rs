//! What every reader does, and the files that it reads.
//!
//! A [`Reader`] takes jobs, reads their chunks in its own order and time, the most urgent first, and
//! hands the jobs back. It belongs to the I/O seat's desk. Readers: [`super::UringReader`],
//! [`super::PreadReader`], and the simulation's.

use super::LoadClass;
use super::job::ReadJob;
use super::progress::Geometry;
use crate::ids::{ExpertId, FileId, LayerId, Tag};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of one read of a file. A drive is as fast with reads of 1 MiB as with longer ones, and
/// an urgent expert waits behind those that are in flight.
pub const CHUNK_BYTES: usize = 2 << 20;

/// Reads jobs, in its own order and time.
pub trait Reader: Send {
    /// What its reads are made of.
    fn geometry(&self) -> Geometry;

    /// How many copies of the files it can read from.
    fn copies(&self) -> usize {
        1
    }

    /// The copy that an expert is read from at first: always the same one.
    fn copy_of(&self, layer: LayerId, expert: ExpertId) -> usize {
        let _ = (layer, expert);
        0
    }

    /// Makes room for so many jobs at once, so that later nothing allocates.
    fn reserve(&mut self, jobs_max: usize);

    /// Takes a job; it comes back out of [`Reader::poll`].
    fn submit(&mut self, job: Box<ReadJob>);

    /// Raises the class of a job, if it is here.
    fn promote(&mut self, layer: LayerId, slot: Tag, class: LoadClass);

    /// Keeps the drive busy, and hands out a job whose reads are over, if there is one. Never
    /// sleeps.
    fn poll(&mut self) -> Option<Box<ReadJob>>;

    /// Whether [`Reader::poll`] may have something to do: a cheap look, no system call.
    fn is_ready(&mut self) -> bool;

    /// Sleeps until there is something to do for [`Reader::poll`], or for so long.
    fn wait(&mut self, timeout: Duration);

    /// Jobs taken and not yet handed out.
    fn pending(&self) -> usize;
}

/// The open files of a model, one list for each copy of it, by [`FileId`].
#[derive(Clone, Debug)]
pub struct ReadFiles {
    copies: Vec<Vec<Arc<File>>>,
    align_bytes: usize,
    /// Of 65536 experts, how many are read from the first copy.
    first_of_65536: u32,
}

impl ReadFiles {
    /// Files whose reads must be aligned to `align_bytes` (1: anything goes).
    ///
    /// # Panics
    /// When there is no copy, or copies have different numbers of files.
    pub fn new(copies: Vec<Vec<Arc<File>>>, align_bytes: usize) -> ReadFiles {
        assert!(!copies.is_empty(), "a model has files");
        assert!(copies.iter().all(|copy| copy.len() == copies[0].len()), "copies are alike");
        let first_of_65536 = 65536 / copies.len() as u32;
        ReadFiles { copies, align_bytes, first_of_65536 }
    }

    /// Has this share (0 to 1) of the experts read from the first of two copies.
    pub fn share_first(mut self, share: f64) -> ReadFiles {
        self.first_of_65536 = (share * 65536.0).round().clamp(0.0, 65536.0) as u32;
        self
    }

    /// The copy that an expert is read from at first: always the same one.
    pub fn copy_of(&self, layer: LayerId, expert: ExpertId) -> usize {
        if self.copies.len() < 2 {
            return 0;
        }
        // Fibonacci hashing: neighbours spread evenly.
        let place = u64::from(layer.0) << 32 | u64::from(expert.0);
        let hash = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u32;
        usize::from(hash >= self.first_of_65536)
    }

    /// Reads of at most [`CHUNK_BYTES`].
    pub fn geometry(&self) -> Geometry {
        Geometry { align_bytes: self.align_bytes, chunk_bytes: CHUNK_BYTES }
    }

    /// How many copies there are.
    pub fn copies(&self) -> usize {
        self.copies.len()
    }

    /// A file of a copy.
    pub fn file(&self, copy: usize, file: FileId) -> &File {
        &self.copies[copy][file.index()]
    }

    /// Where a file of a copy is in the list of all files.
    pub fn place(&self, copy: usize, file: FileId) -> usize {
        copy * self.copies[0].len() + file.index()
    }

    /// All files, copy by copy.
    pub fn all(&self) -> impl Iterator<Item = &Arc<File>> {
        self.copies.iter().flatten()
    }
}
