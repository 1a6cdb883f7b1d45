//! The crew on real threads: every job runs once, panics come out after the batch, sleepers wake,
//! and the crew ends cleanly.

use millstream_stages::queue::{
    Crew, CrewError, CrewPlan, Executor, Job, JobList, NodeCrew, StartHook, Task,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Counts the runs of each job of each node (`part` is the node, `row` the job).
struct Counting {
    runs: Vec<Vec<AtomicU32>>,
    panic_at: Option<Job>,
}

impl Counting {
    fn new(nodes: usize, jobs: usize) -> Counting {
        let node = || (0..jobs).map(|_| AtomicU32::new(0)).collect();
        Counting { runs: (0..nodes).map(|_| node()).collect(), panic_at: None }
    }

    fn assert_each_ran(&self, jobs: &JobList) {
        for (node, runs) in self.runs.iter().enumerate() {
            let listed = jobs.node(node).len();
            for (job, runs) in runs.iter().enumerate() {
                let runs = runs.swap(0, Ordering::Relaxed);
                assert_eq!(runs, u32::from(job < listed), "job {job} of node {node}");
            }
        }
    }
}

impl Task for Counting {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        scratch.fill(job.row as f32);
        self.runs[job.part as usize][job.row as usize].fetch_add(1, Ordering::Relaxed);
        if self.panic_at == Some(job) {
            panic!("job {} fails as planned", job.row);
        }
        assert!(scratch.iter().all(|&value| value == job.row as f32), "scratch is shared");
    }
}

const JOBS_MAX: usize = 16;

fn crew(workers: &[usize], leader_node: usize, spin_us: u32) -> Crew {
    let plan = CrewPlan {
        nodes: workers.iter().enumerate().map(|(node, &n)| NodeCrew::of(node, n)).collect(),
        leader_node,
        spin_us,
        scratch_len: 8,
        jobs_max: JOBS_MAX,
    };
    let hook: StartHook = Arc::new(|_, _| {});
    Crew::start(&plan, &hook).expect("a few threads can be started")
}

fn fill(jobs: &mut JobList, counts: &[usize]) {
    jobs.clear();
    for (node, &count) in counts.iter().enumerate() {
        for row in 0..count {
            jobs.push(node, Job { part: node as u32, row: row as u32, col: 0 });
        }
    }
}

fn run_many_batches(workers: &[usize], leader_node: usize, spin_us: u32, batches: usize) {
    let mut crew = crew(workers, leader_node, spin_us);
    let mut jobs = JobList::new(workers.len(), JOBS_MAX);
    let task = Counting::new(workers.len(), JOBS_MAX);
    for batch in 0..batches {
        let counts: Vec<usize> =
            (0..workers.len()).map(|node| (batch * 7 + node * 5) % (JOBS_MAX + 1)).collect();
        fill(&mut jobs, &counts);
        crew.run(&jobs, &task);
        task.assert_each_ran(&jobs);
    }
}

#[test]
fn every_job_runs_once_with_spinning_workers() {
    run_many_batches(&[1, 2], 0, 50, 3000);
}

#[test]
fn every_job_runs_once_with_parking_workers() {
    run_many_batches(&[1, 2], 1, 0, 1000);
}

#[test]
fn a_node_without_workers_is_led_by_the_leader() {
    run_many_batches(&[0, 1, 0], 1, 0, 300);
    run_many_batches(&[0], 0, 0, 300);
}

#[test]
fn a_panic_in_a_job_comes_out_after_all_jobs_ran() {
    let mut crew = crew(&[1, 1], 0, 0);
    let mut jobs = JobList::new(2, JOBS_MAX);
    fill(&mut jobs, &[8, 8]);
    for node in 0..2 {
        let mut task = Counting::new(2, JOBS_MAX);
        task.panic_at = Some(Job { part: node, row: 3, col: 0 });
        let outcome = catch_unwind(AssertUnwindSafe(|| crew.run(&jobs, &task)));
        let message = outcome.expect_err("the job's panic comes out");
        assert_eq!(message.downcast_ref::<String>().unwrap(), "job 3 fails as planned");
        task.assert_each_ran(&jobs);
    }
    let task = Counting::new(2, JOBS_MAX);
    crew.run(&jobs, &task);
    task.assert_each_ran(&jobs);
}

#[test]
fn a_panic_between_jobs_waits_for_the_batch() {
    // The crew's only thread is the leader, so the hook surely runs after the first job.
    let mut crew = crew(&[0, 0], 0, 0);
    let mut jobs = JobList::new(2, JOBS_MAX);
    fill(&mut jobs, &[16, 16]);
    let task = Counting::new(2, JOBS_MAX);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        crew.run_with(&jobs, &task, &mut || panic!("the ring can't be polled"));
    }));
    assert!(outcome.is_err(), "the hook's panic comes out");
    task.assert_each_ran(&jobs);
    crew.run(&jobs, &task);
    task.assert_each_ran(&jobs);
}

#[test]
fn a_batch_of_one_job_wakes_nobody() {
    let mut crew = crew(&[0, 1], 0, 0);
    let mut jobs = JobList::new(2, JOBS_MAX);
    fill(&mut jobs, &[0, 1]);
    let task = Counting::new(2, JOBS_MAX);
    crew.run(&jobs, &task);
    task.assert_each_ran(&jobs);
    assert_eq!(crew.stats(1).wakes, 0);
}

#[test]
fn the_start_hook_runs_once_per_worker_before_start_returns() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let hook: StartHook = Arc::new(move |node, worker| {
        counted.fetch_add(1 + 100 * node + 10 * worker, Ordering::Relaxed);
    });
    let nodes = vec![NodeCrew::of(0, 1), NodeCrew::of(1, 2)];
    let plan = CrewPlan { nodes, leader_node: 0, spin_us: 0, scratch_len: 0, jobs_max: 1 };
    let crew = Crew::start(&plan, &hook).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 3 + 100 * 2 + 10);
    drop(crew);
}

#[test]
fn a_start_hook_that_panics_is_an_error() {
    let hook: StartHook = Arc::new(|_, worker| assert!(worker != 1, "no such CPU"));
    let nodes = vec![NodeCrew::of(0, 3)];
    let plan = CrewPlan { nodes, leader_node: 0, spin_us: 0, scratch_len: 0, jobs_max: 1 };
    let error = Crew::start(&plan, &hook).err().expect("the hook panicked");
    assert!(matches!(error, CrewError::Hook { failed: 1, total: 3 }), "{error}");
}
