//! The placement plan: who sits where. What a policy returns and everything downstream obeys.
//!
//! Made once at start by [`crate::policy`] from a [`crate::machine::Machine`] and a
//! [`PlanRequest`]; read by the engine (how many segments, crews and workers), by the seats (which
//! CPU), by the arenas (which node) and by the reports. A plan is a plain value: nothing here
//! looks at the live machine.

use crate::cpuset::{CpuId, CpuSet, NodeId};
use crate::hash::StableHash;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What the user may ask of a plan; `None` leaves the choice to the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanRequest {
    /// Compute threads in all, the leader included. A count, never an affinity.
    pub threads: Option<usize>,
    /// How long an idle compute thread spins before it parks, in microseconds; 0 always parks.
    pub spin_us: Option<u32>,
    /// The only nodes to use, by the operating system's number.
    pub nodes: Option<Vec<NodeId>>,
    /// CPUs to leave alone, though we may use them: busy with interrupts or other work.
    pub avoid: CpuSet,
    /// The node that the model's drive hangs on, where known.
    pub drive_node: Option<NodeId>,
    /// Reads cost a compute thread next to nothing (they never block it and need no unpacking), so
    /// that the leader may host the loaders where no CPU is spare.
    pub io_is_light: bool,
}

/// Who sits where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacementPlan {
    /// Name of the policy that made it; what `auto` chose, not `auto`.
    pub policy: &'static str,
    /// Which node the pages of the arenas come from.
    pub memory_policy: MemoryPolicy,
    /// The machine in one line.
    pub machine_summary: String,
    /// The nodes are not this machine's: segments, crews and cursors are real, binding and pinning
    /// are off.
    pub virtual_nodes: bool,
    /// One entry per arena segment, crew and cursor; never empty.
    pub nodes: Vec<PlanNode>,
    /// The leading compute thread; it sits on the first node.
    pub leader: Seat,
    /// Where the prefetchers (the expert slots' only writers) live.
    pub residency: SeatHost,
    /// Where the loaders live.
    pub io: SeatHost,
    /// Compute threads in all: the leader and every worker.
    pub threads: usize,
    /// How long an idle compute thread spins before it parks, in microseconds.
    pub spin_us: u32,
    /// The node that the model's drive hangs on, where known: buffers of reads lie there. Belongs to
    /// the model and not to the placement, so that plans of two models compare.
    pub drive_node: Option<NodeId>,
    /// What the user should know: fallbacks, clamps, nodes left out.
    pub warnings: Vec<String>,
}

/// Which node the pages of the arenas come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPolicy {
    /// Each segment from its own node: a crew reads only its node's memory.
    Striped,
    /// Every segment from all nodes of the plan in turn, by the kernel's weights where those differ.
    Interleaved,
    /// From the plan's only node, and from the others when it is full.
    Local,
    /// From the node of whichever thread touches a page first: nothing is bound.
    FirstTouch,
}

/// Every memory policy.
pub const MEMORY_POLICIES: [MemoryPolicy; 4] = [
    MemoryPolicy::Striped,
    MemoryPolicy::Interleaved,
    MemoryPolicy::Local,
    MemoryPolicy::FirstTouch,
];

impl MemoryPolicy {
    /// As plans are written.
    pub fn name(self) -> &'static str {
        match self {
            MemoryPolicy::Striped => "striped",
            MemoryPolicy::Interleaved => "interleaved",
            MemoryPolicy::Local => "local",
            MemoryPolicy::FirstTouch => "first_touch",
        }
    }
}

/// One node of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanNode {
    /// The node whose CPUs compute.
    pub node: NodeId,
    /// The node whose memory holds the segment: `node` itself, or the nearest one that has memory.
    pub memory: NodeId,
    /// Memory of that node, where known.
    pub memory_bytes: Option<u64>,
    /// One entry per worker thread, the leader not counted: the CPU it is pinned to, or `None`.
    /// May be empty: the leader helps nodes that have no worker.
    pub workers: Vec<Option<CpuId>>,
}

/// A compute thread's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Seat {
    /// Index into the plan's nodes.
    pub node: usize,
    /// The CPU it is pinned to, if any.
    pub cpu: Option<CpuId>,
}

/// The thread that hosts a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SeatHost {
    /// A thread of its own, pinned to a CPU that no compute thread has, or not pinned.
    OwnThread(Option<CpuId>),
    /// The leading compute thread, between jobs.
    Leader,
}

impl PlacementPlan {
    /// Compute threads per node, the leader counted on its own.
    pub fn threads_per_node(&self) -> Vec<usize> {
        let leads = |index: usize| usize::from(index == self.leader.node);
        self.nodes.iter().enumerate().map(|(i, node)| node.workers.len() + leads(i)).collect()
    }

    /// Compute threads sit on CPUs of their own.
    pub fn is_pinned(&self) -> bool {
        self.leader.cpu.is_some()
    }

    /// Every CPU that a thread is pinned to.
    pub fn pinned_cpus(&self) -> impl Iterator<Item = CpuId> + '_ {
        let own = |host: SeatHost| match host {
            SeatHost::OwnThread(cpu) => cpu,
            SeatHost::Leader => None,
        };
        let workers = self.nodes.iter().flat_map(|node| node.workers.iter().copied());
        workers.chain([self.leader.cpu, own(self.residency), own(self.io)]).flatten()
    }

    /// Sixteen hex digits that are equal for plans that place alike, whatever their wording.
    pub fn fingerprint(&self) -> String {
        let mut hash = StableHash::new();
        hash.text(self.policy).text(self.memory_policy.name());
        hash.flag(self.virtual_nodes).number(self.nodes.len() as u64);
        for node in &self.nodes {
            hash.number(node.node.0.into()).number(node.memory.0.into());
            hash.number(node.workers.len() as u64);
            node.workers.iter().for_each(|&cpu| hash_cpu(&mut hash, cpu));
        }
        hash.number(self.leader.node as u64);
        hash_cpu(&mut hash, self.leader.cpu);
        for host in [self.residency, self.io] {
            match host {
                SeatHost::Leader => hash.flag(true),
                SeatHost::OwnThread(cpu) => {
                    hash_cpu(&mut hash, cpu);
                    hash.flag(false)
                }
            };
        }
        hash.number(self.threads as u64).number(self.spin_us.into());
        hash.hex()
    }

    /// Checks what every plan promises, whatever policy made it; the text says which promise broke.
    ///
    /// # Errors
    /// When the plan contradicts itself: a bug of its policy.
    pub fn validate(&self) -> Result<(), String> {
        let check = |holds: bool, promise: &str| match holds {
            true => Ok(()),
            false => Err(format!("a plan of policy `{}` breaks a rule: {promise}", self.policy)),
        };
        check(!self.nodes.is_empty(), "a plan has a node")?;
        check(self.leader.node == 0, "the leader sits on the first node")?;
        let workers: usize = self.nodes.iter().map(|node| node.workers.len()).sum();
        check(self.threads == workers + 1, "threads = leader + workers")?;
        let ids: BTreeSet<NodeId> = self.nodes.iter().map(|node| node.node).collect();
        check(ids.len() == self.nodes.len(), "a node appears once")?;
        let pinned: Vec<CpuId> = self.pinned_cpus().collect();
        let distinct: BTreeSet<CpuId> = pinned.iter().copied().collect();
        check(distinct.len() == pinned.len(), "a CPU has one thread pinned to it")?;
        let mut compute = self.nodes.iter().flat_map(|node| &node.workers);
        check(
            compute.all(|cpu| cpu.is_some() == self.leader.cpu.is_some()),
            "all compute threads are pinned, or none",
        )?;
        check(!self.virtual_nodes || pinned.is_empty(), "virtual nodes pin nothing")?;
        check(self.is_pinned() || self.spin_us == 0, "threads without a CPU of their own park")?;
        let local = self.memory_policy == MemoryPolicy::Local;
        check(!local || self.nodes.len() == 1, "local memory is that of one node")?;
        Ok(())
    }
}

fn hash_cpu(hash: &mut StableHash, cpu: Option<CpuId>) {
    hash.number(cpu.map_or(u64::MAX, |cpu| cpu.0.into()));
}
