#![allow(unsafe_code)]
//! The crew's cursor: hands a batch of numbered jobs to the threads of one node.
//!
//! One word, `generation << 32 | jobs_left`. The leading thread owns the [`Lead`]: it writes the
//! jobs into one of two alternating arrays, publishes the word, and waits until every job is done.
//! Threads of the node share the [`Cursor`]: they claim a job by one compare-and-swap and read it
//! only after the claim is won. The orderings are argued in `README.md`.

use super::faults::{Fault, active};
use super::jobs::{Job, Task};
use super::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Padded, UnsafeCell};
use std::any::Any;

/// What a panicking job left.
pub type Panic = Box<dyn Any + Send>;

/// The cursor's word: a batch and how many of its jobs are unclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word {
    pub generation: u32,
    pub left: u32,
}

impl Word {
    fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.left)
    }

    fn unpack(word: u64) -> Word {
        Word { generation: (word >> 32) as u32, left: word as u32 }
    }
}

/// The right, and the duty, to run one job of a batch: won by a claim, given up by
/// [`Cursor::finish`]. Not `Clone`: there is one per job.
#[derive(Debug)]
pub(super) struct Claim(Word);

/// A task whose lifetime is erased: valid as long as a claim of its batch is open.
#[derive(Clone, Copy)]
pub(super) struct ErasedTask(*const (dyn Task + 'static));

// SAFETY:
// - it stands for a `&dyn Task`, and `Task: Sync` makes that `Send`.
unsafe impl Send for ErasedTask {}

/// What a batch has in common.
#[derive(Clone, Copy)]
struct Header {
    generation: u32,
    count: u32,
    task: Option<ErasedTask>,
}

/// A job with the generation that it was written for, which readers check.
#[derive(Clone, Copy)]
struct JobCell {
    job: Job,
    generation: u32,
}

/// One of the two alternating batches.
struct Batch {
    header: UnsafeCell<Header>,
    jobs: Box<[UnsafeCell<JobCell>]>,
    /// How many jobs have ended.
    done: Padded<AtomicU32>,
    /// The first panic of a job.
    panic: Mutex<Option<Panic>>,
}

/// The shared half; see the module's story.
pub struct Cursor {
    word: Padded<AtomicU64>,
    closed: AtomicBool,
    batches: [Batch; 2],
}

// SAFETY:
// - `header` and `jobs` are written only by the one `Lead`, before it publishes (`Lead::write`,
//   `Lead::finish`), while no claim of that batch is open;
// - they are read only through an open `Claim` (`Cursor::read`), which the publishing store
//   happens before (release store, acquire exchange);
// - everything else is atomic or locked. The task is used by reference only, and `Task: Sync`.
unsafe impl Sync for Cursor {}
// SAFETY:
// - nothing in it is tied to a thread; the task pointer is `Send` (above).
unsafe impl Send for Cursor {}

impl Batch {
    fn new(jobs_max: usize) -> Batch {
        let cell = || UnsafeCell::new(JobCell { job: Job::default(), generation: 0 });
        Batch {
            header: UnsafeCell::new(Header { generation: 0, count: 0, task: None }),
            jobs: (0..jobs_max).map(|_| cell()).collect(),
            done: Padded(AtomicU32::new(0)),
            panic: Mutex::new(None),
        }
    }
}

impl Cursor {
    /// A cursor without work for batches of up to `jobs_max` jobs, and its one lead.
    ///
    /// # Panics
    /// If `jobs_max` is 0 or needs more than 32 bits.
    pub fn new(jobs_max: usize) -> (Lead, Arc<Cursor>) {
        assert!(jobs_max > 0 && u32::try_from(jobs_max).is_ok(), "jobs_max must fit in 32 bits");
        let cursor = Arc::new(Cursor {
            word: Padded(AtomicU64::new(0)),
            closed: AtomicBool::new(false),
            batches: [Batch::new(jobs_max), Batch::new(jobs_max)],
        });
        let lead = Lead { cursor: Arc::clone(&cursor), generation: 0, count: 0, open: false };
        (lead, cursor)
    }

    /// Bytes of a cursor for batches of up to so many jobs.
    pub const fn bytes(jobs_max: usize) -> usize {
        size_of::<Cursor>() + 2 * jobs_max * size_of::<UnsafeCell<JobCell>>()
    }

    /// The word now. Relaxed: it is a hint for a claim, which orders by itself.
    pub(super) fn load(&self) -> Word {
        Word::unpack(self.word.0.load(Ordering::Relaxed))
    }

    /// Whether there is nothing to claim and no reason to stop.
    pub(super) fn is_idle(&self) -> bool {
        self.load().left == 0 && !self.is_closed()
    }

    /// Whether the workers are to end.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Tells the workers to end; those that sleep must be woken by the caller.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Tries to claim the job that `seen` offers. Fails with the word as it is now if another thread
    /// was first or the batch is over.
    pub(super) fn claim(&self, seen: Word) -> Result<Claim, Word> {
        debug_assert!(seen.left > 0);
        let mut expected = seen;
        if active(Fault::GenerationNotCompared) {
            let now = self.load();
            if now.left == seen.left {
                expected = now;
            }
        }
        let taken = Word { left: expected.left - 1, ..expected };
        match self.word.0.compare_exchange(
            expected.pack(),
            taken.pack(),
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => Ok(Claim(seen)),
            Err(now) => Err(Word::unpack(now)),
        }
    }

    /// The claimed job and the task to run it with.
    ///
    /// # Panics
    /// "stale job" if what lies there belongs to another batch: a broken protocol. Checked in builds
    /// with debug assertions or the feature `faults`.
    pub(super) fn read(&self, claim: &Claim) -> (Job, ErasedTask) {
        let Word { generation, left } = claim.0;
        let batch = self.batch(generation);
        // SAFETY:
        // - `claim` is open, so `done < count` and the lead doesn't write this batch (`Lead::write`
        //   and `Lead::finish` come after all are done);
        // - the lead's writes happen before its release store of the word, and the claim's exchange
        //   read that store or one of the exchanges after it (`claim`, acquire).
        let header = batch.header.with(|header| unsafe { *header });
        if cfg!(any(debug_assertions, feature = "faults")) {
            assert!(
                header.generation == generation && self.load().generation == generation,
                "stale job: a claim of batch {generation} finds jobs of batch {} while batch {} is \
                 published",
                header.generation,
                self.load().generation
            );
        }
        // Job 0 is claimed first, while `left` is the whole count.
        let index = (header.count - left) as usize;
        // SAFETY:
        // - as for the header above: the cell was written before the batch was published and is
        //   not written while the claim is open.
        let cell = batch.jobs[index].with(|cell| unsafe { *cell });
        if cfg!(any(debug_assertions, feature = "faults")) {
            assert!(
                cell.generation == generation,
                "stale job: job {index} of batch {generation} was written for batch {}",
                cell.generation
            );
        }
        (cell.job, header.task.expect("a published batch has its task until all jobs are done"))
    }

    /// Runs a claimed job.
    pub(super) fn run(&self, _claim: &Claim, task: ErasedTask, job: Job, scratch: &mut [f32]) {
        // SAFETY:
        // - `task` was read under the claim that is still open, so `done < count`, and whoever lent
        //   the task keeps it until all jobs are done (contract of `Lead::write`).
        let task = unsafe { &*task.0 };
        task.run(job, scratch);
    }

    /// Gives up a claim whose job has ended, with its panic if it had one. The last touch of the
    /// batch by this claim.
    pub(super) fn finish(&self, claim: Claim, panic: Option<Panic>) {
        let batch = self.batch(claim.0.generation);
        if let Some(panic) = panic {
            batch.panic.lock().get_or_insert(panic);
        }
        batch.done.0.fetch_add(1, Ordering::Release);
    }

    /// The array of this generation; the two alternate.
    fn batch(&self, generation: u32) -> &Batch {
        &self.batches[(generation & 1) as usize]
    }
}

/// The leading thread's half of a cursor: the only one that writes jobs and publishes.
pub struct Lead {
    cursor: Arc<Cursor>,
    /// The latest batch.
    generation: u32,
    /// Its number of jobs.
    count: u32,
    /// Whether it was written and not yet finished.
    open: bool,
}

impl Lead {
    /// The shared half.
    pub(super) fn cursor(&self) -> &Arc<Cursor> {
        &self.cursor
    }

    /// The most jobs of a batch.
    pub(super) fn jobs_max(&self) -> usize {
        self.cursor.batches[0].jobs.len()
    }

    /// Opens the next batch: from now on its generation is the lead's.
    ///
    /// # Panics
    /// If the last batch isn't finished, or there are no jobs or too many.
    pub(super) fn begin(&mut self, jobs: &[Job]) {
        assert!(!self.open, "the last batch must be finished first");
        assert!((1..=self.jobs_max()).contains(&jobs.len()), "a batch has 1 to jobs_max jobs");
        self.open = true;
        self.generation = self.generation.wrapping_add(1);
        self.count = jobs.len() as u32;
        // Nobody counts yet: the batch that used this array before is finished.
        self.cursor.batch(self.generation).done.0.store(0, Ordering::Relaxed);
    }

    /// Writes the jobs of the batch that was begun.
    ///
    /// # Safety
    /// `task` must stay borrowed until [`Lead::is_done`] has returned true.
    pub(super) unsafe fn write(&mut self, jobs: &[Job], task: &dyn Task) {
        assert!(self.open && jobs.len() == self.count as usize, "begun with these jobs");
        let generation = self.generation;
        let batch = self.cursor.batch(generation);
        for (place, &job) in batch.jobs.iter().zip(jobs) {
            // SAFETY:
            // - no claim of this array is open: its last batch was finished (`begin` asserts that
            //   each is, after all its jobs were done), and this one isn't published;
            // - `&mut self` of the only lead makes this the only writer.
            place.with_mut(|cell| unsafe { *cell = JobCell { job, generation } });
        }
        let task: *const (dyn Task + '_) = task;
        // SAFETY:
        // - only the lifetime in the type changes; it is used under open claims only, and the caller
        //   keeps the task for as long as there are any.
        let task = ErasedTask(unsafe {
            std::mem::transmute::<*const (dyn Task + '_), *const (dyn Task + 'static)>(task)
        });
        let header = Header { generation, count: self.count, task: Some(task) };
        // SAFETY:
        // - as for the job cells above.
        batch.header.with_mut(|place| unsafe { *place = header });
    }

    /// Lets the node's threads claim the jobs. A plain store is enough: no claim can win while the
    /// word says that none are left, so nobody else writes it now.
    pub(super) fn publish(&mut self) {
        let word = Word { generation: self.generation, left: self.count };
        self.cursor.word.0.store(word.pack(), Ordering::Release);
    }

    /// [`Lead::begin`], [`Lead::write`] and [`Lead::publish`].
    ///
    /// # Safety
    /// `task` must stay borrowed until [`Lead::is_done`] has returned true.
    pub(super) unsafe fn offer(&mut self, jobs: &[Job], task: &dyn Task) {
        self.begin(jobs);
        if active(Fault::JobPublishedBeforeWritten) {
            self.publish();
        }
        // SAFETY:
        // - the caller's promise is the one that `write` asks for.
        unsafe { self.write(jobs, task) };
        if !active(Fault::JobPublishedBeforeWritten) {
            self.publish();
        }
    }

    /// Whether no batch is open or all its jobs have ended.
    pub(super) fn is_done(&self) -> bool {
        let done = &self.cursor.batch(self.generation).done.0;
        !self.open || done.load(Ordering::Acquire) == self.count
    }

    /// Closes a batch whose jobs have all ended and hands over the first panic.
    ///
    /// # Panics
    /// If a job hasn't ended.
    pub(super) fn finish(&mut self) -> Option<Panic> {
        assert!(self.is_done(), "a batch is finished only after all its jobs");
        if !self.open {
            return None;
        }
        self.open = false;
        let batch = self.cursor.batch(self.generation);
        // SAFETY:
        // - all claims of the batch were given up (`is_done`, acquire), and no new one can win, as
        //   the word says that no jobs are left.
        batch.header.with_mut(|header| unsafe { (*header).task = None });
        batch.panic.lock().take()
    }
}
