//! f32: IEEE 754 singles, row by row. Norms, router and biases are always this.

use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "f32",
    file_bits: 32,
    activations: ActivationKind::F32,
    code_max: 0,
    colibri_name: Some("f32"),
};
