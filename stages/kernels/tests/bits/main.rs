//! Every instruction set gives the bits of the scalar definition, for every operation on floats.
//!
//! Lengths run over all short ones (so every tail) and some long ones; values are random or drawn
//! from the awkward ones (zeros of both signs, subnormals, huge, infinities, NaN). NaN is compared
//! as "is NaN": which NaN comes out of an operation is not defined.
//!
//! - `support`: values, matrices of every format, comparison.
//! - `elements`: dots, sums, norms and element-wise operations.
//! - `matmul`: weights of every format times f32 activations.
//! - `transposed`: columns instead of rows.

mod elements;
mod matmul;
mod support;
mod transposed;
