//! Each planted fault turns the simulation red within 200 seeds; without one it stays green
//! (`simulation.rs`). Run with `cargo test -p millstream-stages --features faults`.

#[cfg(not(feature = "faults"))]
#[test]
fn without_the_feature_nothing_is_planted() {
    use std::io::Write;
    let text = "the planted faults of this file need --features faults; they were not run";
    writeln!(std::io::stderr(), "{text}").expect("stderr is open");
}

#[cfg(feature = "faults")]
mod planted {
    use millstream_stages::queue::faults::Fault;
    use millstream_stages::simulation::{Manners, World};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// The first seed that goes red, and what it says.
    fn first_red(fault: Fault, manners: Manners) -> Option<(u64, String)> {
        let world = World::new();
        let _armed = fault.arm();
        (0..200).find_map(|seed| {
            let run = catch_unwind(AssertUnwindSafe(|| world.run(seed, manners)));
            let payload = run.err()?;
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            Some((seed, text))
        })
    }

    fn goes_red(fault: Fault, manners: Manners, message: &str) {
        let (seed, text) = first_red(fault, manners).expect("red within 200 seeds");
        println!("{fault:?}: red at seed {seed}: {text}");
        assert!(text.contains(message), "red for another reason: {text}");
    }

    #[test]
    fn lease_returned_early_goes_red() {
        goes_red(Fault::LeaseReturnedEarly, Manners::Slow, "a victim has no lease out");
    }

    #[test]
    fn sum_in_arrival_order_goes_red() {
        goes_red(Fault::SumInArrivalOrder, Manners::Slow, "position");
    }

    #[test]
    fn short_read_taken_as_full_goes_red() {
        goes_red(Fault::ShortReadTakenAsFull, Manners::Slow, "position");
    }

    #[test]
    fn failed_read_told_to_one_of_two_waves_goes_red() {
        goes_red(
            Fault::FailedReadShared,
            Manners::FailsOneIn(6),
            "waves wait and nobody can go on",
        );
    }

    #[test]
    fn hint_evicting_a_leased_slot_goes_red() {
        goes_red(Fault::HintEvictsLeased, Manners::Slow, "a victim has no lease out");
    }

    #[test]
    fn generation_not_compared_goes_red() {
        goes_red(Fault::GenerationNotCompared, Manners::Slow, "stale job");
    }

    #[test]
    fn job_published_before_written_goes_red() {
        goes_red(Fault::JobPublishedBeforeWritten, Manners::Slow, "stale job");
    }

    #[test]
    fn wake_dropped_goes_red() {
        goes_red(Fault::WakeDropped, Manners::Slow, "lost wake");
    }
}
