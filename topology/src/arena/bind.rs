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
