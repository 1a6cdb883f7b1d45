//! The whole pipeline on one thread, scheduled by seeds, held to the straight-line pass bit for bit.

use millstream_stages::simulation::{Manners, Outcome, World};

/// Seeds of each test here: the short form. `cargo run --release --example simulate` runs more.
const SEEDS: u64 = 2000;

fn run_all(first: u64, manners: Manners) -> Outcome {
    let world = World::new();
    let mut total = Outcome::default();
    for seed in first..first + SEEDS {
        let outcome = world.run(seed, manners);
        total.rows_compared += outcome.rows_compared;
        total.rows_failed += outcome.rows_failed;
        total.misses += outcome.misses;
        total.hints += outcome.hints;
        total.cap_changes += outcome.cap_changes;
        total.bytes_given_back += outcome.bytes_given_back;
    }
    total
}

#[test]
fn every_row_equals_the_straight_line_pass_under_a_slow_reader() {
    let total = run_all(0, Manners::Slow);
    println!("{total:?}");
    assert_eq!(total.rows_compared as u64, SEEDS * 21, "every row of every sequence");
    assert_eq!(total.rows_failed, 0);
    assert!(total.misses > SEEDS && total.hints > SEEDS, "slots were short and hints were given");
    assert!(total.cap_changes > SEEDS && total.bytes_given_back > SEEDS, "slots came and went");
}

#[test]
fn failed_reads_fail_their_rows_and_no_others() {
    let total = run_all(SEEDS, Manners::FailsOneIn(20));
    println!("{total:?}");
    assert!(total.rows_failed > 100 && total.rows_compared > 100);
}
