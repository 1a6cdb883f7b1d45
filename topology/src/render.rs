//! A machine and its plan as a tree for the terminal.
//!
//! Read by people: `millstream topology` prints it. Packages, nodes, caches and cores as the probe
//! saw them; crew, leader and seats where the plan puts them; then the warnings.

use crate::cpuset::{CpuId, CpuSet};
use crate::machine::{Core, Machine};
use crate::plan::{PlacementPlan, SeatHost};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A line of the tree and what hangs below it.
struct Branch {
    text: String,
    below: Vec<Branch>,
}

impl Branch {
    fn leaf(text: String) -> Branch {
        Branch { text, below: Vec::new() }
    }

    fn write(&self, out: &mut String, indent: &str) {
        for (index, branch) in self.below.iter().enumerate() {
            let last = index + 1 == self.below.len();
            let (here, under) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            out.push_str(&format!("{indent}{here}{}\n", branch.text));
            branch.write(out, &format!("{indent}{under}"));
        }
    }
}

/// The tree, with the plan drawn in if there is one. Ends with a newline.
pub fn render(machine: &Machine, plan: Option<&PlacementPlan>) -> String {
    let labels = plan.map(labels).unwrap_or_default();
    let mut root = Branch::leaf(machine.summary());
    for package in &machine.packages {
        root.below.push(package_branch(machine, plan, &labels, package.id));
    }
    for (index, node) in machine.nodes.iter().enumerate() {
        if !machine.cores.iter().any(|core| core.node == index) {
            let memory = size(node.memory_bytes);
            root.below.push(Branch::leaf(format!("node {}  {memory}, no CPUs", node.id)));
        }
    }
    for drive in &machine.drives {
        let mut text = format!("drive {}  {}", drive.name, size(drive.size_bytes));
        if drive.rotational == Some(true) {
            text.push_str(", rotating");
        }
        if let Some(node) = drive.node {
            text.push_str(&format!(", at node {node}"));
        }
        root.below.push(Branch::leaf(text));
    }
    let mut out = format!("{}\n", root.text);
    root.write(&mut out, "");
    out.push_str(&memory_line(machine));
    if let Some(plan) = plan {
        out.push_str(&plan_lines(plan));
    }
    let of_plan = plan.map(|plan| plan.warnings.as_slice()).unwrap_or_default();
    for warning in machine.warnings.iter().chain(of_plan) {
        out.push_str(&format!("warning: {warning}\n"));
    }
    out
}

fn package_branch(
    machine: &Machine,
    plan: Option<&PlacementPlan>,
    labels: &BTreeMap<CpuId, &'static str>,
    package: u32,
) -> Branch {
    let mut branch = Branch::leaf(format!("package {package}"));
    for (index, node) in machine.nodes.iter().enumerate() {
        let cores: Vec<&Core> =
            machine.cores.iter().filter(|c| c.package == package && c.node == index).collect();
        if cores.is_empty() {
            continue;
        }
        let mut text = format!("node {}  {}", node.id, size(node.memory_bytes));
        if let Some(share) = plan.and_then(|plan| crew(plan, machine, index)) {
            text.push_str(&format!("  {share}"));
        }
        let mut of_node = Branch::leaf(text);
        let mut l3s: Vec<Option<usize>> = cores.iter().map(|core| core.l3).collect();
        l3s.dedup();
        for l3 in l3s {
            let leaves = cores.iter().filter(|core| core.l3 == l3);
            let leaves = leaves.map(|core| Branch::leaf(core_text(machine, labels, core)));
            match l3 {
                None => of_node.below.extend(leaves),
                Some(l3) => of_node.below.push(Branch {
                    text: format!("L3  {}", size(machine.l3s[l3].size_bytes)),
                    below: leaves.collect(),
                }),
            }
        }
        branch.below.push(of_node);
    }
    branch
}

/// `core  cpu 3 worker, cpu 7 (not allowed)`
fn core_text(machine: &Machine, labels: &BTreeMap<CpuId, &'static str>, core: &Core) -> String {
    let cpu = |&cpu: &CpuId| match (labels.get(&cpu), machine.allowed.contains(cpu)) {
        (Some(label), _) => format!("cpu {cpu} {label}"),
        (None, true) => format!("cpu {cpu}"),
        (None, false) => format!("cpu {cpu} (not allowed)"),
    };
    format!("core  {}", core.cpus.iter().map(cpu).collect::<Vec<_>>().join(", "))
}

/// Who is pinned to which CPU.
fn labels(plan: &PlacementPlan) -> BTreeMap<CpuId, &'static str> {
    let mut labels = BTreeMap::new();
    for cpu in plan.nodes.iter().flat_map(|node| node.workers.iter().copied().flatten()) {
        labels.insert(cpu, "worker");
    }
    labels.extend(plan.leader.cpu.map(|cpu| (cpu, "leader")));
    for (host, label) in [(plan.residency, "residency"), (plan.io, "I/O")] {
        if let SeatHost::OwnThread(Some(cpu)) = host {
            labels.insert(cpu, label);
        }
    }
    labels
}

/// `crew of 8`, with what is special about it.
fn crew(plan: &PlacementPlan, machine: &Machine, node: usize) -> Option<String> {
    let index = plan.nodes.iter().position(|share| share.node == machine.nodes[node].id)?;
    let threads = plan.threads_per_node()[index];
    let mut text = format!("crew of {threads}");
    if index == plan.leader.node {
        text.push_str(", leader included");
    }
    let memory = plan.nodes[index].memory;
    if memory != plan.nodes[index].node {
        text.push_str(&format!(", memory on node {memory}"));
    }
    Some(text)
}

fn plan_lines(plan: &PlacementPlan) -> String {
    let host = |host: SeatHost| match host {
        SeatHost::Leader => "on the leader".to_owned(),
        SeatHost::OwnThread(None) => "own thread, not pinned".to_owned(),
        SeatHost::OwnThread(Some(cpu)) => format!("own thread on cpu {cpu}"),
    };
    let pinned = match (plan.virtual_nodes, plan.is_pinned()) {
        (true, _) => "virtual nodes, nothing pinned",
        (false, true) => "pinned",
        (false, false) => "not pinned",
    };
    let mut out = String::new();
    let per_node = plan.threads_per_node().iter().map(ToString::to_string).collect::<Vec<_>>();
    writeln!(
        out,
        "plan {} ({}): {} compute threads ({} per node), {pinned}, spin {} us, memory {}",
        plan.policy,
        plan.fingerprint(),
        plan.threads,
        per_node.join("+"),
        plan.spin_us,
        plan.memory_policy.name().replace('_', " ")
    )
    .expect("a string takes all");
    writeln!(out, "seats: residency {}, I/O {}", host(plan.residency), host(plan.io))
        .expect("a string takes all");
    out
}

fn memory_line(machine: &Machine) -> String {
    let memory = &machine.memory;
    let mut line = format!(
        "memory: {} available of {}",
        size(memory.available_bytes),
        size(memory.total_bytes)
    );
    if let Some(limit) = memory.cgroup_limit_bytes {
        line.push_str(&format!(", control group limit {}", size(Some(limit))));
    }
    let cpus: CpuSet = machine.cores.iter().flat_map(|core| core.cpus.iter().copied()).collect();
    if machine.allowed != cpus {
        line.push_str(&format!("; CPUs allowed: {} of {cpus}", machine.allowed));
    }
    line.push('\n');
    line
}

/// A size with a unit that leaves two to four digits, or `unknown size`.
pub(crate) fn size(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else { return "unknown size".to_owned() };
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >= 10 << shift) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Origin;
    use crate::memory::MemoryLimits;
    use crate::plan::PlanRequest;
    use crate::policy::{PolicyName, plan};
    use crate::synthetic;

    #[test]
    fn tree_shows_machine_crew_and_seats() {
        let text = "pack:2 [numa(memory=64GiB)] l3:1 core:2 pu:2";
        let mut machine = synthetic::probe(text).unwrap();
        machine.origin = Origin::Live;
        machine.allowed = "0-5".parse().unwrap();
        machine.memory = MemoryLimits {
            available_bytes: Some(100 << 30),
            total_bytes: Some(128 << 30),
            cgroup_limit_bytes: None,
        };
        let request = PlanRequest { threads: Some(2), ..PlanRequest::default() };
        let plan = plan(&machine, PolicyName::AUTO, &request).unwrap();
        let expected = format!(
            "\
2 packages, 2 nodes, 4 cores, 8 CPUs (allowed 6)
├─ package 0
│  └─ node 0  64 GiB  crew of 1, leader included
│     └─ L3  unknown size
│        ├─ core  cpu 0 leader, cpu 1
│        └─ core  cpu 2 I/O, cpu 3
└─ package 1
   └─ node 1  64 GiB  crew of 1
      └─ L3  unknown size
         ├─ core  cpu 4 worker, cpu 5
         └─ core  cpu 6 (not allowed), cpu 7 (not allowed)
memory: 100 GiB available of 128 GiB; CPUs allowed: 0-5 of 0-7
plan striped ({}): 2 compute threads (1+1 per node), pinned, spin 50 us, memory striped
seats: residency on the leader, I/O own thread on cpu 2
",
            plan.fingerprint()
        );
        assert_eq!(render(&machine, Some(&plan)), expected);
    }

    #[test]
    fn tree_without_a_plan_shows_memory_only_nodes_and_warnings() {
        let mut machine = synthetic::probe("[numa(memory=4GiB)] [numa(memory=1TiB)] pu:2").unwrap();
        machine.warnings.push("guessed".to_owned());
        let tree = render(&machine, None);
        assert!(tree.contains("node 1  1024 GiB, no CPUs"), "{tree}");
        assert!(tree.ends_with("warning: guessed\n"), "{tree}");
        assert!(!tree.contains("plan"), "{tree}");
    }
}
