//! What the pipeline measures about itself: work per stage, expert hits, bytes read.
//!
//! Counters are written by the seats with relaxed stores and read by the engine between steps; a
//! figure may be one message old, never torn. [`LatencyHistogram`] is the home of hdrhistogram.

use crate::kind::{STAGES, StageKind};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What became of an expert that was read as a guess.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HintOutcome {
    /// In its slot when a wave came for it.
    Useful = 0,
    /// On its way when a wave came for it.
    Late = 1,
    /// Replaced before any wave came for it.
    Wasted = 2,
}

/// Counters of a running pipeline.
pub struct Gauges {
    started: Instant,
    /// Since when the compute seat has had nothing to do, in nanoseconds after `started`; 0 while it
    /// works.
    idle_since_ns: AtomicU64,
    /// Since when reads have been under way, likewise; 0 while none is.
    reading_since_ns: AtomicU64,
    reading_ns: AtomicU64,
    stage_work_ns: [AtomicU64; STAGES.len()],
    stage_messages: [AtomicU64; STAGES.len()],
    expert_hits: AtomicU64,
    expert_misses: AtomicU64,
    hints: AtomicU64,
    /// By [`HintOutcome`].
    hint_bytes: [AtomicU64; 3],
    bytes_read: AtomicU64,
    reads_failed: AtomicU64,
    reads_retried: AtomicU64,
    compute_idle_ns: AtomicU64,
    weight_bytes: AtomicU64,
    caps_taken: AtomicU64,
    bytes_given_back: AtomicU64,
}

/// One reading of the [`Gauges`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Nanoseconds of handling messages, by [`StageKind`] order.
    pub stage_work_ns: [u64; STAGES.len()],
    /// Messages handled, by [`StageKind`] order.
    pub stage_messages: [u64; STAGES.len()],
    /// Experts that a chunk found in a slot.
    pub expert_hits: u64,
    /// Experts that a chunk had to wait for.
    pub expert_misses: u64,
    /// Loads that were started as guesses.
    pub hints: u64,
    /// Bytes of guesses that came to an end, by [`HintOutcome`].
    pub hint_bytes: [u64; 3],
    /// Bytes read from the model's files.
    pub bytes_read: u64,
    /// Expert reads that failed.
    pub reads_failed: u64,
    /// Expert reads that failed on one copy of the files and were tried on another.
    pub reads_retried: u64,
    /// Nanoseconds in which the compute seat had nothing to do.
    pub compute_idle_ns: u64,
    /// Nanoseconds in which reads were under way.
    pub reading_ns: u64,
    /// Bytes of weights that the kernels went through.
    pub weight_bytes: u64,
    /// Bytes of slots that were given back to the system.
    pub bytes_given_back: u64,
}

impl Default for Gauges {
    fn default() -> Gauges {
        Gauges {
            started: Instant::now(),
            idle_since_ns: AtomicU64::new(0),
            reading_since_ns: AtomicU64::new(0),
            reading_ns: AtomicU64::new(0),
            stage_work_ns: Default::default(),
            stage_messages: Default::default(),
            expert_hits: AtomicU64::new(0),
            expert_misses: AtomicU64::new(0),
            hints: AtomicU64::new(0),
            hint_bytes: Default::default(),
            bytes_read: AtomicU64::new(0),
            reads_failed: AtomicU64::new(0),
            reads_retried: AtomicU64::new(0),
            compute_idle_ns: AtomicU64::new(0),
            weight_bytes: AtomicU64::new(0),
            caps_taken: AtomicU64::new(0),
            bytes_given_back: AtomicU64::new(0),
        }
    }
}

impl Gauges {
    /// A chunk found an expert in a slot.
    pub fn expert_hit(&self) {
        add(&self.expert_hits, 1);
    }

    /// A chunk waits for an expert.
    pub fn expert_miss(&self) {
        add(&self.expert_misses, 1);
    }

    /// A load was started as a guess.
    pub fn hint(&self) {
        add(&self.hints, 1);
    }

    /// A guess of so many bytes came to its end.
    pub fn hint_ended(&self, outcome: HintOutcome, bytes: u64) {
        add(&self.hint_bytes[outcome as usize], bytes);
    }

    /// Bytes came from a file.
    pub fn bytes_read(&self, bytes: u64) {
        add(&self.bytes_read, bytes);
    }

    /// An expert read failed for good.
    pub fn read_failed(&self) {
        add(&self.reads_failed, 1);
    }

    /// An expert read failed on one copy of the files and is tried on another.
    pub fn read_retried(&self) {
        add(&self.reads_retried, 1);
    }

    /// The compute seat has nothing to do from now on.
    pub fn compute_rests(&self) {
        self.idle_since_ns.store(self.now_ns().max(1), Ordering::Relaxed);
    }

    /// The compute seat works again.
    pub fn compute_works(&self) {
        add(&self.compute_idle_ns, self.since_ns(&self.idle_since_ns));
        self.idle_since_ns.store(0, Ordering::Relaxed);
    }

    /// Says whether reads are under way; counts the time in which they are.
    pub fn reads_under_way(&self, reading: bool) {
        let since = get(&self.reading_since_ns);
        match (since, reading) {
            (0, true) => self.reading_since_ns.store(self.now_ns().max(1), Ordering::Relaxed),
            (0, false) | (_, true) => {}
            (since, false) => {
                add(&self.reading_ns, self.now_ns().saturating_sub(since));
                self.reading_since_ns.store(0, Ordering::Relaxed);
            }
        }
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// How long ago something began; 0 when it isn't going on.
    fn since_ns(&self, since: &AtomicU64) -> u64 {
        match get(since) {
            0 => 0,
            since => self.now_ns().saturating_sub(since),
        }
    }

    /// The kernels went through this many bytes of weights.
    pub fn weight_bytes(&self, bytes: u64) {
        add(&self.weight_bytes, bytes);
    }

    /// A prefetcher took a new cap.
    pub fn cap_taken(&self) {
        self.caps_taken.fetch_add(1, Ordering::Release);
    }

    /// Caps that were taken.
    pub fn caps_taken(&self) -> u64 {
        self.caps_taken.load(Ordering::Acquire)
    }

    /// A slot's pages went back to the system.
    pub fn bytes_given_back(&self, bytes: u64) {
        add(&self.bytes_given_back, bytes);
    }

    /// All counters, now.
    pub fn read(&self) -> Reading {
        let all = |counters: &[AtomicU64; STAGES.len()]| {
            std::array::from_fn(|stage| get(&counters[stage]))
        };
        Reading {
            stage_work_ns: all(&self.stage_work_ns),
            stage_messages: all(&self.stage_messages),
            expert_hits: get(&self.expert_hits),
            expert_misses: get(&self.expert_misses),
            hints: get(&self.hints),
            hint_bytes: std::array::from_fn(|outcome| get(&self.hint_bytes[outcome])),
            bytes_read: get(&self.bytes_read),
            reads_failed: get(&self.reads_failed),
            reads_retried: get(&self.reads_retried),
            compute_idle_ns: get(&self.compute_idle_ns) + self.since_ns(&self.idle_since_ns),
            reading_ns: get(&self.reading_ns) + self.since_ns(&self.reading_since_ns),
            weight_bytes: get(&self.weight_bytes),
            bytes_given_back: get(&self.bytes_given_back),
        }
    }
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Times the handling of one message.
pub struct StageTimer(Instant);

impl StageTimer {
    /// Starts.
    pub fn start() -> StageTimer {
        StageTimer(Instant::now())
    }

    /// Stops and counts.
    pub fn stop(self, gauges: &Gauges, stage: StageKind) {
        add(&gauges.stage_work_ns[stage as usize], self.0.elapsed().as_nanos() as u64);
        add(&gauges.stage_messages[stage as usize], 1);
    }
}

/// Latencies from 1 us to 1 h with three significant digits. Recording doesn't allocate.
pub struct LatencyHistogram(Histogram<u64>);

/// Longest latency that is told apart: one hour.
const LATENCY_US_MAX: u64 = 3_600_000_000;

impl Default for LatencyHistogram {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
        LatencyHistogram(histogram.expect("the bounds are constants that fit"))
    }
}

impl LatencyHistogram {
    /// Counts one latency; what is out of bounds counts as the bound.
    pub fn record(&mut self, latency: std::time::Duration) {
        let latency_us = latency.as_micros().clamp(1, u128::from(LATENCY_US_MAX)) as u64;
        self.0.saturating_record(latency_us);
    }

    /// The latency that `percent` of the recorded ones don't exceed, in microseconds.
    pub fn percentile_us(&self, percent: f64) -> u64 {
        self.0.value_at_percentile(percent)
    }

    /// The largest latency, in microseconds.
    pub fn max_us(&self) -> u64 {
        self.0.max()
    }
}
