//! int4-row: nibbles (see [`super::int4_group::Int4`]), one scale per row. A known bad choice for
//! quality: converters warn of it.

use super::{ActivationKind, FormatInfo};

/// The table line.
pub const INFO: FormatInfo = FormatInfo {
    name: "int4-row",
    file_bits: 4,
    activations: ActivationKind::Int8,
    code_max: 7,
    colibri_name: Some("int4-row"),
};
