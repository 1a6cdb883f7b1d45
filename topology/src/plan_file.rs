//! Plans as files: what `topology --save` writes and `--topology PLAN.toml` runs under.
//!
//! The home of the package `toml`. In: a plan; out: text that people can read and change. And back:
//! a file, checked against the machine that it shall run on. A plan is never bent to fit: a CPU or
//! node that isn't ours refuses it. A plan that was saved with virtual nodes runs with virtual nodes
//! anywhere. What is left out of a file is what only a run knows (where the model's drive hangs).
//!
//! ```toml
//! version = 1
//! policy = "striped"             # the policy that made it
//! memory_policy = "striped"      # or interleaved, local, first_touch
//! machine = "2 packages, 2 nodes, 16 cores, 32 CPUs (allowed 32)"
//! virtual_nodes = false
//! spin_us = 50
//! leader_cpu = 0                 # left out: not pinned
//!
//! [residency]
//! thread = "leader"              # or "own", with or without a cpu
//!
//! [io]
//! thread = "own"
//! cpu = 30
//!
//! [[nodes]]
//! node = 0
//! memory = 0
//! workers = [2, 4, 6]            # or unpinned_workers = 3
//! ```

use crate::cpuset::{CpuId, NodeId};
use crate::machine::Machine;
use crate::plan::{MemoryPolicy, PlacementPlan, PlanNode, PlanRequest, Seat, SeatHost};
use crate::policy::{self, POLICIES, SPIN_US_MAX, THREADS_MAX};
use crate::probe::TopologyError;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version that this build writes and reads.
const VERSION: u32 = 1;
/// Longest file that is read; a plan of the largest machines has some ten thousand bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Nodes that a plan may have: as many as kernels are built for.
const NODES_MAX: usize = 1024;
/// Longest description of a machine that is kept.
const MACHINE_CHARS_MAX: usize = 200;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    policy: String,
    memory_policy: MemoryPolicy,
    machine: String,
    virtual_nodes: bool,
    spin_us: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_cpu: Option<CpuId>,
    residency: Host,
    io: Host,
    nodes: Vec<Node>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    thread: HostThread,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<CpuId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HostThread {
    Leader,
    Own,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    node: NodeId,
    memory: NodeId,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    workers: Vec<CpuId>,
    #[serde(default, skip_serializing_if = "is_zero")]
    unpinned_workers: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A plan as the text of a file.
pub fn to_text(plan: &PlacementPlan) -> String {
    let host = |host: SeatHost| match host {
        SeatHost::Leader => Host { thread: HostThread::Leader, cpu: None },
        SeatHost::OwnThread(cpu) => Host { thread: HostThread::Own, cpu },
    };
    let node = |node: &PlanNode| Node {
        node: node.node,
        memory: node.memory,
        workers: node.workers.iter().copied().flatten().collect(),
        unpinned_workers: node.workers.iter().filter(|cpu| cpu.is_none()).count(),
    };
    let file = File {
        version: VERSION,
        policy: plan.policy.to_owned(),
        memory_policy: plan.memory_policy,
        machine: plan.machine_summary.clone(),
        virtual_nodes: plan.virtual_nodes,
        spin_us: plan.spin_us,
        leader_cpu: plan.leader.cpu,
        residency: host(plan.residency),
        io: host(plan.io),
        nodes: plan.nodes.iter().map(node).collect(),
    };
    let text = toml::to_string(&file).expect("names, numbers and lists can be written");
    format!("# A placement plan of Millstream: run under it with `--topology FILE`.\n{text}")
}

/// Reads a plan for this machine.
///
/// # Errors
/// When the file can't be read, says something unknown, contradicts itself, names what this machine
/// hasn't or may not use, or when the request asks for what the file decides.
pub fn read(
    path: &Path,
    machine: &Machine,
    request: &PlanRequest,
) -> Result<PlacementPlan, TopologyError> {
    let wrong = |reason: String| TopologyError::PlanFile { path: path.to_path_buf(), reason };
    let found = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(wrong(format!("not a file of at most {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    from_text(&text, machine, request).map_err(wrong)
}

fn from_text(
    text: &str,
    machine: &Machine,
    request: &PlanRequest,
) -> Result<PlacementPlan, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    let asked = [
        ("--threads", request.threads.is_some()),
        ("--spin-us", request.spin_us.is_some()),
        ("--avoid-cpus", !request.avoid.is_empty()),
        ("a choice of nodes", request.nodes.is_some()),
    ];
    if let Some((flag, _)) = asked.iter().find(|(_, asked)| *asked) {
        return Err(format!(
            "{flag} can't be given beside a plan, which decides it; change the plan"
        ));
    }
    let mut plan = file.plan(machine)?;
    plan.validate()?;
    if !plan.virtual_nodes {
        check_machine(&plan, machine)?;
    }
    policy::take_light_reads(&mut plan, request);
    plan.drive_node = request.drive_node;
    plan.warnings = warnings(&plan, machine);
    Ok(plan)
}

impl File {
    /// The plan that is written here; whether it holds together isn't looked at yet.
    fn plan(self, machine: &Machine) -> Result<PlacementPlan, String> {
        let (version, spin_us) = (self.version, self.spin_us);
        if version != VERSION {
            return Err(format!("version {version}; this build reads version {VERSION}"));
        }
        let policy = POLICIES.iter().map(|policy| policy.name()).find(|name| *name == self.policy);
        let known = || policy::names().skip(1).collect::<Vec<_>>().join(", ");
        let policy = policy.ok_or_else(|| {
            format!("policy \"{}\" isn't known; use one of {}", self.policy, known())
        })?;
        if spin_us > SPIN_US_MAX {
            return Err(format!("spin_us = {spin_us}: more than {SPIN_US_MAX} is a mistake"));
        }
        // Counted before any list is made of a number in the file.
        let count = |node: &Node| node.workers.len().saturating_add(node.unpinned_workers);
        let workers = self.nodes.iter().map(count).fold(0, usize::saturating_add);
        if workers >= THREADS_MAX {
            return Err(format!("{workers} workers: more than {} are a mistake", THREADS_MAX - 1));
        }
        if self.nodes.len() > NODES_MAX {
            return Err(format!("{} nodes: more than {NODES_MAX} are a mistake", self.nodes.len()));
        }
        let host = |name: &str, host: &Host| match (host.thread, host.cpu) {
            (HostThread::Leader, None) => Ok(SeatHost::Leader),
            (HostThread::Leader, Some(_)) => Err(format!("[{name}]: the leader has its own CPU")),
            (HostThread::Own, cpu) => Ok(SeatHost::OwnThread(cpu)),
        };
        let memory_bytes = |id: NodeId| {
            let known = machine.nodes.iter().find(|node| node.id == id);
            known.filter(|_| !self.virtual_nodes).and_then(|node| node.memory_bytes)
        };
        let node = |node: &Node| PlanNode {
            node: node.node,
            memory: node.memory,
            memory_bytes: memory_bytes(node.memory),
            workers: node
                .workers
                .iter()
                .map(|&cpu| Some(cpu))
                .chain(std::iter::repeat_n(None, node.unpinned_workers))
                .collect(),
        };
        let printable = self.machine.chars().filter(|letter| !letter.is_control());
        Ok(PlacementPlan {
            policy,
            memory_policy: self.memory_policy,
            machine_summary: printable.take(MACHINE_CHARS_MAX).collect(),
            virtual_nodes: self.virtual_nodes,
            nodes: self.nodes.iter().map(node).collect(),
            leader: Seat { node: 0, cpu: self.leader_cpu },
            residency: host("residency", &self.residency)?,
            io: host("io", &self.io)?,
            threads: workers + 1,
            spin_us,
            drive_node: None,
            warnings: Vec::new(),
        })
    }
}

/// Refuses what this machine hasn't, or hasn't for us.
fn check_machine(plan: &PlacementPlan, machine: &Machine) -> Result<(), String> {
    let remedy = "make a plan for this machine with `millstream topology --save FILE`";
    for cpu in plan.pinned_cpus() {
        if !machine.allowed.contains(cpu) {
            return Err(format!(
                "CPU {cpu} isn't one that we may use here ({}); {remedy}",
                machine.allowed
            ));
        }
    }
    for (index, share) in plan.nodes.iter().enumerate() {
        let of = |id: NodeId| machine.nodes.iter().find(|node| node.id == id);
        let Some(node) = of(share.node) else {
            return Err(format!("there is no node {} here; {remedy}", share.node));
        };
        let leader = plan.leader.cpu.filter(|_| index == plan.leader.node);
        let own = share.workers.iter().copied().flatten().chain(leader);
        if let Some(cpu) = own.into_iter().find(|&cpu| !node.cpus.contains(cpu)) {
            return Err(format!("CPU {cpu} isn't on node {} here; {remedy}", share.node));
        }
        let ours = |id: NodeId| machine.allowed_memory.as_ref().is_none_or(|set| set.contains(&id));
        let holds = |id: NodeId| of(id).is_some_and(|node| node.memory_bytes != Some(0));
        if !ours(share.memory) || !holds(share.memory) {
            return Err(format!("node {} has no memory that we may use; {remedy}", share.memory));
        }
    }
    Ok(())
}

fn warnings(plan: &PlacementPlan, machine: &Machine) -> Vec<String> {
    let mut warnings = Vec::new();
    if plan.virtual_nodes {
        warnings.push(format!(
            "the plan in the file is for another machine ({}): its {} nodes are virtual, threads \
             share this machine's CPUs, nothing is bound or pinned, and idle threads don't spin",
            plan.machine_summary,
            plan.nodes.len()
        ));
    } else if plan.machine_summary != machine.summary() {
        warnings.push(format!(
            "the plan in the file was made where there were {}; here are {}",
            plan.machine_summary,
            machine.summary()
        ));
    }
    warnings
}

#[cfg(test)]
mod tests;
