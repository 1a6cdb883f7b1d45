//! Placement policies: a machine and a wish in, a plan out.
//!
//! To add one: a file here and a line in [`POLICIES`]; the tests walk the table. A policy decides
//! which nodes take part, how many compute threads each gets, in which order its CPUs are taken and
//! which nodes the arenas' pages come from; `seating` does the rest alike for all: pinning, spin, oversubscription, seats.
//!
//! Two instances on one machine would pin themselves to the same cores: start each under its own
//! `taskset` (or cpuset); plans stay inside that mask.

mod compact;
mod interleaved;
mod seating;
mod single;
mod spread;
mod striped;

use crate::cpuset::NodeId;
use crate::machine::Machine;
use crate::plan::{MemoryPolicy, PlacementPlan, PlanRequest, SeatHost};
use crate::probe::TopologyError;
use std::fmt;

/// A way to place threads and memory.
pub trait Policy: Sync {
    /// What `--topology` calls it.
    fn name(&self) -> &'static str;
    /// What it does and when it is right, in one sentence.
    fn story(&self) -> &'static str;
    /// Places. The request was checked by [`plan`].
    fn place(&self, machine: &Machine, request: &PlanRequest) -> PlacementPlan;
}

/// Every policy.
pub const POLICIES: &[&dyn Policy] = &[
    &striped::Striped,
    &interleaved::Interleaved,
    &spread::Spread,
    &compact::Compact,
    &single::Single,
];

/// Compute threads that a plan may have; beyond any machine, so a typing mistake.
pub const THREADS_MAX: usize = 4096;
/// Spin time that a plan may have: a second.
pub(crate) const SPIN_US_MAX: u32 = 1_000_000;

/// The name of a policy of the table, or `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyName(&'static str);

impl PolicyName {
    /// `striped` where several nodes have CPUs that we may use, else `compact`.
    pub const AUTO: PolicyName = PolicyName("auto");

    /// The name, if there is such a policy.
    pub fn find(name: &str) -> Option<PolicyName> {
        names().find(|&known| known == name).map(PolicyName)
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// `auto` and every policy's name.
pub fn names() -> impl Iterator<Item = &'static str> {
    std::iter::once(PolicyName::AUTO.0).chain(POLICIES.iter().map(|policy| policy.name()))
}

/// Plans for a machine.
///
/// # Errors
/// When the request can't be granted: no thread, too many, a node that isn't there or has no CPU.
///
/// # Panics
/// When a policy breaks what [`PlacementPlan::validate`] promises.
pub fn plan(
    machine: &Machine,
    policy: PolicyName,
    request: &PlanRequest,
) -> Result<PlacementPlan, TopologyError> {
    check(machine, request)?;
    let name = if policy == PolicyName::AUTO { choose(machine, request) } else { policy.0 };
    let chosen = POLICIES.iter().find(|policy| policy.name() == name);
    let plan = chosen.expect("names come from the table").place(machine, request);
    if let Err(broken) = plan.validate() {
        panic!("{broken}: {plan:?}");
    }
    Ok(plan)
}

/// Gives reads that cost next to nothing to the leader of a plan that was made before it was known
/// that they do, where they would share a CPU with compute threads otherwise.
pub(crate) fn take_light_reads(plan: &mut PlacementPlan, request: &PlanRequest) {
    let crowded = plan.is_pinned() && plan.io == SeatHost::OwnThread(None);
    if request.io_is_light && crowded {
        plan.io = SeatHost::Leader;
    }
}

/// What `auto` means here.
fn choose(machine: &Machine, request: &PlanRequest) -> &'static str {
    if seating::pools(machine, request).len() > 1 { "striped" } else { "compact" }
}

fn check(machine: &Machine, request: &PlanRequest) -> Result<(), TopologyError> {
    let refuse = |reason: String| Err(TopologyError::Request(reason));
    match request.threads {
        Some(0) => return refuse("--threads 0: at least one thread has to compute".to_owned()),
        Some(n) if n > THREADS_MAX => {
            return refuse(format!("--threads {n}: more than {THREADS_MAX} is a mistake"));
        }
        _ => {}
    }
    if let Some(spin) = request.spin_us.filter(|&spin| spin > SPIN_US_MAX) {
        return refuse(format!("--spin-us {spin}: more than {SPIN_US_MAX} is a mistake"));
    }
    let list = |nodes: &mut dyn Iterator<Item = NodeId>| -> String {
        nodes.map(|id| id.to_string()).collect::<Vec<_>>().join(", ")
    };
    let avoid = request.avoid.clone();
    let all = seating::pools(machine, &PlanRequest { avoid, ..PlanRequest::default() });
    if all.is_empty() {
        return refuse(format!(
            "--avoid-cpus {}: none is left of the CPUs that we may use ({})",
            request.avoid, machine.allowed
        ));
    }
    let usable = list(&mut all.iter().map(|pool| machine.nodes[pool.node].id));
    if request.nodes.as_ref().is_some_and(|nodes| nodes.is_empty()) {
        return refuse(format!("no node is asked for; nodes with CPUs for us are {usable}"));
    }
    for &id in request.nodes.iter().flatten() {
        if !all.iter().any(|pool| machine.nodes[pool.node].id == id) {
            return refuse(format!(
                "node {id} doesn't exist or has no CPU that we may use; nodes that have are {usable}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
