//! Steady decode allocates nothing: not the stages, not the loader, not the engine.

use millstream::engine::{Engine, Model, Options, Request};
use millstream::sampler::Sampling;
use millstream_kernels::WeightFormat;
use millstream_stages::prefetch::Lookahead;
use millstream_stages::simulation::{MemoryReader, RandomModel, small_spec};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::ops::ControlFlow;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Experts of a layer of the small model.
const EXPERTS: usize = 6;

/// Allocations and reallocations between the tenth and the fiftieth token.
fn allocations_in_decode(slots: usize, sampling: Sampling) -> usize {
    let model = Arc::new(RandomModel::new(small_spec(), 1, WeightFormat::Bf16));
    let source = model.clone();
    let engine_model = Model {
        spec: model.spec.clone(),
        source: model.clone(),
        reader: Box::new(move |reads| Box::new(MemoryReader::new(source.clone(), reads))),
        resident_bytes: 0,
        stop_ids: vec![],
        warnings: vec![],
    };
    let options = Options {
        threads: Some(2),
        experts_per_layer: Some(slots),
        lookahead: Lookahead::Repeat,
        ..Options::default()
    };
    let engine = Engine::start(engine_model, &options).expect("the engine starts");
    let request = Request { sampling, ..Request::greedy(vec![1, 2, 3], 58) };
    let mut counts = Vec::with_capacity(64);
    let count = || {
        let stats = ALLOCATOR.stats();
        stats.allocations + stats.reallocations
    };
    let answer = engine.generate(&request, &mut |_| {
        counts.push(count());
        ControlFlow::Continue(())
    });
    let statistics = answer.expect("it runs").statistics;
    let streamed = slots < EXPERTS;
    assert_eq!(statistics.expert_misses > 60, streamed, "few slots mean many reads");
    counts[50] - counts[10]
}

/// One test, so that nothing of the test harness runs beside a measurement.
#[test]
fn steady_decode_allocates_nothing() {
    let sampled = Sampling { temperature: 0.8, top_p: 0.9, seed: 3 };
    assert_eq!(allocations_in_decode(EXPERTS, Sampling::GREEDY), 0, "resident");
    assert_eq!(allocations_in_decode(2, Sampling::GREEDY), 0, "streamed");
    assert_eq!(allocations_in_decode(EXPERTS, sampled), 0, "sampled");
}
