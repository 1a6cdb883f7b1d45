//! What all policies share: from "this many threads on these nodes" to a plan.
//!
//! In: pools (a node's usable CPUs in the order they should be taken) and a count for each. Out: a
//! [`PlacementPlan`] with leader, workers, seats, spin and warnings. SMT siblings are taken only
//! when there are more threads than physical cores; nothing is pinned on virtual nodes or when
//! there are more threads than CPUs.

use crate::cpuset::{CpuId, CpuSet, NodeId};
use crate::machine::{Core, Machine};
use crate::plan::{MemoryPolicy, PlacementPlan, PlanNode, PlanRequest, Seat, SeatHost};
use std::collections::{BTreeMap, BTreeSet};

/// How long a pinned compute thread spins before it parks: two and a half wake-ups' worth.
pub(super) const SPIN_US: u32 = 50;

/// A node and the CPUs on it that we may use.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Index into the machine's nodes.
    pub(super) node: usize,
    /// Its usable cores, each with its L3 and usable CPUs, in the order to take them.
    pub(super) cores: Vec<PoolCore>,
}

/// A core of a pool.
#[derive(Clone, Debug)]
pub(super) struct PoolCore {
    pub(super) l3: Option<usize>,
    pub(super) cpus: Vec<CpuId>,
}

impl Pool {
    /// CPUs, siblings included.
    pub(super) fn cpu_count(&self) -> usize {
        self.cores.iter().map(|core| core.cpus.len()).sum()
    }

    /// The first CPU of every core, then the second of every core that has one, and so on.
    fn cpus(&self) -> impl Iterator<Item = CpuId> + '_ {
        let levels = self.cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
        (0..levels).flat_map(|level| {
            self.cores.iter().filter_map(move |core| core.cpus.get(level).copied())
        })
    }
}

/// The cores of which a plan may use a CPU, each with only those CPUs.
fn usable_cores(machine: &Machine, request: &PlanRequest) -> impl Iterator<Item = Core> {
    machine.usable_cores().filter_map(|mut core| {
        core.cpus.retain(|&cpu| !request.avoid.contains(cpu));
        (!core.cpus.is_empty()).then_some(core)
    })
}

/// The nodes that have CPUs for us and that the request doesn't exclude, by number. Never empty
/// for a checked request.
pub(super) fn pools(machine: &Machine, request: &PlanRequest) -> Vec<Pool> {
    let wanted = |id: NodeId| request.nodes.as_ref().is_none_or(|nodes| nodes.contains(&id));
    let mut pools: Vec<Pool> = Vec::new();
    let mut cores: Vec<_> = usable_cores(machine, request).collect();
    cores.sort_by_key(|core| core.node);
    for core in cores.into_iter().filter(|core| wanted(machine.nodes[core.node].id)) {
        if pools.last().is_none_or(|pool| pool.node != core.node) {
            pools.push(Pool { node: core.node, cores: Vec::new() });
        }
        let pool = pools.last_mut().expect("one was pushed");
        pool.cores.push(PoolCore { l3: core.l3, cpus: core.cpus });
    }
    pools
}

/// Threads to place: as asked, or one per physical core of the pools.
pub(super) fn thread_count(pools: &[Pool], request: &PlanRequest) -> usize {
    let cores = pools.iter().map(|pool| pool.cores.len()).sum::<usize>();
    request.threads.unwrap_or(cores.min(super::THREADS_MAX))
}

/// Deals threads to pools one at a time in turn: first as many as each has cores, then as many as
/// it has CPUs, then without end.
pub(super) fn deal_in_turn(pools: &[Pool], threads: usize) -> Vec<usize> {
    let mut counts = vec![0; pools.len()];
    let mut left = threads;
    let rooms: [fn(&Pool) -> usize; 3] = [|pool| pool.cores.len(), Pool::cpu_count, |_| usize::MAX];
    for room in rooms {
        let mut dealt = true;
        while left > 0 && dealt {
            dealt = false;
            for (count, pool) in counts.iter_mut().zip(pools) {
                if left > 0 && *count < room(pool) {
                    *count += 1;
                    left -= 1;
                    dealt = true;
                }
            }
        }
    }
    counts
}

/// Threads dealt evenly over all nodes, and within each over its caches in turn.
pub(super) fn over_all_nodes(
    (policy, memory): (&'static str, MemoryPolicy),
    machine: &Machine,
    request: &PlanRequest,
) -> PlacementPlan {
    let mut pools = pools(machine, request);
    pools.iter_mut().for_each(interleave_caches);
    let counts = deal_in_turn(&pools, thread_count(&pools, request));
    seat((policy, memory), machine, request, &pools, &counts)
}

/// Orders cores so that neighbours sit on different caches: the first core of each, the second of
/// each, and so on.
fn interleave_caches(pool: &mut Pool) {
    pool.cores.sort_by_key(|core| (core.l3, core.cpus[0]));
    let mut seen: BTreeMap<Option<usize>, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, PoolCore)> = Vec::new();
    for core in pool.cores.drain(..) {
        let rank = seen.entry(core.l3).or_default();
        ranked.push((*rank, core));
        *rank += 1;
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    pool.cores.extend(ranked.into_iter().map(|(_, core)| core));
}

/// Where memory really comes from: with one node of memory there is nothing to choose, and on one
/// node of several all of it is local.
fn memory_policy(machine: &Machine, pools: &[Pool], wanted: MemoryPolicy) -> MemoryPolicy {
    let with_memory = machine.nodes.iter().filter(|node| node.memory_bytes != Some(0));
    match (wanted, pools.len(), with_memory.count()) {
        (MemoryPolicy::FirstTouch, ..) | (_, _, ..2) => MemoryPolicy::FirstTouch,
        (_, 1, _) => MemoryPolicy::Local,
        (wanted, ..) => wanted,
    }
}

/// Makes the plan: `counts[i]` compute threads on `pools[i]`; the leader is one of the first's.
/// A pool with no thread takes part with its memory, except the first, which must have one.
pub(super) fn seat(
    (policy, memory): (&'static str, MemoryPolicy),
    machine: &Machine,
    request: &PlanRequest,
    pools: &[Pool],
    counts: &[usize],
) -> PlacementPlan {
    assert!(counts.first().is_some_and(|&count| count > 0), "the leader sits on the first pool");
    let threads: usize = counts.iter().sum();
    let cpus: usize = pools.iter().map(Pool::cpu_count).sum();
    let fits = counts.iter().zip(pools).all(|(&count, pool)| count <= pool.cpu_count());
    let pinned = fits && !machine.is_foreign();
    let memory_policy = memory_policy(machine, pools, memory);
    let mut nodes: Vec<PlanNode> = Vec::new();
    for (pool, &count) in pools.iter().zip(counts) {
        let memory = &machine.nodes[machine.memory_node(pool.node)];
        nodes.push(PlanNode {
            node: machine.nodes[pool.node].id,
            memory: memory.id,
            memory_bytes: memory.memory_bytes,
            workers: match pinned {
                true => pool.cpus().take(count).map(Some).collect(),
                false => vec![None; count],
            },
        });
    }
    let leader = Seat { node: 0, cpu: nodes[0].workers.remove(0) };
    // Alone on its only CPU, a thread would spin against the one it waits for.
    let spins = pinned && machine.allowed.len() > 1;
    let mut plan = PlacementPlan {
        policy,
        memory_policy,
        machine_summary: machine.summary(),
        virtual_nodes: machine.is_foreign(),
        nodes,
        leader,
        residency: SeatHost::Leader,
        io: SeatHost::OwnThread(None),
        threads,
        spin_us: if spins { request.spin_us.unwrap_or(SPIN_US) } else { 0 },
        drive_node: request.drive_node.filter(|_| !machine.is_foreign()),
        warnings: Vec::new(),
    };
    if pinned {
        plan.io = SeatHost::OwnThread(spare_cpu(machine, request, &plan));
    }
    // A thread that shares a CPU with a compute thread takes more from it than light reads do.
    let crowded = if pinned { plan.io == SeatHost::OwnThread(None) } else { threads >= cpus };
    if request.io_is_light && crowded {
        plan.io = SeatHost::Leader;
    }
    plan.warnings = warnings(machine, request, &plan, pools, cpus);
    plan
}

/// A CPU of a core on which no compute thread sits: near the model's drive if possible, or, where
/// that isn't known, near any; else the last.
fn spare_cpu(machine: &Machine, request: &PlanRequest, plan: &PlacementPlan) -> Option<CpuId> {
    let taken: CpuSet = plan.pinned_cpus().collect();
    let is_spare = |cpus: &[CpuId]| !cpus.iter().any(|&cpu| taken.contains(cpu));
    // Usable siblings only: a core whose other CPU is another's (cpuset) is still ours to use.
    let spare: Vec<_> =
        usable_cores(machine, request).filter(|core| is_spare(&core.cpus)).collect();
    let near = |node: usize| {
        let id = machine.nodes[node].id;
        match request.drive_node {
            Some(drive) => drive == id,
            None => machine.drives.iter().any(|drive| drive.node == Some(id)),
        }
    };
    let best = spare.iter().rev().find(|core| near(core.node)).or(spare.last());
    best.map(|core| core.cpus[0])
}

fn warnings(
    machine: &Machine,
    request: &PlanRequest,
    plan: &PlacementPlan,
    pools: &[Pool],
    cpus: usize,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |text: String| warnings.push(text);
    let threads = plan.threads;
    let cores: usize = pools.iter().map(|pool| pool.cores.len()).sum();
    if plan.virtual_nodes {
        warn(format!(
            "this plan is for another machine ({}): its {} nodes are virtual, threads share this \
             machine's CPUs, nothing is bound or pinned, and idle threads don't spin",
            plan.machine_summary,
            plan.nodes.len()
        ));
    } else if !plan.is_pinned() {
        warn(format!(
            "{threads} compute threads on {cpus} CPUs: nothing is pinned and idle threads don't \
             spin; --threads {cores} is one per physical core"
        ));
    } else if threads > cores {
        warn(format!(
            "{threads} compute threads on {cores} physical cores: SMT siblings share a core, which \
             is seldom faster; --threads {cores} is one per core"
        ));
    }
    if request.spin_us.is_some_and(|spin| spin > plan.spin_us) {
        warn(format!(
            "--spin-us {} is not granted: threads share CPUs",
            request.spin_us.unwrap_or(0)
        ));
    }
    let absent = request.avoid.without(&machine.allowed);
    if !absent.is_empty() {
        warn(format!("--avoid-cpus {absent}: not among the CPUs that we may use anyway"));
    }
    let used: BTreeSet<NodeId> = plan.nodes.iter().map(|node| node.memory).collect();
    for node in &machine.nodes {
        let bytes = node.memory_bytes.unwrap_or(0);
        if plan.nodes.len() > 1 && bytes > 0 && !used.contains(&node.id) {
            warn(format!(
                "node {} ({} MiB) takes no part: its memory is not used for the model",
                node.id,
                bytes >> 20
            ));
        }
    }
    for node in plan.nodes.iter().filter(|node| node.memory != node.node) {
        warn(format!(
            "node {} has no memory that we may use; its segments lie on node {}",
            node.node, node.memory
        ));
    }
    warnings
}
