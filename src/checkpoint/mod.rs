//! Checkpoints: a directory of safetensors files in, checked weights out.
//!
//! | file | what it does |
//! |---|---|
//! | `header.rs`, `index.rs`, `object.rs` | read the formats' JSON as text from a stranger |
//! | `directory.rs` | finds and opens the files, knows where each tensor lies |
//! | `stored.rs`, `experts.rs` | one tensor or expert as stored, and its way to kernel weights |
//! | `source.rs` | [`ModelFiles`]: all of it as the stages' `WeightSource` |
//! | `describe.rs` | what `inspect` shows of it |
//! | `error.rs`, `header_fault.rs` | everything that can be wrong |
//!
//! Only little-endian machines are supported, as the files are little-endian and are read in
//! place.

pub mod describe;
mod directory;
mod error;
mod experts;
pub mod header;
mod header_fault;
pub mod index;
mod object;
mod source;
mod stored;

pub use directory::{Checkpoint, TensorPlace};
pub use error::{OpenError, TensorError, TensorFault};
pub use experts::LayerExperts;
pub use source::ModelFiles;
pub use stored::{Run, StoredTensor};

#[cfg(target_endian = "big")]
compile_error!("safetensors files are little-endian and are read in place");
