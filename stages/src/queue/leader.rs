#![allow(unsafe_code)]
//! The leading thread's part of a crew: offers a batch on every node, helps, and waits.
//!
//! Owned by the compute seat, inside the [`Crew`](super::Crew) that adds the threads. Jobs and a
//! task flow in; the call returns when all jobs have run. It helps its own node and the nodes that
//! have no worker of their own, so that each node's memory is read by that node's threads.

use super::cursor::{Cursor, Lead, Panic};
use super::jobs::{Executor, JobList, NodeStats, Task};
use super::parking::Parking;
use super::sync::{Arc, spin_hint, yield_now};
use super::worker::{Claimer, Counters, Step, Worker};
use std::panic::resume_unwind;
use std::time::Instant;

/// Polls of a wait between two calls of the caller's `between`.
const POLLS_PER_BETWEEN: u32 = 64;

/// What a leader leads.
#[derive(Clone, Debug)]
pub struct LeaderPlan {
    /// How many workers each node has; 0 is fine: the leader does that node's work.
    pub workers: Vec<usize>,
    /// The node that the leading thread is on.
    pub leader_node: usize,
    /// The most jobs of a node in one batch.
    pub jobs_max: usize,
    /// Elements of the leading thread's scratch.
    pub scratch_len: usize,
    /// Polls of a wait before the thread yields its CPU at each one; 0 if threads share CPUs.
    pub polls_before_yield: u32,
}

/// One node as the leader sees it.
pub(super) struct LedNode {
    pub lead: Lead,
    pub counters: Arc<Counters>,
    /// The sleeping places of its workers.
    pub parkings: Vec<Arc<Parking>>,
    /// How the leader helps here, if it does.
    pub helper: Option<Claimer>,
}

impl LedNode {
    /// The nodes of a plan, without their workers.
    pub fn all(workers: &[usize], leader_node: usize, jobs_max: usize) -> Vec<LedNode> {
        assert!(leader_node < workers.len(), "the leader's node {leader_node} must be in the plan");
        let node = |(node, &workers): (usize, &usize)| {
            let (lead, cursor) = Cursor::new(jobs_max);
            let counters = Arc::new(Counters::default());
            let helps = node == leader_node || workers == 0;
            let helper = helps.then(|| Claimer::new(cursor, Arc::clone(&counters)));
            let parkings = (0..workers).map(|_| Arc::new(Parking::new())).collect();
            LedNode { lead, counters, parkings, helper }
        };
        workers.iter().enumerate().map(node).collect()
    }

    /// The workers of this node, to be made once.
    pub fn workers(&self) -> Vec<Worker> {
        let worker = |parking: &Arc<Parking>| {
            let (cursor, counters) = (self.lead.cursor(), &self.counters);
            Worker::new(Arc::clone(cursor), Arc::clone(counters), Arc::clone(parking))
        };
        self.parkings.iter().map(worker).collect()
    }
}

/// Checks that a batch fits the nodes it is for.
pub(super) fn assert_fits(jobs: &JobList, nodes: &[LedNode]) {
    assert_eq!(jobs.nodes(), nodes.len(), "the job list must be for the crew's nodes");
    for (node, led) in nodes.iter().enumerate() {
        let (count, jobs_max) = (jobs.node(node).len(), led.lead.jobs_max());
        assert!(count <= jobs_max, "{count} jobs on node {node}, which takes {jobs_max}");
    }
}

/// Runs the only job of a batch on the calling thread: cheaper than waking anybody.
pub(super) fn run_inline(jobs: &JobList, task: &dyn Task, scratch: &mut [f32]) {
    for node in 0..jobs.nodes() {
        for &job in jobs.node(node) {
            task.run(job, scratch);
        }
    }
}

/// The leading thread's executor; see the module's story.
pub struct Leader {
    nodes: Vec<LedNode>,
    scratch: Vec<f32>,
    polls_before_yield: u32,
    wait_ns: u64,
}

impl Leader {
    /// A leader, and per node the workers that it will lead. Each worker must be driven by a thread
    /// of its own ([`worker_loop`](super::worker_loop)), or the first batch on its node hangs.
    ///
    /// # Panics
    /// If `leader_node` isn't in the plan or `jobs_max` is 0.
    pub fn new(plan: &LeaderPlan) -> (Leader, Vec<Vec<Worker>>) {
        let nodes = LedNode::all(&plan.workers, plan.leader_node, plan.jobs_max);
        let workers = nodes.iter().map(LedNode::workers).collect();
        let leader = Leader {
            nodes,
            scratch: vec![0.0; plan.scratch_len],
            polls_before_yield: plan.polls_before_yield,
            wait_ns: 0,
        };
        (leader, workers)
    }

    /// Tells all workers to end, and wakes those that sleep.
    pub fn close(&mut self) {
        for node in &self.nodes {
            node.lead.cursor().close();
            node.parkings.iter().for_each(|parking| _ = parking.wake());
        }
    }
}

/// A batch that may be running: whatever happens, it is waited for before the task goes away.
struct Running<'a> {
    nodes: &'a mut [LedNode],
    scratch: &'a mut [f32],
    polls_before_yield: u32,
}

impl Running<'_> {
    /// Offers every node its jobs, and wakes as many workers as there are jobs.
    ///
    /// # Safety
    /// `task` must stay borrowed until this `Running` is dropped.
    unsafe fn offer(&mut self, jobs: &JobList, task: &dyn Task) {
        for (node, led) in self.nodes.iter_mut().enumerate() {
            if !jobs.node(node).is_empty() {
                // SAFETY:
                // - `Drop` returns only after `is_done` of every node, and the caller keeps the
                //   task until then.
                unsafe { led.lead.offer(jobs.node(node), task) };
            }
        }
        for (node, led) in self.nodes.iter().enumerate() {
            let woken =
                led.parkings.iter().take(jobs.node(node).len()).filter(|parking| parking.wake());
            let woken = woken.count() as u64;
            if woken > 0 {
                Counters::add(&led.counters.wakes, woken);
            }
        }
    }

    /// Runs jobs where the leader helps, until none is left to claim.
    fn help(&mut self, between: &mut dyn FnMut()) {
        for helper in self.nodes.iter_mut().filter_map(|node| node.helper.as_mut()) {
            loop {
                match abort_on_panic(|| helper.step(self.scratch)) {
                    Step::Idle => break,
                    Step::Ended => between(),
                    Step::Busy | Step::Blocked => {}
                }
            }
        }
    }

    /// Waits until all jobs of all nodes have ended.
    fn wait(&self, between: &mut dyn FnMut()) {
        let mut polls = 0u32;
        for node in self.nodes.iter() {
            while !node.lead.is_done() {
                polls = polls.saturating_add(1);
                if polls.is_multiple_of(POLLS_PER_BETWEEN) {
                    between();
                }
                if polls > self.polls_before_yield {
                    yield_now();
                } else {
                    spin_hint();
                }
            }
        }
    }

    /// Closes the batch on all nodes: the first panic of a job, if there was one.
    fn finish(&mut self) -> Option<Panic> {
        let panics = self.nodes.iter_mut().map(|node| node.lead.finish());
        panics.fold(None, Option::or)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Under loom, a panic is the model's verdict on a broken protocol: don't wait for it.
        if cfg!(loom) && std::thread::panicking() {
            return;
        }
        // Only a panic of the caller's `between` leads here with open jobs. A helper gives up each
        // claim before `between` is called, so the jobs that are left can be claimed as usual.
        if !self.nodes.iter().all(|node| node.lead.is_done()) {
            self.help(&mut || {});
            self.wait(&mut || {});
        }
        self.finish();
    }
}

/// Ends the process if `step` panics: a broken protocol must not be unwound past, as other threads
/// hold pointers into this thread's stack. (Under loom the panic is the model's verdict: it goes on.)
pub(super) fn abort_on_panic<R>(step: impl FnOnce() -> R) -> R {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if cfg!(loom) {
                return;
            }
            eprintln!("millstream: the crew's protocol is broken; the panic above says where");
            std::process::abort();
        }
    }
    let bomb = Bomb;
    let result = step();
    std::mem::forget(bomb);
    result
}

impl Executor for Leader {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn jobs_max(&self) -> usize {
        self.nodes[0].lead.jobs_max()
    }

    fn run_with(&mut self, jobs: &JobList, task: &dyn Task, between: &mut dyn FnMut()) {
        assert_fits(jobs, &self.nodes);
        if jobs.total() <= 1 {
            run_inline(jobs, task, &mut self.scratch);
            between();
            return;
        }
        let mut running = Running {
            nodes: &mut self.nodes,
            scratch: &mut self.scratch,
            polls_before_yield: self.polls_before_yield,
        };
        // SAFETY:
        // - `task` is borrowed for this whole call, and `running` is dropped before it ends.
        unsafe { running.offer(jobs, task) };
        running.help(between);
        let waiting_since = Instant::now();
        running.wait(between);
        let panic = running.finish();
        drop(running);
        self.wait_ns += waiting_since.elapsed().as_nanos() as u64;
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn stats(&self, node: usize) -> NodeStats {
        self.nodes[node].counters.read()
    }

    fn leader_wait_ns(&self) -> u64 {
        self.wait_ns
    }
}
