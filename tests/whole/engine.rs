//! The engine on the reference models: the pipeline gives what the straight-line pass gives, at
//! every way of reading a prompt.

use crate::support::{Case, Reference, argmax, data, for_each_tiny_model, max_distance, unrounded};
use millstream::engine::{Engine, Model, Options, Request};

fn start(directory: &std::path::Path, prefill_chunk: usize) -> Engine {
    let model = Model::open(directory).expect("the model opens");
    let source = unrounded(&model.spec, model.source.clone());
    let model = Model { source, ..model };
    let options = Options {
        prefill_chunk,
        logits_rows_max: 1024,
        context: Some(704.min(model.spec.context_max)),
        trace: true,
        ..Options::default()
    };
    Engine::start(model, &options).expect("the engine starts")
}

fn request(prompt_ids: Vec<u32>, max_tokens: usize) -> Request {
    Request { keep_logits: true, keep_trace: true, ..Request::greedy(prompt_ids, max_tokens) }
}

/// Prompt and greedy tokens in chunks of so many rows: logits, experts and selections of all
/// positions against the reference; returns the logits.
fn check_case(reference: &Reference, case: &Case, chunk: usize) -> Vec<f32> {
    let directory = reference.model_for(case);
    let engine = start(directory.path(), chunk);
    let tokens: Vec<u32> = case.prompt.iter().chain(&case.greedy).copied().collect();
    let answer = engine
        .generate(&request(tokens, 0), &mut |_| std::ops::ControlFlow::Continue(()))
        .expect("it runs");
    let logits = answer.logits.expect("kept");
    let (shape, tail) = reference.f32(case, "logits_tail").expect("logits");
    let vocabulary = shape[1];
    let first = case.prompt.len() - 1;
    let tolerance = reference.tolerance();
    let worst = max_distance(&logits[first * vocabulary..], &tail);
    let (_, exact) = reference.f32(case, "logits_last_f64").expect("float64 logits");
    let last = max_distance(&logits[first * vocabulary..][..vocabulary], &exact);
    assert!(
        worst <= tolerance && last <= tolerance,
        "{} in chunks of {chunk}: {worst:.2e}",
        case.name
    );
    for (index, logits) in logits[first * vocabulary..].chunks(vocabulary).enumerate() {
        if let Some(&token) = case.greedy.get(index) {
            assert_eq!(argmax(logits), token, "{}: greedy token {index}", case.name);
        }
    }
    check_trace(reference, case, &answer.trace.expect("kept"));
    logits
}

/// Experts and selections, exactly: the straight-line test shows that none of these models flips.
fn check_trace(reference: &Reference, case: &Case, trace: &[millstream::engine::PositionTrace]) {
    for layer in 0..trace[0].experts.len() {
        if let Some((shape, ids)) = reference.integers(case, &format!("router_ids.{layer}")) {
            for (position, step) in trace.iter().enumerate() {
                let mut found: Vec<i64> =
                    step.experts[layer].iter().map(|&id| i64::from(id)).collect();
                let mut expected = ids[position * shape[1]..(position + 1) * shape[1]].to_vec();
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected, "{}: layer {layer} position {position}", case.name);
            }
        }
        if let Some((shape, selected)) = reference.integers(case, &format!("index_sel.{layer}")) {
            for (position, step) in trace.iter().enumerate() {
                let expected = &selected[position * shape[1]..(position + 1) * shape[1]];
                let found: Vec<i64> = match &step.selections[layer] {
                    Some(positions) => positions.iter().map(|&p| i64::from(p)).collect(),
                    None => (0..=position as i64).collect(),
                };
                let expected: Vec<i64> = expected.iter().copied().filter(|&p| p >= 0).collect();
                assert_eq!(found, expected, "{}: layer {layer} position {position}", case.name);
            }
        }
    }
}

#[test]
fn prompts_at_once_in_fives_and_one_by_one_equal_the_reference() {
    for_each_tiny_model(|name| {
        let reference = Reference::open(&data().join("tiny").join(name));
        for case in reference.cases() {
            let once = check_case(&reference, &case, 1024);
            for chunk in [5, 1] {
                let other = check_case(&reference, &case, chunk);
                let same = once.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{name} {}: chunks of {chunk} change the bytes", case.name);
            }
            println!("{name} {}: three ways, one result", case.name);
        }
    });
}

#[test]
fn greedy_continuations_equal_the_reference() {
    for_each_tiny_model(|name| {
        let reference = Reference::open(&data().join("tiny").join(name));
        for case in reference.cases() {
            let directory = reference.model_for(&case);
            let engine = start(directory.path(), 128);
            let mut heard = vec![];
            let request = Request::greedy(case.prompt.clone(), case.greedy.len());
            let answer = engine
                .generate(&request, &mut |token| {
                    heard.push(token);
                    std::ops::ControlFlow::Continue(())
                })
                .expect("it runs");
            assert_eq!(answer.answer_ids, case.greedy, "{name} {}", case.name);
            assert_eq!(heard, case.greedy, "tokens are heard as they come");
        }
    });
}
