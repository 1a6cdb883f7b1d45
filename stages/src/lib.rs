//! Queues, seats, waves and the stages of Millstream's pipeline.
//!
//! This crate knows no model family, no checkpoint format, no HTTP and no token text. A model comes
//! in as a [`spec::ModelSpec`] and a [`weights::WeightSource`]; waves of rows go in and come out with
//! logits. See ARCHITECTURE.md, "One token's walk".

pub mod ids;
pub mod kind;
pub mod queue;

#[cfg(not(loom))]
pub mod account;
#[cfg(not(loom))]
mod attend;
#[cfg(not(loom))]
pub mod bounds;
#[cfg(not(loom))]
pub mod caps;
#[cfg(not(loom))]
mod choose;
#[cfg(not(loom))]
mod combine;
#[cfg(not(loom))]
pub mod compute;
#[cfg(not(loom))]
pub mod dequantised;
#[cfg(not(loom))]
pub mod foresight;
pub mod gauge;
#[cfg(not(loom))]
mod head;
#[cfg(not(loom))]
pub mod limits;
#[cfg(not(loom))]
pub mod load;
#[cfg(not(loom))]
mod matmul;
#[cfg(not(loom))]
pub mod parts;
#[cfg(not(loom))]
mod patience;
#[cfg(not(loom))]
pub mod pieces;
#[cfg(not(loom))]
pub mod pipeline;
#[cfg(not(loom))]
pub mod placed;
#[cfg(not(loom))]
pub mod prefetch;
#[cfg(not(loom))]
pub mod quantised;
#[cfg(not(loom))]
pub mod rope;
#[cfg(not(loom))]
mod router;
#[cfg(not(loom))]
pub mod seat;
#[cfg(not(loom))]
pub mod simulation;
pub mod spec;
#[cfg(not(loom))]
pub mod stage;
#[cfg(not(loom))]
pub mod straight_line;
#[cfg(not(loom))]
pub mod threads;
#[cfg(not(loom))]
pub mod unit;
pub mod uses;
#[cfg(not(loom))]
pub mod wave;
#[cfg(not(loom))]
pub mod weights;
