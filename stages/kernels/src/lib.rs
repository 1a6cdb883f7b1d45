//! Weight formats and their arithmetic, equal to the bit on every instruction set.
//!
//! Matmul actors and the straight-line pass hand in borrowed weights and f32 activations and get
//! f32 results back. This crate knows no models, files or threads, allocates nothing on the data
//! path and keeps no state: a [`Kernels`] value is only a choice of instruction set. Which one is
//! chosen never changes a result: every sum runs over 16 virtual lanes and one fixed tree (see
//! [`scalar`], the definition, and README.md), and every transcendental function is ours
//! (see [`math`]).
//!
//! - [`formats`]: the weight formats, one file each, and their layouts.
//! - [`weights`]: the borrowed views [`Weights`] and [`Floats`], and the one decoder.
//! - [`activations`]: what weights are multiplied with, f32 or int8 by groups.
//! - [`isa`]: the instruction sets, found at run time.
//! - [`kernels`]: [`Kernels`], the operations.
//! - `simd`: the vector bodies (x86-64 only, the one place with unsafe code).

pub mod activations;
pub mod formats;
pub mod isa;
pub mod kernels;
pub mod math;
pub mod scalar;
#[cfg(target_arch = "x86_64")]
mod simd;
pub mod weights;

pub use activations::{ActivationLayout, Activations, Quantised, QuantisedRow, QuantisedRowMut};
pub use formats::{
    FileLayout, FileMatrix, GgmlType, GroupSize, ScaleType, WeightFormat, can_round, round_rows,
};
pub use isa::{Isa, UnknownIsa};
pub use kernels::Kernels;
pub use weights::{Floats, Weights};

// Weights are cast from little-endian file bytes in place.
const _: () = assert!(cfg!(target_endian = "little"), "weights are little-endian in files");
