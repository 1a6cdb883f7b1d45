//! The straight-line pass equals the reference: logits, greedy tokens, experts, index selections.

use crate::support::{
    Case, Reference, argmax, data, for_each_tiny_model, max_distance, say, unrounded,
};
use millstream::checkpoint::ModelFiles;
use millstream_stages::ids::LayerId;
use millstream_stages::straight_line::{Step, StraightLine};
use std::sync::Arc;

/// A choice may flip only where a float64 pass shows a gap under this.
const FLIP_GAP_MAX: f64 = 2e-5;

fn check_model(name: &str) {
    let reference = Reference::open(&data().join("tiny").join(name));
    for case in reference.cases() {
        let directory = reference.model_for(&case);
        let model = ModelFiles::open(directory.path()).expect("the model opens");
        let tokens: Vec<u32> = case.prompt.iter().chain(&case.greedy).copied().collect();
        let spec = &model.blueprint.spec.clone();
        let source = unrounded(spec, Arc::new(model));
        let steps = StraightLine::<f32>::new(spec, &*source).run(&tokens).expect("it runs");
        let exact = StraightLine::<f64>::new(spec, &*source).run(&tokens).expect("it runs");
        check_choices(&reference, &case, &steps, &exact);
        check_logits(&reference, &case, &steps);
    }
}

fn check_logits(reference: &Reference, case: &Case, steps: &[Step<f32>]) {
    let first = case.prompt.len() - 1;
    let (shape, tail) = reference.f32(case, "logits_tail").expect("logits");
    assert_eq!(shape[0], case.greedy.len() + 1);
    let mut worst = 0f64;
    for (index, expected) in tail.chunks(shape[1]).enumerate() {
        let logits = &steps[first + index].logits;
        worst = worst.max(max_distance(logits, expected));
        if let Some(&token) = case.greedy.get(index) {
            assert_eq!(argmax(logits), token, "{}: greedy token {index}", case.name);
        }
    }
    let (_, exact) = reference.f32(case, "logits_last_f64").expect("float64 logits");
    let last = max_distance(&steps[first].logits, &exact);
    let tolerance = reference.tolerance();
    println!(
        "{} {}: logits within {worst:.2e}, float64 {last:.2e} (allowed {tolerance:.1e})",
        reference.name(),
        case.name
    );
    assert!(
        worst <= tolerance && last <= tolerance,
        "{} {}: logits are off",
        reference.name(),
        case.name
    );
}

fn check_choices(reference: &Reference, case: &Case, steps: &[Step<f32>], exact: &[Step<f64>]) {
    for layer in 0..steps[0].choices.len() {
        let id = LayerId(layer as u32);
        if let Some((shape, ids)) = reference.integers(case, &format!("router_ids.{layer}")) {
            let (_, weights) =
                reference.f32(case, &format!("router_weights.{layer}")).expect("weights");
            for (position, step) in steps.iter().enumerate() {
                let choice = step.choices[layer].as_ref().expect("a layer with experts");
                let range = position * shape[1]..(position + 1) * shape[1];
                let mut expected: Vec<(u32, f32)> = ids[range.clone()]
                    .iter()
                    .map(|&id| id as u32)
                    .zip(weights[range].iter().copied())
                    .collect();
                let mut found = choice.experts.clone();
                expected.sort_by_key(|pair| pair.0);
                found.sort_by_key(|pair| pair.0);
                let same = found.iter().zip(&expected).all(|(a, b)| a.0 == b.0);
                let gap = exact[position].choices[layer].as_ref().expect("the same layer").gap;
                allow_flip(same, gap, case, id, position, "experts");
                let close = found.iter().zip(&expected).all(|(a, b)| (a.1 - b.1).abs() < 1e-4);
                assert!(!same || close, "{}: weights of {id} at {position}", case.name);
            }
        }
        if let Some((shape, sel)) = reference.integers(case, &format!("index_sel.{layer}")) {
            for (position, step) in steps.iter().enumerate() {
                let expected = &sel[position * shape[1]..(position + 1) * shape[1]];
                let expected: Vec<u32> =
                    expected.iter().filter(|&&p| p >= 0).map(|&p| p as u32).collect();
                let (found, gap) = match &step.selections[layer] {
                    Some(selection) => {
                        let exact = exact[position].selections[layer].as_ref();
                        (selection.positions.clone(), exact.expect("the same layer").gap)
                    }
                    None => ((0..=position as u32).collect(), f64::INFINITY),
                };
                allow_flip(found == expected, gap, case, id, position, "selection");
            }
        }
    }
}

fn allow_flip(same: bool, gap: f64, case: &Case, layer: LayerId, position: usize, what: &str) {
    if !same {
        let name = &case.name;
        say(&format!("{name}: {what} of {layer} at position {position} flips, gap {gap:.2e}"));
        assert!(gap < FLIP_GAP_MAX, "{}: wrong {what} of {layer} at {position}", case.name);
    }
}

#[test]
fn every_family_equals_its_reference() {
    for_each_tiny_model(check_model);
}
