//! The crew's cursor in every interleaving (bounded): each job runs once and sees its own batch, no
//! claim goes beyond the end, no array is rewritten under a reader, no sleeper is forgotten.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p millstream-stages --release --test loom_cursor`

#[cfg(not(loom))]
#[test]
fn the_models_need_loom() {
    println!("the models of this file need RUSTFLAGS=\"--cfg loom\"; they were not run");
}

#[cfg(loom)]
mod models {
    use loom::cell::UnsafeCell;
    use loom::thread;
    use millstream_stages::queue::{
        Executor, Job, JobList, Leader, LeaderPlan, Task, Worker, worker_loop,
    };
    use std::time::Duration;

    /// A task that writes plainly to one cell per job: loom reports two runs of a job that aren't
    /// ordered, and a result that the leader reads without being ordered after its job.
    struct Cells {
        batch: u32,
        runs: [UnsafeCell<u32>; 2],
    }

    // The point of the model: the cells are shared as the cursor's protocol promises.
    #[allow(unsafe_code)]
    // SAFETY:
    // - each cell is touched by its job, and by the leader after the batch; loom checks it.
    unsafe impl Sync for Cells {}

    impl Cells {
        fn new(batch: u32) -> Cells {
            Cells { batch, runs: [0, 0].map(UnsafeCell::new) }
        }

        fn assert_ran(&self, jobs: usize) {
            for (job, runs) in self.runs.iter().enumerate() {
                #[allow(unsafe_code)]
                // SAFETY:
                // - the batch is over; loom checks that.
                let runs = runs.with(|runs| unsafe { *runs });
                assert_eq!(runs, u32::from(job < jobs), "runs of job {job}");
            }
        }
    }

    impl Task for Cells {
        fn run(&self, job: Job, _scratch: &mut [f32]) {
            assert_eq!(job.col, self.batch, "stale job: of another batch");
            #[allow(unsafe_code)]
            // SAFETY:
            // - this job was claimed once; loom checks that.
            self.runs[job.row as usize].with_mut(|runs| unsafe { *runs += 1 });
        }
    }

    fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(body);
    }

    fn leader(workers: &[usize], leader_node: usize) -> (Leader, Vec<Vec<Worker>>) {
        Leader::new(&LeaderPlan {
            workers: workers.to_vec(),
            leader_node,
            jobs_max: 2,
            scratch_len: 0,
            polls_before_yield: 0,
        })
    }

    /// Runs batches of two jobs on a node, and ends the workers.
    fn lead(leader: &mut Leader, nodes: usize, node: usize, batches: u32) {
        let mut jobs = JobList::new(nodes, 2);
        for batch in 1..=batches {
            jobs.clear();
            let task = Cells::new(batch);
            (0..2).for_each(|row| jobs.push(node, Job { part: 0, row, col: batch }));
            leader.run(&jobs, &task);
            task.assert_ran(2);
        }
        leader.close();
    }

    fn run_model(workers: &'static [usize], leader_node: usize, batches: u32, preemptions: usize) {
        model(preemptions, move || {
            let (mut leader, workers_of) = leader(workers, leader_node);
            let working = workers_of.into_iter().flatten();
            let threads: Vec<_> = working
                .map(|worker| thread::spawn(move || worker_loop(worker, &mut [], Duration::ZERO)))
                .collect();
            // The jobs are for the last node: the leader helps there only if it is its own.
            lead(&mut leader, workers.len(), workers.len() - 1, batches);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn leader_and_worker_share_three_batches() {
        run_model(&[1], 0, 3, 2);
    }

    #[test]
    fn leader_and_two_workers_share_a_batch() {
        run_model(&[2], 0, 1, 2);
    }

    #[test]
    fn a_parked_worker_of_another_node_is_woken_for_each_batch() {
        run_model(&[0, 1], 0, 2, 3);
    }

    #[cfg(feature = "faults")]
    mod planted {
        use super::run_model;
        use millstream_stages::queue::faults::Fault;

        #[test]
        #[should_panic]
        fn a_batch_published_before_it_is_written_goes_red() {
            let _armed = Fault::JobPublishedBeforeWritten.arm();
            run_model(&[0, 1], 0, 2, 2);
        }

        #[test]
        #[should_panic(expected = "maximum number of branches")]
        fn a_dropped_wake_goes_red() {
            // The leader waits for a sleeper, spinning: loom gives up.
            let _armed = Fault::WakeDropped.arm();
            run_model(&[0, 1], 0, 2, 2);
        }

        #[test]
        #[should_panic(expected = "stale job")]
        fn a_claim_that_ignores_the_generation_goes_red() {
            let _armed = Fault::GenerationNotCompared.arm();
            run_model(&[1], 0, 3, 2);
        }
    }
}
