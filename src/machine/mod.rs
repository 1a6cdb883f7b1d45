//! Examining the machine: what of it stops or slows a model, and what to do about each.
//!
//! | file | what it looks at |
//! |---|---|
//! | `sight.rs` | the kernel's files below a root, and the model's place on a drive |
//! | `cores.rs` | CPUs that we may use, quotas, clocks |
//! | `nodes.rs` | NUMA: balancing, reclaim, nodes without memory |
//! | `pages.rs` | huge pages, swap |
//! | `limits.rs` | what the system and its control groups let one process have |
//! | `drive.rs` | the drive under the model: file system, alignment, queue, speed |
//!
//! [`examine`] runs every check of [`CHECKS`]: to add one, a function and a line there. In: a root (`/`,
//! or a fake tree in tests) and what was measured by whoever may take a second for it. Out: findings
//! in the form that a model's examination has. Nothing here changes the machine.

mod cores;
mod drive;
mod limits;
mod nodes;
mod pages;
mod sight;
#[cfg(test)]
mod tests;

pub use drive::{device, direct_offset_align_bytes};
pub use pages::huge_share;
pub use sight::{Measured, Sight};

use crate::checkpoint::examine::{Finding, Findings};
use serde::Serialize;

/// A check: looks at one thing and adds what it finds.
type Check = fn(&Sight, &mut Vec<Finding>);

/// Every check, by what it looks at.
pub const CHECKS: &[(&str, Check)] = &[
    ("allowed CPUs", cores::allowed),
    ("CPU quota", cores::quota),
    ("clocks", cores::clocks),
    ("NUMA balancing", nodes::balancing),
    ("zone reclaim", nodes::reclaim),
    ("nodes without memory", nodes::without_memory),
    ("huge pages", pages::enabled),
    ("huge pages, defragmentation", pages::defragmentation),
    ("huge pages, coverage", pages::coverage),
    ("reserved huge pages", pages::reserved),
    ("swap", pages::swap),
    ("open files", limits::open_files),
    ("address space", limits::address_space),
    ("locked memory", limits::locked_memory),
    ("mappings", limits::mappings),
    ("overcommit", limits::overcommit),
    ("control group", limits::control_group),
    ("io_uring", limits::io_uring),
    ("file system", drive::file_system),
    ("alignment", drive::alignment),
    ("kind of drive", drive::kind),
    ("drive's queue", drive::queue),
    ("drive's speed", drive::speed),
];

/// What was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Looked {
    /// The machine in one line.
    pub machine: String,
    /// Memory that can be taken now, where known.
    pub memory_available_bytes: Option<u64>,
    /// Share of a test arena that came on huge pages, where it was tried.
    pub huge_share: Option<f64>,
    /// The block device under the model, where it is known.
    pub drive: Option<String>,
    /// Its file system.
    pub file_system: Option<String>,
    /// What offsets of direct reads must be multiples of; 0 where there are none.
    pub direct_offset_align_bytes: Option<u32>,
    /// What the drive gave, in 10^9 bytes a second.
    pub drive_read_gb_s: Option<f64>,
    /// Why the drive was not measured.
    pub drive_not_measured: Option<String>,
    /// What checks there are.
    pub checks: Vec<&'static str>,
}

/// Looks at everything.
pub fn examine(sight: &Sight) -> (Findings, Looked) {
    let mut found = vec![];
    CHECKS.iter().for_each(|(_, check)| check(sight, &mut found));
    let mut findings = Findings::default();
    findings.extend(found);
    let looked = Looked {
        machine: sight.machine.summary(),
        memory_available_bytes: sight.machine.memory.available_bytes,
        huge_share: sight.measured.huge_share,
        drive: sight.device_name(),
        file_system: sight.mount().map(|mount| mount.kind),
        direct_offset_align_bytes: sight.measured.direct_offset_align_bytes,
        drive_read_gb_s: sight.measured.drive_bytes_s.as_ref().ok().map(|bytes| bytes / 1e9),
        drive_not_measured: sight.measured.drive_bytes_s.as_ref().err().cloned(),
        checks: CHECKS.iter().map(|(name, _)| *name).collect(),
    };
    (findings, looked)
}
