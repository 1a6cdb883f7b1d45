//! The account is what is held: counted allocations and resident pages against the memory table.
//!
//! Alone in its binary and one test after the other: it looks at the whole process.

mod repeating;

use millstream::engine::{Engine, MemoryBudget, MemoryTable, Model, Options, Request, Setup};
use millstream_stages::account::arenas;
use millstream_stages::simulation::{alternating_spec, plain_spec, small_spec};
use millstream_stages::spec::ModelSpec;
use millstream_topology::memory::OwnMemory;
use repeating::Repeating;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn options() -> Options {
    Options { threads: Some(2), context: Some(128), ..Options::default() }
}

fn counted_bytes() -> i64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64 + stats.bytes_reallocated as i64
}

/// What the table says of memory outside of arenas.
fn accounted_bytes(table: &MemoryTable) -> i64 {
    let rows = ["KV", "waves and buffers", "threads' scratch"];
    let rows = rows.iter().map(|row| table.bytes_of(row)).sum::<u64>();
    (rows + table.bytes_of("queues and tables")) as i64
}

/// (accounted, allocated when the engine has started)
fn heap(model: &Arc<Repeating>, options: &Options) -> (i64, i64) {
    let whole = model.model();
    let table = Setup::new(&whole, options).expect("it fits").memory;
    // Vectors are resident weights, but lie outside of arenas.
    let arenas = arenas(&whole.spec, &*whole.source, 1);
    let vectors: usize = arenas.iter().map(|arena| arena.vector_bytes).sum();
    drop(whole);
    let before = counted_bytes();
    let engine = Engine::start(model.model(), options).expect("it starts");
    let held = counted_bytes() - before;
    drop(engine);
    (accounted_bytes(&table) + vectors as i64, held)
}

/// Every choice that makes something larger makes account and allocation larger alike.
fn account_follows_allocations(small: &ModelSpec) {
    let model = Repeating::of(small, 48);
    let base = options();
    let choices: [(&str, Options); 7] = [
        ("as it is", base.clone()),
        ("context", Options { context: Some(8192), ..base.clone() }),
        ("rows", Options { prefill_chunk: 2048, ..base.clone() }),
        ("waves", Options { waves_max: 24, ..base.clone() }),
        ("threads", Options { threads: Some(9), prefill_chunk: 1024, ..base.clone() }),
        ("logits", Options { logits_rows_max: 128, ..base.clone() }),
        (
            "nodes",
            Options { topology: "pack:1 numa:3 core:1 pu:1".parse().expect("a machine"), ..base },
        ),
    ];
    for (what, options) in choices {
        let (accounted, held) = heap(&model, &options);
        println!("{what}: {accounted} accounted, {held} allocated");
        assert!(held <= accounted + (64 << 10), "{what}: {held} of {accounted}");
        assert!(held * 100 >= accounted * 90, "{what}: {held} of {accounted}");
    }
}

fn own() -> OwnMemory {
    OwnMemory::read(Path::new("/")).expect("Linux says what we hold")
}

/// Forgets the largest amount that was ever resident.
fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("our own peak can be reset");
}

/// A model larger than the budget: resident memory reaches 95 % of it and never exceeds it.
fn budget_is_used_and_kept() {
    const MIB: u64 = 1 << 20;
    let model = Repeating::new(384);
    let held = own().resident_bytes;
    let budget = held + 400 * MIB;
    let options = Options {
        memory: Some(MemoryBudget::Bytes(budget)),
        held_bytes: Some(held),
        prefill_chunk: 32,
        ..options()
    };
    let table = Setup::new(&model.model(), &options).expect("it fits").memory;
    println!("held {} MiB\n{table}", held / MIB);
    assert!(table.total() <= budget && table.total() * 100 >= budget * 98, "{table}");
    assert!(table.slots.iter().zip(&table.experts).all(|(slots, all)| *all == 0 || slots < all));
    forget_peak();
    let engine = Engine::start(model.model(), &options).expect("it starts");
    let request = |first: u32| Request::greedy((0..80).map(|i| (i * 7 + first) % 24).collect(), 40);
    for first in 0..12 {
        let answer = engine.generate(&request(first), &mut |_| ControlFlow::Continue(()));
        answer.expect("no read fails");
    }
    let OwnMemory { resident_bytes_max: peak, anonymous_bytes, .. } = own();
    println!("budget {budget}, peak {peak}, anonymous {anonymous_bytes}");
    assert!(peak <= budget, "{peak} of {budget}");
    let share = (anonymous_bytes.saturating_sub(held)) as f64 / (budget - held) as f64;
    println!("{:.1} % of what the engine may take", share * 100.0);
    assert!(peak * 100 >= budget * 95, "{peak} of {budget}");
}

/// The small model inside: all of it fits, and it takes no more than the table says.
fn table_of_the_embedded_model_is_kept() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nano-glm-dsa");
    let open = || Model::open(&directory).expect("the model opens");
    let model = open();
    let options = Options { held_bytes: Some(own().resident_bytes), ..options() };
    let table = Setup::new(&model, &options).expect("it fits").memory;
    forget_peak();
    let engine = Engine::start(model, &options).expect("it starts");
    let request = Request::greedy((100..200).collect(), 20);
    engine.generate(&request, &mut |_| ControlFlow::Continue(())).expect("no read fails");
    let peak = own().resident_bytes_max;
    println!("embedded: peak {peak}\n{table}");
    assert!(peak <= table.total(), "{peak} of {}", table.total());
}

#[test]
fn account_is_what_is_held() {
    account_follows_allocations(&small_spec());
    account_follows_allocations(&alternating_spec());
    account_follows_allocations(&plain_spec());
    budget_is_used_and_kept();
    table_of_the_embedded_model_is_kept();
}
