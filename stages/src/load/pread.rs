//! A reader by `pread`: one read at a time, on the thread that polls.

use super::{ReadDone, ReadRequest, Reader};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Reads by `pread`, the most urgent first. Owned by the I/O seat's desk.
pub struct PreadReader {
    files: Vec<Arc<File>>,
    queue: VecDeque<ReadRequest>,
}

impl PreadReader {
    /// A reader of the model's files (by [`crate::ids::FileId`]); `reads_max` bounds its queue.
    pub fn new(files: Vec<Arc<File>>, reads_max: usize) -> PreadReader {
        PreadReader { files, queue: VecDeque::with_capacity(reads_max) }
    }
}

impl Reader for PreadReader {
    fn submit(&mut self, request: ReadRequest) {
        assert!(self.queue.len() < self.queue.capacity(), "more reads than staging buffers");
        self.queue.push_back(request);
    }

    fn poll(&mut self) -> Option<ReadDone> {
        let most_urgent = (0..self.queue.len()).min_by_key(|&index| self.queue[index].class)?;
        let mut request = self.queue.remove(most_urgent)?;
        let file = &self.files[request.file.index()];
        let buffer = &mut request.staging.bytes_mut()[request.range.clone()];
        let outcome = file.read_at(buffer, request.offset);
        Some(ReadDone { request, outcome })
    }

    fn pending(&self) -> usize {
        self.queue.len()
    }
}
