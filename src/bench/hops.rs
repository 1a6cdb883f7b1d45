//! How long a message takes from one spinning thread to another: the price of a seat of its own.
//!
//! Two threads, each pinned to a core of its own, pass one message back and forth through two of the
//! pipeline's rings. A hop lasts from just before the push to just after the pop; both threads read one
//! clock. Between hops the sender works for a while, as a stage would, or not at all.

use millstream_stages::gauge::{LatencyHistogram, now_ns};
use millstream_stages::ids::Tag;
use millstream_stages::queue::{Ring, Tagged, prepare_thread};
use millstream_topology::cpuset::CpuId;
use millstream_topology::machine::Machine;
use millstream_topology::pin::pin_current_thread;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a sender does between two hops.
const GAPS_US: [u64; 3] = [0, 5, 50];

/// Hops with one gap.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HopRow {
    /// Work between two hops.
    pub gap_us: u64,
    /// How many hops.
    pub hops: u64,
    /// Half of them took no longer.
    pub hop_ns_p50: u64,
    /// 90 % of them took no longer.
    pub hop_ns_p90: u64,
    /// 99 % of them took no longer.
    pub hop_ns_p99: u64,
    /// 99.9 % of them took no longer.
    pub hop_ns_p99_9: u64,
    /// The longest: the system took the CPU away, as a rule.
    pub hop_ns_max: u64,
}

/// Hops between two cores.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HopReport {
    /// The two CPUs.
    pub cpus: [CpuId; 2],
    /// By gap.
    pub rows: Vec<HopRow>,
}

/// Hops can't be measured here.
#[derive(Debug, thiserror::Error)]
pub enum HopError {
    /// There is one core.
    #[error("hops need two cores that this process may use, and there is {cores}")]
    Cores {
        /// How many there are.
        cores: usize,
    },
    /// A thread can't be pinned.
    #[error(transparent)]
    Pin(#[from] millstream_topology::PinError),
}

type Message = Tagged<u64>;

/// Measures hops with each gap, each for so long.
///
/// # Errors
/// When there aren't two cores, or threads can't be pinned to them.
pub fn hops(machine: &Machine, time: Duration) -> Result<HopReport, HopError> {
    let firsts: Vec<CpuId> = machine.usable_cores().map(|core| core.cpus[0]).collect();
    let [first, second, ..] = firsts[..] else {
        return Err(HopError::Cores { cores: firsts.len() });
    };
    let rows = GAPS_US.iter().map(|&gap_us| hops_with_gap([first, second], gap_us, time));
    Ok(HopReport { cpus: [first, second], rows: rows.collect::<Result<_, _>>()? })
}

fn hops_with_gap(cpus: [CpuId; 2], gap_us: u64, time: Duration) -> Result<HopRow, HopError> {
    let rings: [Ring<u64>; 2] = [Ring::new(4), Ring::new(4)];
    let over = AtomicBool::new(false);
    let gap = Duration::from_micros(gap_us);
    let side = |mine: usize| -> Result<LatencyHistogram, HopError> {
        prepare_thread();
        // A thread that can't be pinned must not leave the other one waiting.
        pin_current_thread(cpus[mine]).inspect_err(|_| over.store(true, Ordering::Release))?;
        let (inbox, outbox) = (&rings[mine], &rings[1 - mine]);
        let (mut histogram, since) = (LatencyHistogram::default(), Instant::now());
        if mine == 0 {
            send(outbox);
        }
        while let Some(duration) = receive(inbox, &over) {
            histogram.record(duration);
            work(gap);
            if mine == 0 && since.elapsed() >= time {
                over.store(true, Ordering::Release);
                break;
            }
            send(outbox);
        }
        Ok(histogram)
    };
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| side(1));
        let first = scope.spawn(|| side(0));
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        (join(first), join(other))
    });
    let mut histogram = first?;
    histogram.add(&second?);
    Ok(HopRow {
        gap_us,
        hops: histogram.records(),
        hop_ns_p50: histogram.percentile_ns(50.0),
        hop_ns_p90: histogram.percentile_ns(90.0),
        hop_ns_p99: histogram.percentile_ns(99.0),
        hop_ns_p99_9: histogram.percentile_ns(99.9),
        hop_ns_max: histogram.max_ns(),
    })
}

fn send(outbox: &Ring<u64>) {
    let message = Message { tag: Tag::default(), value: now_ns() };
    assert!(outbox.push(message).is_ok(), "one message at a time");
}

/// Spins until a message is there; none when there will be none.
fn receive(inbox: &Ring<u64>, over: &AtomicBool) -> Option<Duration> {
    loop {
        if let Some(message) = inbox.pop() {
            return Some(Duration::from_nanos(now_ns() - message.value));
        }
        if over.load(Ordering::Acquire) {
            return None;
        }
        std::hint::spin_loop();
    }
}

fn work(gap: Duration) {
    let until_ns = now_ns() + gap.as_nanos() as u64;
    while !gap.is_zero() && now_ns() < until_ns {
        std::hint::spin_loop();
    }
}

impl fmt::Display for HopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.cpus;
        writeln!(f, "Hops between spinning threads on CPUs {first} and {second}.\n")?;
        writeln!(f, "| gap us | hops | p50 ns | p90 ns | p99 ns | p99.9 ns | max ns |")?;
        writeln!(f, "|---:|---:|---:|---:|---:|---:|---:|")?;
        for row in &self.rows {
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {} | {} |",
                row.gap_us,
                row.hops,
                row.hop_ns_p50,
                row.hop_ns_p90,
                row.hop_ns_p99,
                row.hop_ns_p99_9,
                row.hop_ns_max
            )?;
        }
        Ok(())
    }
}
