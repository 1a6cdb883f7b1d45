//! All buckets at one moment, and what came between two moments.
//!
//! Taken by the engine's callers, outside of the data path: a snapshot copies some MB.

use super::buckets::{Buckets, difference};
use super::latency::LatencyHistogram;
use super::series::{Series, SeriesTable};

/// All buckets at one moment.
pub struct Snapshot {
    table: SeriesTable,
    counts: Vec<Vec<u32>>,
}

impl Snapshot {
    pub(super) fn new(table: SeriesTable, buckets: &[Buckets]) -> Snapshot {
        Snapshot { table, counts: buckets.iter().map(Buckets::counts).collect() }
    }

    /// What was recorded since an earlier snapshot of the same gauges, by series.
    pub fn since(&self, earlier: &Snapshot) -> Vec<(Series, LatencyHistogram)> {
        let all = self.table.all().into_iter();
        let counts = earlier.counts.iter().zip(&self.counts);
        all.zip(counts)
            .map(|(series, (before, now))| (series, LatencyHistogram(difference(before, now))))
            .collect()
    }
}
