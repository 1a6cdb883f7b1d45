//! A soak: two clients, reads ahead, and a guard that is shown a system which runs short and recovers
//! over and over. Answers must stay the same and memory must stay flat.

use crate::repeating::Repeating;
use millstream::engine::{Engine, MemoryBudget, Options, Request};
use millstream_stages::prefetch::Lookahead;
use millstream_topology::memory::OwnMemory;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Experts a layer: more than the budget holds.
const EXPERTS: usize = 256;
/// What the engine may take beside what the process held before.
const BUDGET_BYTES: u64 = 300 << 20;
/// Prompts that clients ask, each with an answer that is known.
const PROMPTS: u32 = 6;

/// What the kernel would say, in a directory of our own.
pub struct FakeSystem(tempfile::TempDir);

impl FakeSystem {
    /// A system of 16 GiB with so much left.
    pub fn new(available_bytes: u64) -> FakeSystem {
        // In memory, so that a busy drive holds nobody up.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let system = FakeSystem(directory.expect("a temporary directory"));
        std::fs::create_dir(system.root().join("proc")).expect("a directory");
        system.set(available_bytes);
        system
    }

    /// Where its `proc` is.
    pub fn root(&self) -> &Path {
        self.0.path()
    }

    /// So much is left from now on.
    pub fn set(&self, available_bytes: u64) {
        let text =
            format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 16 << 20, available_bytes >> 10);
        let fresh = self.root().join("proc/fresh");
        std::fs::write(&fresh, text).expect("written");
        // All at once: a reader sees the one or the other.
        std::fs::rename(fresh, self.root().join("proc/meminfo")).expect("renamed");
    }
}

/// What the process holds that no file backs.
pub fn own_bytes() -> u64 {
    OwnMemory::read(Path::new("/")).expect("Linux says what we hold").anonymous_bytes
}

/// A request of the soak.
pub fn request(number: u32) -> Request {
    Request::greedy((0..30).map(|i| (i * 7 + number * 5) % 24).collect(), 24)
}

/// The engine of the soak, under a guard that looks at the fake system every 20 ms.
pub fn start(system: &FakeSystem) -> Engine {
    let held = OwnMemory::read(Path::new("/")).expect("Linux says what we hold").resident_bytes;
    let options = Options {
        threads: Some(2),
        context: Some(128),
        prefill_chunk: 16,
        memory: Some(MemoryBudget::Bytes(held + BUDGET_BYTES)),
        held_bytes: Some(held),
        memory_root: system.root().into(),
        guard_period: Some(Duration::from_millis(20)),
        lookahead: Lookahead::GateTwice,
        sequences_max: 2,
        waves_max: 2,
        ..Options::default()
    };
    Engine::start(Repeating::new(EXPERTS).model(), &options).expect("it starts")
}

/// What a soak saw.
#[derive(Debug)]
pub struct Report {
    /// Answers, all of them as expected.
    pub answers: u64,
    /// Times that memory ran short.
    pub shortages: u64,
    /// What the process may hold.
    pub budget_bytes: u64,
    /// (seconds, largest and smallest own bytes) of each tenth of the time.
    pub curve: Vec<(f64, u64, u64)>,
}

impl Report {
    /// By which share memory grew from the early tenths to the late ones: largest, smallest.
    pub fn growth(&self) -> [f64; 2] {
        let of = |from: usize, to: usize| {
            let part = &self.curve[from..to];
            let most = part.iter().map(|tenth| tenth.1).max().expect("tenths");
            (most as f64, part.iter().map(|tenth| tenth.2).min().expect("tenths") as f64)
        };
        // The first two tenths fill the slots.
        let (early, late) = (of(2, 6), of(6, 10));
        [late.0 / early.0 - 1.0, late.1 / early.1 - 1.0]
    }
}

/// Soaks for so long.
///
/// # Panics
/// When an answer differs, a read fails or the engine stops.
pub fn soak(time: Duration) -> Report {
    let plenty = 8 << 30;
    let held = OwnMemory::read(Path::new("/")).expect("Linux says what we hold").resident_bytes;
    let budget_bytes = held + BUDGET_BYTES;
    let system = FakeSystem::new(plenty);
    let engine = start(&system);
    let ask = |number: u32| {
        let answer = engine.generate(&request(number), &mut |_| ControlFlow::Continue(()));
        answer.expect("no read fails").answer_ids
    };
    let expected: Vec<Vec<u32>> = (0..PROMPTS).map(ask).collect();
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let client = |first: u32| {
        for number in first.. {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let number = number % PROMPTS;
            assert_eq!(ask(number), expected[number as usize], "prompt {number}");
            answers.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (mut curve, mut shortages, mut was_short) = (vec![], 0, false);
    std::thread::scope(|scope| {
        let clients = [0, 3].map(|first| scope.spawn(move || client(first)));
        // Time in which the process ran: it may be stopped for a while by its user.
        let mut ran = Duration::ZERO;
        for tenth in 1..=10 {
            let (mut most, mut least) = (0, u64::MAX);
            while ran < time * tenth / 10 && !clients.iter().any(|client| client.is_finished()) {
                // Short for 150 ms, then plenty for long enough to fill slots again.
                let is_short = ran.as_millis() % 1000 < 150;
                if is_short != was_short {
                    system.set(if is_short { 0 } else { plenty });
                    shortages += u64::from(is_short);
                    was_short = is_short;
                }
                let since = Instant::now();
                std::thread::sleep(Duration::from_millis(10));
                ran += since.elapsed().min(Duration::from_millis(50));
                let own = own_bytes();
                (most, least) = (most.max(own), least.min(own));
            }
            curve.push((ran.as_secs_f64(), most, least));
        }
        over.store(true, Ordering::Relaxed);
    });
    Report { answers: answers.into_inner(), shortages, budget_bytes, curve }
}
