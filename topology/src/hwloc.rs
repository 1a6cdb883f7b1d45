//! The home of hwlocality: the live machine through hwloc, and machines from hwloc's XML files.
//!
//! Behind the cargo feature `hwloc`. Three rules, each for a trap: topologies come from the
//! builder with an explicit source, never from environment variables; whether hwloc really looked
//! at what it was asked to is checked with `is_this_system`; and memory sizes of the live machine
//! come from the kernel's files, because hwloc misses memory that the kernel sets up late.

use crate::affinity::AffinityMask;
use crate::cpuset::{CpuId, CpuSet, NodeId};
use crate::machine::{CpuFact, Facts, L3, Machine, Node, Origin};
use crate::memory::MemoryLimits;
use crate::probe::TopologyError;
use crate::sysfs;
use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::depth::Depth;
use hwlocality::object::types::ObjectType;
use std::path::Path;

/// Probes the live machine under the captured affinity mask, which hwloc doesn't see.
///
/// # Errors
/// A text, when hwloc can't load or looked at something else.
pub fn probe_live() -> Result<Machine, String> {
    let topology = Topology::builder().build().map_err(|error| error.to_string())?;
    if !topology.is_this_system() {
        return Err("hwloc was pointed at another machine (HWLOC_XMLFILE or HWLOC_SYNTHETIC is \
                    set); unset it"
            .to_owned());
    }
    // Drives, node memory, distances and limits are the kernel's; cores, caches and CPUs hwloc's.
    let mut facts = sysfs::facts(Path::new("/"), AffinityMask::capture().clone());
    facts.cpus = cpus(&topology);
    facts.l3s = l3s(&topology);
    if facts.nodes.is_empty() {
        facts.nodes = nodes(&topology);
    }
    Ok(Machine::from_facts(facts))
}

/// Reads a machine from the text of an XML file.
///
/// # Errors
/// When hwloc refuses the text.
pub fn probe_xml(path: &Path, xml: &str) -> Result<Machine, TopologyError> {
    let error = |reason: String| TopologyError::Xml { path: path.display().to_string(), reason };
    let topology = Topology::builder()
        .from_xml(xml)
        .map_err(|e| error(e.to_string()))?
        .build()
        .map_err(|e| error(e.to_string()))?;
    if topology.is_this_system() {
        return Err(error("hwloc answered with the live machine instead".to_owned()));
    }
    Ok(Machine::from_facts(foreign_facts(&topology, Origin::Xml)))
}

fn foreign_facts(topology: &Topology, origin: Origin) -> Facts {
    Facts {
        origin,
        cpus: cpus(topology),
        nodes: nodes(topology),
        l3s: l3s(topology),
        drives: Vec::new(),
        mask: Some(
            topology.allowed_cpuset().iter_set().map(|index| cpu_id(index.into())).collect(),
        ),
        allowed_memory: None,
        memory: MemoryLimits::read(Path::new("/")),
        warnings: Vec::new(),
    }
}

fn cpu_id(number: usize) -> CpuId {
    CpuId(u32::try_from(number).expect("hwloc counts CPUs in 32 bits"))
}

fn cpus_of(object: &TopologyObject) -> CpuSet {
    let set = object.cpuset();
    set.iter().flat_map(|set| set.iter_set()).map(|index| cpu_id(index.into())).collect()
}

/// Every CPU with its package's number and its core, counted over the whole machine (a core's own
/// number may repeat).
fn cpus(topology: &Topology) -> Vec<CpuFact> {
    let number = |id: usize| u32::try_from(id).ok();
    let fact = |cpu: &TopologyObject| {
        let above = |kind| cpu.first_ancestor_with_type(kind);
        let package = above(ObjectType::Package)
            .and_then(|package| number(package.os_index().unwrap_or(package.logical_index())));
        let core = above(ObjectType::Core).and_then(|core| number(core.logical_index()));
        Some(CpuFact { cpu: cpu_id(cpu.os_index()?), package, core })
    };
    topology.objects_with_type(ObjectType::PU).filter_map(fact).collect()
}

fn l3s(topology: &Topology) -> Vec<L3> {
    let l3 = |object: &TopologyObject| {
        let size_bytes = match object.attributes() {
            Some(ObjectAttributes::Cache(cache)) => cache.size().map(u64::from),
            _ => None,
        };
        L3 { size_bytes, cpus: cpus_of(object) }
    };
    topology.objects_with_type(ObjectType::L3Cache).map(l3).collect()
}

fn nodes(topology: &Topology) -> Vec<Node> {
    let node = |object: &TopologyObject| {
        let memory_bytes = match object.attributes() {
            Some(ObjectAttributes::NUMANode(node)) => {
                Some(node.local_memory().map_or(0, u64::from))
            }
            _ => None,
        };
        let id = object.os_index().unwrap_or(object.logical_index());
        let id = NodeId(u32::try_from(id).expect("hwloc counts nodes in 32 bits"));
        Node { id, memory_bytes, cpus: cpus_of(object), distances: Vec::new() }
    };
    let mut nodes: Vec<Node> = topology.objects_at_depth(Depth::NUMANode).map(node).collect();
    nodes.sort_by_key(|node| node.id);
    let found = topology.distances(None).unwrap_or_default();
    for matrix in found.iter().filter(|matrix| matrix.num_objects() == nodes.len()) {
        // Row-major in the order of the matrix's own objects, which must all be nodes.
        let ids: Option<Vec<NodeId>> = matrix
            .objects()
            .map(|object| {
                let object =
                    object.filter(|object| object.object_type() == ObjectType::NUMANode)?;
                object.os_index().and_then(|id| u32::try_from(id).ok()).map(NodeId)
            })
            .collect();
        let Some(ids) = ids else { continue };
        let place = |id: NodeId| ids.iter().position(|&other| other == id);
        let order: Option<Vec<usize>> = nodes.iter().map(|node| place(node.id)).collect();
        let Some(order) = order else { continue };
        let values = matrix.distances();
        for (node, &row) in nodes.iter_mut().zip(&order) {
            let value = |&column: &usize| u32::try_from(values[row * ids.len() + column]);
            node.distances = order.iter().map(|c| value(c).unwrap_or(u32::MAX)).collect();
        }
        break;
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    fn through_hwloc(text: &str) -> Machine {
        let topology = Topology::builder().from_synthetic(text).unwrap().build().unwrap();
        assert!(!topology.is_this_system());
        Machine::from_facts(foreign_facts(&topology, Origin::Synthetic))
    }

    /// What hwloc fills in unasked: sizes of caches and of nodes without `memory=`.
    fn without_sizes(mut machine: Machine) -> Machine {
        machine.l3s.iter_mut().for_each(|l3| l3.size_bytes = None);
        machine.nodes.iter_mut().for_each(|node| node.memory_bytes = None);
        machine.memory = MemoryLimits::default();
        machine
    }

    #[test]
    fn own_synthetic_parser_agrees_with_hwloc() {
        for text in [
            "pack:1 core:4 pu:1",
            "pack:2 numa:1 core:8 pu:2",
            "numa:4 core:2 pu:1",
            "pack:2 [numa(memory=64GB)] l3:2 core:4 pu:2",
            "pack:2 [numa] [numa] core:2 pu:2",
            "[numa] pack:2 [numa] core:2 pu:2",
            "pack:4 numa:2 l3:1 l2:2 core:1 pu:2",
            "core:3 pu:1",
            "numa:2 pu:3",
        ] {
            let (own, theirs) = (synthetic::probe(text).unwrap(), through_hwloc(text));
            assert_eq!(without_sizes(own), without_sizes(theirs), "{text}");
        }
    }

    #[test]
    fn memory_attribute_means_what_hwloc_means() {
        for text in [
            "pack:2 [numa(memory=64GB)] pu:2",
            "numa:2(memory=3MiB) pu:1",
            "numa:2(memory=4096) pu:1",
        ] {
            let sizes = |machine: Machine| -> Vec<Option<u64>> {
                machine.nodes.iter().map(|node| node.memory_bytes).collect()
            };
            assert_eq!(sizes(synthetic::probe(text).unwrap()), sizes(through_hwloc(text)));
        }
    }

    #[test]
    fn hwloc_and_kernel_files_agree_on_this_machine() {
        let hwloc = probe_live().unwrap();
        let kernel = sysfs::probe(Path::new("/"));
        assert_eq!(hwloc.cores, kernel.cores);
        assert_eq!(hwloc.nodes, kernel.nodes);
        assert_eq!(hwloc.allowed, kernel.allowed);
    }
}
