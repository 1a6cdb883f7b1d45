//! Tests of the whole, in one binary: one link, shared support.

mod bench;
mod colibri;
mod colibri_writer;
mod command;
mod convert;
mod determinism;
mod doctor;
mod embedded;
mod engine;
mod families;
mod format_page;
mod heldout;
mod learn;
mod matrix;
mod pack;
mod quality;
mod reads;
mod replay;
mod requests;
mod rounded;
mod serving;
mod straight_line;
mod support;
mod tidy;
mod tune;
