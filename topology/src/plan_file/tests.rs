//! Plans survive their file; files that say something else than a plan for this machine are refused.

use super::*;
use crate::cpuset::CpuSet;
use crate::machine::Origin;
use crate::policy::{PolicyName, names, plan};
use crate::synthetic;
use proptest::prelude::*;

fn live(text: &str) -> Machine {
    let mut machine = synthetic::probe(text).unwrap();
    machine.origin = Origin::Live;
    machine
}

fn good() -> (Machine, String) {
    let machine = live("pack:2 numa:1 core:4 pu:2");
    let plan = plan(&machine, PolicyName::AUTO, &PlanRequest::default()).unwrap();
    (machine, to_text(&plan))
}

fn read_back(text: &str, machine: &Machine) -> Result<PlacementPlan, String> {
    from_text(text, machine, &PlanRequest::default())
}

#[test]
fn every_plan_comes_back_as_it_was() {
    let texts =
        ["pu:1", "core:4 pu:2", "pack:2 numa:1 l3:2 core:4 pu:2", "pack:4 numa:2 core:2 pu:1"];
    for text in texts {
        for machine in [live(text), synthetic::probe(text).unwrap()] {
            for name in names() {
                for threads in [None, Some(1), Some(3), Some(300)] {
                    let request = PlanRequest { threads, ..PlanRequest::default() };
                    let name = PolicyName::find(name).unwrap();
                    let mut made = plan(&machine, name, &request).unwrap();
                    let written = to_text(&made);
                    let mut back = read_back(&written, &machine).unwrap();
                    assert_eq!(back.fingerprint(), made.fingerprint(), "{written}");
                    // Warnings are the occasion's; a virtual plan's memory sizes are nobody's.
                    (made.warnings, back.warnings) = (vec![], vec![]);
                    if made.virtual_nodes {
                        made.nodes.iter_mut().for_each(|node| node.memory_bytes = None);
                    }
                    assert_eq!(back, made, "{written}");
                }
            }
        }
    }
}

#[test]
fn plan_of_a_machine_that_is_not_here_runs_only_if_it_is_virtual() {
    let (_, text) = good();
    let small = live("core:2 pu:1");
    let error = read_back(&text, &small).unwrap_err();
    assert!(error.contains("CPU") && error.contains("--save"), "{error}");
    let away = synthetic::probe("pack:2 numa:1 core:4 pu:2").unwrap();
    let plan = plan(&away, PolicyName::AUTO, &PlanRequest::default()).unwrap();
    let back = read_back(&to_text(&plan), &small).unwrap();
    assert!(back.virtual_nodes && back.warnings[0].contains("another machine"), "{back:?}");
}

#[test]
fn cpus_and_nodes_that_are_not_ours_are_refused_by_name() {
    let (mut machine, text) = good();
    let refused = |machine: &Machine, text: &str, part: &str| {
        let error = read_back(text, machine).expect_err(part);
        assert!(error.contains(part), "{error}");
    };
    refused(&machine, &text.replace("node = 1", "node = 7"), "no node 7");
    refused(&machine, &text.replace("memory = 1", "memory = 7"), "node 7 has no memory");
    let swapped = text.replace("node = 0", "node = 9").replace("node = 1", "node = 0");
    refused(&machine, &swapped.replace("node = 9", "node = 1"), "isn't on node 1");
    machine.allowed_memory = Some([NodeId(0)].into());
    refused(&machine, &text, "node 1 has no memory that we may use");
    machine.allowed = "1-15".parse().unwrap();
    refused(&machine, &text, "CPU 0 isn't one that we may use");
}

#[test]
fn unknown_keys_and_contradictions_are_refused() {
    let (machine, text) = good();
    let changes = [
        ("version = 1", "version = 2", "version 2"),
        ("version = 1", "version = 1\nspeed = 9", "speed"),
        ("[io]", "[io]\nnice = 1", "nice"),
        ("[[nodes]]", "[[nodes]]\ncolour = 1", "colour"),
        ("policy = \"striped\"\nmemory", "policy = \"sideways\"\nmemory", "sideways"),
        ("memory_policy = \"striped\"", "memory_policy = \"sideways\"", "sideways"),
        ("memory_policy = \"striped\"", "memory_policy = \"local\"", "one node"),
        ("leader_cpu = 0", "", "pinned, or none"),
        ("leader_cpu = 0", "leader_cpu = 2", "one thread pinned"),
        ("leader_cpu = 0", "leader_cpu = -1", "invalid value"),
        ("virtual_nodes = false", "virtual_nodes = true", "pin nothing"),
        ("spin_us = 50", "spin_us = 50000000", "mistake"),
        (
            "[residency]\nthread = \"leader\"",
            "[residency]\nthread = \"leader\"\ncpu = 3",
            "own CPU",
        ),
        ("memory = 0\n", "memory = 0\nunpinned_workers = 999999999999\n", "mistake"),
    ];
    for (from, to, part) in changes {
        assert!(text.contains(from), "{from} in\n{text}");
        let error = read_back(&text.replacen(from, to, 1), &machine).expect_err(to);
        assert!(error.contains(part), "{to}: {error}");
    }
    let none = text.split("[[nodes]]").next().unwrap();
    assert!(read_back(none, &machine).is_err());
}

#[test]
fn absurd_numbers_of_nodes_are_refused() {
    let (machine, text) = good();
    let head = text.split("[[nodes]]").next().unwrap();
    let node = |id: usize| format!("[[nodes]]\nnode = {id}\nmemory = {id}\n");
    let nodes: String = (0..NODES_MAX + 1).map(node).collect();
    let error = read_back(&format!("{head}{nodes}"), &machine).unwrap_err();
    assert!(error.contains("1025 nodes"), "{error}");
}

proptest! {
    #[test]
    fn damaged_files_give_an_error_or_a_plan_that_holds(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..30, 0usize..11), 1..4),
    ) {
        let (machine, mut text) = good();
        let pieces = ["", "9", "-", "0", "[", "]", "\"", "leader", "true", "\n", "workers = [1]\n"];
        for (at, len, piece) in cuts {
            let from = at.index(text.len());
            text.replace_range(from..(from + len).min(text.len()), pieces[piece]);
        }
        if let Ok(plan) = read_back(&text, &machine) {
            prop_assert_eq!(plan.validate(), Ok(()));
            prop_assert!(plan.pinned_cpus().all(|cpu| machine.allowed.contains(cpu)));
        }
    }
}

#[test]
fn flags_that_the_plan_decides_are_refused_beside_it() {
    let (machine, text) = good();
    let base = PlanRequest::default;
    let requests = [
        ("--threads", PlanRequest { threads: Some(2), ..base() }),
        ("--spin-us", PlanRequest { spin_us: Some(2), ..base() }),
        ("--avoid-cpus", PlanRequest { avoid: "3".parse::<CpuSet>().unwrap(), ..base() }),
    ];
    for (flag, request) in requests {
        let error = from_text(&text, &machine, &request).unwrap_err();
        assert!(error.contains(flag), "{error}");
    }
}

#[test]
fn light_reads_go_to_the_leader_where_the_file_names_no_cpu_for_them() {
    let (machine, text) = good();
    let request = PlanRequest { io_is_light: true, ..PlanRequest::default() };
    let io = |text: &str| from_text(text, &machine, &request).unwrap().io;
    assert_eq!(io(&text), SeatHost::Leader, "all cores compute");
    let fewer = PlanRequest { threads: Some(4), ..PlanRequest::default() };
    let spare = plan(&machine, PolicyName::AUTO, &fewer).unwrap();
    assert_eq!(io(&to_text(&spare)), spare.io);
}
