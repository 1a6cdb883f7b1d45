//! May memory be bound to NUMA nodes here, and which policy each segment of an arena gets.
//!
//! Owned by whoever builds arenas: one [`Binding`] is probed from the plan at start and handed to
//! every [`super::ArenaBuilder::build`]. Binding is off for virtual nodes, where the plan leaves
//! memory to the kernel, where the process was started under a policy of the user's, and where the kernel says "not permitted" (containers) or has no such call;
//! results are the same bytes, only slower. Any other refusal is a bug and an error: an invalid
//! argument read as "unsupported" would hide a misplaced model for ever.
//!
//! | memory policy | segments | kernel's policy |
//! |---|---|---|
//! | striped | each from its node | MPOL_BIND until the arena [settles](super::LayerArena::settle), then MPOL_PREFERRED |
//! | interleaved | from all nodes in turn | MPOL_WEIGHTED_INTERLEAVE where the kernel's weights differ, else MPOL_INTERLEAVE |
//! | local | from the one node first | MPOL_PREFERRED |
//! | first touch | not bound | none |
//!
//! MPOL_BIND makes the kernel drop cached files of a node rather than take pages from another, which
//! is wanted while a model comes in; but on a node that is really full it kills the process. So it is
//! used only where the node has room for all that the plan puts there, and only until the pages are
//! there. Elsewhere MPOL_PREFERRED takes what doesn't fit from other nodes, and a warning says so.

use super::ArenaError;
use super::calls::{MPOL_WEIGHTED_INTERLEAVE, Target, bind_pages, drop_pages, thread_policy};
use super::layout::Span;
use super::mapping::{Mapping, page_bytes};
use crate::cpuset::NodeId;
use crate::plan::{MemoryPolicy, PlacementPlan};
use crate::sysfs;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Whether, and where, segments are bound.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Per segment its policy; empty means off.
    targets: Vec<Target>,
    warnings: Vec<String>,
}

/// What came of trying a policy out.
enum Trial {
    Granted,
    /// Off, with the reason.
    Refused(String),
}

impl Binding {
    /// No binding: pages come from the node that touches them first.
    pub fn off() -> Binding {
        Binding { targets: Vec::new(), warnings: Vec::new() }
    }

    /// Decides from the plan, from the room that nodes have for `bytes` (what all arenas together
    /// will hold, by plan node), and from trying policies out on an aligned page.
    ///
    /// # Errors
    /// When the kernel refuses for another reason than permission.
    ///
    /// # Panics
    /// When `bytes` isn't one number for each node of the plan.
    pub fn probe(plan: &PlacementPlan, bytes: &[u64]) -> Result<Binding, ArenaError> {
        Binding::probe_below(Path::new("/"), plan, bytes)
    }

    /// [`Binding::probe`] with the kernel's files below another root.
    fn probe_below(
        root: &Path,
        plan: &PlacementPlan,
        bytes: &[u64],
    ) -> Result<Binding, ArenaError> {
        assert_eq!(bytes.len(), plan.nodes.len(), "bytes by plan node");
        if plan.virtual_nodes || plan.memory_policy == MemoryPolicy::FirstTouch {
            return Ok(Binding::off());
        }
        if let Some(warning) = set_from_outside(thread_policy()) {
            return Ok(Binding { targets: Vec::new(), warnings: vec![warning] });
        }
        let (mut targets, mut warnings) = targets(root, plan, bytes);
        let mut tried: Vec<Target> = Vec::new();
        for target in &mut targets {
            if tried.contains(target) {
                continue;
            }
            if let Trial::Refused(warning) = try_out(target)? {
                return Ok(Binding { targets: Vec::new(), warnings: vec![warning] });
            }
            tried.push(target.clone());
        }
        warnings.dedup();
        Ok(Binding { targets, warnings })
    }

    /// Segments will be bound.
    pub fn is_on(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Why memory is not bound as the plan says.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Binds the segments of a mapping that nothing has touched yet; true if it did.
    pub(super) fn apply(&self, mapping: &Mapping, segments: &[Span]) -> Result<bool, ArenaError> {
        for (target, from, bytes) in self.ranges(mapping, segments) {
            bind_pages(from, bytes, target)
                .map_err(|source| ArenaError::Bind { node: target.nodes[0], source })?;
        }
        Ok(self.is_on())
    }

    /// Pages that come later prefer their node and are taken from others when it is full.
    pub(super) fn relax(&self, mapping: &Mapping, segments: &[Span]) -> Result<(), ArenaError> {
        let strict = |target: &Target| target.mode == libc::MPOL_BIND;
        for (target, from, bytes) in self.ranges(mapping, segments) {
            if strict(target) {
                let relaxed = Target { mode: libc::MPOL_PREFERRED, nodes: target.nodes.clone() };
                bind_pages(from, bytes, &relaxed)
                    .map_err(|source| ArenaError::Bind { node: target.nodes[0], source })?;
            }
        }
        Ok(())
    }

    /// Clears memory that isn't an arena's and deals its whole pages over the nodes that arenas are
    /// bound to; does nothing where that is one node or binding is off.
    pub(super) fn deal(&self, memory: &mut [u8]) -> io::Result<()> {
        let nodes: BTreeSet<NodeId> = self.targets.iter().flat_map(|t| t.nodes.clone()).collect();
        let page = page_bytes();
        let head = memory.as_ptr().align_offset(page);
        if nodes.len() < 2 || head >= memory.len() {
            return Ok(());
        }
        let whole = (memory.len() - head) / page * page;
        let mode = match self.targets[0].mode {
            MPOL_WEIGHTED_INTERLEAVE => MPOL_WEIGHTED_INTERLEAVE,
            _ => libc::MPOL_INTERLEAVE,
        };
        memory[..head].fill(0);
        memory[head + whole..].fill(0);
        let pages = &mut memory[head..head + whole];
        if pages.is_empty() {
            return Ok(());
        }
        let target = Target { mode, nodes: nodes.into_iter().collect() };
        let bound = bind_pages(pages.as_ptr().addr(), pages.len(), &target);
        // An allocator gives pages that were touched in an earlier life: those would stay.
        bound.and_then(|()| drop_pages(pages)).inspect_err(|_| pages.fill(0))
    }

    /// What is bound as one: (target, address, bytes). Neighbours that are bound alike go together,
    /// and the slack before the first and after the last segment goes with its neighbour, so that a
    /// layer costs the kernel one mapping per node and not two more.
    fn ranges(&self, mapping: &Mapping, segments: &[Span]) -> Vec<(&Target, usize, usize)> {
        if !self.is_on() {
            return Vec::new();
        }
        assert_eq!(self.targets.len(), segments.len(), "the binding was probed for this plan");
        let (start, bytes) = mapping.whole();
        let base = mapping.pointer(segments[0]).addr();
        let mut ranges: Vec<(&Target, usize, usize)> = Vec::new();
        let mut from = start;
        for (index, (target, segment)) in self.targets.iter().zip(segments).enumerate() {
            let is_last = index + 1 == segments.len();
            let to = if is_last { start + bytes } else { base + segment.offset + segment.bytes };
            match ranges.last_mut() {
                Some((last, _, bytes)) if *last == target => *bytes += to - from,
                _ if from < to => ranges.push((target, from, to - from)),
                _ => {}
            }
            from = to;
        }
        ranges
    }
}

/// The warning for a process that was started under a memory policy: it is kept, as its CPUs are.
fn set_from_outside(policy: Option<libc::c_int>) -> Option<String> {
    policy.filter(|&mode| mode != libc::MPOL_DEFAULT).map(|_| {
        "memory is not bound to NUMA nodes: the process was started under a memory policy \
         (numactl, NUMAPolicy=), which is kept; start it without one for the plan's"
            .to_owned()
    })
}

/// Each segment's policy, and what the user should know of it.
fn targets(root: &Path, plan: &PlacementPlan, bytes: &[u64]) -> (Vec<Target>, Vec<String>) {
    let one = |mode, node| Target { mode, nodes: vec![node] };
    let nodes = plan.nodes.iter().map(|node| node.memory);
    match plan.memory_policy {
        MemoryPolicy::FirstTouch => (Vec::new(), Vec::new()),
        MemoryPolicy::Local => (nodes.map(|n| one(libc::MPOL_PREFERRED, n)).collect(), Vec::new()),
        MemoryPolicy::Interleaved => {
            let all: BTreeSet<NodeId> = nodes.collect();
            let weights: BTreeSet<u32> =
                all.iter().filter_map(|&node| sysfs::interleave_weight(root, node)).collect();
            let mode =
                if weights.len() > 1 { MPOL_WEIGHTED_INTERLEAVE } else { libc::MPOL_INTERLEAVE };
            let target = Target { mode, nodes: all.into_iter().collect() };
            (vec![target; plan.nodes.len()], Vec::new())
        }
        MemoryPolicy::Striped => {
            let full = full_nodes(root, plan, bytes);
            let mode = |node| match full.contains_key(&node) {
                true => libc::MPOL_PREFERRED,
                false => libc::MPOL_BIND,
            };
            let targets = nodes.map(|node| one(mode(node), node)).collect();
            (targets, full.into_values().collect())
        }
    }
}

/// Nodes that haven't the room for what the plan puts there, each with its warning.
fn full_nodes(root: &Path, plan: &PlacementPlan, bytes: &[u64]) -> BTreeMap<NodeId, String> {
    let mut needed: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (node, bytes) in plan.nodes.iter().zip(bytes) {
        *needed.entry(node.memory).or_default() += bytes;
    }
    let mib = |bytes: u64| bytes >> 20;
    let lacks = |(node, needed): (NodeId, u64)| {
        let room = sysfs::node_available_bytes(root, node)?;
        let warning = format!(
            "node {node} has room for {} MiB and its share of the model takes {}: what doesn't fit \
             goes to other nodes; free memory there, or lower --memory",
            mib(room),
            mib(needed)
        );
        (room < needed).then_some((node, warning))
    };
    needed.into_iter().filter_map(lacks).collect()
}

/// Tries a policy out on a page; weights that the kernel doesn't know become equal ones.
fn try_out(target: &mut Target) -> Result<Trial, ArenaError> {
    let page = Mapping::new(1)?;
    let (address, bytes) = page.whole();
    let mut outcome = bind_pages(address, bytes, target);
    let invalid = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    if target.mode == MPOL_WEIGHTED_INTERLEAVE && outcome.as_ref().is_err_and(invalid) {
        target.mode = libc::MPOL_INTERLEAVE;
        outcome = bind_pages(address, bytes, target);
    }
    match outcome {
        Ok(()) => Ok(Trial::Granted),
        Err(error) => refusal(target.nodes[0], error).map(Trial::Refused),
    }
}

/// The warning for a refusal that turns binding off, or the error for one that mustn't.
fn refusal(node: NodeId, source: io::Error) -> Result<String, ArenaError> {
    match source.raw_os_error() {
        Some(libc::EPERM) => Ok(format!(
            "memory is not bound to NUMA nodes: the kernel doesn't permit it ({source}); in a \
             container, allow the mbind system call (Docker: --cap-add SYS_NICE)"
        )),
        Some(libc::ENOSYS) => Ok(format!(
            "memory is not bound to NUMA nodes: this kernel has no mbind system call ({source})"
        )),
        _ => Err(ArenaError::Bind { node, source }),
    }
}

/// Two segments with different policies for the first node; `None` where binding isn't permitted.
#[cfg(all(test, not(loom)))]
pub(super) fn alternating_for_tests() -> Option<Binding> {
    let node = crate::sysfs::nodes(Path::new("/")).first()?.id;
    let targets = [libc::MPOL_BIND, libc::MPOL_PREFERRED].map(|mode| one_node(mode, node));
    let may = targets.iter().all(|target| {
        let page = Mapping::new(1).expect("one unit can be mapped");
        let (address, bytes) = page.whole();
        bind_pages(address, bytes, target).is_ok()
    });
    may.then(|| Binding { targets: targets.to_vec(), warnings: Vec::new() })
}

#[cfg(all(test, not(loom)))]
fn one_node(mode: libc::c_int, node: NodeId) -> Target {
    Target { mode, nodes: vec![node] }
}

#[cfg(all(test, not(loom)))]
mod tests;
