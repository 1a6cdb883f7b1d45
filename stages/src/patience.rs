//! How the engine's thread waits for a wave: spins, sleeps for a while, or parks.
//!
//! Owned by the [`Pipeline`](crate::threads::Pipeline)'s handle. A thread that is parked has to be woken, which costs the
//! seat that finished the wave a system call and the waiter some 20 us. Where a CPU is free for it, the
//! waiter therefore looks at how long the last wave took, sleeps through most of that and spins for the
//! rest, so that a seat in steady decode makes no system call at all. Elsewhere it would take the CPU from a
//! compute thread: there it parks.

use std::time::Duration;

/// The longest sleep without a look at the ring: what a wave that is much shorter than the last one
/// waits at most.
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// What a sleep may last longer than asked for.
const SLACK: Duration = Duration::from_micros(150);
/// The longest spin behind the sleep.
const SPIN_MAX: Duration = Duration::from_millis(10);

/// A wave that is late is looked for so often, until it has taken so many times as long as the last one.
const LATE_SLEEP: Duration = Duration::from_micros(200);
const LATE_TIMES: u32 = 4;

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Look again at once.
    Spin,
    /// Look again after this.
    Sleep(Duration),
    /// Wait to be woken.
    Park,
}

/// See the file's story.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    spin: Duration,
    spare_cpu: bool,
    last: Duration,
}

impl Patience {
    /// Spins for so long in any case; `spare_cpu` says that no compute thread is where the waiter runs.
    pub fn new(spin: Duration, spare_cpu: bool) -> Patience {
        Patience { spin, spare_cpu, last: Duration::ZERO }
    }

    /// What to do after having waited for so long.
    pub fn next(&self, waited: Duration) -> Next {
        if waited < self.spin {
            return Next::Spin;
        }
        if !self.spare_cpu || self.spin.is_zero() {
            return Next::Park;
        }
        let near = (self.last * 3 / 4).saturating_sub(SLACK);
        match near.saturating_sub(waited) {
            left if left > SLACK => Next::Sleep(left.min(SLEEP_MAX)),
            _ if waited < (2 * self.last).min(near + SPIN_MAX) => Next::Spin,
            _ if waited < LATE_TIMES * self.last => Next::Sleep(LATE_SLEEP),
            _ => Next::Park,
        }
    }

    /// A wave came after so long.
    pub fn came(&mut self, waited: Duration) {
        self.last = waited;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// What a wait of so long is made of.
    fn steps(patience: &Patience, whole: Duration) -> (Duration, Duration, bool) {
        let (mut waited, mut slept, mut spun) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        while waited < whole {
            match patience.next(waited) {
                Next::Spin => spun += us(1),
                Next::Sleep(time) => {
                    slept += time;
                    waited += time;
                }
                Next::Park => return (slept, spun, true),
            }
            waited += us(1);
        }
        (slept, spun, false)
    }

    #[test]
    fn without_a_spare_cpu_or_spinning_it_parks_soon() {
        let mut patience = Patience::new(us(50), false);
        patience.came(us(16_000));
        assert_eq!(steps(&patience, us(16_000)), (us(0), us(50), true));
        let mut patience = Patience::new(us(0), true);
        patience.came(us(16_000));
        assert_eq!(patience.next(us(0)), Next::Park);
    }

    #[test]
    fn steady_waves_are_slept_through_and_met_awake() {
        let mut patience = Patience::new(us(50), true);
        patience.came(us(16_000));
        let (slept, spun, parked) = steps(&patience, us(16_000));
        assert!(!parked && slept > us(11_000) && spun < us(4_500), "{slept:?} {spun:?}");
    }

    #[test]
    fn what_never_comes_is_parked_for() {
        let mut patience = Patience::new(us(50), true);
        assert!(steps(&patience, us(1_000_000)).2);
        patience.came(us(300_000));
        let (slept, spun, parked) = steps(&patience, us(10_000_000));
        assert!(parked && slept < us(1_200_000) && spun < us(12_000), "{slept:?} {spun:?}");
    }

    #[test]
    fn a_short_wave_after_a_long_one_waits_a_millisecond_at_most() {
        let mut patience = Patience::new(us(50), true);
        patience.came(us(300_000));
        assert_eq!(patience.next(us(60)), Next::Sleep(SLEEP_MAX));
    }
}
