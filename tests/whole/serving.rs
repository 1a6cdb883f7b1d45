//! What servers ask of the engine: choices, log-probabilities, penalties, a bounded queue, its load.

use crate::support::data;
use millstream::engine::{Engine, EngineError, Event, Finish, Model, Options, Request};
use millstream::sampler::Sampling;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

fn start(options: &Options) -> Engine {
    let model = Model::open(&data().join("tiny/glm-dsa")).expect("the model opens");
    Engine::start(model, options).expect("it starts")
}

fn sampled(seed: u64) -> Request {
    let sampling = Sampling { temperature: 1.5, seed, ..Sampling::GREEDY };
    Request { sampling, ..Request::greedy(vec![5, 17, 9], 12) }
}

fn ids(engine: &Engine, request: &Request) -> Vec<u32> {
    let answer = engine.generate(request, &mut |_| ControlFlow::Continue(()));
    answer.expect("it runs").answer_ids
}

/// Waits until the engine says so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what} didn't come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn choices_differ_from_each_other_and_are_the_same_in_any_company() {
    let engine = start(&Options { sequences_max: 4, ..Options::default() });
    let requests: Vec<Request> = sampled(7).choices(4).collect();
    let together = engine.generate_all(&requests).expect("they can be met");
    let together: Vec<_> = together.into_iter().map(|a| a.expect("it runs").answer_ids).collect();
    for (index, answer) in together.iter().enumerate() {
        assert_eq!(&ids(&engine, &requests[index]), answer, "choice {index} alone");
        assert!(!together[..index].contains(answer), "choice {index} is one of those before");
    }
    assert_eq!(ids(&engine, &sampled(7)), together[0], "no choice named is the first");
    assert_ne!(ids(&engine, &sampled(8)), together[0], "another seed");
}

#[test]
fn penalties_reach_the_answer() {
    let engine = start(&Options::default());
    let greedy = Request::greedy(vec![5, 17, 9], 40);
    let plain = ids(&engine, &greedy);
    // No token comes twice while all logits lie within what a hundredfold penalty makes of them.
    let sampling = Sampling { repetition_penalty: 100.0, ..Sampling::GREEDY };
    let varied = ids(&engine, &Request { sampling, ..greedy.clone() });
    let distinct = |ids: &[u32]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        ids.len()
    };
    assert!(distinct(&varied) > distinct(&plain) || distinct(&plain) == 40, "{plain:?} {varied:?}");
    assert_eq!(distinct(&varied), 40, "{varied:?}");
    assert!(varied.iter().all(|id| ![5, 17, 9].contains(id)), "the prompt counts: {varied:?}");
    let sampling = Sampling { min_p: 2.0, ..Sampling::GREEDY };
    let refused = engine.begin(&Request { sampling, ..greedy });
    assert!(matches!(refused, Err(error) if error.to_string().contains("min_p")));
}

#[test]
fn log_probabilities_come_with_each_token_and_are_those_of_its_logits() {
    let engine = start(&Options { logits_rows_max: 128, ..Options::default() });
    let request = Request { log_probabilities: Some(3), keep_logits: true, ..sampled(3) };
    let generation = engine.begin(&request).expect("it can be met");
    let mut heard = vec![];
    let answer = loop {
        match generation.next() {
            Event::Token(token) => heard.push(token),
            Event::Done(answer) => break answer.expect("it runs"),
        }
    };
    let logits = answer.logits.expect("kept");
    let vocabulary = logits.len() / (3 + 12 - 1);
    assert_eq!(heard.len(), 12);
    for (index, token) in heard.iter().enumerate() {
        let logits = &logits[(2 + index) * vocabulary..][..vocabulary];
        let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit))).sum();
        let of = |id: u32| f64::from(logits[id as usize]) - libm::log(sum);
        let found = token.log_probabilities.as_deref().expect("asked for");
        assert_eq!(found, &answer.log_probabilities[index]);
        assert_eq!(token.id, answer.answer_ids[index]);
        assert!((f64::from(found.token) - of(token.id)).abs() < 1e-4, "{found:?}");
        assert_eq!(found.top.len(), 3);
        assert!(found.top.iter().all(|&(id, value)| (f64::from(value) - of(id)).abs() < 1e-4));
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(logits[found.top[0].0 as usize], best);
    }
    let plain = engine.begin(&sampled(3)).expect("it can be met");
    assert!(matches!(plain.next(), Event::Token(token) if token.log_probabilities.is_none()));
    let request = Request { log_probabilities: Some(21), ..sampled(3) };
    assert!(matches!(engine.begin(&request), Err(EngineError::LogProbabilities { asked: 21 })));
}

#[test]
fn one_request_too_many_is_refused_and_comes_in_when_another_has_ended() {
    let engine = start(&Options { queue_max: 1, ..Options::default() });
    let long = Request::greedy(vec![5, 17, 9], 1000);
    let running = engine.begin(&long).expect("there is a place");
    let Event::Token(_) = running.next() else { panic!("it runs") };
    let waiting = engine.begin(&long).expect("it may wait");
    let load = engine.load();
    assert_eq!((load.running, load.waiting, load.most), (1, 1, 2));
    match engine.begin(&long) {
        Err(EngineError::QueueFull { load }) => assert_eq!((load.running, load.waiting), (1, 1)),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a third is in"),
    }
    running.cancel();
    let ended = loop {
        if let Event::Done(answer) = running.next() {
            break answer.expect("a cancelled answer is an answer");
        }
    };
    assert_eq!(ended.finish, Finish::Cancelled);
    // Whoever hears that it ended finds the place free.
    assert!(engine.begin(&Request::greedy(vec![5], 1)).is_ok());
    waiting.cancel();
    drop(waiting);
    until("an empty engine", || engine.load().running + engine.load().waiting == 0);
}

#[test]
fn a_request_that_waits_too_long_is_turned_away_and_the_others_go_on() {
    let wait_max = Duration::from_millis(30);
    let engine = start(&Options { queue_wait_max: Some(wait_max), ..Options::default() });
    let running = engine.begin(&Request::greedy(vec![5, 17, 9], 4000)).expect("there is a place");
    let Event::Token(_) = running.next() else { panic!("it runs") };
    let waiting = engine.begin(&Request::greedy(vec![5], 1)).expect("it may wait");
    match waiting.next() {
        Event::Done(outcome) => {
            assert!(matches!(*outcome, Err(EngineError::QueueTimeout { .. })), "{outcome:?}");
        }
        Event::Token(_) => panic!("there is one place only"),
    }
    assert!(matches!(running.next(), Event::Token(_)), "the first one goes on");
}

#[test]
fn callers_that_vanish_leave_nobody_inside() {
    let engine = start(&Options { sequences_max: 3, waves_max: 2, ..Options::default() });
    for _ in 0..40 {
        drop(engine.begin(&Request::greedy(vec![5, 17, 9], 500)).expect("it can be met"));
    }
    until("an empty engine", || engine.load().running + engine.load().waiting == 0);
}
