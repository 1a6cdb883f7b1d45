//! Queues, seats, waves and the stages of Millstream's pipeline.
//!
//! This crate knows no model family, no checkpoint format and no token text.

pub mod ids;
pub mod queue;
pub mod spec;
pub mod weights;
