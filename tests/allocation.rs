//! Steady decode allocates nothing: not the stages, not the loader, not the engine.

use millstream::engine::{Engine, Model, OpenedReader, Options, Request};
use millstream::sampler::Sampling;
use millstream_kernels::WeightFormat;
use millstream_stages::prefetch::Lookahead;
use millstream_stages::simulation::{MemoryReader, RandomModel, alternating_spec, small_spec};
use millstream_stages::spec::ModelSpec;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::ops::ControlFlow;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Experts of a layer of the small model.
const EXPERTS: usize = 6;

/// Tokens after which the measurement ends.
const MEASURED: usize = 1500;
/// What the channel to the caller keeps for a thread that sleeps on it for the first time, whenever
/// that is: the only allocations that may fall into a measurement, on the caller's thread.
const FIRST_SLEEP_ALLOCATIONS: usize = 2;

/// Allocations and reallocations between the tenth token and the last one measured.
fn allocations_in_decode(spec: ModelSpec, slots: usize, sampling: Sampling) -> usize {
    let spec = ModelSpec { context_max: 16_384, ..spec };
    let model = Arc::new(RandomModel::new(spec, 1, WeightFormat::Bf16));
    let source = model.clone();
    let engine_model = Model {
        spec: model.spec.clone(),
        source: model.clone(),
        reader: Box::new(move |_| {
            let reader = Box::new(MemoryReader::new(source.clone()));
            Ok(OpenedReader {
                reader,
                words: String::new(),
                warnings: vec![],
                is_light: false,
                drive_node: None,
            })
        }),
        resident_bytes: 0,
        stop_ids: vec![],
        warnings: vec![],
    };
    let options = Options {
        threads: Some(2),
        experts_per_layer: Some(slots),
        lookahead: Lookahead::GateTwice,
        // The guard reads files of the system on a thread of its own, off the data path.
        guard_period: None,
        ..Options::default()
    };
    // Pages become known under way, and waves are timed.
    let options = options.serving();
    let engine = Engine::start(engine_model, &options).expect("the engine starts");
    // Far longer than what is measured: the answer's end, which allocates, must not come into it.
    let request = Request { sampling, ..Request::greedy(vec![1, 2, 3], 16_000) };
    let mut counts = Vec::with_capacity(2 * MEASURED);
    let count = || {
        let stats = ALLOCATOR.stats();
        stats.allocations + stats.reallocations
    };
    let answer = engine.generate(&request, &mut |_| {
        counts.push(count());
        if counts.len() > MEASURED { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let statistics = answer.expect("it runs").statistics;
    let streamed = slots < EXPERTS;
    assert_eq!(statistics.expert_misses > 60, streamed, "few slots mean many reads");
    counts[MEASURED] - counts[10]
}

/// One test, so that nothing of the test harness runs beside a measurement.
#[test]
fn steady_decode_allocates_nothing() {
    let sampled = Sampling { temperature: 0.8, top_p: 0.9, seed: 3, ..Sampling::GREEDY };
    let all = Sampling {
        top_k: 5,
        min_p: 0.01,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        ..sampled
    };
    let cases = [
        ("resident", small_spec(), EXPERTS, Sampling::GREEDY),
        ("streamed", small_spec(), 2, Sampling::GREEDY),
        ("sampled", small_spec(), EXPERTS, sampled),
        ("sampled with every setting", small_spec(), EXPERTS, all),
        ("alternating attention, streamed", alternating_spec(), 2, Sampling::GREEDY),
    ];
    for (name, spec, slots, sampling) in cases {
        let allocations = allocations_in_decode(spec, slots, sampling);
        assert!(allocations <= FIRST_SLEEP_ALLOCATIONS, "{name}: {allocations}");
    }
}
