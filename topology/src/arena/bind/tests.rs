//! Bindings of plans: what turns them off, what is an error, and what a full node or the kernel's
//! weights change. Real nodes beyond the first are the business of the emulated machine's test.

use super::*;
use crate::plan::{PlanNode, Seat, SeatHost};
use std::fs;

fn plan(nodes: &[u32], memory_policy: MemoryPolicy) -> PlacementPlan {
    let node = |&id: &u32| PlanNode {
        node: NodeId(id),
        memory: NodeId(id),
        memory_bytes: None,
        workers: Vec::new(),
    };
    PlacementPlan {
        policy: "test",
        memory_policy,
        machine_summary: String::new(),
        virtual_nodes: false,
        nodes: nodes.iter().map(node).collect(),
        leader: Seat { node: 0, cpu: None },
        residency: SeatHost::Leader,
        io: SeatHost::Leader,
        threads: 1,
        spin_us: 0,
        drive_node: None,
        warnings: Vec::new(),
    }
}

/// True if the kernel lets this process bind to the node at all.
fn may_bind(node: NodeId) -> bool {
    let page = Mapping::new(1).unwrap();
    let (address, bytes) = page.whole();
    bind_pages(address, bytes, &one_node(libc::MPOL_BIND, node)).is_ok()
}

/// A tree with two nodes: free memory in KiB and weight of each.
fn tree(nodes: [(u64, u32); 2]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let weights = root.path().join("sys/kernel/mm/mempolicy/weighted_interleave");
    fs::create_dir_all(&weights).unwrap();
    for (id, (free_kib, weight)) in nodes.into_iter().enumerate() {
        let node = root.path().join(format!("sys/devices/system/node/node{id}"));
        fs::create_dir_all(&node).unwrap();
        let meminfo = format!(
            "Node {id} MemTotal: 1000000 kB\nNode {id} MemFree: {free_kib} kB\n\
             Node {id} Active(file): 10000 kB\nNode {id} Inactive(file): 20000 kB\n"
        );
        fs::write(node.join("meminfo"), meminfo).unwrap();
        fs::write(weights.join(format!("node{id}")), format!("{weight}\n")).unwrap();
    }
    root
}

#[test]
fn only_a_refusal_that_means_not_permitted_turns_binding_off() {
    let table = [
        (libc::EPERM, true),
        (libc::ENOSYS, true),
        (libc::EINVAL, false),
        (libc::EFAULT, false),
        (libc::ENOMEM, false),
        (libc::EIO, false),
    ];
    for (code, off) in table {
        let result = refusal(NodeId(1), io::Error::from_raw_os_error(code));
        assert_eq!(result.is_ok(), off, "{code}: {result:?}");
    }
}

#[test]
fn virtual_nodes_and_memory_left_to_the_kernel_are_not_bound() {
    for policy in crate::plan::MEMORY_POLICIES {
        let virtual_nodes = policy != MemoryPolicy::FirstTouch;
        let plan = PlacementPlan { virtual_nodes, ..plan(&[0, 1, 2], policy) };
        let binding = Binding::probe(&plan, &[1 << 50; 3]).unwrap();
        assert!(!binding.is_on() && binding.warnings().is_empty(), "{policy:?}");
    }
}

#[test]
fn policy_that_the_process_was_started_under_is_kept() {
    assert_eq!(set_from_outside(None), None);
    assert_eq!(set_from_outside(Some(libc::MPOL_DEFAULT)), None);
    for mode in [libc::MPOL_BIND, libc::MPOL_INTERLEAVE, libc::MPOL_PREFERRED] {
        let warning = set_from_outside(Some(mode)).expect("a warning");
        assert!(warning.contains("numactl"), "{warning}");
    }
}

#[test]
fn node_that_does_not_exist_is_an_error_that_names_it() {
    if !may_bind(NodeId(0)) {
        println!("this kernel doesn't let us bind to node 0: nothing to check");
        return;
    }
    for absent in [63, 64, 900] {
        let plan = plan(&[0, absent], MemoryPolicy::Striped);
        let error = Binding::probe(&plan, &[1, 1]).unwrap_err().to_string();
        assert!(error.contains(&format!("NUMA node {absent}")), "{error}");
    }
}

#[test]
fn striped_binds_where_there_is_room_and_prefers_where_there_is_not() {
    let root = tree([(500_000, 1), (40_000, 1)]);
    let plan = plan(&[0, 1], MemoryPolicy::Striped);
    let modes = |bytes: [u64; 2]| {
        let (targets, warnings) = targets(root.path(), &plan, &bytes);
        let modes: Vec<i32> = targets.iter().map(|target| target.mode).collect();
        (modes, warnings.join("\n"))
    };
    let (bind, prefer) = (libc::MPOL_BIND, libc::MPOL_PREFERRED);
    // Node 1: 40000 KiB free and 30000 of files, less 20000 that stay free.
    assert_eq!(modes([100 << 20, 45_000 << 10]), (vec![bind, bind], String::new()));
    let (modes, warning) = modes([100 << 20, 55_000 << 10]);
    assert_eq!(modes, [bind, prefer]);
    assert!(warning.contains("node 1") && warning.contains("--memory"), "{warning}");
}

#[test]
fn interleaving_follows_weights_only_where_they_differ() {
    let target = |weights: [u32; 2]| {
        let root = tree([(0, weights[0]), (0, weights[1])]);
        let (targets, _) = targets(root.path(), &plan(&[0, 1], MemoryPolicy::Interleaved), &[0; 2]);
        assert_eq!(targets[0], targets[1], "all segments alike");
        targets[0].clone()
    };
    let nodes = vec![NodeId(0), NodeId(1)];
    let equal = Target { mode: libc::MPOL_INTERLEAVE, nodes: nodes.clone() };
    assert_eq!(target([4, 4]), equal);
    assert_eq!(target([4, 1]), Target { mode: MPOL_WEIGHTED_INTERLEAVE, nodes });
}

#[test]
fn neighbours_that_are_bound_alike_are_one_range() {
    let mapping = Mapping::new(6 << 20).unwrap();
    let segments = [0, 2, 4].map(|mib: usize| Span { offset: mib << 20, bytes: 2 << 20 });
    let (start, bytes) = mapping.whole();
    let binding = |nodes: [u32; 3]| Binding {
        targets: nodes.iter().map(|&id| one_node(libc::MPOL_BIND, NodeId(id))).collect(),
        warnings: Vec::new(),
    };
    let alike = binding([0, 0, 0]);
    let ranges = alike.ranges(&mapping, &segments);
    assert_eq!(ranges.iter().map(|r| (r.1, r.2)).collect::<Vec<_>>(), [(start, bytes)]);
    let striped = binding([0, 1, 0]);
    let ranges = striped.ranges(&mapping, &segments);
    assert_eq!(ranges.len(), 3);
    assert_eq!(ranges.iter().map(|range| range.2).sum::<usize>(), bytes, "nothing is left out");
    assert!(ranges.windows(2).all(|pair| pair[0].1 + pair[0].2 == pair[1].1));
    assert_eq!(ranges[1].1, mapping.pointer(segments[1]).addr());
}

#[test]
fn other_memory_is_cleared_and_dealt_only_over_several_nodes() {
    let ones = || vec![1u8; 100_000];
    let of = |nodes: &[u32]| Binding {
        targets: nodes.iter().map(|&id| one_node(libc::MPOL_BIND, NodeId(id))).collect(),
        warnings: Vec::new(),
    };
    for one in [Binding::off(), of(&[900, 900])] {
        let mut memory = ones();
        one.deal(&mut memory).expect("nothing to deal, nothing is called");
        assert_eq!(memory, ones());
    }
    let mut memory = ones();
    of(&[900, 901]).deal(&mut memory).expect_err("neither node is there");
    assert!(memory.iter().all(|&byte| byte == 0), "cleared all the same");
    if !may_bind(NodeId(0)) {
        println!("this kernel doesn't let us bind to node 0: nothing more to check");
        return;
    }
    let mut memory = ones();
    // The kernel ignores nodes that aren't there as long as one is.
    of(&[0, 63]).deal(&mut memory).unwrap();
    assert!(memory.iter().all(|&byte| byte == 0));
}

#[test]
fn bound_arena_holds_what_is_written_also_when_it_has_settled() {
    let Some(binding) = alternating_for_tests() else {
        println!("this kernel doesn't let us bind: nothing to check");
        return;
    };
    let mut builder = super::super::ArenaBuilder::new(2);
    let regions = [builder.region(0, 3 << 20), builder.region(1, 10)];
    let mut arena = builder.build(&binding).unwrap();
    assert!(arena.is_bound());
    for (region, byte) in regions.into_iter().zip([5, 6]) {
        arena.region_mut(region).fill(byte);
    }
    arena.settle().unwrap();
    let whole = |region, byte| arena.region(region).iter().all(|&b| b == byte);
    assert!(whole(regions[0], 5) && whole(regions[1], 6));
}
