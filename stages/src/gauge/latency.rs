//! Histograms of durations outside of the data path: the home of hdrhistogram's bounds.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Longest duration that is told apart: one hour.
pub const DURATION_NS_MAX: u64 = 3_600_000_000_000;

/// A histogram of nanoseconds up to an hour with three significant digits.
pub fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, DURATION_NS_MAX, 3).expect("the bounds are constants that fit")
}

/// Durations up to an hour with three significant digits. Recording doesn't allocate.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyHistogram(pub(super) Histogram<u64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram(empty_histogram())
    }
}

impl LatencyHistogram {
    /// Counts one duration; what is out of bounds counts as the bound.
    pub fn record(&mut self, duration: Duration) {
        let nanoseconds = duration.as_nanos().min(u128::from(DURATION_NS_MAX)) as u64;
        self.0.saturating_record(nanoseconds);
    }

    /// How many there are.
    pub fn records(&self) -> u64 {
        self.0.len()
    }

    /// The duration that `percent` of the recorded ones don't exceed, in nanoseconds.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_percentile(percent) }
    }

    /// The same in whole microseconds, at least 1 where there is any.
    pub fn percentile_us(&self, percent: f64) -> u64 {
        if self.0.is_empty() { 0 } else { (self.percentile_ns(percent) / 1000).max(1) }
    }

    /// The longest duration, in whole microseconds.
    pub fn max_us(&self) -> u64 {
        self.percentile_us(100.0)
    }

    /// The longest duration, in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.percentile_ns(100.0)
    }

    /// The mean, in nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.mean() }
    }

    /// Takes another one's durations in.
    pub fn add(&mut self, other: &LatencyHistogram) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Points of the distribution, (share up to which, nanoseconds), for pictures: five to each
    /// halving of what is left.
    pub fn points(&self) -> Vec<(f64, u64)> {
        let points = self.0.iter_quantiles(5);
        points.map(|p| (p.quantile_iterated_to(), p.value_iterated_to())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_have_three_digits_and_nothing_recorded_is_zero() {
        let mut latency = LatencyHistogram::default();
        assert_eq!((latency.percentile_us(50.0), latency.max_ns()), (0, 0));
        for microseconds in 1..=1000 {
            latency.record(Duration::from_micros(microseconds));
        }
        assert!(latency.percentile_us(50.0).abs_diff(500) <= 1, "{}", latency.percentile_us(50.0));
        assert!(latency.percentile_us(99.0).abs_diff(990) <= 1);
        latency.record(Duration::from_secs(10_000));
        assert!(latency.max_ns() >= DURATION_NS_MAX);
    }
}
