//! Millstream: runs Mixture-of-Experts models whose experts do not fit in memory.

pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod convert;
pub mod embedded;
pub mod engine;
pub mod families;
pub mod learn;
pub mod machine;
pub mod replay;
pub mod sampler;
pub mod server;
pub mod text;
pub mod tune;
