//! The long form of the simulation: `cargo run --release --example simulate -- SEEDS [FIRST]`.
//!
//! Runs every seed with a slow reader and with one that fails, and ends with a panic that names the
//! seed when a run goes red.

use millstream_stages::simulation::{Manners, World};

fn main() {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse::<u64>().expect("a whole number"));
    let seeds = arguments.next().unwrap_or(20_000);
    let first = arguments.next().unwrap_or(0);
    let world = World::new();
    let (mut compared, mut failed) = (0, 0);
    for seed in first..first + seeds {
        for manners in [Manners::Slow, Manners::FailsOneIn(20)] {
            let outcome = world.run(seed, manners);
            compared += outcome.rows_compared;
            failed += outcome.rows_failed;
        }
        if seed % 1000 == 999 {
            println!("up to seed {seed}: {compared} rows compared, {failed} failed by plan");
        }
    }
    println!("{seeds} seeds from {first}: {compared} rows equal, {failed} failed by plan");
}
