//! The simulation: all actors on one thread, the next one picked by a seeded generator.
//!
//! A run draws a machine (nodes, workers, seats), slots and room for results, lets three sequences
//! go through in waves of drawn company, with a reader that delays, reorders, shortens and fails,
//! and holds every row that didn't fail to the straight-line pass, bit for bit. A red run panics
//! with its seed.

mod injector;
mod model;
mod random;
mod reader;
mod specs;
mod world;

pub use injector::{FaultInjector, InjectedFaults};
pub use model::{RandomFormats, RandomModel};
pub use random::Random;
pub use reader::{FaultyReader, Manners, MemoryReader};
pub use specs::{alternating_spec, plain_spec, small_spec};
pub use world::{Outcome, World};
