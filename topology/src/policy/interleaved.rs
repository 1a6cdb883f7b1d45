//! `interleaved`: threads on every node, pages dealt over the nodes in turn.
//!
//! All channels carry the work, but most reads cross the link between the nodes. For machines whose
//! nodes are near to each other, and to measure what `striped` gains. Where the kernel has weights
//! for its nodes (`/sys/kernel/mm/mempolicy/weighted_interleave`) and they differ, it deals by them.

use super::seating::over_all_nodes;
use super::{Machine, MemoryPolicy, PlacementPlan, PlanRequest, Policy};

pub(super) struct Interleaved;

impl Policy for Interleaved {
    fn name(&self) -> &'static str {
        "interleaved"
    }

    fn story(&self) -> &'static str {
        "threads on every node, pages dealt over the nodes in turn: to measure against"
    }

    fn place(&self, machine: &Machine, request: &PlanRequest) -> PlacementPlan {
        over_all_nodes((self.name(), MemoryPolicy::Interleaved), machine, request)
    }
}
