//! The crew's protocol under seeded scheduling: green for every seed as it is, and red for some seed
//! with each planted fault (which needs `--features faults`).

use millstream_stages::queue::{Executor, Job, JobList, SimCrew, SimPlan, Task};
use std::sync::atomic::{AtomicU32, Ordering};

const JOBS_MAX: usize = 6;
const BATCHES: usize = 24;
const SEEDS: u64 = 200;
const SEEDS_LONG: u64 = 2000;

/// A task that lives for one batch and counts the runs of each job.
struct Batch {
    number: u32,
    runs: Vec<[AtomicU32; JOBS_MAX]>,
}

impl Task for Batch {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        assert_eq!(job.col, self.number, "stale job: of another batch");
        scratch[0] = 1.0;
        self.runs[job.part as usize][job.row as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs some batches on a crew whose shape and schedule come from the seed; the steps it took.
fn simulate(seed: u64) -> u64 {
    let shapes: [&[usize]; 5] = [&[2, 2], &[1, 3], &[0, 2], &[1, 0, 2], &[3, 1]];
    let workers = shapes[(seed % 5) as usize];
    let mut crew = SimCrew::new(&SimPlan {
        workers: workers.to_vec(),
        leader_node: 0,
        scratch_len: 1,
        jobs_max: JOBS_MAX,
        seed,
    });
    let mut jobs = JobList::new(workers.len(), JOBS_MAX);
    for number in 0..BATCHES {
        jobs.clear();
        let runs = workers.iter().map(|_| Default::default()).collect();
        let batch = Batch { number: number as u32, runs };
        for node in 0..workers.len() {
            for row in 0..(number * 5 + node * 3 + seed as usize) % (JOBS_MAX + 1) {
                let job = Job { part: node as u32, row: row as u32, col: batch.number };
                jobs.push(node, job);
            }
        }
        crew.run(&jobs, &batch);
        for (node, runs) in batch.runs.iter().enumerate() {
            for (job, runs) in runs.iter().enumerate() {
                let expected = u32::from(job < jobs.node(node).len());
                let runs = runs.load(Ordering::Relaxed);
                assert_eq!(runs, expected, "runs of job {job} of node {node}, batch {number}");
            }
        }
    }
    crew.steps()
}

#[test]
fn every_seed_is_green_without_a_fault() {
    (0..SEEDS_LONG).for_each(|seed| assert!(simulate(seed) > BATCHES as u64));
}

#[test]
fn a_seed_repeats_its_schedule() {
    assert_eq!(simulate(7), simulate(7));
    assert!((0..SEEDS).map(simulate).any(|steps| steps != simulate(0)));
}

#[test]
fn a_simulated_crew_meets_stale_words_sleepers_and_wakes() {
    let workers = vec![2, 2];
    let plan = SimPlan { workers, leader_node: 0, scratch_len: 1, jobs_max: JOBS_MAX, seed: 1 };
    let mut crew = SimCrew::new(&plan);
    let mut jobs = JobList::new(2, JOBS_MAX);
    for node in [0, 0, 1, 1, 1] {
        jobs.push(node, Job { part: node as u32, row: jobs.node(node).len() as u32, col: 0 });
    }
    for _ in 0..2000 {
        let batch = Batch { number: 0, runs: vec![Default::default(), Default::default()] };
        crew.run(&jobs, &batch);
    }
    for node in 0..2 {
        let stats = crew.stats(node);
        assert!(stats.parks > 0 && stats.wakes > 0 && stats.stale_claims > 0, "{stats:?}");
    }
}

#[cfg(not(feature = "faults"))]
#[test]
fn planted_faults_are_left_out() {
    println!("the planted faults of this file need --features faults; they were not run");
}

#[cfg(feature = "faults")]
mod planted {
    use super::{SEEDS, simulate};
    use millstream_stages::queue::faults::{Fault, active};
    use std::panic::{catch_unwind, set_hook, take_hook};
    use std::sync::Once;

    /// Panics on a thread with a fault armed are expected: they print nothing. Others print as usual.
    fn quieten() {
        static QUIET: Once = Once::new();
        QUIET.call_once(|| {
            let usual = take_hook();
            set_hook(Box::new(move |panic| {
                let planted = [
                    Fault::GenerationNotCompared,
                    Fault::JobPublishedBeforeWritten,
                    Fault::WakeDropped,
                ];
                if !planted.into_iter().any(active) {
                    usual(panic);
                }
            }));
        });
    }

    /// How many of the seeds turn red with the fault armed, and the messages that they give.
    fn red_runs(fault: Fault) -> Vec<String> {
        quieten();
        let armed = fault.arm();
        let reds = (0..SEEDS).filter_map(|seed| catch_unwind(|| simulate(seed)).err());
        let text = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => other.downcast::<&str>().map_or(String::new(), |text| (*text).into()),
        };
        let messages = reds.map(text).collect();
        drop(armed);
        messages
    }

    fn assert_red(fault: Fault, expected: &str) {
        let messages = red_runs(fault);
        let named = messages.iter().filter(|message| message.contains(expected)).count();
        println!("{fault:?}: {} of {SEEDS} seeds are red, {named} by {expected:?}", messages.len());
        assert!(named > 0, "{fault:?} was not noticed: {messages:?}");
        (0..SEEDS).for_each(|seed| _ = simulate(seed));
    }

    #[test]
    fn a_claim_that_ignores_the_generation_goes_red() {
        assert_red(Fault::GenerationNotCompared, "stale job");
    }

    #[test]
    fn a_batch_published_before_it_is_written_goes_red() {
        assert_red(Fault::JobPublishedBeforeWritten, "stale job");
    }

    #[test]
    fn a_dropped_wake_goes_red() {
        assert_red(Fault::WakeDropped, "lost wake");
    }
}
