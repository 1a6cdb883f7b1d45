//! `spread`: every node takes part, with equal numbers of threads as far as its cores allow.
//!
//! The default on several nodes: experts are striped over the nodes, so the work is equal on each
//! and all memory channels carry it. Within a node the threads are dealt over its caches in turn.

use super::seating::{Pool, PoolCore, deal_in_turn, pools, seat, thread_count};
use super::{Machine, PlacementPlan, PlanRequest, Policy};
use std::collections::BTreeMap;

pub(super) struct Spread;

impl Policy for Spread {
    fn name(&self) -> &'static str {
        "spread"
    }

    fn story(&self) -> &'static str {
        "uses the memory and cores of every node evenly, and of every cache on it: the default on \
         several nodes"
    }

    fn place(&self, machine: &Machine, request: &PlanRequest) -> PlacementPlan {
        let mut pools = pools(machine, request);
        pools.iter_mut().for_each(interleave_caches);
        let counts = deal_in_turn(&pools, thread_count(&pools, request));
        seat(self.name(), machine, request, &pools, &counts)
    }
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
