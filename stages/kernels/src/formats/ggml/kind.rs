//! The types of tensors that a GGUF file can name: numbers, names, sizes of blocks.
//!
//! Readers of GGUF files own nothing here: a number goes in, a [`GgmlType`] comes out. Types that
//! the kernels can't read are known too, so that a refusal can name them.

use crate::formats::{GroupSize, ScaleType, WeightFormat};

/// Declares the types, each with its number, name, and columns and bytes of a block.
macro_rules! types {
    ($($variant:ident = $id:literal, $name:literal, $columns:literal, $bytes:literal;)*) => {
        /// A type of tensors by ggml's numbering.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum GgmlType {
            $(#[doc = concat!("`", $name, "`: blocks of ", $columns, " columns, ", $bytes, " bytes.")]
            $variant,)*
        }

        /// Every type, in the order of its numbers.
        pub const GGML_TYPES: &[GgmlType] = &[$(GgmlType::$variant),*];

        impl GgmlType {
            /// The type with this number.
            pub const fn from_id(id: u32) -> Option<GgmlType> {
                match id {
                    $($id => Some(GgmlType::$variant),)*
                    _ => None,
                }
            }

            /// Its number in files.
            pub const fn id(self) -> u32 {
                match self {
                    $(GgmlType::$variant => $id,)*
                }
            }

            /// Its name as ggml's tools write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(GgmlType::$variant => $name,)*
                }
            }

            /// Columns of a block: a row is whole blocks.
            pub const fn block_columns(self) -> usize {
                match self {
                    $(GgmlType::$variant => $columns,)*
                }
            }

            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize {
                match self {
                    $(GgmlType::$variant => $bytes,)*
                }
            }
        }
    };
}

types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 40;
    Q2K = 10, "Q2_K", 256, 84;
    Q3K = 11, "Q3_K", 256, 110;
    Q4K = 12, "Q4_K", 256, 144;
    Q5K = 13, "Q5_K", 256, 176;
    Q6K = 14, "Q6_K", 256, 210;
    Q8K = 15, "Q8_K", 256, 292;
    Iq2Xxs = 16, "IQ2_XXS", 256, 66;
    Iq2Xs = 17, "IQ2_XS", 256, 74;
    Iq3Xxs = 18, "IQ3_XXS", 256, 98;
    Iq1S = 19, "IQ1_S", 256, 50;
    Iq4Nl = 20, "IQ4_NL", 32, 18;
    Iq3S = 21, "IQ3_S", 256, 110;
    Iq2S = 22, "IQ2_S", 256, 82;
    Iq4Xs = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    Iq1M = 29, "IQ1_M", 256, 56;
    Bf16 = 30, "BF16", 1, 2;
    Tq1_0 = 34, "TQ1_0", 256, 54;
    Tq2_0 = 35, "TQ2_0", 256, 66;
    Mxfp4 = 39, "MXFP4", 32, 17;
    Nvfp4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
}

/// The columns that share a scale in `Q4_0`.
const Q4_0_GROUP: GroupSize = GroupSize::new(32).expect("a multiple of 16 from 32 to 256");

impl GgmlType {
    /// Bytes of a row of `cols` columns; `None` if that isn't a whole number of blocks (or too many
    /// bytes to count).
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        match cols.is_multiple_of(self.block_columns()) {
            true => (cols / self.block_columns()).checked_mul(self.block_bytes()),
            false => None,
        }
    }

    /// Bytes of a row, its last block whole even if the columns end within it.
    pub(crate) const fn whole_row_bytes(self, cols: usize) -> usize {
        cols.div_ceil(self.block_columns()) * self.block_bytes()
    }

    /// The format of its weights; `None` for types that are known by name only.
    pub const fn format(self) -> Option<WeightFormat> {
        match self {
            GgmlType::F32 => Some(WeightFormat::F32),
            GgmlType::F16 => Some(WeightFormat::F16),
            GgmlType::Bf16 => Some(WeightFormat::Bf16),
            GgmlType::Q4_0 => Some(WeightFormat::Int4Group(Q4_0_GROUP, ScaleType::F16)),
            GgmlType::Q4_1 => Some(WeightFormat::Q4_1),
            GgmlType::Q5_0 => Some(WeightFormat::Q5_0),
            GgmlType::Q5_1 => Some(WeightFormat::Q5_1),
            GgmlType::Q8_0 => Some(WeightFormat::Int8Group32(ScaleType::F16)),
            GgmlType::Q2K => Some(WeightFormat::Q2K),
            GgmlType::Q3K => Some(WeightFormat::Q3K),
            GgmlType::Q4K => Some(WeightFormat::Q4K),
            GgmlType::Q5K => Some(WeightFormat::Q5K),
            GgmlType::Q6K => Some(WeightFormat::Q6K),
            GgmlType::Iq4Nl => Some(WeightFormat::Iq4Nl),
            GgmlType::Iq4Xs => Some(WeightFormat::Iq4Xs),
            GgmlType::Mxfp4 => Some(WeightFormat::Mxfp4),
            GgmlType::Q8_1
            | GgmlType::Q8K
            | GgmlType::Iq2Xxs
            | GgmlType::Iq2Xs
            | GgmlType::Iq3Xxs
            | GgmlType::Iq1S
            | GgmlType::Iq3S
            | GgmlType::Iq2S
            | GgmlType::I8
            | GgmlType::I16
            | GgmlType::I32
            | GgmlType::I64
            | GgmlType::F64
            | GgmlType::Iq1M
            | GgmlType::Tq1_0
            | GgmlType::Tq2_0
            | GgmlType::Nvfp4
            | GgmlType::Q1_0 => None,
        }
    }

    /// The type that holds weights of a format: the inverse of [`GgmlType::format`].
    pub const fn of(format: WeightFormat) -> Option<GgmlType> {
        match format {
            WeightFormat::F32 => Some(GgmlType::F32),
            WeightFormat::F16 => Some(GgmlType::F16),
            WeightFormat::Bf16 => Some(GgmlType::Bf16),
            WeightFormat::Int4Group(group, ScaleType::F16)
                if group.columns() == Q4_0_GROUP.columns() =>
            {
                Some(GgmlType::Q4_0)
            }
            WeightFormat::Int8Group32(ScaleType::F16) => Some(GgmlType::Q8_0),
            WeightFormat::Mxfp4 => Some(GgmlType::Mxfp4),
            WeightFormat::Q4_1 => Some(GgmlType::Q4_1),
            WeightFormat::Q5_0 => Some(GgmlType::Q5_0),
            WeightFormat::Q5_1 => Some(GgmlType::Q5_1),
            WeightFormat::Q2K => Some(GgmlType::Q2K),
            WeightFormat::Q3K => Some(GgmlType::Q3K),
            WeightFormat::Q4K => Some(GgmlType::Q4K),
            WeightFormat::Q5K => Some(GgmlType::Q5K),
            WeightFormat::Q6K => Some(GgmlType::Q6K),
            WeightFormat::Iq4Nl => Some(GgmlType::Iq4Nl),
            WeightFormat::Iq4Xs => Some(GgmlType::Iq4Xs),
            WeightFormat::Fp8Block128(_)
            | WeightFormat::Int8Row(_)
            | WeightFormat::Int4Row(_)
            | WeightFormat::Int4Group(..)
            | WeightFormat::Int2Row(_)
            | WeightFormat::Int3Group64(_)
            | WeightFormat::Int8Group32(_) => None,
        }
    }

    /// Where in a block its f16 lie, scales and minima: any other bytes make a valid block. Makers of
    /// random weights ask.
    pub const fn half_places(self) -> &'static [usize] {
        match self {
            GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 => &[0],
            GgmlType::Iq4Nl | GgmlType::Iq4Xs => &[0],
            GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
            GgmlType::Q2K => &[80, 82],
            GgmlType::Q3K => &[108],
            GgmlType::Q6K => &[208],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_types() {
        for kind in GGML_TYPES {
            assert_eq!(GgmlType::from_id(kind.id()), Some(*kind), "{}", kind.name());
        }
        for id in [4, 5, 31, 36, 38, 42, u32::MAX] {
            assert_eq!(GgmlType::from_id(id), None, "{id}");
        }
    }

    #[test]
    fn formats_lead_back_to_their_types() {
        for kind in GGML_TYPES {
            if let Some(format) = kind.format() {
                assert_eq!(GgmlType::of(format), Some(*kind), "{}", kind.name());
            }
        }
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(GgmlType::Q4K.row_bytes(512), Some(288));
        assert_eq!(GgmlType::Q4K.row_bytes(511), None);
        assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
    }
}
