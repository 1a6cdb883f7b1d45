//! Replays against the engine itself, and what the eviction policies reach on recorded routing.

use crate::support::data;
use millstream::engine::{Engine, Model, Options, Request};
use millstream::replay::{Report, Size, Start, Traces, optimum, replay};
use millstream_stages::ids::ExpertId;
use millstream_stages::prefetch::eviction::{EVICTIONS, EvictionPolicy};
use std::path::{Path, PathBuf};

/// Routing of three texts of 400 tokens by the small model, sampled at temperature 0.8.
fn recorded() -> Traces {
    Traces::open(&[data().join("nano-glm-dsa/trace.json")]).expect("the recorded trace")
}

fn small_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nano-glm-dsa")
}

#[test]
fn the_default_policy_hits_more_than_the_others_and_most_of_what_can_be_hit() {
    let report = Report::new(&recorded(), &[Size::Percent(25.0), Size::Percent(50.0)]);
    let default = EvictionPolicy::default().name;
    for (row, of_optimum_min) in report.rows.iter().zip([0.71, 0.84]) {
        let of = |name: &str| {
            let found = row.policies.iter().find(|outcome| outcome.policy == name);
            found.expect("every policy is replayed")
        };
        assert!(of(default).share_of_optimum >= of_optimum_min, "{row:#?}");
        assert!(row.policies.iter().all(|other| {
            other.decode_hit_share <= of(default).decode_hit_share + 1e-9
                && other.hits.decode_hits <= row.optimum.decode_hits
        }));
        assert!(of(default).decode_hit_share > of("recency").decode_hit_share + 0.04, "{row:#?}");
    }
}

#[test]
fn a_replay_counts_what_the_engine_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("trace.json");
    for policy in EVICTIONS {
        let options = Options {
            experts_per_layer: Some(9),
            eviction: policy,
            trace: true,
            ..Options::default()
        };
        let model = Model::open(&small_model()).expect("the small model");
        let engine = Engine::start(model, &options).expect("the engine starts");
        // One token: its experts fit the slots, so no chunk waits while the next is read ahead.
        let request = Request { keep_trace: true, ..Request::greedy(vec![2389], 120) };
        let answer = engine.generate(&request, &mut |_| std::ops::ControlFlow::Continue(()));
        let answer = answer.expect("it runs");
        let trace = serde_json::to_vec(&answer.trace).expect("JSON");
        std::fs::write(&file, trace).expect("written");
        let traces = Traces::open(std::slice::from_ref(&file)).expect("a trace");
        let mut hits = 0;
        for layer in traces.layers() {
            let replayed = replay(layer, 9, policy, Start::default());
            assert!(replayed.decode_hits <= optimum(layer, 9).decode_hits);
            hits += replayed.decode_hits + replayed.prefill_hits;
        }
        assert_eq!(hits, answer.statistics.expert_hits, "{policy:?}");
        assert!(answer.statistics.expert_misses > 100, "{policy:?}: few slots");
    }
}

#[test]
fn a_session_that_starts_with_what_the_last_one_learned_hits_more() {
    let traces = recorded();
    let policy = EvictionPolicy::default();
    let (mut first, mut second) = (0, 0);
    for layer in traces.layers() {
        let slots = layer.experts / 4;
        let learned = layer.counts();
        let mut by_use: Vec<u32> = (0..layer.experts as u32).collect();
        by_use.sort_by_key(|&expert| std::cmp::Reverse(learned[expert as usize]));
        let warm: Vec<ExpertId> = by_use.into_iter().take(slots / 2).map(ExpertId).collect();
        let hits = |start| replay(layer, slots, policy, start).decode_hits;
        first += hits(Start::default());
        second += hits(Start { learned: &learned, warm: &warm });
    }
    assert!(second >= first, "{second} of {first}");
}
