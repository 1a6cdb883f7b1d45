//! Limits: what the system and its control groups let one process have.

use super::sight::{Sight, file};
use crate::checkpoint::examine::Finding;

const LIMITS: &str = "proc/self/limits";
/// Descriptors beside the model's files, each of which is opened twice (direct and not).
const OTHER_FILES: u64 = 64;
/// Mappings that a large model on several nodes takes, with those of its threads.
const MAPPINGS_MIN: u64 = 4096;
/// Locked memory that kernels before 5.12 count the rings of io_uring against.
const LOCKED_BYTES_MIN: u64 = 64 << 10;

/// Fewer descriptors than the model has files.
pub fn open_files(sight: &Sight, found: &mut Vec<Finding>) {
    let needed = 2 * sight.files as u64 + OTHER_FILES;
    if let Some(limit) = sight.limit("Max open files").filter(|limit| *limit < needed) {
        let text = format!("{limit} files may be open; the model needs about {needed}");
        found.push(Finding::error(file(LIMITS), text, format!("ulimit -n {needed}")));
    }
}

/// A limit on addresses: arenas have address space for all slots from the start.
pub fn address_space(sight: &Sight, found: &mut Vec<Finding>) {
    if let Some(limit) = sight.limit("Max address space") {
        let text = format!("addresses are limited to {} MiB", limit >> 20);
        let remedy = "ulimit -v unlimited; --memory limits what is really held";
        found.push(Finding::warning(file(LIMITS), text, remedy));
    }
}

/// Too little locked memory for io_uring on older kernels.
pub fn locked_memory(sight: &Sight, found: &mut Vec<Finding>) {
    let limit = sight.limit("Max locked memory").filter(|limit| *limit < LOCKED_BYTES_MIN);
    let version: Option<String> = sight.value("proc/sys/kernel/osrelease");
    let number = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split(['.', '-']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    let old = version.as_deref().and_then(number).is_some_and(|version| version < (5, 12));
    if let (Some(limit), true) = (limit, old) {
        let text = format!("{limit} bytes may be locked: this kernel counts io_uring against it");
        found.push(Finding::warning(file(LIMITS), text, "ulimit -l 65536, or --io pread"));
    }
}

/// Few mappings a process.
pub fn mappings(sight: &Sight, found: &mut Vec<Finding>) {
    let path = "proc/sys/vm/max_map_count";
    if let Some(limit) = sight.value::<u64>(path).filter(|limit| *limit < MAPPINGS_MIN) {
        let text = format!("a process may have {limit} mappings; arenas take one a layer and node");
        found.push(Finding::warning(file(path), text, "sysctl vm.max_map_count=65530"));
    }
}

/// Strict accounting, where address space counts as memory.
pub fn overcommit(sight: &Sight, found: &mut Vec<Finding>) {
    let path = "proc/sys/vm/overcommit_memory";
    if sight.value::<u32>(path) == Some(2) {
        let text = "address space counts as memory here, also where nothing is held";
        let remedy = "sysctl vm.overcommit_memory=0, or a smaller --memory";
        found.push(Finding::warning(file(path), text, remedy));
    }
}

/// A control group with less memory than the machine.
pub fn control_group(sight: &Sight, found: &mut Vec<Finding>) {
    let memory = &sight.machine.memory;
    let (Some(limit), Some(total)) = (memory.cgroup_limit_bytes, memory.total_bytes) else {
        return;
    };
    if limit < total {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let text = format!(
            "a control group limits memory to {:.1} of {:.1} GiB; cached files count against it too",
            gib(limit),
            gib(total)
        );
        let remedy = "raise memory.max (Docker: --memory) if the model should have more";
        found.push(Finding::note(file("sys/fs/cgroup"), text, remedy));
    }
}

/// io_uring that the system forbids.
pub fn io_uring(sight: &Sight, found: &mut Vec<Finding>) {
    let path = "proc/sys/kernel/io_uring_disabled";
    let who = match sight.value::<u32>(path) {
        Some(1) => "to users outside its group",
        Some(2) => "to everyone",
        _ => return,
    };
    let text = format!("io_uring is forbidden {who}: threads read instead, which costs CPU time");
    found.push(Finding::note(file(path), text, "sysctl kernel.io_uring_disabled=0"));
}
