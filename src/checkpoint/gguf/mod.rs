//! GGUF files: one model in one file or several, with everything that belongs to it.
//!
//! | file | what it does |
//! |---|---|
//! | `parse.rs`, `value.rs` | a file's header, read as bytes from a stranger: metadata and tensors |
//! | `files.rs` | which files a model is in |
//! | `names.rs` | how tensors are called |
//! | `companions.rs` | the small files that a snapshot would have, made from metadata |
//! | `config.rs` | ... of them `config.json`, by architecture |
//! | `tokenizer.rs`, `pretokenizers.rs` | ... and `tokenizer.json` |
//! | `fault.rs` | everything that can be wrong |
//!
//! Opened by `directory.rs`, as safetensors files are; from there on both are a checkpoint.

pub mod companions;
pub mod config;
mod fault;
pub mod files;
pub mod names;
mod parse;
pub mod pretokenizers;
mod tokenizer;
mod value;

pub use fault::{GgufError, GgufFault};
pub use parse::{GgufHeader, GgufTensor, parse};
pub use value::{List, Metadata, Value};
