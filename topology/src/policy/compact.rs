//! `compact`: the fewest nodes and caches that hold the threads.
//!
//! For one node, for machines that are shared, and to measure against `striped`. Each
//! node that takes part holds its slices; on one node of several, memory comes from that node first.

use super::seating::{Pool, pools, seat, thread_count};
use super::{Machine, MemoryPolicy, PlacementPlan, PlanRequest, Policy};

pub(super) struct Compact;

impl Policy for Compact {
    fn name(&self) -> &'static str {
        "compact"
    }

    fn story(&self) -> &'static str {
        "fills the cores of one node, cache by cache, before it takes the next: for one node or a \
         shared machine"
    }

    fn place(&self, machine: &Machine, request: &PlanRequest) -> PlacementPlan {
        let mut pools = pools(machine, request);
        for pool in &mut pools {
            pool.cores.sort_by_key(|core| (core.l3, core.cpus[0]));
        }
        let counts = fill(&pools, thread_count(&pools, request));
        let used = counts.iter().take_while(|&&count| count > 0).count();
        seat(
            (self.name(), MemoryPolicy::Striped),
            machine,
            request,
            &pools[..used],
            &counts[..used],
        )
    }
}

/// Fills the pools' cores one pool after the other, then their siblings likewise; what is left
/// then goes to the pools evenly.
fn fill(pools: &[Pool], threads: usize) -> Vec<usize> {
    let mut counts = vec![0; pools.len()];
    let mut left = threads;
    let rooms: [fn(&Pool) -> usize; 2] = [|pool| pool.cores.len(), Pool::cpu_count];
    for room in rooms {
        for (count, pool) in counts.iter_mut().zip(pools) {
            let more = left.min(room(pool) - *count);
            *count += more;
            left -= more;
        }
    }
    let (each, rest) = (left / pools.len(), left % pools.len());
    for (index, count) in counts.iter_mut().enumerate() {
        *count += each + usize::from(index < rest);
    }
    counts
}
