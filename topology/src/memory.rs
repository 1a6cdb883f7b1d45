//! How much memory this process may take: MemAvailable and every control group above us.
//!
//! Read from a root directory (`/`, or a fake tree in tests). Both control-group versions are read
//! where present, also side by side; the tightest limit of the group and its ancestors counts. Swap
//! counts for nothing: experts that are swapped are slower than experts that are read again.
//! [`OwnMemory`] is what the process holds itself.
//! NUMA tools are never asked: they count pages that the kernel hasn't set up yet as absent.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory of the machine that this process runs on, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryLimits {
    /// What the process can take now without swapping: the smaller of MemAvailable and what the
    /// control groups leave; `None` where neither is known.
    pub available_bytes: Option<u64>,
    /// All memory of the machine, where known.
    pub total_bytes: Option<u64>,
    /// The tightest control-group limit, if there is one.
    pub cgroup_limit_bytes: Option<u64>,
}

/// Limits from here on mean "no limit": version 1 writes the largest page-aligned i64.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// A control-group version's file names.
struct Version {
    /// Candidates for the mount point, below the root.
    mounts: &'static [&'static str],
    /// The limit above which allocations fail, and the one above which they are slowed down.
    limits: &'static [&'static str],
    /// Key in `memory.stat`: the limit of the group and its ancestors, also of those whose
    /// directories we don't see.
    inherited: Option<&'static str>,
    usage: &'static str,
    /// Key in `memory.stat`: file pages that the kernel drops first when the group needs memory.
    reclaimable: &'static str,
}

const VERSION_1: Version = Version {
    mounts: &["sys/fs/cgroup/memory"],
    limits: &["memory.limit_in_bytes"],
    inherited: Some("hierarchical_memory_limit"),
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

const VERSION_2: Version = Version {
    mounts: &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
    limits: &["memory.max", "memory.high"],
    inherited: None,
    usage: "memory.current",
    reclaimable: "inactive_file",
};

impl MemoryLimits {
    /// Reads the limits below `root`; what is missing there is `None`.
    pub fn read(root: &Path) -> MemoryLimits {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let mut limits = MemoryLimits {
            available_bytes: meminfo_bytes(&meminfo, "MemAvailable:"),
            total_bytes: meminfo_bytes(&meminfo, "MemTotal:"),
            cgroup_limit_bytes: None,
        };
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if id == "0" && controllers.is_empty() {
                limits.tighten(root, &VERSION_2, path);
            } else if controllers.split(',').any(|name| name == "memory") {
                limits.tighten(root, &VERSION_1, path);
            }
        }
        limits
    }

    /// Takes the limits of a group and all its ancestors in. A directory that isn't there is
    /// skipped: in a container the mount may begin at our own group.
    fn tighten(&mut self, root: &Path, version: &Version, path: &str) {
        for mount in version.mounts {
            let relative = Path::new(path.trim_start_matches('/'));
            for group in relative.ancestors() {
                let directory = root.join(mount).join(group);
                let Some((limit, left)) = group_limit(&directory, version) else { continue };
                let tighter =
                    |old: Option<u64>, new: u64| Some(old.map_or(new, |old| old.min(new)));
                self.cgroup_limit_bytes = tighter(self.cgroup_limit_bytes, limit);
                self.available_bytes = tighter(self.available_bytes, left);
            }
        }
    }
}

/// (limit, what is left of it) of one group; `None` when it has none.
fn group_limit(directory: &Path, version: &Version) -> Option<(u64, u64)> {
    let number = |name: &str| -> Option<u64> { read_number(directory.join(name)) };
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let of_stat = |wanted: &str| -> Option<u64> {
        let mut pairs = stat.lines().filter_map(|line| line.split_once(' '));
        pairs.find(|(key, _)| *key == wanted)?.1.trim().parse().ok()
    };
    let own = version.limits.iter().filter_map(|&name| number(name));
    let limit = own.chain(version.inherited.and_then(of_stat)).min();
    let limit = limit.filter(|&bytes| bytes < UNLIMITED_BYTES)?;
    let usage = number(version.usage).unwrap_or(0);
    let held = usage.saturating_sub(of_stat(version.reclaimable).unwrap_or(0));
    Some((limit, limit.saturating_sub(held)))
}

/// What this process holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnMemory {
    /// Pages of its own: what no file could give back.
    pub anonymous_bytes: u64,
    /// All pages that are present, those of files too.
    pub resident_bytes: u64,
    /// The most pages that were ever present.
    pub resident_bytes_max: u64,
}

impl OwnMemory {
    /// Reads `proc/self/status` below `root`; `None` where the kernel doesn't say.
    pub fn read(root: &Path) -> Option<OwnMemory> {
        let status = fs::read_to_string(root.join("proc/self/status")).ok()?;
        Some(OwnMemory {
            anonymous_bytes: meminfo_bytes(&status, "RssAnon:")?,
            resident_bytes: meminfo_bytes(&status, "VmRSS:")?,
            resident_bytes_max: meminfo_bytes(&status, "VmHWM:")?,
        })
    }
}

fn read_number(path: PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A line like `MemTotal:  123 kB`, also behind `Node 0 `.
pub(crate) fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    meminfo.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|&word| word != key).skip(1);
        let kib = words.next()?.parse::<u64>().ok()?;
        kib.checked_mul(1024)
    })
}
