//! `spread`: threads on every node, memory wherever the kernel puts it.
//!
//! Threads sit as under `striped`; nothing is bound, so pages come from the node of whichever thread
//! touches them first, mostly that of the thread that reads the model. It is what is left of
//! `striped` where memory may not be bound, and what `striped` is to be measured against.

use super::seating::over_all_nodes;
use super::{Machine, MemoryPolicy, PlacementPlan, PlanRequest, Policy};

pub(super) struct Spread;

impl Policy for Spread {
    fn name(&self) -> &'static str {
        "spread"
    }

    fn story(&self) -> &'static str {
        "threads on every node and cache evenly, memory left to the kernel: to measure against"
    }

    fn place(&self, machine: &Machine, request: &PlanRequest) -> PlacementPlan {
        over_all_nodes((self.name(), MemoryPolicy::FirstTouch), machine, request)
    }
}
