//! One thread's right to record: its series, and the timeline.
//!
//! A recorder is owned by a seat, or by the engine's scheduler, and holds the buckets that it alone
//! writes; [`super::Gauges::recorder`] hands each series out once. Recording allocates nothing, takes no
//! lock and orders nothing: the buckets are read between steps, or after them.

use super::buckets::Buckets;
use super::series::{Series, SeriesTable};
use super::timeline::{Event, Timeline};
use crate::kind::{ActorId, StageKind};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// The moment from which [`now_ns`] counts.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since a moment that is the same for all threads of the process; never 0.
pub fn now_ns() -> u64 {
    EPOCH.elapsed().as_nanos() as u64 + 1
}

/// Records durations of the series that are its own.
pub struct Recorder {
    table: SeriesTable,
    buckets: Arc<[Buckets]>,
    /// By series: whether this recorder writes it.
    mine: Vec<bool>,
    timeline: Option<Arc<Timeline>>,
    /// Which seat the events of the timeline are of.
    seat: u32,
}

/// When a message was sent, and when its handling began and ended; in [`now_ns`].
#[derive(Clone, Copy, Debug)]
pub struct Handling {
    /// 0 where that means nothing: what a seat's own desk says.
    pub sent_ns: u64,
    /// Beginning.
    pub begin_ns: u64,
    /// End.
    pub end_ns: u64,
}

impl Recorder {
    pub(super) fn new(
        table: SeriesTable,
        buckets: Arc<[Buckets]>,
        mine: Vec<bool>,
        timeline: Option<Arc<Timeline>>,
        seat: u32,
    ) -> Recorder {
        Recorder { table, buckets, mine, timeline, seat }
    }

    /// Counts a duration.
    pub fn record(&mut self, series: Series, duration_ns: u64) {
        let index = self.table.index(series);
        debug_assert!(self.mine[index], "{series} has another writer");
        self.buckets[index].record(duration_ns);
    }

    /// A message was handled.
    pub fn handled(&mut self, actor: ActorId, handling: Handling) {
        let Handling { sent_ns, begin_ns, end_ns } = handling;
        self.record(Series::Work(actor.stage), end_ns.saturating_sub(begin_ns));
        if sent_ns > 0 {
            self.record(Series::Wait(actor.stage), begin_ns.saturating_sub(sent_ns));
        }
        if let Some(timeline) = &self.timeline {
            let seat = self.seat;
            timeline.add(Event::Handled { seat, actor, sent_ns, begin_ns, end_ns });
        }
    }

    /// One read of a file ended.
    pub fn read(&mut self, copy: usize, begin_ns: u64, end_ns: u64) {
        self.record(Series::Read { copy }, end_ns.saturating_sub(begin_ns));
        if let Some(timeline) = &self.timeline {
            timeline.add(Event::Read { copy: copy as u32, begin_ns, end_ns });
        }
    }

    /// The stages of a seat, which [`super::Gauges::recorder`] asks for.
    pub fn of_stages(hosts: impl Fn(StageKind) -> bool) -> impl Fn(Series) -> bool {
        move |series| match series {
            Series::Work(stage) | Series::Wait(stage) => hosts(stage),
            Series::ExpertWait { .. } | Series::Read { .. } => hosts(StageKind::Load),
            _ => false,
        }
    }
}
