//! A reader by `pread`: a few threads, each of which reads one expert at a time.
//!
//! Serves where io_uring isn't to be had. A job moves to a thread and back, so the thread that
//! writes its memory owns it. The I/O seat deals the jobs: a thread takes the most urgent one when
//! it is free.

use super::LoadClass;
use super::job::ReadJob;
use super::progress::Geometry;
use super::reader::{ReadFiles, Reader};
use crate::ids::{ExpertId, LayerId, Tag};
use millstream_topology::cpuset::NodeId;
use millstream_topology::drive::cpus_of_node;
use millstream_topology::pin::stay_near;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Reads by `pread`, the most urgent job first. Owned by the I/O seat's desk.
pub struct PreadReader {
    files: ReadFiles,
    /// Jobs that wait for a thread, in order of arrival.
    #[expect(clippy::vec_box, reason = "a job's box goes through messages and readers")]
    queue: Vec<Box<ReadJob>>,
    workers: Vec<Worker>,
    idle: Vec<usize>,
    finished: Receiver<(usize, Box<ReadJob>)>,
    /// What a wait has fetched.
    fetched: Option<(usize, Box<ReadJob>)>,
    pending: usize,
}

struct Worker {
    /// Dropped to end the thread.
    jobs: Option<SyncSender<Box<ReadJob>>>,
    thread: Option<JoinHandle<()>>,
}

impl PreadReader {
    /// Starts the threads, on the CPUs of the node that the drive hangs on, where that is known.
    ///
    /// # Errors
    /// When a thread can't be started.
    pub fn start(
        files: ReadFiles,
        threads: usize,
        drive_node: Option<NodeId>,
    ) -> std::io::Result<PreadReader> {
        let near = drive_node.map(cpus_of_node);
        let threads = threads.max(1);
        let (sender, finished) = sync_channel(threads);
        let start = |number: usize| {
            let (jobs, receiver) = sync_channel::<Box<ReadJob>>(1);
            let (files, sender, near) = (files.clone(), sender.clone(), near.clone());
            let name = format!("reader-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                // A wish: a thread that isn't near reads as well, only from further away.
                let _ = near.map(|cpus| stay_near(&cpus));
                for mut job in receiver {
                    read(&files, &mut job);
                    // The reader is gone only when it is being dropped.
                    let _ = sender.send((number, job));
                }
            })?;
            Ok(Worker { jobs: Some(jobs), thread: Some(thread) })
        };
        let workers = (0..threads).map(start).collect::<std::io::Result<Vec<_>>>()?;
        let idle = (0..threads).rev().collect();
        Ok(PreadReader { files, queue: vec![], workers, idle, finished, fetched: None, pending: 0 })
    }

    /// Gives free threads the most urgent jobs.
    fn deal(&mut self) {
        while let Some(&worker) = self.idle.last() {
            let urgent = (0..self.queue.len()).min_by_key(|&index| self.queue[index].class);
            let Some(urgent) = urgent else { return };
            let job = self.queue.remove(urgent);
            self.idle.pop();
            let jobs = self.workers[worker].jobs.as_ref().expect("open until dropped");
            jobs.send(job).expect("a reader's thread ends only when its channel does");
        }
    }
}

/// Reads a job to its end.
fn read(files: &ReadFiles, job: &mut ReadJob) {
    while let Some(chunk) = job.progress.next_chunk() {
        let file = files.file(job.copy, chunk.file);
        let outcome = file.read_at(job.room_mut(&chunk), chunk.offset);
        job.progress.done(chunk.chunk, outcome);
    }
}

impl Reader for PreadReader {
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
        self.queue.reserve(jobs_max);
    }

    fn submit(&mut self, job: Box<ReadJob>) {
        self.queue.push(job);
        self.pending += 1;
        self.deal();
    }

    fn promote(&mut self, layer: LayerId, slot: Tag, class: LoadClass) {
        let mine = |job: &&mut Box<ReadJob>| job.layer == layer && job.slot == slot;
        if let Some(job) = self.queue.iter_mut().find(mine) {
            job.class = job.class.min(class);
        }
    }

    fn poll(&mut self) -> Option<Box<ReadJob>> {
        let (worker, job) = self.fetched.take().or_else(|| self.finished.try_recv().ok())?;
        self.idle.push(worker);
        self.pending -= 1;
        self.deal();
        Some(job)
    }

    fn is_ready(&mut self) -> bool {
        self.fetched = self.fetched.take().or_else(|| self.finished.try_recv().ok());
        self.fetched.is_some()
    }

    fn wait(&mut self, timeout: Duration) {
        if self.fetched.is_none() && self.pending > 0 {
            self.fetched = self.finished.recv_timeout(timeout).ok();
            let died = |worker: &Worker| worker.thread.as_ref().is_some_and(|t| t.is_finished());
            assert!(!self.workers.iter().any(died), "a reader's thread died; see its message");
        }
    }

    fn pending(&self) -> usize {
        self.pending
    }
}

impl Drop for PreadReader {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.jobs = None);
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // A dead thread has said why on stderr.
                let _ = thread.join();
            }
        }
    }
}
