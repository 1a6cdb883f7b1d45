//! Tests of the whole, in one binary: one link, shared support.

mod command;
mod determinism;
mod embedded;
mod engine;
mod matrix;
mod requests;
mod straight_line;
mod support;
mod tidy;
