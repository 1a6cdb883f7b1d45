//! NUMA: what the kernel does to memory on machines with several nodes.

use super::sight::{Sight, file};
use crate::checkpoint::examine::{Finding, Place};

/// Pages that the kernel moves to where they were last used.
pub fn balancing(sight: &Sight, found: &mut Vec<Finding>) {
    let path = "proc/sys/kernel/numa_balancing";
    if sight.machine.nodes.len() > 1 && sight.value::<u32>(path).is_some_and(|mode| mode != 0) {
        let text = "the kernel samples and moves pages between nodes, which costs page faults; \
                    arenas are bound already";
        found.push(Finding::note(file(path), text, "sysctl kernel.numa_balancing=0"));
    }
}

/// Memory of other nodes that is taken only after cached files were dropped.
pub fn reclaim(sight: &Sight, found: &mut Vec<Finding>) {
    let path = "proc/sys/vm/zone_reclaim_mode";
    if sight.machine.nodes.len() > 1 && sight.value::<u32>(path).is_some_and(|mode| mode != 0) {
        let text = "a full node drops cached files before it takes memory from another node";
        found.push(Finding::warning(file(path), text, "sysctl vm.zone_reclaim_mode=0"));
    }
}

/// Nodes whose cores have no memory that we may use beside them.
pub fn without_memory(sight: &Sight, found: &mut Vec<Finding>) {
    let machine = &sight.machine;
    for (index, node) in machine.nodes.iter().enumerate() {
        let serving = machine.memory_node(index);
        if serving != index && !node.cpus.is_disjoint(&machine.allowed) {
            let serving = machine.nodes[serving].id;
            let text = format!(
                "node {} has CPUs but no memory that may be used: its cores read node {serving}'s",
                node.id
            );
            let remedy = "fill its memory channels, or allow its memory (cpuset.mems), or leave its \
                          CPUs out with `taskset`";
            found.push(Finding::warning(Place::EMPTY, text, remedy));
        }
    }
}
