//! Where things sit: machine probe, placement plan, pinning and layer arenas.
//!
//! This crate knows nothing of models, files or kernels.

pub mod arena;
pub mod cpuset;
mod hash;
pub mod plan;

pub use cpuset::{CpuId, CpuSet, NodeId};
pub use plan::{PlacementPlan, PlanNode, PlanRequest, Seat, SeatHost};
