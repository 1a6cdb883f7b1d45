//! The crew: an executor over real, pinned threads.
//!
//! Owned by the compute seat, whose thread leads. The plan says how many workers each node has; a
//! hook of the caller pins each thread, so this module knows nothing of CPUs. Batches flow in
//! through [`Executor`]; dropping the crew ends its threads.

use super::jobs::{Executor, JobList, NodeStats, Task};
use super::leader::{Leader, LeaderPlan, abort_on_panic};
use super::sync::{Condvar, Mutex, prepare_thread};
use super::worker::{Worker, worker_loop};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Polls of the leader's wait before it yields at each: some 100 us on current CPUs.
const POLLS_BEFORE_YIELD: u32 = 4096;

/// Called on each new thread with (node, index of the worker in its node) before it works: pins it.
pub type StartHook = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// One worker to start.
#[derive(Clone, Debug)]
pub struct WorkerStart {
    /// The thread's name, as debuggers show it; Linux keeps 15 bytes.
    pub name: String,
}

/// The workers of one node, besides the leader.
#[derive(Clone, Debug, Default)]
pub struct NodeCrew {
    /// May be empty: the leader then does the node's work.
    pub workers: Vec<WorkerStart>,
}

impl NodeCrew {
    /// `workers` workers with names like `crew-0.3`.
    pub fn of(node: usize, workers: usize) -> NodeCrew {
        let start = |worker| WorkerStart { name: format!("crew-{node}.{worker}") };
        NodeCrew { workers: (0..workers).map(start).collect() }
    }
}

/// What a crew is made of.
#[derive(Clone, Debug)]
pub struct CrewPlan {
    /// Per node, its workers.
    pub nodes: Vec<NodeCrew>,
    /// The node that the leading thread is on.
    pub leader_node: usize,
    /// How long an idle worker spins before it parks, in microseconds; 0 if there are more threads
    /// than CPUs.
    pub spin_us: u32,
    /// Elements of each thread's scratch.
    pub scratch_len: usize,
    /// The most jobs of a node in one batch.
    pub jobs_max: usize,
}

/// Why a crew couldn't be started.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// The system gave no thread.
    #[error(
        "starting thread {name} (worker {worker} of node {node}) failed: {source}; allow more \
         threads (ulimit -u, the cgroup's pids.max) or plan fewer workers"
    )]
    Spawn {
        /// The worker's node.
        node: usize,
        /// Its index there.
        worker: usize,
        /// The thread's name.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The start hook panicked on at least one thread.
    #[error(
        "{failed} of {total} crew threads failed in their start hook; the panic printed above says \
         which and why"
    )]
    Hook {
        /// How many threads failed.
        failed: usize,
        /// How many were started.
        total: usize,
    },
}

/// A crew of running threads; the thread that calls [`Executor::run`] leads it.
pub struct Crew {
    leader: Leader,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts all threads, and returns when each has run `on_thread_start`.
    ///
    /// # Errors
    /// [`CrewError`] if the system gives no thread or a hook panics; threads that were started are
    /// ended first.
    ///
    /// # Panics
    /// If the leader's node isn't in the plan or `jobs_max` is 0.
    pub fn start(plan: &CrewPlan, on_thread_start: &StartHook) -> Result<Crew, CrewError> {
        let (leader, workers) = Leader::new(&LeaderPlan {
            workers: plan.nodes.iter().map(|node| node.workers.len()).collect(),
            leader_node: plan.leader_node,
            jobs_max: plan.jobs_max,
            scratch_len: plan.scratch_len,
            polls_before_yield: if plan.spin_us == 0 { 0 } else { POLLS_BEFORE_YIELD },
        });
        let mut crew = Crew { leader, threads: Vec::new() };
        let roll = Arc::new(Roll::default());
        for (node, (of_node, workers)) in plan.nodes.iter().zip(workers).enumerate() {
            for (index, (start, worker)) in of_node.workers.iter().zip(workers).enumerate() {
                let birth = Birth {
                    node,
                    index,
                    worker,
                    scratch_len: plan.scratch_len,
                    spin: Duration::from_micros(plan.spin_us.into()),
                    hook: Arc::clone(on_thread_start),
                    answer: Answer { roll: Arc::clone(&roll), ready: false },
                };
                let thread = Builder::new().name(start.name.clone()).spawn(|| birth.live());
                crew.threads.push(thread.map_err(|source| {
                    let name = start.name.clone();
                    CrewError::Spawn { node, worker: index, name, source }
                })?);
            }
        }
        let total = crew.threads.len();
        let ready = roll.wait(total);
        if ready < total {
            return Err(CrewError::Hook { failed: total - ready, total });
        }
        Ok(crew)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.leader.close();
        for thread in self.threads.drain(..) {
            // Only a start hook can have panicked, and `start` has reported that.
            _ = thread.join();
        }
    }
}

/// Counts the answers of new threads: (ready, all).
#[derive(Default)]
struct Roll {
    answers: Mutex<(usize, usize)>,
    signal: Condvar,
}

impl Roll {
    /// Waits for the answers of `total` threads; how many are ready.
    fn wait(&self, total: usize) -> usize {
        let mut answers = self.answers.lock();
        while answers.1 < total {
            answers = self.signal.wait(answers);
        }
        answers.0
    }
}

/// A new thread's answer, given when dropped: not ready if the start hook panics past it.
struct Answer {
    roll: Arc<Roll>,
    ready: bool,
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut answers = self.roll.answers.lock();
        answers.0 += usize::from(self.ready);
        answers.1 += 1;
        self.roll.signal.notify_one();
    }
}

/// What a new thread needs.
struct Birth {
    node: usize,
    index: usize,
    worker: Worker,
    scratch_len: usize,
    spin: Duration,
    hook: StartHook,
    answer: Answer,
}

impl Birth {
    /// The thread's whole life. The scratch is allocated after the hook has pinned the thread, and
    /// written at once, so that its pages lie on the thread's node.
    fn live(self) {
        let mut answer = self.answer;
        prepare_thread();
        (self.hook)(self.node, self.index);
        let mut scratch = vec![0.0f32; self.scratch_len];
        scratch.fill(1.0);
        answer.ready = true;
        drop((answer, self.hook));
        abort_on_panic(|| worker_loop(self.worker, &mut scratch, self.spin));
    }
}

impl Executor for Crew {
    fn nodes(&self) -> usize {
        self.leader.nodes()
    }

    fn jobs_max(&self) -> usize {
        self.leader.jobs_max()
    }

    fn run_with(&mut self, jobs: &JobList, task: &dyn Task, between: &mut dyn FnMut()) {
        self.leader.run_with(jobs, task, between);
    }

    fn stats(&self, node: usize) -> NodeStats {
        self.leader.stats(node)
    }

    fn leader_wait_ns(&self) -> u64 {
        self.leader.leader_wait_ns()
    }
}
