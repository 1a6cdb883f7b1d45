//! The guard with a real engine: memory goes back while the system runs short and comes again, and
//! no answer changes.
//!
//! Alone in its binary and one test after the other: it looks at the whole process.

mod repeating;
mod soaking;

use soaking::{FakeSystem, own_bytes, request, soak, start};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Answers, in order, and waits until the process holds what is wanted; says what it holds.
fn ask_until(engine: &millstream::engine::Engine, wanted: impl Fn(u64) -> bool) -> u64 {
    let since = Instant::now();
    loop {
        for number in 0..4 {
            let answer = engine.generate(&request(number), &mut |_| ControlFlow::Continue(()));
            assert_eq!(answer.expect("no read fails").answer_ids.len(), 24);
        }
        let own = own_bytes();
        if wanted(own) {
            return own;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{} MiB are held", own / MIB);
    }
}

fn memory_falls_while_the_system_is_short_and_comes_back() {
    let system = FakeSystem::new(8 << 30);
    let before = own_bytes();
    let engine = start(&system);
    let full = ask_until(&engine, |own| own > before + 250 * MIB);
    // Reads are in flight when it happens: nobody stops asking.
    system.set(0);
    let low = ask_until(&engine, |own| own < before + 60 * MIB);
    // An engine with nothing to do holds nothing either, and gives nothing more.
    std::thread::sleep(Duration::from_millis(100));
    assert!(own_bytes() < before + 60 * MIB);
    system.set(8 << 30);
    let again = ask_until(&engine, |own| own > before + 250 * MIB);
    println!("{} MiB, {} MiB, {} MiB", full / MIB, low / MIB, again / MIB);
    // Idle, too: nobody has to ask for the guard to be heard.
    system.set(0);
    let since = Instant::now();
    while own_bytes() > before + 60 * MIB {
        assert!(since.elapsed() < Duration::from_secs(60), "an idle engine keeps its memory");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn short_soak_keeps_memory_flat() {
    let report = soak(Duration::from_secs(10));
    println!("{report:?}");
    assert!(report.shortages >= 3 && report.answers > 10, "{report:?}");
    // On a busy machine slots aren't full in every round, so the most says less than the least.
    let [_, least] = report.growth();
    assert!(least < 0.05, "memory grows by {least:.3}");
    let most = report.curve.iter().map(|tenth| tenth.1).max().expect("tenths");
    assert!(most <= report.budget_bytes, "{most} of {}", report.budget_bytes);
}

#[test]
fn memory_is_given_back_under_way() {
    memory_falls_while_the_system_is_short_and_comes_back();
    short_soak_keeps_memory_flat();
}
