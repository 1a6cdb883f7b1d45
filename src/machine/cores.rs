//! CPUs: those that we may use, how much of them, and how fast they run.

use super::sight::{Sight, file};
use crate::checkpoint::examine::{Finding, Place};

/// Fewer CPUs than the machine has.
pub fn allowed(sight: &Sight, found: &mut Vec<Finding>) {
    let cpus: usize = sight.machine.cores.iter().map(|core| core.cpus.len()).sum();
    let allowed = &sight.machine.allowed;
    if allowed.len() < cpus {
        let text = format!("{} of {cpus} CPUs may be used: {allowed}", allowed.len());
        let remedy =
            "start without `taskset`, or widen the cpuset, if the others should compute too";
        found.push(Finding::note(Place::EMPTY, text, remedy));
    }
}

/// A control group that gives less time than the threads of a plan would take.
pub fn quota(sight: &Sight, found: &mut Vec<Finding>) {
    let threads = sight.machine.physical_cores();
    let quota = |group: &String| {
        let (path, quota_us, period_us) = match sight.text(&format!("{group}/cpu.max")) {
            Some(text) => {
                let (quota, period) = text.trim().split_once(' ')?;
                (format!("{group}/cpu.max"), quota.parse().ok()?, period.parse().ok()?)
            }
            None => {
                let path = format!("{group}/cpu.cfs_quota_us");
                let period: f64 = sight.value(&format!("{group}/cpu.cfs_period_us"))?;
                let quota: f64 = sight.value(&path)?;
                (path, quota, period)
            }
        };
        // Version 1 writes -1 where there is none.
        (quota_us > 0.0 && period_us > 0.0).then(|| (path, quota_us / period_us))
    };
    let tightest = sight.groups("cpu").iter().filter_map(quota).min_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((path, cpus)) = tightest.filter(|(_, cpus)| *cpus < threads as f64) {
        let text = format!(
            "a control group gives the time of {cpus:.1} CPUs; {threads} threads would be stopped in turn"
        );
        let fitting = (cpus as usize).max(1);
        let remedy = format!("raise the quota, or run with --threads {fitting}");
        found.push(Finding::warning(file(&path), text, remedy));
    }
}

/// Clocks that stay low under load.
pub fn clocks(sight: &Sight, found: &mut Vec<Finding>) {
    let Some(cpu) = sight.machine.allowed.first() else { return };
    let directory = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq");
    let word = |name: &str| sight.text(&format!("{directory}/{name}"));
    let (governor, driver) = (word("scaling_governor"), word("scaling_driver"));
    // Drivers of newer processors call their usual governor so, and it raises clocks under load.
    let own_powersave =
        driver.is_some_and(|name| name.contains("pstate") && !name.contains("passive"));
    if governor.is_some_and(|name| name.trim() == "powersave") && !own_powersave {
        let remedy = "cpupower frequency-set -g performance (or schedutil)";
        let place = file(&format!("{directory}/scaling_governor"));
        found.push(Finding::warning(place, "clocks stay at their lowest: powersave", remedy));
    }
}
