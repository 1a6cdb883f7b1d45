//! Weight formats and their arithmetic.

/// A format that kernels compute on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightFormat {
    /// IEEE single.
    F32,
    /// The upper half of an IEEE single.
    Bf16,
}
