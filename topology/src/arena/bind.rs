//! May memory be bound to NUMA nodes here, and the system call that does it.
//!
//! Owned by whoever builds arenas: one [`Binding`] is probed from the plan at start and handed to
//! every [`super::ArenaBuilder::build`]. Binding is off for virtual nodes, for one node, and where
//! the kernel says "not permitted" (containers) or has no such call; results are the same bytes,
//! only slower. Any other refusal is a bug and an error: an invalid argument read as "unsupported"
//! would hide a misplaced model for ever.
//!
//! The policy is MPOL_BIND: pages come from the node or, when it is full, from what the kernel can
//! reclaim there. The engine's memory budget is per node for that reason.
#![allow(unsafe_code)]

use super::ArenaError;
use super::layout::Span;
use super::mapping::Mapping;
use crate::cpuset::NodeId;
use crate::plan::PlacementPlan;
use std::io;

/// Whether, and where, segments are bound.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Per segment its policy; empty means off.
    targets: Vec<Target>,
    warning: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Target {
    mode: libc::c_int,
    node: NodeId,
}

impl Binding {
    /// No binding: pages come from the node that touches them first.
    pub fn off() -> Binding {
        Binding { targets: Vec::new(), warning: None }
    }

    /// Decides from the plan and from trying it out on an aligned page of every node.
    ///
    /// # Errors
    /// When the kernel refuses for another reason than permission.
    pub fn probe(plan: &PlacementPlan) -> Result<Binding, ArenaError> {
        if plan.virtual_nodes || plan.nodes.len() < 2 {
            return Ok(Binding::off());
        }
        let target = |node: NodeId| Target { mode: libc::MPOL_BIND, node };
        let targets: Vec<Target> = plan.nodes.iter().map(|node| target(node.memory)).collect();
        for &target in &targets {
            let page = Mapping::new(1)?;
            let (address, bytes) = page.whole();
            if let Err(error) = bind_pages(address, bytes, target) {
                let node = target.node;
                let warning = refusal(node, error)?;
                return Ok(Binding { targets: Vec::new(), warning: Some(warning) });
            }
        }
        Ok(Binding { targets, warning: None })
    }

    /// Segments will be bound.
    pub fn is_on(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Why binding is off although the plan has several real nodes.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Binds the segments of a mapping that nothing has touched yet; true if it did. The slack
    /// before the first and after the last segment goes with its neighbour, so that a layer costs
    /// the kernel one mapping per node and not two more.
    pub(super) fn apply(&self, mapping: &Mapping, segments: &[Span]) -> Result<bool, ArenaError> {
        if !self.is_on() {
            return Ok(false);
        }
        assert_eq!(self.targets.len(), segments.len(), "the binding was probed for this plan");
        let (start, bytes) = mapping.whole();
        let base = mapping.pointer(segments[0]).addr();
        for (index, (&target, segment)) in self.targets.iter().zip(segments).enumerate() {
            let from = if index == 0 { start } else { base + segment.offset };
            let is_last = index + 1 == segments.len();
            let to = if is_last { start + bytes } else { base + segment.offset + segment.bytes };
            if from < to {
                let node = target.node;
                bind_pages(from, to - from, target)
                    .map_err(|source| ArenaError::Bind { node, source })?;
            }
        }
        Ok(true)
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

/// mbind(2) on whole pages.
fn bind_pages(address: usize, bytes: usize, target: Target) -> io::Result<()> {
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;
    let node = target.node.index();
    let mut mask = vec![0 as libc::c_ulong; node / WORD_BITS + 1];
    mask[node / WORD_BITS] |= 1 << (node % WORD_BITS);
    // The kernel reads one bit less than `maxnode` says.
    let bits = mask.len() * WORD_BITS + 1;
    // SAFETY:
    // - mbind changes where pages of the range come from, never their contents; no flag asks to
    //   move pages.
    // - the range is part of a live `Mapping`: both callers take it from `whole` and `pointer`.
    // - `mask` holds `bits - 1` bits and outlives the call, which only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            address as *mut libc::c_void,
            bytes,
            libc::c_long::from(target.mode),
            mask.as_ptr(),
            bits,
            0usize,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Two segments with different policies for the first node; `None` where binding isn't permitted.
#[cfg(all(test, not(loom)))]
pub(super) fn alternating_for_tests() -> Option<Binding> {
    let node = crate::sysfs::nodes(std::path::Path::new("/")).first()?.id;
    let targets = [libc::MPOL_BIND, libc::MPOL_PREFERRED].map(|mode| Target { mode, node });
    let page = Mapping::new(1).expect("one unit can be mapped");
    let (address, bytes) = page.whole();
    let may = targets.iter().all(|&target| bind_pages(address, bytes, target).is_ok());
    may.then(|| Binding { targets: targets.to_vec(), warning: None })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::plan::{PlanNode, Seat, SeatHost};

    fn plan(nodes: &[u32], virtual_nodes: bool) -> PlacementPlan {
        let node = |&id: &u32| PlanNode {
            node: NodeId(id),
            memory: NodeId(id),
            memory_bytes: None,
            workers: Vec::new(),
        };
        PlacementPlan {
            policy: "test",
            machine_summary: String::new(),
            virtual_nodes,
            nodes: nodes.iter().map(node).collect(),
            leader: Seat { node: 0, cpu: None },
            residency: SeatHost::Leader,
            io: SeatHost::Leader,
            threads: 1,
            spin_us: 0,
            warnings: Vec::new(),
        }
    }

    /// True if the kernel lets this process bind to the node at all.
    fn may_bind(node: NodeId) -> bool {
        let page = Mapping::new(1).unwrap();
        let (address, bytes) = page.whole();
        bind_pages(address, bytes, Target { mode: libc::MPOL_BIND, node }).is_ok()
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
    fn virtual_nodes_and_one_node_are_not_bound() {
        for plan in [plan(&[0, 1, 2], true), plan(&[0], false)] {
            let binding = Binding::probe(&plan).unwrap();
            assert!(!binding.is_on() && binding.warning().is_none());
        }
    }

    #[test]
    fn node_that_does_not_exist_is_an_error_that_names_it() {
        if !may_bind(NodeId(0)) {
            println!("this kernel doesn't let us bind to node 0: nothing to check");
            return;
        }
        for absent in [63, 64, 900] {
            let error = Binding::probe(&plan(&[0, absent], false)).unwrap_err().to_string();
            assert!(error.contains(&format!("NUMA node {absent}")), "{error}");
        }
    }

    #[test]
    fn bound_arena_holds_what_is_written() {
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
        let whole = |region, byte| arena.region(region).iter().all(|&b| b == byte);
        assert!(whole(regions[0], 5) && whole(regions[1], 6));
    }
}
