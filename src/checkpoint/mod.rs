//! Checkpoints: a directory of safetensors files in, checked weights out.
//!
//! | file | what it does |
//! |---|---|
//! | `header.rs`, `stamps.rs`, `index.rs`, `object.rs` | read the formats' JSON as text from a stranger |
//! | `shards.rs` | which files a model is in |
//! | `directory.rs` | opens the files, knows where each tensor lies |
//! | `stored.rs`, `colibri.rs` | one tensor as stored: format, weights, scales |
//! | `weave.rs` | a tensor among the elements of another |
//! | `rows.rs`, `heads.rs`, `experts.rs` | from stored rows and experts to the kernels' layout |
//! | `drafts.rs` | the tensors for multi-token prediction, which no family describes |
//! | `check.rs`, `slices.rs` | every tensor at open; the S that their formats allow |
//! | `gguf/` | GGUF files: headers, names, and the small files that a snapshot has |
//! | `source.rs` | [`ModelFiles`]: all of it as the stages' `WeightSource` |
//! | `pack/` | the Millstream pack: a directory of another kind, and its `WeightSource` |
//! | `describe.rs` | what `inspect` shows of it |
//! | `examine/` | everything that is wrong with a model, for `doctor` |
//! | `error.rs`, `header_fault.rs` | everything that can be wrong |
//!
//! Only little-endian machines are supported, as the files are little-endian and are read in
//! place.

mod check;
pub mod colibri;
pub mod describe;
mod directory;
pub mod drafts;
mod error;
pub mod examine;
mod experts;
pub mod gguf;
pub mod header;
mod header_fault;
mod heads;
pub mod index;
mod object;
pub mod pack;
mod rows;
mod shards;
mod slices;
mod source;
pub mod stamps;
mod stored;
mod weave;

pub use directory::{Checkpoint, TensorPlace};
pub use error::{OpenError, TensorError, TensorFault};
pub use experts::LayerExperts;
pub use rows::{is_floats, lay_out};
pub use shards::{MODEL_DIRS, model_dirs};
pub use slices::slices_of;
pub use source::ModelFiles;
pub use stored::{Kind, Run, StoredTensor, resolve};

#[cfg(target_endian = "big")]
compile_error!("safetensors files are little-endian and are read in place");
