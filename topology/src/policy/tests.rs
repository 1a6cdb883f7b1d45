//! Walks the table of policies over machines and wishes: every plan keeps its promises.

use super::*;
use crate::cpuset::{CpuId, CpuSet};
use crate::machine::{Drive, Origin};
use crate::synthetic;

/// A synthetic machine that passes for the live one, so that plans pin.
fn live(text: &str) -> Machine {
    let mut machine = synthetic::probe(text).unwrap();
    machine.origin = Origin::Live;
    machine
}

fn masked(text: &str, mask: &str) -> Machine {
    let mut machine = live(text);
    machine.allowed = mask.parse().unwrap();
    machine
}

/// Takes CPUs offline: the picture loses them too.
fn offline(text: &str, gone: &str) -> Machine {
    let mut machine = live(text);
    let gone: CpuSet = gone.parse().unwrap();
    let keep = |set: &CpuSet| -> CpuSet { set.iter().filter(|&cpu| !gone.contains(cpu)).collect() };
    machine.allowed = keep(&machine.allowed);
    machine.nodes.iter_mut().for_each(|node| node.cpus = keep(&node.cpus));
    machine.cores.iter_mut().for_each(|core| core.cpus.retain(|&cpu| !gone.contains(cpu)));
    machine.cores.retain(|core| !core.cpus.is_empty());
    machine
}

fn machines() -> Vec<(&'static str, Machine)> {
    vec![
        ("one CPU", live("pu:1")),
        ("one node", live("core:4 pu:1")),
        ("2 x 8", live("pack:2 numa:1 core:8 pu:1")),
        ("2 x 8, SMT, caches", live("pack:2 numa:1 l3:2 core:4 pu:2")),
        ("4 sockets", live("pack:4 numa:2 core:4 pu:2")),
        ("memory-only nodes", live("pack:2 [numa(memory=8GiB)] [numa(memory=64GiB)] core:4 pu:2")),
        ("offline cores", offline("pack:2 numa:1 core:8 pu:2", "0,2-3,9,17-31")),
        ("restricted mask", masked("pack:2 numa:1 core:8 pu:2", "3,5-6,20")),
        ("mask on one node", masked("pack:2 numa:1 core:8 pu:2", "18-21")),
        ("uneven nodes", masked("pack:2 numa:1 core:8 pu:2", "0-3,16-31")),
        ("another machine", synthetic::probe("pack:2 numa:2 core:8 pu:2").unwrap()),
    ]
}

fn requests() -> Vec<PlanRequest> {
    let threads = [None, Some(1), Some(2), Some(3), Some(8), Some(17), Some(40), Some(500)];
    let request = |(threads, spin_us)| PlanRequest { threads, spin_us, ..PlanRequest::default() };
    threads.into_iter().flat_map(|t| [(t, None), (t, Some(7))]).map(request).collect()
}

fn named(name: &str) -> PolicyName {
    PolicyName::find(name).expect("in the table")
}

#[test]
fn every_policy_gives_a_valid_plan_on_every_machine() {
    for (what, machine) in machines() {
        for name in names() {
            for request in requests() {
                let plan = plan(&machine, named(name), &request).unwrap();
                let place = format!("{name} on {what}, {request:?}: {plan:?}");
                assert!(plan.pinned_cpus().all(|cpu| machine.allowed.contains(cpu)), "{place}");
                if let Some(threads) = request.threads {
                    assert_eq!(plan.threads, threads, "{place}");
                }
                for node in &plan.nodes {
                    let known = machine.nodes.iter().find(|n| n.id == node.node).unwrap();
                    let own = |cpu: &Option<CpuId>| cpu.is_none_or(|cpu| known.cpus.contains(cpu));
                    assert!(node.workers.iter().all(own), "{place}");
                }
                assert_eq!(plan.virtual_nodes, machine.is_foreign(), "{place}");
                let shares = plan.virtual_nodes || plan.threads > machine.allowed.len();
                assert!(!shares || (!plan.is_pinned() && plan.spin_us == 0), "{place}");
                assert!(plan.is_pinned() || !plan.warnings.is_empty(), "{place}");
            }
        }
    }
}

#[test]
fn siblings_are_used_only_beyond_the_physical_cores() {
    for (what, machine) in machines().into_iter().filter(|(_, m)| !m.is_foreign()) {
        for name in names() {
            let plan = plan(&machine, named(name), &PlanRequest::default()).unwrap();
            let cpus: CpuSet = plan.pinned_cpus().collect();
            for core in &machine.cores {
                let used = core.cpus.iter().filter(|&&cpu| cpus.contains(cpu)).count();
                assert!(used <= 1, "{name} on {what}: {core:?}");
            }
        }
    }
}

#[test]
fn striped_takes_every_node_alike() {
    let machine = live("pack:4 numa:1 core:4 pu:2");
    let threads = |n| {
        let request = PlanRequest { threads: Some(n), ..PlanRequest::default() };
        plan(&machine, named("striped"), &request).unwrap().threads_per_node()
    };
    assert_eq!(threads(16), [4, 4, 4, 4]);
    assert_eq!(threads(6), [2, 2, 1, 1]);
    assert_eq!(threads(1), [1, 0, 0, 0], "all memory stays in use");
    assert_eq!(threads(18), [5, 5, 4, 4]);
}

#[test]
fn striped_takes_no_more_than_a_node_has() {
    let machine = masked("pack:2 numa:1 core:8 pu:1", "0-1,8-15");
    let plan = plan(&machine, named("striped"), &PlanRequest::default()).unwrap();
    assert_eq!(plan.threads_per_node(), [2, 8]);
    let machine = masked("pack:2 numa:1 core:8 pu:2", "0-3,16-31");
    let plan = super::plan(&machine, named("striped"), &PlanRequest::default()).unwrap();
    assert_eq!(plan.threads_per_node(), [2, 8], "no sibling while a core is free elsewhere");
}

#[test]
fn striped_deals_threads_over_the_caches() {
    let machine = live("numa:1 l3:2 core:4 pu:1");
    let request = PlanRequest { threads: Some(4), ..PlanRequest::default() };
    let cpus = |name: &str| {
        let plan = plan(&machine, named(name), &request).unwrap();
        let mut cpus = vec![plan.leader.cpu.unwrap().0];
        cpus.extend(plan.nodes[0].workers.iter().map(|cpu| cpu.unwrap().0));
        cpus
    };
    assert_eq!(cpus("striped"), [0, 4, 1, 5]);
    assert_eq!(cpus("compact"), [0, 1, 2, 3]);
}

#[test]
fn policies_differ_in_where_memory_comes_from() {
    use MemoryPolicy::{FirstTouch, Interleaved, Local, Striped};
    let memory = |machine: &Machine, name: &str| {
        plan(machine, named(name), &PlanRequest::default()).unwrap().memory_policy
    };
    let (two, one) = (live("pack:2 numa:1 core:2 pu:1"), live("core:4 pu:1"));
    let of_two = [
        ("auto", Striped),
        ("striped", Striped),
        ("interleaved", Interleaved),
        ("spread", FirstTouch),
        ("compact", Striped),
        ("single", Local),
    ];
    assert_eq!(of_two.len(), names().count());
    for (name, expected) in of_two {
        assert_eq!(memory(&two, name), expected, "{name}");
        assert_eq!(memory(&one, name), FirstTouch, "{name}: nothing to choose");
    }
    let mut masked = two;
    masked.allowed = "2-3".parse().unwrap();
    for name in ["auto", "striped", "interleaved", "compact", "single"] {
        assert_eq!(memory(&masked, name), Local, "{name}: one of two nodes");
    }
}

#[test]
fn striped_interleaved_and_spread_seat_alike() {
    let machine = live("pack:2 numa:1 l3:2 core:4 pu:2");
    let seats = |name: &str| {
        let plan = plan(&machine, named(name), &PlanRequest::default()).unwrap();
        (plan.leader, plan.nodes, plan.io)
    };
    assert_eq!(seats("striped"), seats("interleaved"));
    assert_eq!(seats("striped"), seats("spread"));
}

#[test]
fn compact_takes_the_fewest_nodes() {
    let machine = live("pack:2 numa:1 core:4 pu:2");
    let threads = |n| {
        let request = PlanRequest { threads: Some(n), ..PlanRequest::default() };
        plan(&machine, named("compact"), &request).unwrap().threads_per_node()
    };
    assert_eq!(threads(4), [4]);
    assert_eq!(threads(5), [4, 1]);
    assert_eq!(threads(10), [6, 4]);
    assert_eq!(threads(20), [10, 10]);
}

#[test]
fn single_takes_the_node_with_most_cores_for_us() {
    let machine = masked("pack:2 numa:1 core:4 pu:1", "0,4-6");
    let plan = plan(&machine, named("single"), &PlanRequest::default()).unwrap();
    assert_eq!((plan.nodes.len(), plan.nodes[0].node, plan.threads), (1, NodeId(1), 3));
}

#[test]
fn auto_stripes_over_several_nodes_and_is_compact_on_one() {
    let policy = |machine: &Machine| {
        plan(machine, PolicyName::AUTO, &PlanRequest::default()).unwrap().policy
    };
    assert_eq!(policy(&live("pack:2 numa:1 core:2 pu:1")), "striped");
    assert_eq!(policy(&live("pack:2 [numa] core:2 pu:1")), "striped");
    assert_eq!(policy(&live("pack:1 [numa] [numa] core:2 pu:1")), "compact");
    assert_eq!(policy(&masked("pack:2 numa:1 core:2 pu:1", "0-1")), "compact");
}

#[test]
fn loaders_get_a_spare_core_near_the_drive_and_no_pin_without_one() {
    let mut machine = live("pack:2 numa:1 core:4 pu:2");
    machine.drives.push(Drive {
        name: "nvme0n1".to_owned(),
        node: Some(NodeId(0)),
        rotational: Some(false),
        size_bytes: None,
    });
    let io = |threads| {
        let request = PlanRequest { threads: Some(threads), ..PlanRequest::default() };
        plan(&machine, named("striped"), &request).unwrap().io
    };
    assert_eq!(io(6), SeatHost::OwnThread(Some(CpuId(6))));
    assert_eq!(io(8), SeatHost::OwnThread(None));
}

#[test]
fn light_reads_are_hosted_by_the_leader_only_where_no_cpu_is_spare() {
    let io = |machine: &Machine, threads, io_is_light| {
        let request = PlanRequest { threads: Some(threads), io_is_light, ..PlanRequest::default() };
        plan(machine, PolicyName::AUTO, &request).unwrap().io
    };
    let machine = live("core:4 pu:1");
    assert_eq!(io(&machine, 4, true), SeatHost::Leader);
    assert_eq!(io(&machine, 4, false), SeatHost::OwnThread(None));
    assert_eq!(io(&machine, 3, true), SeatHost::OwnThread(Some(CpuId(3))));
    assert_eq!(io(&machine, 9, true), SeatHost::Leader, "oversubscribed");
    let foreign = synthetic::probe("core:4 pu:1").unwrap();
    assert_eq!(io(&foreign, 2, true), SeatHost::OwnThread(None));
}

#[test]
fn spin_is_granted_only_to_threads_with_a_cpu_of_their_own() {
    let spin = |machine: &Machine, threads, spin_us| {
        let request = PlanRequest { threads, spin_us, ..PlanRequest::default() };
        plan(machine, PolicyName::AUTO, &request).unwrap().spin_us
    };
    let machine = live("core:4 pu:1");
    assert_eq!(spin(&machine, None, None), seating::SPIN_US);
    assert_eq!(spin(&machine, None, Some(0)), 0);
    assert_eq!(spin(&machine, None, Some(900)), 900);
    assert_eq!(spin(&machine, Some(5), Some(900)), 0);
    assert_eq!(spin(&live("pu:1"), None, Some(900)), 0);
}

#[test]
fn wish_for_nodes_is_kept_or_refused_by_name() {
    let machine = live("pack:2 [numa] [numa] core:2 pu:1");
    let wish = |ids: &[u32]| {
        let nodes = Some(ids.iter().copied().map(NodeId).collect());
        plan(&machine, named("striped"), &PlanRequest { nodes, ..PlanRequest::default() })
    };
    let chosen = wish(&[2]).unwrap();
    assert_eq!((chosen.nodes.len(), chosen.nodes[0].node), (1, NodeId(2)));
    for ids in [&[1][..], &[9], &[]] {
        let error = wish(ids).unwrap_err().to_string();
        assert!(error.contains("0, 2"), "{error}");
    }
}

#[test]
fn avoided_cpus_get_no_thread_and_count_for_nothing() {
    let machine = live("pack:2 numa:1 core:4 pu:2");
    let avoiding = |avoid: &str, threads| {
        let avoid = avoid.parse().unwrap();
        plan(&machine, PolicyName::AUTO, &PlanRequest { avoid, threads, ..PlanRequest::default() })
    };
    // Core 0 (CPUs 0, 1) as a whole, and one sibling of core 1.
    let plan = avoiding("0-2", None).unwrap();
    assert_eq!(plan.threads_per_node(), [3, 4]);
    assert_eq!(plan.leader.cpu, Some(CpuId(3)), "the other sibling stays ours");
    assert!(plan.pinned_cpus().all(|cpu| cpu.0 > 2));
    let plan = avoiding("12-15", Some(4)).unwrap();
    assert!(matches!(plan.io, SeatHost::OwnThread(Some(cpu)) if cpu.0 < 12), "{plan:?}");
    let error = avoiding("0-15", None).unwrap_err().to_string();
    assert!(error.contains("--avoid-cpus 0-15") && error.contains("none is left"), "{error}");
    assert!(avoiding("0,77", None).unwrap().warnings.join("").contains("77"));
    assert_eq!(avoiding("8-15", None).unwrap().nodes.len(), 1, "a node without CPUs for us");
}

#[test]
fn reads_sit_near_the_models_drive() {
    let mut machine = live("pack:2 numa:1 core:4 pu:2");
    let drive = |node| Drive {
        name: format!("nvme{node}n1"),
        node: Some(NodeId(node)),
        rotational: Some(false),
        size_bytes: None,
    };
    machine.drives = vec![drive(0), drive(1)];
    let io = |drive_node| {
        let request = PlanRequest { threads: Some(6), drive_node, ..PlanRequest::default() };
        let plan = plan(&machine, named("striped"), &request).unwrap();
        (plan.io, plan.drive_node)
    };
    assert_eq!(io(Some(NodeId(0))), (SeatHost::OwnThread(Some(CpuId(6))), Some(NodeId(0))));
    assert_eq!(io(Some(NodeId(1))), (SeatHost::OwnThread(Some(CpuId(14))), Some(NodeId(1))));
}

#[test]
fn impossible_thread_counts_are_refused() {
    let machine = live("core:4 pu:1");
    for threads in [0, THREADS_MAX + 1] {
        let request = PlanRequest { threads: Some(threads), ..PlanRequest::default() };
        let error = plan(&machine, PolicyName::AUTO, &request).unwrap_err().to_string();
        assert!(error.contains(&format!("--threads {threads}")), "{error}");
    }
}

#[test]
fn node_left_out_and_node_without_memory_are_named() {
    let mut machine = live("pack:2 [numa(memory=8GiB)] [numa(memory=64GiB)] core:4 pu:2");
    let warnings = |machine: &Machine| {
        plan(machine, PolicyName::AUTO, &PlanRequest::default()).unwrap().warnings.join("\n")
    };
    assert!(warnings(&machine).contains("node 1 (65536 MiB) takes no part"));
    machine.nodes[2].memory_bytes = Some(0);
    assert!(
        warnings(&machine).contains("node 2 has no memory that we may use; its segments lie on")
    );
}

#[test]
fn fingerprint_follows_the_placement_and_not_the_wording() {
    let machine = live("pack:2 numa:1 core:4 pu:2");
    let plan = plan(&machine, PolicyName::AUTO, &PlanRequest::default()).unwrap();
    let mut other = plan.clone();
    other.warnings.push("x".to_owned());
    other.machine_summary.clear();
    assert_eq!(other.fingerprint(), plan.fingerprint());
    other.nodes[1].workers.pop();
    assert_ne!(other.fingerprint(), plan.fingerprint());
    let mut other = plan.clone();
    other.io = SeatHost::Leader;
    assert_ne!(other.fingerprint(), plan.fingerprint());
    let mut other = plan.clone();
    other.memory_policy = MemoryPolicy::Interleaved;
    assert_ne!(other.fingerprint(), plan.fingerprint());
}

#[test]
fn broken_plans_are_told_from_valid_ones() {
    let machine = live("pack:2 numa:1 core:4 pu:2");
    let good = plan(&machine, PolicyName::AUTO, &PlanRequest::default()).unwrap();
    let breaks: &[fn(&mut PlacementPlan)] = &[
        |plan| plan.nodes.clear(),
        |plan| plan.threads += 1,
        |plan| plan.leader.node = 1,
        |plan| plan.leader.cpu = None,
        |plan| plan.leader.cpu = plan.nodes[0].workers[0],
        |plan| plan.nodes[1].node = plan.nodes[0].node,
        |plan| plan.virtual_nodes = true,
        |plan| plan.memory_policy = MemoryPolicy::Local,
        |plan| plan.io = SeatHost::OwnThread(plan.leader.cpu),
    ];
    assert_eq!(good.validate(), Ok(()));
    for (index, damage) in breaks.iter().enumerate() {
        let mut plan = good.clone();
        damage(&mut plan);
        assert!(plan.validate().is_err(), "break {index} went unseen");
    }
}
