//! Tests of the whole, in one binary: one link, shared support.

mod colibri;
mod colibri_writer;
mod command;
mod determinism;
mod embedded;
mod heldout;
mod engine;
mod matrix;
mod requests;
mod straight_line;
mod support;
mod tidy;
