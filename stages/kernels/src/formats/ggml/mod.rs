//! The block formats of ggml, as GGUF files hold them.
//!
//! A GGUF tensor is rows of *blocks*: 32 or 256 columns of a row with their scales, one block after
//! the other, nothing between. Checkpoint readers ask [`GgmlType`] what a tensor's type number
//! means, how many bytes a row has, and which [`WeightFormat`](super::WeightFormat) its weights
//! are; [`super::FileMatrix`] with [`super::FileLayout::Ggml`] lays the blocks out for the kernels.
//! The definitions are those of ggml (`ggml-quants.c`) and of the `gguf` package.

pub mod blocks;
pub mod kind;
pub mod lay_out;

pub use kind::{GGML_TYPES, GgmlType};

/// Columns of the short blocks.
pub const GROUP: usize = 32;

/// Columns of a part of a super-block that has eight of them.
pub const PART: usize = 32;

/// Columns of a part of a super-block that has sixteen of them.
pub const SHORT_PART: usize = 16;
