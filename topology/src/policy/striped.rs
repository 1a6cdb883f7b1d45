//! `striped`: every node takes part, with equal numbers of threads as far as its cores allow, and
//! each reads its own memory only.
//!
//! The default on several nodes: experts and all other large tensors are cut over the nodes, each
//! node's segment of an arena is bound to it, and its crew reads its slices. So the work is equal on
//! each node, all memory channels carry it, and no weight crosses the link between them. Within a
//! node the threads are dealt over its caches in turn.

use super::seating::over_all_nodes;
use super::{Machine, MemoryPolicy, PlacementPlan, PlanRequest, Policy};

pub(super) struct Striped;

impl Policy for Striped {
    fn name(&self) -> &'static str {
        "striped"
    }

    fn story(&self) -> &'static str {
        "every node holds its slices of each expert and its threads read only those: the default \
         on several nodes"
    }

    fn place(&self, machine: &Machine, request: &PlanRequest) -> PlacementPlan {
        over_all_nodes((self.name(), MemoryPolicy::Striped), machine, request)
    }
}
