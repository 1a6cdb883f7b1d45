//! Where the kernel has pages and threads, against what the plan says.
//!
//! The kernel's `numa_maps` of a running command has a line a mapping: its policy, and how many
//! pages it has on which node.

use crate::boot::Seen;
use millstream_topology::CpuSet;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Pages that a node must hold at least to be counted as used: 4 MiB of the model's 55.
const PAGES_MIN: u64 = 1024;

/// What a plan must say.
pub struct Expected {
    /// CPUs that compute threads are pinned to.
    pub cpus: &'static str,
    /// By node of the plan: the node that computes, the node that holds its memory.
    pub nodes: &'static [(u64, u64)],
}

/// A mapping: the kernel's word for its policy, and its pages by node.
#[derive(Debug, PartialEq)]
struct Map {
    policy: String,
    pages: BTreeMap<u64, u64>,
}

/// The machine that the command sees is the one that is emulated, with a drive.
pub fn machine_is(plan: &Value, nodes: &[(&str, u32)], distances: &[&[u32]]) -> Result<(), String> {
    let found = array(&plan["machine"]["nodes"])?;
    if found.len() != nodes.len() {
        return Err(format!("{} nodes, not {}", found.len(), nodes.len()));
    }
    for (index, (cpus, mib)) in nodes.iter().enumerate() {
        let node = &found[index];
        let bytes = node["memory_bytes"].as_u64().unwrap_or(0);
        // The kernel keeps some of a node's memory for itself before it counts.
        let most = u64::from(*mib) << 20;
        if node["id"] != index || node["cpus"] != *cpus || bytes > most || bytes < most / 4 * 3 {
            return Err(format!("node {index} with CPUs {cpus:?} and {mib} MiB is seen as {node}"));
        }
        if node["distances"] != serde_json::json!(distances[index]) {
            let (row, seen) = (distances[index], &node["distances"]);
            return Err(format!("distances of node {index}: {row:?} are seen as {seen}"));
        }
    }
    let drives = array(&plan["machine"]["drives"])?;
    match drives.iter().any(|drive| drive["name"] == "nvme0n1") {
        true => Ok(()),
        false => Err(format!("the drive isn't among {drives:?}")),
    }
}

/// The plan has these CPUs and nodes.
pub fn plan_is(plan: &Value, expected: &Expected) -> Result<(), String> {
    let plan = &plan["plan"];
    let compute = compute_cpus(plan)?;
    if compute.to_string() != expected.cpus {
        return Err(format!("threads on CPUs {compute}, not {}", expected.cpus));
    }
    let nodes = array(&plan["nodes"])?.iter();
    let nodes: Vec<_> =
        nodes.map(|node| (node["node"].as_u64(), node["memory"].as_u64())).collect();
    let wanted: Vec<_> = expected.nodes.iter().map(|(a, b)| (Some(*a), Some(*b))).collect();
    if nodes != wanted || plan["virtual_nodes"] != false {
        return Err(format!("nodes {nodes:?}, not {wanted:?}: {plan}"));
    }
    Ok(())
}

/// Pages and threads of a case's running command are where its plan says.
pub fn is_as_planned(seen: &Seen) -> Result<(), String> {
    let plan = seen.json("plan")?;
    threads_are(&plan["plan"], seen.part("threads")?)?;
    pages_are(&plan["plan"], &maps(seen.part("maps")?))
}

fn array(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("not a list: {value}"))
}

/// CPUs of the leader and all workers.
fn compute_cpus(plan: &Value) -> Result<CpuSet, String> {
    let mut cpus: CpuSet = id(&plan["leader"]["cpu"]).into_iter().collect();
    for node in array(&plan["nodes"])? {
        cpus.extend(array(&node["workers"])?.iter().filter_map(id));
    }
    Ok(cpus)
}

fn id(value: &Value) -> Option<millstream_topology::CpuId> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).map(millstream_topology::CpuId)
}

/// Every CPU of the plan's compute threads has one thread that may run nowhere else.
fn threads_are(plan: &Value, threads: &str) -> Result<(), String> {
    let mut pinned = vec![];
    for line in threads.lines() {
        let (name, list) = line.rsplit_once(' ').ok_or_else(|| format!("not a thread: {line}"))?;
        let set: CpuSet = list.parse().map_err(|error| format!("{name}: {error}"))?;
        pinned.extend(set.first().filter(|_| set.len() == 1));
    }
    let planned = compute_cpus(plan)?;
    for cpu in planned.iter() {
        let count = pinned.iter().filter(|&&other| other == cpu).count();
        if count != 1 {
            return Err(format!("{count} threads are pinned to CPU {cpu}, not 1:\n{threads}"));
        }
    }
    match planned.is_empty() {
        true => Err("no compute thread is pinned".to_owned()),
        false => Ok(()),
    }
}

/// Bound mappings have pages on their node only, and each node that the plan's memory names has some.
fn pages_are(plan: &Value, maps: &[Map]) -> Result<(), String> {
    let nodes = array(&plan["nodes"])?;
    let planned: BTreeSet<u64> = nodes.iter().filter_map(|node| node["memory"].as_u64()).collect();
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    for map in maps {
        let Some((mode, list)) = map.policy.rsplit_once(':') else { continue };
        let Ok(node) = list.parse::<u64>() else { continue };
        for (&on, &pages) in &map.pages {
            if on != node {
                return Err(format!("{pages} pages of a mapping with {mode}:{node} are on {on}"));
            }
            *held.entry(on).or_default() += pages;
        }
    }
    if planned.len() < 2 {
        let everywhere = maps.iter().flat_map(|map| &map.pages);
        everywhere.for_each(|(&node, pages)| *held.entry(node).or_default() += pages);
    }
    for node in planned {
        let pages = held.get(&node).copied().unwrap_or(0);
        if pages < PAGES_MIN {
            return Err(format!("node {node} holds {pages} pages of the model: {held:?}"));
        }
    }
    Ok(())
}

/// The mappings of a `numa_maps`.
fn maps(text: &str) -> Vec<Map> {
    let map = |line: &str| {
        // A policy may have spaces: `prefer (many):0`.
        let rest = line.split_once(' ').map_or("", |(_, rest)| rest);
        let counts = rest.find('=').map_or(rest.len(), |at| rest[..at].rfind(' ').unwrap_or(0));
        let mut pages = BTreeMap::new();
        for word in rest[counts..].split_whitespace() {
            let Some((key, value)) = word.split_once('=') else { continue };
            let node = key.strip_prefix('N').and_then(|id| id.parse().ok());
            if let (Some(node), Ok(count)) = (node, value.parse()) {
                pages.insert(node, count);
            }
        }
        Map { policy: rest[..counts].trim().to_owned(), pages }
    };
    text.lines().map(map).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
5581 default file=/bin/millstream mapped=40 N0=40 kernelpagesize_kB=4
7f01 bind:0 anon=2048 dirty=2048 N0=2048 kernelpagesize_kB=4
7f02 prefer (many):1 anon=2049 dirty=2049 N1=2049 kernelpagesize_kB=4
7f03 default";

    fn plan() -> Value {
        serde_json::json!({
            "virtual_nodes": false,
            "leader": { "node": 0, "cpu": 0 },
            "nodes": [{ "node": 0, "memory": 0, "workers": [1] }, { "node": 1, "memory": 1, "workers": [2] }],
        })
    }

    #[test]
    fn a_kernels_list_of_mappings_is_read() {
        let maps = maps(MAPS);
        let policies: Vec<&str> = maps.iter().map(|map| map.policy.as_str()).collect();
        assert_eq!(policies, ["default", "bind:0", "prefer (many):1", "default"]);
        assert_eq!(maps[2].pages, BTreeMap::from([(1, 2049)]));
        assert_eq!(maps[3].pages, BTreeMap::new());
    }

    #[test]
    fn pages_on_another_node_are_a_fault() {
        assert_eq!(pages_are(&plan(), &maps(MAPS)), Ok(()));
        for (right, wrong) in [("N1=2049", "N1=2048 N0=1"), ("N0=2048", "N1=2048"), ("=2049", "=9")]
        {
            let text = MAPS.replace(right, wrong);
            assert!(pages_are(&plan(), &maps(&text)).is_err(), "{text}");
        }
    }

    #[test]
    fn threads_elsewhere_are_a_fault() {
        let threads = "main 0-3\nseat-0 0\ncrew-1 1\ncrew 2 2\n";
        assert_eq!(threads_are(&plan(), threads), Ok(()));
        for (right, wrong) in [("crew-1 1", "crew-1 0-3"), ("crew-1 1", "crew-1 0"), ("2 2", "2 1")]
        {
            let threads = threads.replace(right, wrong);
            assert!(threads_are(&plan(), &threads).is_err(), "{threads}");
        }
        let expected = Expected { cpus: "0-2", nodes: &[(0, 0), (1, 1)] };
        let whole = serde_json::json!({ "plan": plan() });
        assert_eq!(plan_is(&whole, &expected), Ok(()));
        assert!(plan_is(&whole, &Expected { cpus: "0-1", ..expected }).is_err());
    }
}
