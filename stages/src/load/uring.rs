//! The home of io-uring: reads of many experts at once, with no thread of their own.
//!
//! ```text
//!   jobs (by place)   | job | job | .. |      queue: places, the most urgent first
//!        next chunk --> submission queue --> drive --> completion queue --> done(chunk)
//!        user data = life << 48 | place << 32 | chunk
//! ```
//!
//! Owned by the I/O seat's desk. At most `depth` chunks are in flight; the next one comes from the
//! most urgent job, and hints fill half of the depth at most. The kernel writes the jobs' memory: a job stays here, with its fill lease and
//! its buffer, until every completion of it has been seen, also when the reader is dropped.
//!
//! The ring is made by the thread that starts the engine, so that a refusal is known then, and
//! enabled by the first thread that reads, which is the only one to use it from then on (a ring with
//! one issuer). Completions are run when that thread enters the kernel and not before; the kernel
//! raises a flag that can be read without a system call when there are some.
#![allow(unsafe_code)]

use super::LoadClass;
use super::job::ReadJob;
use super::progress::Geometry;
use super::reader::{ReadFiles, Reader};
use crate::ids::{ExpertId, LayerId, Tag};
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Most chunks in flight that may be asked for.
pub const DEPTH_MAX: usize = 256;

/// Hints start while fewer chunks than this are in flight: the drive always has a next one, and a
/// demand waits for few.
const HINT_DEPTH: usize = 4;

/// Reads by io_uring.
pub struct UringReader {
    ring: IoUring,
    files: ReadFiles,
    depth: usize,
    enabled: bool,
    /// By place.
    places: Vec<Place>,
    free: Vec<usize>,
    /// Places of jobs that may have a chunk to start, the most urgent first.
    queue: Vec<usize>,
    in_flight: usize,
    finished: VecDeque<Box<ReadJob>>,
    pending: usize,
}

/// Where a job is while it is read.
#[derive(Default)]
struct Place {
    job: Option<Box<ReadJob>>,
    /// How many jobs have been here: a completion carries it.
    life: u16,
}

impl UringReader {
    /// A reader with at most `depth` chunks in flight.
    ///
    /// # Errors
    /// When the kernel refuses the ring: too old, not permitted (containers), no memory.
    pub fn new(files: ReadFiles, depth: usize) -> std::io::Result<UringReader> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring = IoUring::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(depth as u32)?;
        let descriptors: Vec<i32> = files.all().map(|file| file.as_raw_fd()).collect();
        ring.submitter().register_files(&descriptors)?;
        Ok(UringReader {
            ring,
            files,
            depth,
            enabled: false,
            places: vec![],
            free: vec![],
            queue: vec![],
            in_flight: 0,
            finished: VecDeque::new(),
            pending: 0,
        })
    }

    /// Starts chunks while there is room for them.
    fn fill(&mut self) {
        let mut pushed = false;
        while let Some(&place) = self.queue.first()
            && self.in_flight < self.room_for(place)
        {
            match self.push(place) {
                true => pushed = true,
                false => _ = self.queue.remove(0),
            }
        }
        if pushed {
            self.enter(0, None);
        }
    }

    /// Chunks in flight beyond which a place's job starts none. Hints keep the drive's queue short,
    /// for what the drive has taken can't be overtaken.
    fn room_for(&self, place: usize) -> usize {
        let hint = |job: &ReadJob| job.class == LoadClass::Hint;
        match self.places[place].job.as_deref().is_some_and(hint) {
            true => self.depth.min(HINT_DEPTH),
            false => self.depth,
        }
    }

    /// Puts the next chunk of a place's job into the submission queue, if it has one.
    fn push(&mut self, place: usize) -> bool {
        let Place { job, life } = &mut self.places[place];
        let job = job.as_mut().expect("the queue holds places with jobs");
        let Some(read) = job.progress.next_chunk() else { return false };
        let file = Fixed(self.files.place(job.copy, read.file) as u32);
        let pointer = job.pointer_mut(&read);
        let data = u64::from(*life) << 48 | (place as u64) << 32 | u64::from(read.chunk);
        let entry = opcode::Read::new(file, pointer, read.bytes as u32).offset(read.offset);
        let entry = entry.build().user_data(data);
        // SAFETY:
        // - the kernel writes `read.bytes` bytes from `pointer` on: `pointer_mut` asserts that they
        //   lie in the job's target, which is the job's alone (a fill lease or its own buffer).
        // - the target stays mapped and in place until the completion: the job stays in `places`,
        //   and `end` refuses while chunks fly; a dropped reader waits, or leaks the jobs.
        // - no slice of the target exists meanwhile: `Progress` hands a chunk out once, and slices
        //   are made from jobs only, which is in here.
        // - the file is registered with the ring, which keeps it open.
        let outcome = unsafe { self.ring.submission().push(&entry) };
        assert!(outcome.is_ok(), "the submission queue has room for the depth");
        self.in_flight += 1;
        true
    }

    /// Tells the kernel what was pushed and lets it run completions; with `wanted` 1 sleeps until
    /// there is one, for at most `timeout`.
    fn enter(&mut self, wanted: usize, timeout: Option<Duration>) {
        if let Err(error) = self.try_enter(wanted, timeout) {
            panic!("the kernel refused to read by io_uring: {error}; --io pread does without");
        }
    }

    fn try_enter(&mut self, wanted: usize, timeout: Option<Duration>) -> Result<(), Error> {
        if !self.enabled {
            self.ring.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        let outcome = match timeout {
            None => self.ring.submit_and_wait(wanted),
            Some(timeout) => {
                let time = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(wanted, &args)
            }
        };
        match outcome {
            Ok(_) => Ok(()),
            // What wasn't taken stays in the queue for the next time.
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes all completions that there are.
    fn reap(&mut self) {
        loop {
            let Some(completion) = self.ring.completion().next() else { return };
            let (data, result) = (completion.user_data(), completion.result());
            let outcome = match usize::try_from(result) {
                Ok(bytes) => Ok(bytes),
                Err(_) => Err(Error::from_raw_os_error(-result)),
            };
            self.complete(data, outcome);
        }
    }

    fn complete(&mut self, data: u64, outcome: std::io::Result<usize>) {
        let (life, index) = ((data >> 48) as u16, (data >> 32 & 0xffff) as usize);
        self.in_flight -= 1;
        let place = &mut self.places[index];
        assert_eq!(place.life, life, "a completion for another life of its place");
        let job = place.job.as_mut().expect("a job waits for its completions");
        job.progress.done(data as u32, outcome);
        if job.progress.is_over() {
            self.finished.extend(place.job.take());
            place.life = place.life.wrapping_add(1);
            self.queue.retain(|&queued| queued != index);
            self.free.push(index);
        } else if !self.queue.contains(&index) {
            // A short read, or one to be tried again.
            self.enqueue(index);
        }
    }

    /// Puts a place behind those that are as urgent.
    fn enqueue(&mut self, place: usize) {
        let class = |place: usize| self.places[place].job.as_ref().map(|job| job.class);
        let at = self.queue.partition_point(|&queued| class(queued) <= class(place));
        self.queue.insert(at, place);
    }

    /// Whether entering or looking is worth it: completions, work that makes some, or reads that
    /// the kernel hasn't taken yet.
    fn has_news(&mut self) -> bool {
        let submission = self.ring.submission();
        let (work, untaken) = (submission.taskrun(), !submission.is_empty());
        drop(submission);
        work || untaken || !self.ring.completion().is_empty()
    }
}

/// Errors of entering the kernel after which one enters again.
fn is_passing(error: &Error) -> bool {
    use ErrorKind::{Interrupted, ResourceBusy, TimedOut, WouldBlock};
    // ETIME, which std has no kind for.
    const TIMER_EXPIRED: i32 = 62;
    matches!(error.kind(), Interrupted | ResourceBusy | TimedOut | WouldBlock)
        || error.raw_os_error() == Some(TIMER_EXPIRED)
}

impl Reader for UringReader {
    fn geometry(&self) -> Geometry {
        self.files.geometry()
    }

    fn copies(&self) -> usize {
        self.files.copies()
    }

    fn copy_of(&self, layer: LayerId, expert: ExpertId) -> usize {
        self.files.copy_of(layer, expert)
    }

    fn reserve(&mut self, jobs_max: usize) {
        assert!(jobs_max <= usize::from(u16::MAX), "places fit their field");
        self.places.resize_with(jobs_max, Place::default);
        self.free = (0..jobs_max).rev().collect();
        self.queue.reserve(jobs_max);
        self.finished.reserve(jobs_max);
    }

    fn submit(&mut self, job: Box<ReadJob>) {
        let place = self.free.pop().expect("room was reserved for all jobs");
        self.places[place].job = Some(job);
        self.pending += 1;
        self.enqueue(place);
        self.fill();
    }

    fn promote(&mut self, layer: LayerId, slot: Tag, class: LoadClass) {
        let jobs =
            self.places.iter_mut().enumerate().filter_map(|(i, p)| Some((i, p.job.as_mut()?)));
        let mut mine = jobs.filter(|(_, job)| job.layer == layer && job.slot == slot);
        let Some((place, job)) = mine.next() else { return };
        job.class = job.class.min(class);
        if let Some(at) = self.queue.iter().position(|&queued| queued == place) {
            self.queue.remove(at);
            self.enqueue(place);
            self.fill();
        }
    }

    fn poll(&mut self) -> Option<Box<ReadJob>> {
        if self.in_flight > 0 && self.has_news() {
            if self.ring.completion().is_empty() {
                self.enter(0, None);
            }
            self.reap();
            self.fill();
        }
        let job = self.finished.pop_front()?;
        self.pending -= 1;
        Some(job)
    }

    fn is_ready(&mut self) -> bool {
        !self.finished.is_empty() || self.in_flight > 0 && self.has_news()
    }

    fn wait(&mut self, timeout: Duration) {
        if self.in_flight > 0 && !self.is_ready() {
            self.enter(1, Some(timeout));
        }
    }

    fn pending(&self) -> usize {
        self.pending
    }
}

impl Drop for UringReader {
    /// Memory must not be given back while the kernel writes it: waits for all completions.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.try_enter(1, None).is_err() {
                // Nothing says that the kernel is done: what it may write is never given back.
                self.places.drain(..).for_each(std::mem::forget);
                return;
            }
            self.reap();
        }
    }
}
