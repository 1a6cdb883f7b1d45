//! Lock-free queues: how work and messages cross threads.
//!
//! - [`Ring`]: messages to a seat, many producers, one consumer, generation-tagged.
//! - [`Cursor`](cursor::Cursor): a batch of numbered jobs handed to the crew of one node.
//! - [`Parking`]: how a thread with nothing to do sleeps and is woken.
//! - [`Grid`]: one buffer cut into tiles that concurrent jobs write.
//! - [`Executor`]: runs a batch; [`Crew`] on pinned threads, [`SimCrew`] on one thread with seeded scheduling.
//!
//! Owned by the compute seat (crews) and by every seat (its ring and its parking). What flows in are
//! tagged messages and job lists; what flows out is the same, on another thread. The protocols and
//! their proofs are in `README.md` next to this file.

#[cfg(not(loom))]
pub mod crew;
pub mod cursor;
pub mod faults;
pub mod jobs;
pub mod leader;
pub mod parking;
pub mod ring;
#[cfg(not(loom))]
pub mod sim;
pub mod sync;
pub mod tiles;
pub mod worker;

#[cfg(not(loom))]
pub use crew::{Crew, CrewError, CrewPlan, NodeCrew, StartHook, WorkerStart};
pub use jobs::{Executor, Job, JobList, NodeStats, Task};
pub use leader::{Leader, LeaderPlan};
pub use parking::Parking;
pub use ring::{Ring, Tagged};
#[cfg(not(loom))]
pub use sim::{SimCrew, SimPlan};
#[cfg(not(loom))]
pub use sync::prepare_thread;
pub use tiles::{Grid, TILES_MAX, Tile};
pub use worker::{Worker, worker_loop};
