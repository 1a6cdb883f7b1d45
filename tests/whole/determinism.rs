//! One hash of logits per format over threads, plans, nodes, slots, instruction sets, chunks and
//! company.

use crate::matrix::{AXES, Run, axis_lengths, describe, expected_hash, hash_of, model, models};
use millstream_kernels::Isa;
use millstream_stages::simulation::Random;

/// Holds a model to one hash: the whole pairwise list, or every `step`-th run of it.
fn one_hash(name: &str, step: usize) {
    let line = models().into_iter().find(|line| line.0 == name).expect("in the table");
    let model = model(&line);
    let first = expected_hash(&model);
    let runs: Vec<Run> = pairwise(axis_lengths()).into_iter().step_by(step).collect();
    for run in &runs {
        assert_eq!(hash_of(&model, run), first, "{name}: {}", describe(run));
    }
    let isas: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
    println!("{name}: {} runs, one hash {first:016x}, kernels {}", runs.len(), isas.join(", "));
}

#[test]
fn f32_bytes_are_the_same_everywhere() {
    one_hash("f32", 1);
}

#[test]
fn bf16_bytes_are_the_same_everywhere() {
    one_hash("bf16", 1);
}

#[test]
fn int8_bytes_are_the_same_everywhere() {
    one_hash("int8-row", 1);
}

#[test]
fn mixed_bytes_are_the_same_everywhere() {
    one_hash("mixed", 1);
}

#[test]
fn bytes_of_alternating_attention_are_the_same_everywhere() {
    one_hash("alternating f32", 1);
    one_hash("alternating mixed", 3);
}

#[test]
fn bytes_of_a_model_without_experts_are_the_same_everywhere() {
    one_hash("dense int8-row", 3);
}

#[test]
fn bytes_of_every_other_format_are_the_same_everywhere() {
    for (name, ..) in models().into_iter().skip(7) {
        one_hash(name, 4);
    }
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
