//! One hash of logits over threads, plans, nodes, slots, instruction sets, chunks and company.

use crate::matrix::{AXES, Run, axis_lengths, describe, expected_hash, hash_of, model};
use millstream_kernels::{Isa, WeightFormat};
use millstream_stages::simulation::Random;

fn one_hash(format: WeightFormat) {
    let model = model(format);
    let first = expected_hash(&model);
    let runs = pairwise(axis_lengths());
    for run in &runs {
        assert_eq!(hash_of(&model, run), first, "{format:?}: {}", describe(run));
    }
    let isas: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
    println!("{format:?}: {} runs, one hash {first:016x}, kernels {}", runs.len(), isas.join(", "));
}

#[test]
fn f32_bytes_are_the_same_everywhere() {
    one_hash(WeightFormat::F32);
}

#[test]
fn bf16_bytes_are_the_same_everywhere() {
    one_hash(WeightFormat::Bf16);
}

/// Runs such that every pair of values of two axes occurs at least once; the same list every time.
fn pairwise(lengths: Run) -> Vec<Run> {
    let mut missing = std::collections::BTreeSet::new();
    for a in 0..AXES.len() {
        for b in a + 1..AXES.len() {
            for x in 0..lengths[a] {
                for y in 0..lengths[b] {
                    missing.insert((a, x, b, y));
                }
            }
        }
    }
    let mut random = Random::new(1);
    let mut runs = vec![];
    while let Some(&(a, x, b, y)) = missing.iter().next() {
        let candidate = |random: &mut Random| {
            let mut run: Run = std::array::from_fn(|axis| random.below(lengths[axis]));
            (run[a], run[b]) = (x, y);
            run
        };
        let covered = |run: &Run| missing.iter().filter(|pair| covers(run, pair)).count();
        let tries = (0..200).map(|_| candidate(&mut random));
        let best = tries.max_by_key(covered).expect("there are tries");
        missing.retain(|pair| !covers(&best, pair));
        runs.push(best);
    }
    runs
}

fn covers(run: &Run, &(a, x, b, y): &(usize, usize, usize, usize)) -> bool {
    run[a] == x && run[b] == y
}
