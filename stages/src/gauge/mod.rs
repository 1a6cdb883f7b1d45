//! What the pipeline measures about itself: work and wait per stage, expert hits, reads, tokens.
//!
//! | file | what it is |
//! |---|---|
//! | `series.rs` | the table of durations that are measured all the time |
//! | `buckets.rs` | one series' counts, in HdrHistogram's layout |
//! | `recorder.rs` | one thread's right to record |
//! | `snapshot.rs` | all counts at one moment, and what came between two |
//! | `timeline.rs` | what happened when, for a picture of a few tokens |
//! | `cost.rs` | what all this costs |
//! | `latency.rs`, `log.rs` | histograms for people and for public tools |
//!
//! Counters are written by the seats with relaxed stores and read by the engine between steps; a
//! figure may be one message old, never torn. This folder is the home of hdrhistogram.

mod buckets;
mod cost;
mod latency;
pub mod log;
mod recorder;
mod series;
mod snapshot;
mod timeline;

pub use buckets::Buckets;
pub use cost::cost_ns_per_message;
pub use latency::LatencyHistogram;
pub use recorder::{Handling, Recorder, now_ns};
pub use series::{Series, SeriesTable};
pub use snapshot::Snapshot;
pub use timeline::{Event, Timeline};

use crate::kind::STAGES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    table: SeriesTable,
    buckets: Arc<[Buckets]>,
    /// By series: it has its writer.
    taken: Vec<AtomicBool>,
    timeline: Option<Arc<Timeline>>,
    /// Since when the compute seat has had nothing to do, in nanoseconds after `started`; 0 while it
    /// works.
    idle_since_ns: AtomicU64,
    /// Since when reads have been under way, likewise; 0 while none is.
    reading_since_ns: AtomicU64,
    reading_ns: AtomicU64,
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
    /// When ([`now_ns`]).
    pub at_ns: u64,
    /// Nanoseconds of handling messages, by the order of [`STAGES`].
    pub stage_work_ns: [u64; STAGES.len()],
    /// Messages handled, by the order of [`STAGES`].
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

impl Gauges {
    /// Nothing counted yet; with room for `timeline_events_max` events of a timeline, or none.
    pub fn new(table: SeriesTable, timeline_events_max: usize) -> Gauges {
        let timeline = (timeline_events_max > 0).then(|| Timeline::new(timeline_events_max));
        Gauges {
            started: Instant::now(),
            table,
            buckets: (0..table.len()).map(|_| Buckets::default()).collect(),
            taken: (0..table.len()).map(|_| AtomicBool::new(false)).collect(),
            timeline: timeline.map(Arc::new),
            idle_since_ns: AtomicU64::new(0),
            reading_since_ns: AtomicU64::new(0),
            reading_ns: AtomicU64::new(0),
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

    /// Bytes of [`Gauges::new`].
    pub fn bytes(table: SeriesTable, timeline_events_max: usize) -> usize {
        table.len() * Buckets::bytes() + Timeline::bytes(timeline_events_max)
    }

    /// The right to record the series that `mine` says, for one thread; `seat` is its number in the
    /// timeline.
    ///
    /// # Panics
    /// When one of them has its writer already.
    pub fn recorder(&self, seat: u32, mine: impl Fn(Series) -> bool) -> Recorder {
        let all = self.table.all();
        let mine: Vec<bool> = all.iter().map(|&series| mine(series)).collect();
        for (series, taken) in
            all.iter().zip(&self.taken).zip(&mine).filter(|(_, mine)| **mine).map(|(it, _)| it)
        {
            assert!(!taken.swap(true, Ordering::Relaxed), "{series} has two writers");
        }
        Recorder::new(self.table, self.buckets.clone(), mine, self.timeline.clone(), seat)
    }

    /// All series at this moment.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.table, &self.buckets)
    }

    /// The counts of a series.
    pub fn series(&self, series: Series) -> &Buckets {
        &self.buckets[self.table.index(series)]
    }

    /// Where events are kept, if that was asked for at start.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_deref()
    }

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
        let work = |stage: usize| self.series(Series::Work(STAGES[stage].0));
        Reading {
            at_ns: now_ns(),
            stage_work_ns: std::array::from_fn(|stage| work(stage).sum_ns()),
            stage_messages: std::array::from_fn(|stage| work(stage).records()),
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
