//! `single`: one node does everything.
//!
//! The node with the most physical cores for us (of equals, the first). Memory comes from that node
//! first, and from the others when it is full.

use super::seating::{pools, seat, thread_count};
use super::{Machine, MemoryPolicy, PlacementPlan, PlanRequest, Policy};
use std::cmp::Reverse;

pub(super) struct Single;

impl Policy for Single {
    fn name(&self) -> &'static str {
        "single"
    }

    fn story(&self) -> &'static str {
        "one node only: for a second instance, or a model that fits one node"
    }

    fn place(&self, machine: &Machine, request: &PlanRequest) -> PlacementPlan {
        let mut pools = pools(machine, request);
        pools.sort_by_key(|pool| (Reverse(pool.cores.len()), pool.node));
        pools.truncate(1);
        let threads = thread_count(&pools, request);
        seat((self.name(), MemoryPolicy::Local), machine, request, &pools, &[threads])
    }
}
