#![allow(unsafe_code)]
//! The simulated crew: an executor that runs all workers and the leader on one thread, step by step,
//! in an order drawn from a seed.
//!
//! Owned by tests. The words, the state machines and the jobs are the real ones; only sleeping is
//! virtual (a token per worker), so a wake that is lost shows as a deadlock instead of a hang. A
//! worker may be left in the middle of its protocol when a batch ends, and goes on in a later one
//! with what it saw then. A red run panics with the seed.

use super::cursor::Panic;
use super::faults::{Fault, active};
use super::jobs::{Executor, JobList, NodeStats, Task};
use super::leader::{LedNode, assert_fits, run_inline};
use super::worker::{Counters, Step, Worker};
use std::panic::resume_unwind;

/// Steps of one batch beyond which the protocol must be going round in circles.
const STEPS_MAX: u64 = 50_000_000;

/// The longest time that a worker is left alone, in steps of the others.
const STALL_STEPS_MAX: u64 = 96;

/// What a simulated crew is made of.
#[derive(Clone, Debug)]
pub struct SimPlan {
    /// How many workers each node has, besides the leader.
    pub workers: Vec<usize>,
    /// The node that the leader is on.
    pub leader_node: usize,
    /// Elements of each thread's scratch.
    pub scratch_len: usize,
    /// The most jobs of a node in one batch.
    pub jobs_max: usize,
    /// Draws the order of steps.
    pub seed: u64,
}

/// A worker that runs when it is drawn.
struct SimWorker {
    node: usize,
    worker: Worker,
    scratch: Vec<f32>,
    /// The virtual parker: a wake that was given and not yet used.
    token: bool,
    /// The step before which it isn't drawn unless nobody else can go on.
    stalled_until: u64,
}

/// What the leader does next.
#[derive(Clone, Copy, Debug)]
enum Script {
    /// Write the jobs of a node (with the fault armed: publish them first).
    Write(usize),
    /// Publish them (with the fault armed: write them now).
    Publish(usize),
    /// Clear the word of a worker, by index, and unpark it if it had parked.
    Wake(usize),
    /// Help on a node.
    Help(usize),
    /// Wait until all is done.
    Wait,
}

/// The simulated crew; see the module's story.
pub struct SimCrew {
    nodes: Vec<LedNode>,
    workers: Vec<SimWorker>,
    scratch: Vec<f32>,
    random: SplitMix,
    seed: u64,
    steps: u64,
    /// A batch was left by a panic: workers may hold its task, so they must never step again.
    broken: bool,
}

impl SimCrew {
    /// A crew whose workers are all at the start of their protocol.
    ///
    /// # Panics
    /// If the leader's node isn't in the plan or `jobs_max` is 0.
    pub fn new(plan: &SimPlan) -> SimCrew {
        let nodes = LedNode::all(&plan.workers, plan.leader_node, plan.jobs_max);
        let of_node = |(node, led): (usize, &LedNode)| {
            let scratch_len = plan.scratch_len;
            led.workers().into_iter().map(move |worker| SimWorker {
                node,
                worker,
                scratch: vec![0.0; scratch_len],
                token: false,
                stalled_until: 0,
            })
        };
        SimCrew {
            workers: nodes.iter().enumerate().flat_map(of_node).collect(),
            nodes,
            scratch: vec![0.0; plan.scratch_len],
            random: SplitMix(plan.seed),
            seed: plan.seed,
            steps: 0,
            broken: false,
        }
    }

    /// How many steps were made so far: a measure of how much was interleaved.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether a worker can do something: it is awake, or a token waits for it.
    fn can_step(worker: &SimWorker) -> bool {
        !worker.worker.is_parked() || worker.token
    }

    /// Draws who steps next: a worker's index, or the count of workers for the leader.
    fn draw(&mut self, leader_can: bool, script: Script) -> usize {
        let steps = self.steps;
        let ready = |worker: &SimWorker| Self::can_step(worker) && worker.stalled_until <= steps;
        let awake = self.workers.iter().filter(|worker| ready(worker)).count();
        let choices = awake + usize::from(leader_can);
        if choices == 0 {
            let stalled = self.workers.iter().position(Self::can_step);
            return stalled.unwrap_or_else(|| {
                panic!("lost wake: nobody can go on while the leader is at {script:?}");
            });
        }
        let choice = self.random.below(choices as u64) as usize;
        let mut ready = (0..self.workers.len()).filter(|&index| ready(&self.workers[index]));
        ready.nth(choice).unwrap_or(self.workers.len())
    }

    /// One step of a worker.
    fn step_worker(&mut self, index: usize) {
        let steps = self.steps;
        let SimWorker { worker, scratch, token, stalled_until, .. } = &mut self.workers[index];
        match worker.step(scratch) {
            Step::Idle => {
                if self.random.below(4) == 0 {
                    worker.begin_park();
                }
            }
            Step::Blocked => {
                assert!(*token, "only a worker with a token is drawn while it is parked");
                *token = false;
                worker.woken();
            }
            Step::Busy | Step::Ended => {}
        }
        if self.random.below(16) == 0 {
            *stalled_until = steps + self.random.below(STALL_STEPS_MAX);
        }
    }

    /// One step of the leader: what it does after it. `order` is whether jobs are written first.
    ///
    /// # Safety
    /// `task` must stay borrowed until the batch is done or `broken` is set for good.
    unsafe fn step_leader(
        &mut self,
        script: Script,
        jobs: &JobList,
        task: &dyn Task,
        between: &mut dyn FnMut(),
    ) -> Script {
        match script {
            Script::Write(node) | Script::Publish(node) => {
                let of_node = jobs.node(node);
                let first = matches!(script, Script::Write(_));
                if !of_node.is_empty() {
                    let lead = &mut self.nodes[node].lead;
                    if first {
                        lead.begin(of_node);
                    }
                    if first != active(Fault::JobPublishedBeforeWritten) {
                        // SAFETY:
                        // - the caller keeps the task until the batch is done, or no worker steps
                        //   again.
                        unsafe { lead.write(of_node, task) };
                    } else {
                        lead.publish();
                    }
                }
                if first {
                    Script::Publish(node)
                } else if node + 1 < self.nodes.len() {
                    Script::Write(node + 1)
                } else {
                    self.wake_from(0, jobs)
                }
            }
            Script::Wake(index) => {
                let worker = &mut self.workers[index];
                if worker.worker.parking().take() {
                    worker.token = true;
                    Counters::add(&self.nodes[worker.node].counters.wakes, 1);
                }
                self.wake_from(index + 1, jobs)
            }
            Script::Help(node) => {
                let next = |node| if node == 0 { Script::Wait } else { Script::Help(node - 1) };
                let Some(helper) = &mut self.nodes[node].helper else { return next(node) };
                match helper.step(&mut self.scratch) {
                    Step::Idle => return next(node),
                    Step::Ended => between(),
                    Step::Busy | Step::Blocked => {}
                }
                script
            }
            Script::Wait => script,
        }
    }

    /// The next worker to wake, from this index on: as many per node as it has jobs, as the real
    /// leader does.
    fn wake_from(&self, index: usize, jobs: &JobList) -> Script {
        let first_of_node = |node| self.workers.iter().position(|worker| worker.node == node);
        let due = |&index: &usize| {
            let node = self.workers[index].node;
            first_of_node(node).is_some_and(|first| index - first < jobs.node(node).len())
        };
        let next = (index..self.workers.len()).find(due);
        next.map_or(Script::Help(self.nodes.len() - 1), Script::Wake)
    }

    /// Whether every job of every node has ended.
    fn is_done(&self) -> bool {
        self.nodes.iter().all(|node| node.lead.is_done())
    }

    /// Steps until the batch is done; the first panic of a job.
    fn run_steps(
        &mut self,
        jobs: &JobList,
        task: &dyn Task,
        between: &mut dyn FnMut(),
    ) -> Option<Panic> {
        let mut script = Script::Write(0);
        let first_step = self.steps;
        loop {
            let waiting = matches!(script, Script::Wait);
            if waiting && self.is_done() && self.random.below(2) == 0 {
                break;
            }
            self.steps += 1;
            assert!(self.steps - first_step < STEPS_MAX, "livelock: the batch never ends");
            let leader_can = !waiting || self.is_done();
            let index = self.draw(leader_can, script);
            if index < self.workers.len() {
                self.step_worker(index);
            } else {
                // SAFETY:
                // - `task` is borrowed for this whole call, which ends when the batch is done, or by
                //   a panic that leaves `broken` set (`run_with`).
                script = unsafe { self.step_leader(script, jobs, task, between) };
            }
        }
        self.assert_sleepers_can_be_woken();
        let panics = self.nodes.iter_mut().map(|node| node.lead.finish());
        panics.fold(None, Option::or)
    }

    /// A worker sleeps for good if its word says that it is awake: nobody would unpark it.
    fn assert_sleepers_can_be_woken(&self) {
        for (index, worker) in self.workers.iter().enumerate() {
            let parking = worker.worker.parking();
            assert!(
                Self::can_step(worker) || parking.is_announced(),
                "lost wake: worker {index} sleeps and its word doesn't say so"
            );
        }
    }
}

/// Prints the seed if the simulation panics.
struct Naming(u64);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulated crew: seed {} went red", self.0);
        }
    }
}

impl Executor for SimCrew {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn jobs_max(&self) -> usize {
        self.nodes[0].lead.jobs_max()
    }

    fn run_with(&mut self, jobs: &JobList, task: &dyn Task, between: &mut dyn FnMut()) {
        assert!(!self.broken, "a simulated crew can't be used after a panic of its protocol");
        assert_fits(jobs, &self.nodes);
        if jobs.total() <= 1 {
            run_inline(jobs, task, &mut self.scratch);
            between();
            return;
        }
        let naming = Naming(self.seed);
        // Stays set if the steps panic: workers that hold this task never step again.
        self.broken = true;
        let panic = self.run_steps(jobs, task, between);
        self.broken = false;
        drop(naming);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn stats(&self, node: usize) -> NodeStats {
        self.nodes[node].counters.read()
    }

    fn leader_wait_ns(&self) -> u64 {
        0
    }
}

/// A small generator with a full period over its 64-bit state (Steele, Lea, Flood 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, nearly uniform.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
