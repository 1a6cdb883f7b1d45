//! The full determinism matrix of every format: every combination, or every n-th with `-- n`.
//!
//! `cargo run --release --example determinism` prints one line per thousand runs and ends with
//! exit code 1 at the first differing hash. docs/testing.md says how long it takes.

#[path = "../tests/whole/matrix.rs"]
mod matrix;

use matrix::{Run, axis_lengths, describe, expected_hash, hash_of, model, models};

fn main() {
    let step = std::env::args().nth(1).map_or(1, |n| n.parse().expect("a whole number"));
    for line in models() {
        let (name, model) = (line.0, model(&line));
        let first = expected_hash(&model);
        let runs: Vec<Run> = full(axis_lengths()).step_by(step).collect();
        for (index, run) in runs.iter().enumerate() {
            if hash_of(&model, run) != first {
                println!("{name}: another hash: {}", describe(run));
                std::process::exit(1);
            }
            if index % 1000 == 999 {
                println!("{name}: {} of {} runs, one hash", index + 1, runs.len());
            }
        }
        println!("{name}: all {} runs have the hash {first:016x}", runs.len());
    }
}

/// Every combination.
fn full(lengths: Run) -> impl Iterator<Item = Run> {
    let count: usize = lengths.iter().product();
    (0..count).map(move |mut index| {
        std::array::from_fn(|axis| {
            let value = index % lengths[axis];
            index /= lengths[axis];
            value
        })
    })
}
