//! The probe that needs no library: the kernel's own files below a root directory.
//!
//! `/` for the live machine, a fake tree in tests. Serves where hwloc isn't built in or fails, and
//! always for drives and node memory. In: files of `sys/devices/system/{cpu,node}`, `sys/block`
//! and `proc`; out: `Facts`.

use crate::affinity::AffinityMask;
use crate::cpuset::{CpuId, CpuSet, NodeId};
use crate::machine::{CpuFact, Drive, Facts, L3, Machine, Node, Origin};
use crate::memory::{MemoryLimits, meminfo_bytes};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Probes the tree below `root`. The mask is that of the tree's `proc/thread-self/status`, except
/// for `/`, where it is the captured one.
pub fn probe(root: &Path) -> Machine {
    let mask = match root == Path::new("/") {
        true => AffinityMask::capture().clone(),
        false => AffinityMask::read(root),
    };
    Machine::from_facts(facts(root, mask))
}

/// The facts below `root`, under a mask.
pub(crate) fn facts(root: &Path, mask: AffinityMask) -> Facts {
    let system = root.join("sys/devices/system");
    let mut warnings = Vec::new();
    if mask.cpus.is_none() {
        warnings.push("the affinity mask is unknown; assuming that all CPUs are allowed".into());
    }
    let online = online_cpus(&system.join("cpu"));
    let cpus = online.iter().map(|cpu| cpu_fact(&system.join("cpu"), cpu)).collect();
    Facts {
        origin: Origin::Live,
        cpus,
        nodes: nodes(root),
        l3s: l3s(&system.join("cpu"), &online),
        drives: drives(root),
        mask: mask.cpus,
        allowed_memory: mask.memory_nodes,
        memory: MemoryLimits::read(root),
        warnings,
    }
}

/// First line of a file as a value; `None` when it isn't there or reads otherwise.
fn value<T: FromStr>(path: PathBuf) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Numbers of the entries `<prefix><number>` of a directory, ascending.
fn numbered(directory: &Path, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| -> Option<u32> {
        entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()
    };
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// `cpu/online`; without it, the `cpuN` directories that don't say `online` = 0.
fn online_cpus(directory: &Path) -> CpuSet {
    if let Some(list) = value::<CpuSet>(directory.join("online")) {
        return list;
    }
    let is_online = |cpu: &u32| value(directory.join(format!("cpu{cpu}/online"))) != Some(0u32);
    numbered(directory, "cpu").into_iter().filter(is_online).map(CpuId).collect()
}

fn cpu_fact(directory: &Path, cpu: CpuId) -> CpuFact {
    let topology = directory.join(format!("cpu{cpu}/topology"));
    // The kernel writes -1 where it doesn't know.
    let id = |name: &str| {
        let id: Option<i64> = value(topology.join(name));
        id.and_then(|id| u32::try_from(id).ok())
    };
    CpuFact { cpu, package: id("physical_package_id"), core: id("core_id") }
}

fn l3s(directory: &Path, online: &CpuSet) -> Vec<L3> {
    let mut found: Vec<L3> = Vec::new();
    for cpu in online.iter() {
        let cache = directory.join(format!("cpu{cpu}/cache"));
        for index in numbered(&cache, "index") {
            let entry = cache.join(format!("index{index}"));
            if value(entry.join("level")) != Some(3u32) {
                continue;
            }
            let cpus =
                value(entry.join("shared_cpu_list")).unwrap_or_else(|| [cpu].into_iter().collect());
            if !found.iter().any(|l3| l3.cpus == cpus) {
                let size: Option<String> = value(entry.join("size"));
                found.push(L3 { size_bytes: size.and_then(|text| cache_bytes(&text)), cpus });
            }
        }
    }
    found
}

/// A cache size like `32768K`.
fn cache_bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// The online nodes by number.
pub(crate) fn nodes(root: &Path) -> Vec<Node> {
    let directory = root.join("sys/devices/system/node");
    let mut ids = numbered(&directory, "node");
    if let Some(online) = value::<CpuSet>(directory.join("online")) {
        ids.retain(|&id| online.contains(CpuId(id)));
    }
    let node = |&id: &u32| {
        let entry = directory.join(format!("node{id}"));
        let meminfo = fs::read_to_string(entry.join("meminfo")).unwrap_or_default();
        let distances: Option<String> = value(entry.join("distance"));
        let distances: Option<Vec<u32>> = distances
            .and_then(|text| text.split_whitespace().map(|word| word.parse().ok()).collect());
        Node {
            id: NodeId(id),
            memory_bytes: meminfo_bytes(&meminfo, "MemTotal:"),
            cpus: value(entry.join("cpulist")).unwrap_or_default(),
            // One column per online node, in order.
            distances: distances.filter(|row| row.len() == ids.len()).unwrap_or_default(),
        }
    };
    ids.iter().map(node).collect()
}

/// What a node can give now: free pages and cached files, less 2 % that the kernel keeps for itself.
/// `None` where the kernel doesn't say.
pub(crate) fn node_available_bytes(root: &Path, node: NodeId) -> Option<u64> {
    let path = root.join(format!("sys/devices/system/node/node{node}/meminfo"));
    let meminfo = fs::read_to_string(path).ok()?;
    let bytes = |key: &str| meminfo_bytes(&meminfo, key);
    let files = bytes("Active(file):").unwrap_or(0) + bytes("Inactive(file):").unwrap_or(0);
    let kept = bytes("MemTotal:")? / 50;
    Some((bytes("MemFree:")? + files).saturating_sub(kept))
}

/// The kernel's weight of a node for weighted interleaving; `None` where it has none.
pub(crate) fn interleave_weight(root: &Path, node: NodeId) -> Option<u32> {
    value(root.join(format!("sys/kernel/mm/mempolicy/weighted_interleave/node{node}")))
}

/// The node that a disk hangs on; the kernel writes -1 where it doesn't know.
pub(crate) fn drive_node(block: &Path) -> Option<NodeId> {
    let node = ["device/numa_node", "device/device/numa_node"]
        .iter()
        .find_map(|name| value::<i64>(block.join(name)));
    node.and_then(|id| u32::try_from(id).ok()).map(NodeId)
}

/// Disks: block devices that hang on hardware (loop, RAM and mapped devices have no `device`).
pub(crate) fn drives(root: &Path) -> Vec<Drive> {
    let entries = fs::read_dir(root.join("sys/block")).into_iter().flatten().flatten();
    let drive = |entry: fs::DirEntry| {
        let path = entry.path();
        if !path.join("device").exists() {
            return None;
        }
        let sectors: Option<u64> = value(path.join("size"));
        Some(Drive {
            name: entry.file_name().to_string_lossy().into_owned(),
            node: drive_node(&path),
            rotational: value::<u32>(path.join("queue/rotational")).map(|flag| flag != 0),
            // The kernel counts 512-byte sectors here, whatever the drive's own are.
            size_bytes: sectors.and_then(|count| count.checked_mul(512)),
        })
    };
    let mut drives: Vec<Drive> = entries.filter_map(drive).collect();
    drives.sort_by(|a, b| a.name.cmp(&b.name));
    drives
}

#[cfg(test)]
mod tests;
