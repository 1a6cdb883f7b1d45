//! What the server counts about its answers, for `/metrics` and the dashboard.
//!
//! Counters and histograms of relaxed atomics: every answer's thread adds to them, `/metrics` reads
//! them. Nothing is decided by them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Upper bounds of the buckets of latencies between tokens, in seconds.
const TOKEN_BOUNDS_S: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5];
/// Upper bounds of the buckets of whole answers and of first tokens, in seconds.
const ANSWER_BOUNDS_S: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Reasons of an end, as vLLM names them.
pub const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// A histogram as Prometheus has them.
#[derive(Debug)]
pub struct Histogram {
    bounds_s: &'static [f64; 14],
    /// One more than there are bounds: the last takes all.
    counts: [AtomicU64; 15],
    sum_us: AtomicU64,
}

impl Histogram {
    fn new(bounds_s: &'static [f64; 14]) -> Histogram {
        Histogram { bounds_s, counts: std::array::from_fn(|_| 0.into()), sum_us: 0.into() }
    }

    fn record(&self, seconds: f64) {
        let place = self.bounds_s.partition_point(|&bound| bound < seconds);
        self.counts[place].fetch_add(1, Relaxed);
        self.sum_us.fetch_add((seconds * 1e6) as u64, Relaxed);
    }

    /// Bounds with the counts of all records up to them, then the count and the sum of all.
    pub fn read(&self) -> (Vec<(f64, u64)>, u64, f64) {
        let mut sum = 0;
        let mut up_to = |count: &AtomicU64| {
            sum += count.load(Relaxed);
            sum
        };
        let bounds = self.bounds_s.iter().zip(&self.counts);
        let counts: Vec<_> = bounds.map(|(&bound, count)| (bound, up_to(count))).collect();
        let all = up_to(&self.counts[14]);
        (counts, all, self.sum_us.load(Relaxed) as f64 / 1e6)
    }
}

/// What is counted.
#[derive(Debug)]
pub struct Meter {
    /// Tokens of prompts that were begun.
    pub prompt_tokens: AtomicU64,
    /// Tokens that were generated.
    pub answer_tokens: AtomicU64,
    /// Answers that have ended, by [`REASONS`].
    endings: [AtomicU64; REASONS.len()],
    /// Requests by the hundreds of their status: 2xx, 4xx, 5xx.
    pub statuses: [AtomicU64; 3],
    /// Questions that found the queue full.
    pub refused_busy: AtomicU64,
    /// From the question to the first token.
    pub first_token: Histogram,
    /// Between one token and the next.
    pub between_tokens: Histogram,
    /// From the question to the end.
    pub whole: Histogram,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            prompt_tokens: 0.into(),
            answer_tokens: 0.into(),
            endings: Default::default(),
            statuses: Default::default(),
            refused_busy: 0.into(),
            first_token: Histogram::new(&ANSWER_BOUNDS_S),
            between_tokens: Histogram::new(&TOKEN_BOUNDS_S),
            whole: Histogram::new(&ANSWER_BOUNDS_S),
        }
    }
}

impl Meter {
    /// A watch for one answer, started now.
    pub fn watch(self: &Arc<Meter>, prompt_tokens: usize) -> Watch {
        self.prompt_tokens.fetch_add(prompt_tokens as u64, Relaxed);
        Watch { meter: self.clone(), begun: Instant::now(), last: None }
    }

    /// How many answers have ended, by reason.
    pub fn endings(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.endings.iter().map(|count| count.load(Relaxed)))
    }

    /// A response with this status went out.
    pub fn responded(&self, status: u16) {
        let place = match status {
            0..400 => 0,
            400..500 => 1,
            _ => 2,
        };
        self.statuses[place].fetch_add(1, Relaxed);
        if status == 429 {
            self.refused_busy.fetch_add(1, Relaxed);
        }
    }
}

/// Watches one answer.
#[derive(Debug)]
pub struct Watch {
    meter: Arc<Meter>,
    begun: Instant,
    last: Option<Instant>,
}

impl Watch {
    /// A token came.
    pub fn token(&mut self) {
        let now = Instant::now();
        self.meter.answer_tokens.fetch_add(1, Relaxed);
        match self.last.replace(now) {
            None => self.meter.first_token.record((now - self.begun).as_secs_f64()),
            Some(last) => self.meter.between_tokens.record((now - last).as_secs_f64()),
        }
    }

    /// The answer ended for one of [`REASONS`].
    pub fn ended(self, reason: &str) {
        let place = REASONS.iter().position(|known| *known == reason);
        self.meter.endings[place.expect("a reason of the table")].fetch_add(1, Relaxed);
        self.meter.whole.record(self.begun.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_everything_up_to_each_bound() {
        let histogram = Histogram::new(&TOKEN_BOUNDS_S);
        for seconds in [0.001, 0.0011, 9.0] {
            histogram.record(seconds);
        }
        let (counts, all, sum_s) = histogram.read();
        assert_eq!((counts[0], counts[1], counts[13]), ((0.001, 1), (0.0025, 2), (2.5, 2)));
        assert_eq!(all, 3);
        assert!((sum_s - 9.0021).abs() < 1e-6, "{sum_s}");
    }
}
