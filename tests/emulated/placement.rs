//! Where the kernel has pages and threads, against what the plan says.
//!
//! The kernel's `numa_maps` of a running command has a line a mapping: its policy, and how many
//! pages it has on which node.

use crate::boot::Seen;
use millstream_topology::CpuSet;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Pages that a node must hold at least to be counted as used: 4 MiB of the model's 38.
const PAGES_MIN: u64 = 1024;
/// How far a node's share of interleaved pages may be from its weight's.
const SHARE_TOLERANCE: f64 = 0.01;

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

impl Map {
    /// Mode and node of a mapping with a policy of its own for one node.
    fn bound_to(&self) -> Option<(&str, u64)> {
        let (mode, node) = self.policy.rsplit_once(':')?;
        Some((mode, node.parse().ok()?))
    }

    /// Interleaved and large. Heap, stacks and files go by the process's policy, which came after
    /// some of their pages; the kernel names them behind the policy.
    fn is_dealt(&self) -> bool {
        let nodes = self.policy.rsplit_once("interleave:").map(|(_, nodes)| nodes);
        let unnamed = nodes.is_some_and(|nodes| !nodes.contains(' '));
        unnamed && self.pages.values().sum::<u64>() >= PAGES_MIN / 2
    }
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

/// Memory is interleaved over nodes 0, 1, .. by these weights.
pub fn is_interleaved(seen: &Seen, weights: &[u64]) -> Result<(), String> {
    let weights: BTreeMap<u64, u64> = (0..).zip(weights.iter().copied()).collect();
    dealt(&maps(seen.part("maps")?), &weights)
}

/// Every pair of nodes has figures, its distance, and memory that was on its node.
pub fn is_measured(measured: &Value, distances: &[&[u32]]) -> Result<(), String> {
    let rows = array(&measured["nodes"])?;
    for (from, row) in rows.iter().enumerate() {
        let memories = array(&row["memories"])?;
        for (to, figures) in memories.iter().enumerate() {
            let more = |name: &str, least: f64| figures[name].as_f64().is_some_and(|n| n > least);
            let is_sound = more("read_gb_s", 0.0) && more("latency_ns", 0.0);
            let distance = distances[from][to];
            if !is_sound || !more("on_node_share", 0.99) || figures["distance"] != distance {
                return Err(format!("from node {from} to {to}, {distance} away: {figures}"));
            }
        }
        if memories.len() != distances.len() {
            return Err(format!("{} memories from node {from}", memories.len()));
        }
    }
    match rows.len() == distances.len() {
        true => Ok(()),
        false => Err(format!("{} nodes were measured", rows.len())),
    }
}

/// `topology --verify` of the model (the part `verified`) says so too, and its figures bear it out.
pub fn is_verified(seen: &Seen) -> Result<(), String> {
    let placement = &seen.json("verified")?["placement"];
    let policy = placement["memory_policy"].as_str().unwrap_or_default();
    let promised = policy != "first_touch";
    let count = array(&placement["nodes"])?.len() as f64;
    let verdict = &placement["is_as_planned"];
    if *verdict != serde_json::json!(promised.then_some(true)) || placement["is_bound"] != promised
    {
        return Err(format!("judged {verdict}: {placement}"));
    }
    let total = &placement["total"];
    for node in array(&placement["nodes"])?.iter().filter(|_| promised) {
        // Interleaved segments are pieces of a whole that is even.
        let pages = if policy == "interleaved" { total } else { node };
        let wanted = if policy == "interleaved" { 1.0 / count } else { 1.0 };
        let bytes = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let own = &pages["by_node_bytes"][node["memory"].to_string()];
        let share = bytes(own) / bytes(&pages["bytes"]);
        if share.is_nan() || (share - wanted).abs() > SHARE_TOLERANCE {
            return Err(format!("a share of {share}, not {wanted}, is on its node: {pages}"));
        }
    }
    Ok(())
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

/// The model's pages are where the plan's memory policy wants them.
fn pages_are(plan: &Value, maps: &[Map]) -> Result<(), String> {
    let nodes = array(&plan["nodes"])?;
    let planned: BTreeSet<u64> = nodes.iter().filter_map(|node| node["memory"].as_u64()).collect();
    match plan["memory_policy"].as_str() {
        Some("striped" | "local") => bound(maps, &planned),
        Some("interleaved") => dealt(maps, &planned.iter().map(|&node| (node, 1)).collect()),
        Some("first_touch") => match maps.iter().find(|map| map.bound_to().is_some()) {
            None => Ok(()),
            Some(map) => Err(format!("a mapping is {} although nothing was promised", map.policy)),
        },
        other => Err(format!("no check knows the memory policy {other:?}: add one")),
    }
}

/// Mappings of one node have pages on it only, and every planned node has some.
fn bound(maps: &[Map], planned: &BTreeSet<u64>) -> Result<(), String> {
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    for map in maps {
        let Some((mode, node)) = map.bound_to() else { continue };
        for (&on, &pages) in &map.pages {
            if on != node {
                return Err(format!("{pages} pages of a mapping with {mode}:{node} are on {on}"));
            }
            *held.entry(on).or_default() += pages;
        }
    }
    let is_used = |node: &u64| held.get(node).copied().unwrap_or(0) >= PAGES_MIN;
    match held.keys().all(|node| planned.contains(node)) && planned.iter().all(is_used) {
        true => Ok(()),
        false => Err(format!("pages by node: {held:?}, planned are {planned:?}")),
    }
}

/// Pages of interleaved mappings are dealt by these weights, and there are some.
fn dealt(maps: &[Map], weights: &BTreeMap<u64, u64>) -> Result<(), String> {
    let mut held: BTreeMap<u64, u64> = weights.keys().map(|&node| (node, 0)).collect();
    for map in maps.iter().filter(|map| map.is_dealt()) {
        map.pages.iter().for_each(|(&node, pages)| *held.entry(node).or_default() += pages);
    }
    let all = held.values().sum::<u64>() as f64;
    let sum = weights.values().sum::<u64>() as f64;
    let is_even = |(node, &pages): (&u64, &u64)| {
        let wanted = weights.get(node).copied().unwrap_or(0) as f64 / sum;
        (pages as f64 / all - wanted).abs() <= SHARE_TOLERANCE
    };
    match all >= PAGES_MIN as f64 && held.iter().all(is_even) {
        true => Ok(()),
        false => Err(format!("pages by node: {held:?}, weights are {weights:?}")),
    }
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
        let named = if rest[counts..].contains("file=") { " file" } else { "" };
        Map { policy: format!("{}{named}", rest[..counts].trim()), pages }
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
            "memory_policy": "striped",
            "leader": { "node": 0, "cpu": 0 },
            "nodes": [{ "node": 0, "memory": 0, "workers": [1] }, { "node": 1, "memory": 1, "workers": [2] }],
        })
    }

    #[test]
    fn a_kernels_list_of_mappings_is_read() {
        let maps = maps(MAPS);
        let policies: Vec<&str> = maps.iter().map(|map| map.policy.as_str()).collect();
        assert_eq!(policies, ["default file", "bind:0", "prefer (many):1", "default"]);
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
    fn uneven_pages_are_a_fault() {
        let mut plan = plan();
        plan["memory_policy"] = "interleaved".into();
        let text = "7f01 interleave:0-1 anon=4000 N0=2010 N1=1990\n7f02 default heap N0=4000";
        assert_eq!(pages_are(&plan, &maps(text)), Ok(()));
        for wrong in [
            text.replace("N0=2010", "N0=2400"),
            text.replace("N0=2010", "N2=2010"),
            text.replace("0=2010 N1=1990", "0=20 N1=20"),
            text.replace("interleave:0-1", "default"),
            text.replace("interleave:0-1", "interleave:0-1 heap"),
        ] {
            assert!(pages_are(&plan, &maps(&wrong)).is_err(), "{wrong}");
        }
        plan["memory_policy"] = "first_touch".into();
        assert!(pages_are(&plan, &maps(MAPS)).is_err());
        assert_eq!(pages_are(&plan, &maps("7f02 default heap N0=4000")), Ok(()));
        plan["memory_policy"] = "as it comes".into();
        assert!(pages_are(&plan, &maps(text)).is_err(), "a policy that no check knows");
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
