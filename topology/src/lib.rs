//! Where things sit: machine probe, placement plan, pinning and layer arenas.
//!
//! ```text
//!   --topology TEXT --> TopologyArg --> probe --> Machine --+
//!   --threads N ... -----------------> PlanRequest ---------+--> policy::plan --> PlacementPlan
//!                                                                                      |
//!        crews and seats: pin_current_thread(cpu) <------------------------------------+
//!        layers: Binding::probe(plan, bytes), ArenaBuilder::new(nodes) --> LayerArena <-------+
//! ```
//!
//! | room | what it is |
//! |---|---|
//! | [`cpuset`] | ids of CPUs and nodes, sets of CPUs |
//! | [`affinity`] | what the process may use, captured before anything pins itself |
//! | [`memory`] | MemAvailable and the control groups' limits |
//! | [`machine`] | what a probe saw, and the one place that makes sense of it |
//! | [`probe`](mod@probe) | `--topology` to a machine and a policy; the errors |
//! | [`sysfs`], `hwloc`, [`synthetic`] | the three ways to see a machine |
//! | [`drive`] | which node the drive of a file hangs on |
//! | [`policy`] | the table of placement policies |
//! | [`plan`] | who sits where: what everything downstream obeys |
//! | [`plan_file`] | plans as files |
//! | [`pin`] | pins a thread and looks whether it took |
//! | [`arena`] | the memory of a layer: segments, resident regions, expert slots, leases |
//! | [`verify`] | whether memory lies where the plan says |
//! | [`measure`](mod@measure) | bandwidth and latency between nodes |
//! | [`picture`](mod@picture) | machine and plan as a picture (SVG) |
//! | [`render`](mod@render) | machine and plan as a tree for the terminal |
//!
//! This crate knows nothing of models, files of weights or kernels. It is Linux only. A machine is
//! probed and a plan made once, at start; after that only leases are taken and given back, which
//! allocates nothing.

pub mod affinity;
pub mod arena;
pub mod cpuset;
pub mod drive;
mod hash;
#[cfg(feature = "hwloc")]
mod hwloc;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod picture;
pub mod pin;
pub mod plan;
pub mod plan_file;
pub mod policy;
pub mod probe;
pub mod render;
pub mod synthetic;
pub mod sysfs;
pub mod verify;

pub use affinity::AffinityMask;
pub use cpuset::{CpuId, CpuSet, NodeId};
pub use machine::Machine;
pub use picture::picture;
pub use pin::{PinError, pin_current_thread};
pub use plan::{MemoryPolicy, PlacementPlan, PlanNode, PlanRequest, Seat, SeatHost};
pub use policy::PolicyName;
pub use probe::{MachineSource, TopologyArg, TopologyError, probe};
pub use render::render;
pub use verify::PlacementReport;
