//! What a batch of compute work is: numbered jobs per node, the task that runs them, and the
//! executor that the stages speak to.
//!
//! A stage owns a [`JobList`] and a task; it fills the list and hands both to an [`Executor`], which
//! returns when every job has run. Stages don't know whether that is a crew or a simulation.

/// One numbered piece of a batch. What the numbers mean is the task's affair; the usual meaning is
/// (slice or expert, block of rows, block of columns).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Job {
    /// Which slice, expert or head.
    pub part: u32,
    /// Which block of rows.
    pub row: u32,
    /// Which block of columns.
    pub col: u32,
}

/// The work of a batch: runs any of its jobs, on any thread, several at a time.
pub trait Task: Sync {
    /// Runs one job. `scratch` belongs to the running thread until the call returns; its contents
    /// are left over from earlier jobs.
    ///
    /// A panic ends the batch: the other jobs still run, then [`Executor::run`] panics with it.
    fn run(&self, job: Job, scratch: &mut [f32]);
}

/// The jobs of one batch, per node. Preallocated: filling it allocates nothing.
#[derive(Debug)]
pub struct JobList {
    nodes: Vec<Vec<Job>>,
    jobs_max: usize,
}

impl JobList {
    /// An empty list for `nodes` nodes with room for `jobs_max` jobs on each.
    pub fn new(nodes: usize, jobs_max: usize) -> JobList {
        JobList { nodes: (0..nodes).map(|_| Vec::with_capacity(jobs_max)).collect(), jobs_max }
    }

    /// Removes all jobs.
    pub fn clear(&mut self) {
        self.nodes.iter_mut().for_each(Vec::clear);
    }

    /// Adds a job for the crew of `node`. Jobs of a node are started in the order of adding.
    ///
    /// # Panics
    /// If there is no such node or the node's list is full.
    pub fn push(&mut self, node: usize, job: Job) {
        let jobs = &mut self.nodes[node];
        assert!(jobs.len() < self.jobs_max, "more than {} jobs on node {node}", self.jobs_max);
        jobs.push(job);
    }

    /// The jobs of a node.
    pub fn node(&self, node: usize) -> &[Job] {
        &self.nodes[node]
    }

    /// How many nodes the list is for.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// How many jobs there are on all nodes.
    pub fn total(&self) -> usize {
        self.nodes.iter().map(Vec::len).sum()
    }
}

/// What a node's crew has done since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeStats {
    /// Times a worker went to sleep.
    pub parks: u64,
    /// Times the leader had to wake a worker.
    pub wakes: u64,
    /// Claims that failed because the worker had seen an earlier batch.
    pub stale_claims: u64,
    /// Time that workers spent on jobs, all workers together, in nanoseconds.
    pub busy_ns: u64,
}

/// Runs batches of jobs; a stage's only way to compute in parallel.
pub trait Executor: Send {
    /// How many nodes have a crew.
    fn nodes(&self) -> usize;

    /// The most jobs that a node takes in one batch.
    fn jobs_max(&self) -> usize;

    /// Runs all jobs of the batch and returns when the last has finished. `between` is called on the
    /// calling thread after each job that this thread runs, and now and then while it waits for
    /// others: the place to poll a completion ring.
    ///
    /// # Panics
    /// With a job's panic, after all jobs have ended; with the panic of `between`, likewise; if
    /// `jobs` is for another number of nodes or has more than `jobs_max` on one.
    fn run_with(&mut self, jobs: &JobList, task: &dyn Task, between: &mut dyn FnMut());

    /// [`Executor::run_with`] with nothing to do in between.
    fn run(&mut self, jobs: &JobList, task: &dyn Task) {
        self.run_with(jobs, task, &mut || {});
    }

    /// Counters of a node's crew.
    fn stats(&self, node: usize) -> NodeStats;

    /// Time that the calling thread spent waiting for others, in nanoseconds.
    fn leader_wait_ns(&self) -> u64;
}
