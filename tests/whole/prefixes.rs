//! Prompts that begin with known pages: the answers are the same bytes, alone, in company, under pressure.

use crate::support::data;
use millstream::engine::{Answer, Engine, Event, Model, Options, Request};
use millstream_stages::limits::KV_BLOCK_ROWS;
use std::ops::ControlFlow;

fn start(options: Options) -> Engine {
    let model = Model::open(&data().join("tiny/glm-dsa")).expect("the model opens");
    Engine::start(model, &options).expect("it starts")
}

fn options(sequences_max: usize) -> Options {
    Options {
        context: Some(6 * KV_BLOCK_ROWS),
        sequences_max,
        waves_max: 2,
        prefill_chunk: 48,
        ..Options::default()
    }
}

/// A prompt of a beginning that others have too and an end of its own.
fn prompt(beginning: u32, shared: usize, own: usize, end: u32) -> Vec<u32> {
    let text = |seed: u32, tokens| (0..tokens as u32).map(move |i| (seed * 131 + i * i * 7) % 600);
    text(beginning, shared).chain(text(100 + end, own)).collect()
}

fn requests() -> Vec<Request> {
    let mut requests = vec![];
    for round in 0..2 {
        for (beginning, shared) in [(1, 130), (2, 64), (1, 200), (3, 63), (2, 128), (1, 128)] {
            let own = [1, 30, 70][(round + beginning as usize) % 3];
            let prompt = prompt(beginning, shared, own, round as u32);
            requests.push(Request::greedy(prompt, 20 + 7 * round));
        }
    }
    requests
}

fn generate(engine: &Engine, request: &Request) -> Answer {
    engine.generate(request, &mut |_| ControlFlow::Continue(())).expect("it runs")
}

#[test]
fn answers_are_the_same_with_shared_pages_alone_in_company_and_under_pressure() {
    let plain = start(options(1));
    let requests = requests();
    let wanted: Vec<Answer> = requests.iter().map(|request| generate(&plain, request)).collect();
    assert!(wanted.iter().all(|answer| answer.statistics.cached_tokens == 0));
    // One sequence's pages hold two prompts at most: what is known goes all the time.
    for sequences_max in [1, 4] {
        let engine = start(options(sequences_max).serving());
        let mut cached = 0;
        let answers = engine.generate_all(&requests).expect("they can be met");
        for (answer, wanted) in answers.into_iter().zip(&wanted) {
            let answer = answer.expect("it runs");
            assert_eq!(answer.answer_ids, wanted.answer_ids);
            cached += answer.statistics.cached_tokens;
        }
        println!("{sequences_max} at once: {cached} tokens known");
        assert!(cached >= 4 * KV_BLOCK_ROWS, "{cached} tokens were known");
    }
}

#[test]
fn a_conversation_goes_on_from_its_last_whole_page() {
    let engine = start(options(1).serving());
    let mut conversation = prompt(1, 70, 0, 0);
    let mut fed = 0;
    for turn in 0..3 {
        let answer = generate(&engine, &Request::greedy(conversation.clone(), 40));
        let whole = fed / KV_BLOCK_ROWS * KV_BLOCK_ROWS;
        assert_eq!(answer.statistics.cached_tokens, whole, "turn {turn}");
        conversation.extend(&answer.answer_ids);
        // The last token of an answer was never fed.
        fed = conversation.len() - 1;
        conversation.extend(prompt(9, 20, 0, 0));
    }
    let kept = Request { keep_logits: true, ..Request::greedy(conversation.clone(), 1) };
    let positions = generate(&engine, &kept);
    assert_eq!(positions.statistics.cached_tokens, 0, "every position's logits are wanted");
}

#[test]
fn an_answer_is_the_same_beside_a_long_prompt_that_keeps_its_distance() {
    let engine = start(options(2).serving());
    let request = Request::greedy(prompt(4, 20, 0, 0), 150);
    let alone = generate(&engine, &request).answer_ids;
    let long = Request::greedy(prompt(5, 300, 0, 0), 8);
    let long_alone = generate(&start(options(1)), &long).answer_ids;
    let generation = engine.begin(&request).expect("it can be met");
    let Event::Token(_) = generation.next() else { panic!("it runs") };
    let beside = engine.begin(&long).expect("it can be met");
    let end = |generation: &millstream::engine::Generation| loop {
        if let Event::Done(answer) = generation.next() {
            break answer.expect("it runs").answer_ids;
        }
    };
    assert_eq!(end(&beside), long_alone);
    assert_eq!(end(&generation), alone);
}
