//! How fast each node's memory is, seen from each node's cores: what `topology --measure` shows.
//!
//! By pair of a node with CPUs and a node with memory: all usable cores of the one, a pinned thread
//! each, read memory bound to the other (bandwidth), and then one of them follows a chain of
//! addresses through it, each load waiting for the last (latency). The kernel is asked where the
//! memory really is. In: the live machine. Out: [`Measured`], for people as a table and for programs
//! as JSON, beside what the firmware calls distances. A measurement, so not for the data path.

use crate::arena::{ArenaBuilder, ArenaError, Binding};
use crate::cpuset::{CpuId, NodeId};
use crate::machine::Machine;
use crate::pin::{PinError, pin_current_thread};
use crate::plan::{MemoryPolicy, PlacementPlan, PlanNode, Seat, SeatHost};
use crate::verify::PlacementReport;
use serde::Serialize;
use std::fmt;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Bytes of memory that is read, where a node has room for eight times that.
const BUFFER_BYTES: usize = 256 << 20;
/// A line of the processor's caches.
const LINE_BYTES: usize = 64;
/// Loads between two looks at the clock.
const LOADS: usize = 4096;

/// How long one figure is measured.
pub const FIGURE_TIME: Duration = Duration::from_millis(400);

/// Why a machine can't be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// Only what is here can be measured.
    #[error("{0} is not the machine that this runs on; measure without --topology MACHINE")]
    Foreign(String),
    /// Memory of a node can't be had.
    #[error("memory of node {node}: {source}")]
    Memory {
        /// The node.
        node: NodeId,
        /// What is wrong.
        source: ArenaError,
    },
    /// A thread can't be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// What was measured, by node of the cores.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// One entry for every node with CPUs that we may use.
    pub nodes: Vec<FromNode>,
    /// What makes figures mean less.
    pub warnings: Vec<String>,
}

/// What the cores of a node got.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FromNode {
    /// The node of the cores.
    pub node: NodeId,
    /// Threads that read together, one a core.
    pub threads: usize,
    /// One entry for every node with memory that we may use.
    pub memories: Vec<Figures>,
}

/// What they got from a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The node of the memory.
    pub memory: NodeId,
    /// Bytes a second that all threads read together, in 10^9.
    pub read_gb_s: f64,
    /// Time of a load that waits for the one before it.
    pub latency_ns: f64,
    /// The firmware's distance: 10 is the own node.
    pub distance: Option<u32>,
    /// Bytes of memory that were read.
    pub buffer_bytes: usize,
    /// Share of them that was on that node, where the kernel says.
    pub on_node_share: Option<f64>,
}

/// Measures every pair of nodes, each figure for so long.
///
/// # Errors
/// When the machine isn't this one, memory or a CPU can't be had.
pub fn measure(machine: &Machine, figure_time: Duration) -> Result<Measured, MeasureError> {
    if machine.is_foreign() {
        return Err(MeasureError::Foreign(machine.summary()));
    }
    let mut measured = Measured { nodes: vec![], warnings: vec![] };
    for (index, node) in machine.nodes.iter().enumerate() {
        let cores = machine.usable_cores().filter(|core| core.node == index);
        let threads = cores.count();
        if threads > 0 {
            measured.nodes.push(FromNode { node: node.id, threads, memories: vec![] });
        }
    }
    let memories = (0..machine.nodes.len()).filter(|&node| machine.memory_node(node) == node);
    for memory in memories {
        let buffer = Buffer::on(machine, memory)?;
        measured.warnings.extend(buffer.warning(machine));
        for from in &mut measured.nodes {
            let index = machine.nodes.iter().position(|node| node.id == from.node);
            let index = index.expect("a node of this machine");
            from.memories.push(buffer.figures(machine, index, memory, figure_time)?);
        }
    }
    Ok(measured)
}

/// Memory of one node, filled with a chain: every line begins with the number of the next.
struct Buffer {
    arena: crate::arena::LayerArena,
    region: crate::arena::RegionId,
    bytes: usize,
    memory: NodeId,
    on_node_share: Option<f64>,
}

impl Buffer {
    fn on(machine: &Machine, index: usize) -> Result<Buffer, MeasureError> {
        let node = &machine.nodes[index];
        let room = [node.memory_bytes, machine.memory.available_bytes].into_iter().flatten().min();
        let eighth = room.map_or(BUFFER_BYTES, |bytes| usize::try_from(bytes / 8).unwrap_or(0));
        let bytes = (eighth.min(BUFFER_BYTES) / LINE_BYTES * LINE_BYTES).max(LOADS * LINE_BYTES);
        let memory = |source| MeasureError::Memory { node: node.id, source };
        let plan = plan_of(node.id, node.memory_bytes);
        let binding = Binding::probe(&plan, &[bytes as u64]).map_err(memory)?;
        let mut builder = ArenaBuilder::new(1);
        let region = builder.region(0, bytes);
        let mut arena = builder.build(&binding).map_err(memory)?;
        write_chain(arena.region_mut(region));
        let arena = Arc::new(arena);
        // Containers may not ask; the figures stand without it.
        let report = PlacementReport::of(&plan, &[("buffer".to_owned(), arena.clone())]).ok();
        let share = |report: PlacementReport| {
            report.total.on(node.id) as f64 / report.total.bytes.max(1) as f64
        };
        let on_node_share = report.map(share);
        let arena = Arc::into_inner(arena).expect("the report keeps no arena");
        Ok(Buffer { arena, region, bytes, memory: node.id, on_node_share })
    }

    fn warning(&self, machine: &Machine) -> Option<String> {
        let memory = self.memory;
        match self.on_node_share {
            _ if machine.nodes.len() < 2 => {}
            None => return Some("the kernel doesn't say on which nodes memory is".to_owned()),
            Some(share) if share < 0.99 => {
                let percent = 100.0 * share;
                return Some(format!("only {percent:.0} % of the memory read is on node {memory}"));
            }
            Some(_) => {}
        }
        let cache = machine.l3s.iter().filter_map(|l3| l3.size_bytes).max()?;
        ((self.bytes as u64) < 4 * cache).then(|| {
            let (mib, cache_mib) = (self.bytes >> 20, cache >> 20);
            format!(
                "node {memory} has room for {mib} MiB: caches of {cache_mib} MiB hold part of it"
            )
        })
    }

    /// What the usable cores of a node get from this memory.
    fn figures(
        &self,
        machine: &Machine,
        from: usize,
        memory: usize,
        figure_time: Duration,
    ) -> Result<Figures, MeasureError> {
        let cores = machine.usable_cores().filter(|core| core.node == from);
        let cpus: Vec<CpuId> = cores.map(|core| core.cpus[0]).collect();
        let bytes = self.arena.region(self.region);
        Ok(Figures {
            memory: self.memory,
            read_gb_s: read_gb_s(bytes, &cpus, figure_time)?,
            latency_ns: latency_ns(bytes, cpus[0], figure_time)?,
            distance: machine.nodes[from].distances.get(memory).copied(),
            buffer_bytes: self.bytes,
            on_node_share: self.on_node_share,
        })
    }
}

/// A plan whose only purpose is that memory comes from one node.
fn plan_of(node: NodeId, memory_bytes: Option<u64>) -> PlacementPlan {
    PlacementPlan {
        policy: "measure",
        memory_policy: MemoryPolicy::Local,
        machine_summary: String::new(),
        virtual_nodes: false,
        nodes: vec![PlanNode { node, memory: node, memory_bytes, workers: vec![] }],
        leader: Seat { node: 0, cpu: None },
        residency: SeatHost::Leader,
        io: SeatHost::Leader,
        drive_node: None,
        threads: 1,
        spin_us: 0,
        warnings: vec![],
    }
}

/// One cycle through all lines in an order that no prefetcher guesses (Sattolo's shuffle).
fn write_chain(bytes: &mut [u8]) {
    let lines = bytes.len() / LINE_BYTES;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for last in (1..lines).rev() {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(last, (state % last as u64) as usize);
    }
    for (line, next) in bytes.chunks_exact_mut(LINE_BYTES).zip(order) {
        line[..4].copy_from_slice(&next.to_ne_bytes());
    }
}

/// The number of the line after this one.
fn next(bytes: &[u8], line: usize) -> usize {
    let at = line * LINE_BYTES;
    let number: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_ne_bytes(number) as usize
}

/// What threads on these CPUs read together, each its part again and again.
fn read_gb_s(bytes: &[u8], cpus: &[CpuId], time: Duration) -> Result<f64, PinError> {
    let part = (bytes.len() / cpus.len()).max(LINE_BYTES);
    let barrier = Barrier::new(cpus.len());
    let outcomes: Vec<Result<f64, PinError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .zip(bytes.chunks(part))
            .map(|(&cpu, part)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let pinned = pin_current_thread(cpu);
                    barrier.wait();
                    pinned.map(|()| reads(part, time))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it only reads")).collect()
    });
    outcomes.into_iter().sum()
}

/// What one thread reads, in 10^9 bytes a second.
fn reads(bytes: &[u8], time: Duration) -> f64 {
    let begin = Instant::now();
    let mut read = 0usize;
    loop {
        for chunk in bytes.chunks(LOADS * LINE_BYTES) {
            black_box(sum(chunk));
            read += chunk.len();
            if begin.elapsed() >= time {
                return read as f64 / 1e9 / begin.elapsed().as_secs_f64();
            }
        }
    }
}

/// Sum of all words, so that every byte is loaded.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for line in bytes.chunks_exact(LINE_BYTES) {
        for (sum, word) in sums.iter_mut().zip(line.chunks_exact(8)) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(word.try_into().expect("eight bytes")));
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// Time of a load along the chain, from a CPU.
fn latency_ns(bytes: &[u8], cpu: CpuId, time: Duration) -> Result<f64, PinError> {
    std::thread::scope(|scope| {
        let follow = || {
            pin_current_thread(cpu)?;
            let begin = Instant::now();
            let (mut line, mut loads) = (0, 0);
            while begin.elapsed() < time {
                for _ in 0..LOADS {
                    line = next(bytes, line);
                }
                loads += LOADS;
            }
            black_box(line);
            Ok(begin.elapsed().as_nanos() as f64 / loads as f64)
        };
        scope.spawn(follow).join().expect("it only reads")
    })
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "measured, from a node's cores to a node's memory:")?;
        for from in &self.nodes {
            for to in &from.memories {
                let distance = to.distance.map_or("-".to_owned(), |distance| distance.to_string());
                writeln!(
                    f,
                    "  node {} ({} threads) to node {}: {:6.1} GB/s, {:4.0} ns, distance {distance}",
                    from.node, from.threads, to.memory, to.read_gb_s, to.latency_ns
                )?;
            }
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::{MachineSource, probe};

    #[test]
    fn the_chain_goes_through_every_line_once() {
        for lines in [1, 2, 3, 1000, 4099] {
            let mut bytes = vec![0; lines * LINE_BYTES];
            write_chain(&mut bytes);
            let mut seen = vec![false; lines];
            let mut line = 0;
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[line], true), "line {line} of {lines} again");
                line = next(&bytes, line);
            }
            assert_eq!(line, 0, "a cycle of {lines}");
        }
    }

    #[test]
    fn the_sum_looks_at_every_byte() {
        let bytes = vec![0u8; 4 * LINE_BYTES];
        for changed in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[changed] = 1;
            assert_ne!(sum(&bytes), 0, "byte {changed}");
        }
    }

    #[test]
    fn every_pair_of_this_machine_gets_figures() {
        let machine = probe(&MachineSource::Live).expect("this machine");
        let measured = measure(&machine, Duration::from_millis(5)).expect("figures");
        assert!(!measured.nodes.is_empty());
        for from in &measured.nodes {
            assert!(!from.memories.is_empty() && from.threads > 0);
            for to in &from.memories {
                assert!(to.read_gb_s > 0.0 && to.latency_ns > 0.0, "{to:?}");
            }
        }
        assert!(measured.to_string().contains("GB/s"), "{measured}");
    }

    #[test]
    fn another_machine_is_refused() {
        let machine = crate::synthetic::probe("pack:2 numa:1 core:2 pu:1").expect("a machine");
        let refused = measure(&machine, FIGURE_TIME).unwrap_err().to_string();
        assert!(refused.contains("synthetic"), "{refused}");
    }
}
