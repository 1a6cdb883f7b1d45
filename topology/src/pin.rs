//! Pins the calling thread to one CPU (the home of core_affinity), or keeps it to a set of them, and
//! looks whether it took.
//!
//! Called by a thread once, as its first act. A pinned thread passes its one-CPU mask
//! on to every thread it starts, so threads that should stay unpinned are started from an unpinned
//! one: start all threads first, let each pin itself.

use crate::affinity::AffinityMask;
use crate::cpuset::{CpuId, CpuSet};
use std::path::Path;

/// core_affinity (through the C library's fixed set) knows CPUs below this number.
const CPUS_MAX: u32 = 1024;

/// Why a thread is not pinned. It still runs, wherever the kernel puts it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The process was started without this CPU.
    #[error(
        "CPU {cpu} is outside the CPUs that this process may use ({allowed}); widen `taskset` or \
         the cpuset, or make a new plan"
    )]
    NotAllowed {
        /// The CPU.
        cpu: CpuId,
        /// The captured mask.
        allowed: CpuSet,
    },
    /// The number is beyond what the system call's fixed set holds.
    #[error("CPU {cpu} can't be pinned to: numbers from 1024 on don't fit; use lower CPUs")]
    NumberTooLarge {
        /// The CPU.
        cpu: CpuId,
    },
    /// The kernel refused.
    #[error("the kernel refused to pin a thread to CPU {cpu}; is it offline? Make a new plan")]
    Refused {
        /// The CPU.
        cpu: CpuId,
    },
    /// There would be no CPU to run on.
    #[error("no CPU would be left to run on; avoid fewer")]
    NoneLeft,
    /// The kernel took the call and did something else.
    #[error(
        "pinned a thread to CPU {cpu}, but the kernel lets it run on {now}; a cpuset changed \
         meanwhile: make a new plan"
    )]
    NotTaken {
        /// The CPU.
        cpu: CpuId,
        /// The thread's mask after the call.
        now: CpuSet,
    },
}

/// Pins the calling thread to a CPU of the captured mask, and reads the mask back.
///
/// # Errors
/// When the CPU isn't ours, or the kernel didn't do it.
pub fn pin_current_thread(cpu: CpuId) -> Result<(), PinError> {
    let captured = AffinityMask::capture();
    if let Some(allowed) = captured.cpus.as_ref().filter(|allowed| !allowed.contains(cpu)) {
        return Err(PinError::NotAllowed { cpu, allowed: allowed.clone() });
    }
    if cpu.0 >= CPUS_MAX {
        return Err(PinError::NumberTooLarge { cpu });
    }
    if !core_affinity::set_for_current(core_affinity::CoreId { id: cpu.index() }) {
        return Err(PinError::Refused { cpu });
    }
    let now = current_cpus();
    if now.len() != 1 || !now.contains(cpu) {
        return Err(PinError::NotTaken { cpu, now });
    }
    Ok(())
}

/// Keeps the calling thread, and every thread that it starts from now on, off some CPUs. Threads that
/// are pinned later may still be pinned to any CPU that the process was started with.
///
/// # Errors
/// When no CPU would be left, or the kernel refuses.
pub fn stay_off(avoid: &CpuSet) -> Result<(), PinError> {
    keep_to(&current_cpus().without(avoid))
}

/// Keeps the calling thread to those of some CPUs that it may run on; where that is none, it stays
/// as it is.
///
/// # Errors
/// When the kernel refuses.
pub fn stay_near(cpus: &CpuSet) -> Result<(), PinError> {
    let common = current_cpus().intersection(cpus);
    if common.is_empty() { Ok(()) } else { keep_to(&common) }
}

/// Sets the calling thread's mask.
fn keep_to(cpus: &CpuSet) -> Result<(), PinError> {
    let Some(first) = cpus.first() else { return Err(PinError::NoneLeft) };
    let mut mask = rustix::thread::CpuSet::new();
    for cpu in cpus.iter() {
        if cpu.0 >= CPUS_MAX {
            return Err(PinError::NumberTooLarge { cpu });
        }
        mask.set(cpu.index());
    }
    rustix::thread::sched_setaffinity(None, &mask).map_err(|_| PinError::Refused { cpu: first })?;
    let now = current_cpus();
    if now != *cpus { Err(PinError::NotTaken { cpu: first, now }) } else { Ok(()) }
}

/// The CPUs that the calling thread may run on now.
fn current_cpus() -> CpuSet {
    AffinityMask::read(Path::new("/")).cpus.unwrap_or_else(|| {
        let ids = core_affinity::get_core_ids().unwrap_or_default();
        ids.iter().filter_map(|core| u32::try_from(core.id).ok()).map(CpuId).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_thread_may_run_on_that_cpu_only() {
        let allowed = AffinityMask::capture().cpus.clone().expect("Linux tells the mask");
        std::thread::scope(|scope| {
            for cpu in allowed.iter().take(4) {
                scope.spawn(move || {
                    pin_current_thread(cpu).unwrap();
                    assert_eq!(current_cpus(), [cpu].into_iter().collect());
                });
            }
        });
    }

    #[test]
    fn avoided_cpus_are_left_and_a_set_is_kept_to() {
        let allowed = AffinityMask::capture().cpus.clone().expect("Linux tells the mask");
        let first: CpuSet = allowed.first().into_iter().collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(stay_off(&allowed), Err(PinError::NoneLeft));
                stay_near(&[CpuId(1000)].into_iter().collect()).unwrap();
                assert_eq!(current_cpus(), allowed, "nothing in common: as it was");
                if allowed.len() == 1 {
                    println!("one CPU only: nothing more to check");
                    return;
                }
                stay_off(&first).unwrap();
                let others = allowed.without(&first);
                assert_eq!(current_cpus(), others);
                std::thread::scope(|inner| {
                    inner.spawn(|| assert_eq!(current_cpus(), others, "threads inherit it"));
                });
                let last: CpuSet = others.iter().last().into_iter().collect();
                stay_near(&last).unwrap();
                assert_eq!(current_cpus(), last);
            });
        });
    }

    #[test]
    fn captured_mask_outlives_a_pin() {
        let allowed = AffinityMask::capture().clone();
        let cpu = allowed.cpus.as_ref().and_then(CpuSet::first).expect("Linux tells the mask");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin_current_thread(cpu).unwrap();
                assert_eq!(*AffinityMask::capture(), allowed);
            });
        });
    }

    #[test]
    fn cpu_outside_the_mask_is_refused_before_the_kernel_is_asked() {
        let allowed = AffinityMask::capture().cpus.clone().expect("Linux tells the mask");
        let cpu = CpuId(allowed.iter().last().map_or(0, |cpu| cpu.0 + 1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = current_cpus();
                assert_eq!(pin_current_thread(cpu), Err(PinError::NotAllowed { cpu, allowed }));
                assert_eq!(current_cpus(), before);
            });
        });
    }
}
