//! Counts of durations in the buckets of an HdrHistogram, with room from the start.
//!
//! The layout is HdrHistogram's with three significant digits from 1 ns to 1 h: 2048 buckets of 1 ns,
//! then 1024 of 2 ns, 1024 of 4 ns and so on. One thread writes ([`super::Recorder`] sees to that), any
//! thread may read: a reading may be one record old, never torn. Writing is three plain loads and stores.

use super::latency::{DURATION_NS_MAX, empty_histogram};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// log2 of the buckets of one width, but for the first.
const HALF_BITS: u32 = 10;
/// Buckets of 1 ns.
const FIRST: u64 = 2 << HALF_BITS;

/// Counts of one series.
pub struct Buckets {
    /// A bucket that is full stays so: more than four thousand million of one duration.
    counts: Box<[AtomicU32]>,
    /// How many were recorded, and their sum, exactly.
    records: AtomicU64,
    sum_ns: AtomicU64,
}

impl Default for Buckets {
    fn default() -> Buckets {
        let counts = (0..Buckets::COUNT).map(|_| AtomicU32::new(0)).collect();
        Buckets { counts, records: AtomicU64::new(0), sum_ns: AtomicU64::new(0) }
    }
}

impl Buckets {
    /// How many buckets there are.
    const COUNT: usize = index_of(DURATION_NS_MAX) + 1;

    /// Bytes of one.
    pub const fn bytes() -> usize {
        size_of::<Buckets>() + Buckets::COUNT * size_of::<AtomicU32>()
    }

    /// Counts a duration; what is longer than an hour counts as an hour. For one thread only.
    pub(super) fn record(&self, duration_ns: u64) {
        let duration_ns = duration_ns.min(DURATION_NS_MAX);
        let count = &self.counts[index_of(duration_ns)];
        let one_more = count.load(Ordering::Relaxed).saturating_add(1);
        count.store(one_more, Ordering::Relaxed);
        add(&self.records, 1);
        add(&self.sum_ns, duration_ns);
    }

    /// How many were recorded.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// The sum of all of them, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }

    /// All counts now, for [`difference`].
    pub fn counts(&self) -> Vec<u32> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }
}

/// For the one thread that writes.
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

/// What was recorded between two readings, as a histogram of nanoseconds.
pub fn difference(before: &[u32], now: &[u32]) -> Histogram<u64> {
    let mut histogram = empty_histogram();
    for (index, (&before, &now)) in before.iter().zip(now).enumerate() {
        if now > before {
            // Every value of a bucket is as good: the histogram has the same buckets.
            histogram.saturating_record_n(value_of(index), u64::from(now - before));
        }
    }
    histogram
}

/// The bucket of a duration.
const fn index_of(duration_ns: u64) -> usize {
    let width_bits = (u64::BITS - (duration_ns | (FIRST - 1)).leading_zeros()) - (HALF_BITS + 1);
    ((width_bits as usize) << HALF_BITS) + (duration_ns >> width_bits) as usize
}

/// The shortest duration of a bucket.
fn value_of(index: usize) -> u64 {
    if (index as u64) < FIRST {
        return index as u64;
    }
    let width_bits = (index >> HALF_BITS) as u32 - 1;
    let within = (index & ((1 << HALF_BITS) - 1)) as u64 + (1 << HALF_BITS);
    within << width_bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_the_library() {
        let buckets = Buckets::default();
        let mut library = empty_histogram();
        let before = buckets.counts();
        // Every power of two with its neighbours, and values between by a generator.
        let edges = (0..42u32).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        let between = (0..5000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (22 + i % 40));
        for duration_ns in edges.chain(between) {
            buckets.record(duration_ns);
            library.saturating_record(duration_ns.min(DURATION_NS_MAX));
        }
        let ours = difference(&before, &buckets.counts());
        assert_eq!(ours, library);
        assert_eq!(ours.len(), buckets.records());
    }

    #[test]
    fn a_difference_holds_what_came_between() {
        let buckets = Buckets::default();
        buckets.record(1_000);
        let before = buckets.counts();
        buckets.record(1_000);
        buckets.record(5_000_000_000_000);
        let between = difference(&before, &buckets.counts());
        assert_eq!(between.len(), 2);
        assert_eq!(between.min(), 1_000);
        assert!(between.equivalent(between.max(), DURATION_NS_MAX), "an hour is the longest");
    }
}
