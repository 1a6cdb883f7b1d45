//! Promises of every policy over random machines, masks and wishes.

use super::*;
use crate::cpuset::{CpuId, CpuSet};
use crate::machine::Origin;
use crate::plan_file;
use crate::synthetic;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A machine as text: packages, nodes below or beside them, caches, cores, siblings.
fn machine_text() -> impl Strategy<Value = String> {
    let nodes = prop_oneof![
        Just(String::new()),
        (1usize..4).prop_map(|count| format!("numa:{count} ")),
        Just("[numa] ".to_owned()),
        Just("[numa(memory=1GiB)] [numa(memory=8GiB)] ".to_owned()),
    ];
    let l3 = prop_oneof![Just(String::new()), (1usize..4).prop_map(|count| format!("l3:{count} "))];
    (1usize..5, nodes, l3, 1usize..7, 1usize..4).prop_map(|(pack, nodes, l3, core, pu)| {
        format!("pack:{pack} {nodes}{l3}core:{core} pu:{pu}")
    })
}

/// A machine, live or foreign, with some CPUs not allowed and some nodes without memory; and wishes.
fn cases() -> impl Strategy<Value = (Machine, PlanRequest)> {
    let bits = prop::collection::vec(any::<bool>(), 16);
    let threads = prop_oneof![Just(None), (1usize..80).prop_map(Some)];
    (machine_text(), bits.clone(), bits, 0u8..8, threads, any::<[bool; 3]>()).prop_map(
        |(text, masked, avoided, shape, threads, [live, io_is_light, drive])| {
            let mut machine = synthetic::probe(&text).expect("a machine");
            let chosen = |bits: &[bool]| -> CpuSet {
                let all = machine.allowed.iter();
                all.filter(|cpu| bits[(cpu.index() * 7) % bits.len()]).collect()
            };
            let (mask, avoid) = (chosen(&masked), chosen(&avoided));
            if live {
                machine.origin = Origin::Live;
            }
            if shape & 1 > 0 && !mask.is_empty() {
                machine.allowed = mask;
            }
            if shape & 2 > 0 && machine.nodes.len() > 1 {
                machine.nodes[1].memory_bytes = Some(0);
            }
            let drive_node = drive.then(|| machine.nodes[0].id);
            let avoid = if shape & 4 > 0 { avoid } else { CpuSet::new() };
            let base = PlanRequest::default();
            (machine, PlanRequest { threads, avoid, drive_node, io_is_light, ..base })
        },
    )
}

/// Compute threads on each core of which the plan might use a CPU.
fn by_core(machine: &Machine, plan: &PlacementPlan, avoid: &CpuSet) -> Vec<(usize, usize)> {
    let workers = plan.nodes.iter().flat_map(|node| node.workers.iter().copied());
    let compute: CpuSet = workers.chain([plan.leader.cpu]).flatten().collect();
    let usable = |core: &crate::machine::Core| core.cpus.iter().any(|&cpu| !avoid.contains(cpu));
    let on =
        |core: &crate::machine::Core| core.cpus.iter().filter(|&&c| compute.contains(c)).count();
    machine.usable_cores().filter(usable).map(|core| (core.node, on(&core))).collect()
}

fn holds(machine: &Machine, request: &PlanRequest, name: PolicyName) -> Result<(), TestCaseError> {
    let plan = match plan(machine, name, request) {
        Ok(plan) => plan,
        Err(error) => {
            let left = machine.allowed.without(&request.avoid);
            prop_assert!(left.is_empty() && error.to_string().contains("--avoid-cpus"), "{error}");
            return Ok(());
        }
    };
    let pinned: Vec<CpuId> = plan.pinned_cpus().collect();
    for cpu in &pinned {
        prop_assert!(machine.allowed.contains(*cpu) && !request.avoid.contains(*cpu), "{plan:?}");
    }
    let distinct: CpuSet = pinned.iter().copied().collect();
    prop_assert_eq!(distinct.len(), pinned.len(), "two threads on a CPU: {:?}", &plan);
    if let Some(threads) = request.threads {
        prop_assert_eq!(plan.threads, threads);
    }
    let shared = plan.virtual_nodes || !plan.is_pinned();
    prop_assert!(!shared || (plan.spin_us == 0 && pinned.is_empty() && !plan.warnings.is_empty()));
    let cores = by_core(machine, &plan, &request.avoid);
    let ours = |node: usize| plan.nodes.iter().any(|n| n.node == machine.nodes[node].id);
    let doubled = cores.iter().any(|(_, threads)| *threads > 1);
    let idle = cores.iter().any(|&(node, threads)| ours(node) && threads == 0);
    prop_assert!(!(doubled && idle), "siblings before physical cores: {plan:?}");
    let said = plan.warnings.iter().any(|warning| warning.contains("SMT siblings"));
    prop_assert!(!doubled || said, "siblings without a word: {plan:?}");
    for node in &plan.nodes {
        let memory = machine.nodes.iter().find(|known| known.id == node.memory).expect("known");
        let any = machine.nodes.iter().any(|known| known.memory_bytes != Some(0));
        prop_assert!(!any || memory.memory_bytes != Some(0), "memory that isn't there: {plan:?}");
    }
    let by_memory: BTreeMap<NodeId, usize> = plan.nodes.iter().map(|n| (n.memory, 0)).collect();
    let local = plan.memory_policy == MemoryPolicy::Local;
    prop_assert!(!local || by_memory.len() == 1);
    let text = plan_file::to_text(&plan);
    let file = tempfile::tempdir().expect("a directory");
    let path = file.path().join("plan.toml");
    std::fs::write(&path, text).expect("written");
    let mut here = machine.clone();
    here.origin = Origin::Live;
    let back = plan_file::read(&path, &here, &PlanRequest::default());
    prop_assert_eq!(back.expect("a plan for this machine").fingerprint(), plan.fingerprint());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn plans_keep_their_promises_on_any_machine((machine, request) in cases()) {
        for name in names().map(|name| PolicyName::find(name).expect("in the table")) {
            holds(&machine, &request, name)?;
        }
    }
}
