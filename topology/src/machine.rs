//! What a probe saw: packages, nodes, cores, caches, drives, and what of it we may use.
//!
//! Every probe ([`crate::sysfs`], hwloc, [`crate::synthetic`]) states `Facts`; `Machine::from_facts`
//! alone turns facts into a machine, so that counting cores, grouping SMT siblings and falling back
//! is written once. Policies and reports read the result; nothing changes it.

use crate::cpuset::{CpuId, CpuSet, NodeId};
use crate::hash::StableHash;
use crate::memory::MemoryLimits;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Where a machine's description comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The machine that this process runs on.
    Live,
    /// A text like `pack:2 numa:1 core:8 pu:2`.
    Synthetic,
    /// An XML file that hwloc wrote on some machine.
    Xml,
}

/// A machine. Indexes between the lists (a core's node, an L3's place) are positions in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Where the description comes from.
    pub origin: Origin,
    /// Processor packages (sockets), ascending.
    pub packages: Vec<Package>,
    /// NUMA nodes by ascending number; never empty. Nodes without CPUs or memory are listed too.
    pub nodes: Vec<Node>,
    /// Physical cores that have an online CPU, by package, node, L3 and lowest CPU; never empty.
    pub cores: Vec<Core>,
    /// Last-level caches.
    pub l3s: Vec<L3>,
    /// Disks.
    pub drives: Vec<Drive>,
    /// Online CPUs that this process may use; never empty.
    pub allowed: CpuSet,
    /// Nodes that this process may take memory from; `None` when no limit is known.
    pub allowed_memory: Option<BTreeSet<NodeId>>,
    /// How much memory there is for us: always of the machine that this process runs on.
    pub memory: MemoryLimits,
    /// What the probe could not see, and what it assumed instead.
    pub warnings: Vec<String>,
}

/// A processor package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Package {
    /// The operating system's number.
    pub id: u32,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The operating system's number.
    pub id: NodeId,
    /// Its memory; `Some(0)` for a node without, `None` where unknown.
    pub memory_bytes: Option<u64>,
    /// Its online CPUs; empty for a memory-only node. No CPU is in two nodes.
    pub cpus: CpuSet,
    /// Distance to every node of [`Machine::nodes`], itself included; empty where unknown.
    pub distances: Vec<u32>,
}

/// A physical core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// Its package's number.
    pub package: u32,
    /// Index of its node.
    pub node: usize,
    /// Index of its L3, if it has one.
    pub l3: Option<usize>,
    /// Its online CPUs (SMT siblings), ascending; allowed or not.
    pub cpus: Vec<CpuId>,
}

/// A last-level cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct L3 {
    /// Its size, where known.
    pub size_bytes: Option<u64>,
    /// The CPUs that share it.
    pub cpus: CpuSet,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drive {
    /// The kernel's name, like `nvme0n1`.
    pub name: String,
    /// The node it is attached to, where known.
    pub node: Option<NodeId>,
    /// It has platters, where known.
    pub rotational: Option<bool>,
    /// Its size, where known.
    pub size_bytes: Option<u64>,
}

/// What a probe found, before it is made sense of.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) origin: Origin,
    /// Online CPUs.
    pub(crate) cpus: Vec<CpuFact>,
    /// Nodes; `cpus` may overlap (hwloc gives memory-only nodes the CPUs they are near to).
    pub(crate) nodes: Vec<Node>,
    pub(crate) l3s: Vec<L3>,
    pub(crate) drives: Vec<Drive>,
    /// CPUs that the process may use, where known.
    pub(crate) mask: Option<CpuSet>,
    pub(crate) allowed_memory: Option<BTreeSet<NodeId>>,
    pub(crate) memory: MemoryLimits,
    pub(crate) warnings: Vec<String>,
}

/// An online CPU: which core of which package it belongs to, where known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuFact {
    pub(crate) cpu: CpuId,
    pub(crate) package: Option<u32>,
    /// Unique within the package.
    pub(crate) core: Option<u32>,
}

impl Machine {
    /// The same machine without some of the CPUs that we may use.
    pub fn avoiding(&self, avoid: &CpuSet) -> Machine {
        Machine { allowed: self.allowed.without(avoid), ..self.clone() }
    }

    /// Makes sense of facts. Whatever had to be assumed ends up in the warnings.
    pub(crate) fn from_facts(facts: Facts) -> Machine {
        let mut warnings = facts.warnings;
        let cpus = known_cpus(facts.cpus, facts.mask.as_ref(), &mut warnings);
        let online: CpuSet = cpus.iter().map(|fact| fact.cpu).collect();
        let allowed = allowed_cpus(&online, facts.mask.as_ref(), &mut warnings);
        let nodes = separate_nodes(facts.nodes, &online, &mut warnings);
        let mut l3s = facts.l3s;
        l3s.iter_mut().for_each(|l3| l3.cpus = l3.cpus.intersection(&online));
        l3s.retain(|l3| !l3.cpus.is_empty());
        l3s.sort_by_key(|l3| l3.cpus.first());
        let cores = group_cores(&cpus, &nodes, &l3s, &mut warnings);
        let ids: BTreeSet<u32> = cores.iter().map(|core| core.package).collect();
        Machine {
            origin: facts.origin,
            packages: ids.into_iter().map(|id| Package { id }).collect(),
            nodes,
            cores,
            l3s,
            drives: facts.drives,
            allowed,
            allowed_memory: facts.allowed_memory,
            memory: facts.memory,
            warnings,
        }
    }

    /// The cores of which we may use a CPU, each with only those CPUs.
    pub fn usable_cores(&self) -> impl Iterator<Item = Core> + '_ {
        let usable = |core: &Core| {
            let mut core = core.clone();
            core.cpus.retain(|&cpu| self.allowed.contains(cpu));
            (!core.cpus.is_empty()).then_some(core)
        };
        self.cores.iter().filter_map(usable)
    }

    /// Physical cores that we may use: the default number of compute threads.
    pub fn physical_cores(&self) -> usize {
        self.usable_cores().count()
    }

    /// The description is of another machine than this process runs on.
    pub fn is_foreign(&self) -> bool {
        self.origin != Origin::Live
    }

    /// Index of the node whose memory serves a node: itself if it has memory that we may use, else
    /// the nearest that has (the first of equals), else itself.
    pub fn memory_node(&self, index: usize) -> usize {
        let serves = |candidate: usize| {
            let node = &self.nodes[candidate];
            let allowed = self.allowed_memory.as_ref().is_none_or(|set| set.contains(&node.id));
            allowed && node.memory_bytes != Some(0)
        };
        if serves(index) {
            return index;
        }
        let distance = |to: usize| self.nodes[index].distances.get(to).copied();
        (0..self.nodes.len())
            .filter(|&candidate| serves(candidate))
            .min_by_key(|&candidate| distance(candidate).unwrap_or(u32::MAX))
            .unwrap_or(index)
    }

    /// One line for headers: `2 packages, 2 nodes, 16 cores, 32 CPUs (allowed 32)`.
    pub fn summary(&self) -> String {
        let count = |n: usize, noun: &str| match n {
            1 => format!("1 {noun}"),
            _ => format!("{n} {noun}s"),
        };
        let cpus = self.cores.iter().map(|core| core.cpus.len()).sum();
        let origin = match self.origin {
            Origin::Live => "",
            Origin::Synthetic => "synthetic: ",
            Origin::Xml => "from XML: ",
        };
        format!(
            "{origin}{}, {}, {}, {} (allowed {})",
            count(self.packages.len(), "package"),
            count(self.nodes.len(), "node"),
            count(self.cores.len(), "core"),
            count(cpus, "CPU"),
            self.allowed.len()
        )
    }

    /// Sixteen hex digits that are equal for machines of equal shape: what `tune` keys its results
    /// by. Free memory, drives, distances and warnings don't count.
    pub fn fingerprint(&self) -> String {
        let mut hash = StableHash::new();
        hash.flag(self.is_foreign()).number(self.nodes.len() as u64);
        for node in &self.nodes {
            hash.number(node.id.0.into()).flag(node.memory_bytes == Some(0));
            hash.text(&node.cpus.to_string());
        }
        hash.number(self.cores.len() as u64);
        for core in &self.cores {
            hash.number(core.package.into());
            hash.number(core.l3.map_or(u64::MAX, |l3| l3 as u64));
            hash.text(&core.cpus.iter().copied().collect::<CpuSet>().to_string());
        }
        hash.text(&self.allowed.to_string()).hex()
    }
}

/// The online CPUs; where none is known, the CPUs of the mask, and where that isn't either, one.
fn known_cpus(
    mut cpus: Vec<CpuFact>,
    mask: Option<&CpuSet>,
    warnings: &mut Vec<String>,
) -> Vec<CpuFact> {
    if cpus.is_empty() {
        let unknown = |cpu| CpuFact { cpu, package: None, core: None };
        cpus = mask.into_iter().flat_map(CpuSet::iter).map(unknown).collect();
        if cpus.is_empty() {
            warnings.push("no CPU was detected; assuming one".to_owned());
            cpus.push(unknown(CpuId(0)));
        } else {
            warnings.push("no list of online CPUs; using those of the affinity mask".to_owned());
        }
    }
    cpus.sort_by_key(|fact| fact.cpu);
    cpus.dedup_by_key(|fact| fact.cpu);
    cpus
}

fn allowed_cpus(online: &CpuSet, mask: Option<&CpuSet>, warnings: &mut Vec<String>) -> CpuSet {
    let Some(mask) = mask else { return online.clone() };
    let allowed = online.intersection(mask);
    if allowed.is_empty() {
        warnings.push(format!(
            "the affinity mask ({mask}) and the online CPUs ({online}) have no CPU in common; \
             ignoring the mask"
        ));
        return online.clone();
    }
    allowed
}

/// Nodes by number with disjoint CPUs. A CPU in several nodes goes to the one with the fewest
/// CPUs, then the lowest number: the others are memory near it. A CPU in none goes to the first
/// node that has CPUs.
fn separate_nodes(mut nodes: Vec<Node>, online: &CpuSet, warnings: &mut Vec<String>) -> Vec<Node> {
    if nodes.is_empty() {
        nodes.push(Node {
            id: NodeId(0),
            memory_bytes: None,
            cpus: online.clone(),
            distances: Vec::new(),
        });
        return nodes;
    }
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|&index| (nodes[index].cpus.len(), nodes[index].id));
    let mut free = online.clone();
    for index in order {
        let own = nodes[index].cpus.intersection(&free);
        free = free.iter().filter(|&cpu| !own.contains(cpu)).collect();
        nodes[index].cpus = own;
    }
    if !free.is_empty() {
        let home = nodes.iter().position(|node| !node.cpus.is_empty()).unwrap_or(0);
        let id = nodes[home].id;
        warnings.push(format!("CPUs {free} belong to no NUMA node; counted to node {id}"));
        nodes[home].cpus.extend(free.iter());
    }
    nodes
}

/// CPUs with equal (package, core) are one core. A CPU of unknown core is a core of its own.
fn group_cores(
    cpus: &[CpuFact],
    nodes: &[Node],
    l3s: &[L3],
    warnings: &mut Vec<String>,
) -> Vec<Core> {
    let mut groups: BTreeMap<(u32, Option<u32>, Option<CpuId>), Vec<CpuId>> = BTreeMap::new();
    let mut alone = CpuSet::new();
    for fact in cpus {
        let own = fact.core.is_none().then_some(fact.cpu);
        alone.extend(own);
        groups.entry((fact.package.unwrap_or(0), fact.core, own)).or_default().push(fact.cpu);
    }
    if !alone.is_empty() {
        warnings.push(format!(
            "no core topology for CPUs {alone}: each is counted as a physical core, so SMT \
             siblings may be counted twice; set --threads if that is too many"
        ));
    }
    let mut cores: Vec<Core> = groups
        .into_iter()
        .map(|((package, _, _), cpus)| Core {
            package,
            node: nodes.iter().position(|node| node.cpus.contains(cpus[0])).unwrap_or(0),
            l3: l3s.iter().position(|l3| l3.cpus.contains(cpus[0])),
            cpus,
        })
        .collect();
    cores.sort_by_key(|core| (core.package, core.node, core.l3, core.cpus[0]));
    cores
}
