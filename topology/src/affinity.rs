//! What the kernel lets this process use, as it was before any thread pinned itself.
//!
//! Captured once, at the first call of [`AffinityMask::capture`]: later a pinned thread would see
//! only its own CPU (and pass that mask on to the threads it starts). `taskset`, cpusets and
//! container limits all show here. An affinity that the user set wins over every plan.

use crate::cpuset::{CpuSet, NodeId};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// The CPUs and memory nodes that the process was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffinityMask {
    /// CPUs that threads may run on; `None` where the kernel doesn't say.
    pub cpus: Option<CpuSet>,
    /// Nodes that memory may come from; `None` where the kernel doesn't say.
    pub memory_nodes: Option<BTreeSet<NodeId>>,
}

impl AffinityMask {
    /// The mask of the thread that called this first; every later call returns the same.
    pub fn capture() -> &'static AffinityMask {
        static MASK: OnceLock<AffinityMask> = OnceLock::new();
        MASK.get_or_init(|| AffinityMask::read(Path::new("/")))
    }

    /// The calling thread's mask as it is now, from `proc/thread-self/status` below `root`.
    pub(crate) fn read(root: &Path) -> AffinityMask {
        let path = root.join("proc/thread-self/status");
        let status = fs::read_to_string(path).unwrap_or_default();
        let list = |key: &str| -> Option<CpuSet> {
            let value = status.lines().find_map(|line| line.strip_prefix(key))?;
            value.parse().ok().filter(|set: &CpuSet| !set.is_empty())
        };
        let nodes = list("Mems_allowed_list:");
        AffinityMask {
            cpus: list("Cpus_allowed_list:"),
            memory_nodes: nodes.map(|set| set.iter().map(|number| NodeId(number.0)).collect()),
        }
    }
}
