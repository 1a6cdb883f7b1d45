//! The weight formats: one file each, one table of them all.
//!
//! A [`WeightFormat`] names codes and scales. A matrix comes in one of two *file layouts*
//! ([`FileLayout`]): rows one after the other with scales apart (colibri containers, Hugging Face
//! snapshots), or ggml's blocks, which hold their scales (GGUF files, [`ggml`]). In the *compute
//! layout*, which arenas and packs hold and kernels read, a matrix of codes lies in blocks of
//! [`BLOCK_ROWS`] rows, each one run of bytes: the block's scales ([`head`]), then lines of 64 bytes in
//! which every row owns four ([`block`]). Floats stay row by row; an fp8 row carries its scales in front
//! ([`fp8`]).
//!
//! To add a format: a file with its [`FormatInfo`], a variant, a line in [`FORMATS`], and what the
//! compiler then asks for; every match here and in the kernels is exhaustive.

pub mod bf16;
pub mod block;
pub mod codes;
pub mod f16;
pub mod f32;
pub mod five;
pub mod fp8;
pub mod ggml;
pub mod head;
pub mod int2_row;
pub mod int3_group;
pub mod int4_group;
pub mod int4_row;
pub mod int8_group;
pub mod int8_row;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod lay_out;
pub mod mxfp4;
pub mod name;
pub mod q2_k;
pub mod q3_k;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod round;
pub mod scale;

pub use block::{BLOCK_ROWS, BlockCode, FileCode, Order};
use codes::{CodeKind, for_codes};
pub use ggml::GgmlType;
pub use head::{Head, HeadKind};
pub use lay_out::{FileLayout, FileMatrix};
pub use name::UnknownFormat;
pub use round::{CannotRound, can_round, round_rows};
pub use scale::ScaleType;

/// A format of weights: codes, what shares a scale, and the type of scales.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightFormat {
    /// IEEE 754 single.
    F32,
    /// The upper half of a single.
    Bf16,
    /// IEEE 754 half.
    F16,
    /// OCP FP8 E4M3, one scale per 128 x 128 block.
    Fp8Block128(ScaleType),
    /// Signed bytes, one scale per row.
    Int8Row(ScaleType),
    /// Nibbles, one scale per row.
    Int4Row(ScaleType),
    /// Nibbles, one scale per so many columns of a row.
    Int4Group(GroupSize, ScaleType),
    /// Two bits, one scale per row.
    Int2Row(ScaleType),
    /// Three bits in two planes, one scale per 64 columns of a row.
    Int3Group64(ScaleType),
    /// OCP MXFP4: E2M1 nibbles, one power of two per 32 columns of a row.
    Mxfp4,
    /// Signed bytes, one scale per 32 columns of a row.
    Int8Group32(ScaleType),
    /// ggml: nibbles, a scale and a minimum per 32 columns.
    Q4_1,
    /// ggml: five bits, a scale per 32 columns.
    Q5_0,
    /// ggml: five bits, a scale and a minimum per 32 columns.
    Q5_1,
    /// ggml: two bits, nested scales and minima.
    Q2K,
    /// ggml: three bits, nested scales.
    Q3K,
    /// ggml: nibbles, nested scales and minima.
    Q4K,
    /// ggml: five bits, nested scales and minima.
    Q5K,
    /// ggml: six bits, nested scales.
    Q6K,
    /// ggml: nibbles that name one of 16 values, a scale per 32 columns.
    Iq4Nl,
    /// ggml: the same values, nested scales.
    Iq4Xs,
}

/// Columns that share a scale: a multiple of 16 from 32 to 256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupSize(u16);

impl GroupSize {
    /// The groups of 64 columns that most containers have.
    pub const G64: GroupSize = GroupSize(64);

    /// None unless `columns` is a multiple of 16 from 32 to 256.
    pub const fn new(columns: usize) -> Option<GroupSize> {
        match columns {
            32..=256 if columns.is_multiple_of(16) => Some(GroupSize(columns as u16)),
            _ => None,
        }
    }

    /// Columns of a group.
    pub const fn columns(self) -> usize {
        self.0 as usize
    }
}

/// What shares a scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scales {
    /// Nothing: weights are their own value.
    None,
    /// A row.
    Row,
    /// So many columns of a row.
    Group(usize),
    /// 128 rows by 128 columns.
    Block128,
    /// So many columns of a row, relative to the scale of the 256 columns that they are in.
    Nested(usize),
}

/// What activations the kernels of a format take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActivationKind {
    /// f32, summed in 16 lanes.
    F32,
    /// int8 in groups of so many columns, exact dots, one scaled sum.
    Int8,
}

/// A line of the table: what every weight of a format has in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatInfo {
    /// Name in options, reports and file headers, the group size and scale type left out.
    pub name: &'static str,
    /// Bits of one weight in the file layout, scales not counted.
    pub file_bits: usize,
    /// What the kernels multiply with. Held-out losses behind it: docs/format.md.
    pub activations: ActivationKind,
    /// The largest code that a quantiser uses; 0 for formats that aren't integers.
    pub code_max: i32,
    /// The name that colibri's metadata has for it.
    pub colibri_name: Option<&'static str>,
}

/// Every format, in the order of [`WeightFormat`]'s variants.
pub const FORMATS: &[FormatInfo] = &[
    f32::INFO,
    bf16::INFO,
    f16::INFO,
    fp8::INFO,
    int8_row::INFO,
    int4_row::INFO,
    int4_group::INFO,
    int2_row::INFO,
    int3_group::INFO,
    mxfp4::INFO,
    int8_group::INFO,
    q4_1::INFO,
    q5_0::INFO,
    q5_1::INFO,
    q2_k::INFO,
    q3_k::INFO,
    q4_k::INFO,
    q5_k::INFO,
    q6_k::INFO,
    iq4_nl::INFO,
    iq4_xs::INFO,
];

impl WeightFormat {
    /// One format of every line of [`FORMATS`], with the scales that files usually have.
    pub const EACH: [WeightFormat; 21] = [
        WeightFormat::F32,
        WeightFormat::Bf16,
        WeightFormat::F16,
        WeightFormat::Fp8Block128(ScaleType::F32),
        WeightFormat::Int8Row(ScaleType::F32),
        WeightFormat::Int4Row(ScaleType::F32),
        WeightFormat::Int4Group(GroupSize::G64, ScaleType::F32),
        WeightFormat::Int2Row(ScaleType::F32),
        WeightFormat::Int3Group64(ScaleType::F32),
        WeightFormat::Mxfp4,
        WeightFormat::Int8Group32(ScaleType::F16),
        WeightFormat::Q4_1,
        WeightFormat::Q5_0,
        WeightFormat::Q5_1,
        WeightFormat::Q2K,
        WeightFormat::Q3K,
        WeightFormat::Q4K,
        WeightFormat::Q5K,
        WeightFormat::Q6K,
        WeightFormat::Iq4Nl,
        WeightFormat::Iq4Xs,
    ];

    /// The format's line.
    pub const fn info(self) -> &'static FormatInfo {
        match self {
            WeightFormat::F32 => &f32::INFO,
            WeightFormat::Bf16 => &bf16::INFO,
            WeightFormat::F16 => &f16::INFO,
            WeightFormat::Fp8Block128(_) => &fp8::INFO,
            WeightFormat::Int8Row(_) => &int8_row::INFO,
            WeightFormat::Int4Row(_) => &int4_row::INFO,
            WeightFormat::Int4Group(..) => &int4_group::INFO,
            WeightFormat::Int2Row(_) => &int2_row::INFO,
            WeightFormat::Int3Group64(_) => &int3_group::INFO,
            WeightFormat::Mxfp4 => &mxfp4::INFO,
            WeightFormat::Int8Group32(_) => &int8_group::INFO,
            WeightFormat::Q4_1 => &q4_1::INFO,
            WeightFormat::Q5_0 => &q5_0::INFO,
            WeightFormat::Q5_1 => &q5_1::INFO,
            WeightFormat::Q2K => &q2_k::INFO,
            WeightFormat::Q3K => &q3_k::INFO,
            WeightFormat::Q4K => &q4_k::INFO,
            WeightFormat::Q5K => &q5_k::INFO,
            WeightFormat::Q6K => &q6_k::INFO,
            WeightFormat::Iq4Nl => &iq4_nl::INFO,
            WeightFormat::Iq4Xs => &iq4_xs::INFO,
        }
    }

    /// What shares a scale.
    pub const fn scales(self) -> Scales {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::F16 => Scales::None,
            WeightFormat::Fp8Block128(_) => Scales::Block128,
            WeightFormat::Int8Row(_) | WeightFormat::Int4Row(_) | WeightFormat::Int2Row(_) => {
                Scales::Row
            }
            WeightFormat::Int4Group(group, _) => Scales::Group(group.columns()),
            WeightFormat::Int3Group64(_) => Scales::Group(int3_group::GROUP),
            WeightFormat::Mxfp4 => Scales::Group(mxfp4::GROUP),
            WeightFormat::Int8Group32(_) => Scales::Group(int8_group::GROUP),
            WeightFormat::Q4_1 | WeightFormat::Q5_0 | WeightFormat::Q5_1 | WeightFormat::Iq4Nl => {
                Scales::Group(ggml::GROUP)
            }
            WeightFormat::Q2K | WeightFormat::Q3K | WeightFormat::Q6K => {
                Scales::Nested(ggml::SHORT_PART)
            }
            WeightFormat::Q4K | WeightFormat::Q5K | WeightFormat::Iq4Xs => {
                Scales::Nested(ggml::PART)
            }
        }
    }

    /// The type of its scales.
    pub const fn scale_type(self) -> Option<ScaleType> {
        match self {
            WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::F16 => None,
            WeightFormat::Fp8Block128(scale)
            | WeightFormat::Int8Row(scale)
            | WeightFormat::Int4Row(scale)
            | WeightFormat::Int4Group(_, scale)
            | WeightFormat::Int2Row(scale)
            | WeightFormat::Int3Group64(scale)
            | WeightFormat::Int8Group32(scale) => Some(scale),
            WeightFormat::Mxfp4 => Some(ScaleType::Ue8m0),
            WeightFormat::Q4_1
            | WeightFormat::Q5_0
            | WeightFormat::Q5_1
            | WeightFormat::Q2K
            | WeightFormat::Q3K
            | WeightFormat::Q4K
            | WeightFormat::Q5K
            | WeightFormat::Q6K
            | WeightFormat::Iq4Nl
            | WeightFormat::Iq4Xs => Some(ScaleType::F16),
        }
    }

    /// Columns that share a scale: a matrix may be cut along its columns only at multiples of it.
    /// 1 where a row has one scale or none. Nested formats ask more of a cut ([`Self::cut`]).
    pub const fn group(self) -> usize {
        match self.scales() {
            Scales::None | Scales::Row => 1,
            Scales::Group(columns) => columns,
            Scales::Block128 => fp8::BLOCK,
            Scales::Nested(_) => head::NESTED_CUT,
        }
    }

    /// Columns at whose multiples a cut of `width` columns may start: [`WeightFormat::group`], and for
    /// nested formats what divides both the width and 256, which equal cuts of a row always meet.
    pub const fn cut(self, width: usize) -> usize {
        match self.scales() {
            Scales::Nested(_) => head::nested_group(width),
            _ => self.group(),
        }
    }

    /// What the kernels multiply with.
    pub const fn activations(self) -> ActivationKind {
        self.info().activations
    }

    /// Columns of a group of int8 activations, counted from the start of the row (of the slice,
    /// where columns are cut): 32 for formats in groups of 32 and nested ones, else 64.
    pub const fn activation_group(self) -> usize {
        match self.scales() {
            Scales::Group(32) | Scales::Nested(_) => 32,
            _ => 64,
        }
    }

    /// Columns of one exact integer dot: the largest run that shares both a weight scale and an
    /// activation scale.
    pub const fn unit(self) -> usize {
        let group = self.activation_group();
        match self.scales() {
            // A group is a multiple of 16, so the greatest common divisor is one of these.
            Scales::Group(columns) if columns.is_multiple_of(group) => group,
            Scales::Group(columns) if columns.is_multiple_of(32) => 32,
            Scales::Group(_) => 16,
            Scales::None | Scales::Row | Scales::Block128 => group,
            Scales::Nested(part) => part,
        }
    }

    /// Scales of one row of `cols` columns; in the file layout of fp8, of 128 rows. Of nested formats,
    /// those that the parts' scales are relative to, in the compute layout.
    pub const fn scales_per_row(self, cols: usize) -> usize {
        match self.scales() {
            Scales::None => 0,
            Scales::Row => 1,
            Scales::Group(columns) => cols.div_ceil(columns),
            Scales::Block128 => cols.div_ceil(fp8::BLOCK),
            Scales::Nested(_) => cols.div_ceil(head::nested_group(cols)),
        }
    }

    /// The codes; `None` for floats, fp8 among them.
    pub const fn codes(self) -> Option<CodeKind> {
        match self {
            WeightFormat::F32
            | WeightFormat::Bf16
            | WeightFormat::F16
            | WeightFormat::Fp8Block128(_) => None,
            WeightFormat::Int8Row(_) | WeightFormat::Int8Group32(_) => Some(CodeKind::Int8),
            WeightFormat::Int4Row(_) | WeightFormat::Int4Group(..) => Some(CodeKind::Int4),
            WeightFormat::Int2Row(_) => Some(CodeKind::Int2),
            WeightFormat::Int3Group64(_) | WeightFormat::Q3K => Some(CodeKind::Int3),
            WeightFormat::Mxfp4 => Some(CodeKind::E2m1),
            WeightFormat::Q4_1 | WeightFormat::Q4K => Some(CodeKind::Uint4),
            WeightFormat::Q5_0 => Some(CodeKind::Int5),
            WeightFormat::Q5_1 | WeightFormat::Q5K => Some(CodeKind::Uint5),
            WeightFormat::Q2K => Some(CodeKind::Uint2),
            WeightFormat::Q6K => Some(CodeKind::Int6),
            WeightFormat::Iq4Nl | WeightFormat::Iq4Xs => Some(CodeKind::Iq4),
        }
    }

    /// What heads of blocks hold; `None` for formats without blocks.
    pub const fn head(self) -> Option<HeadKind> {
        match self {
            WeightFormat::F32
            | WeightFormat::Bf16
            | WeightFormat::F16
            | WeightFormat::Fp8Block128(_) => None,
            WeightFormat::Int8Row(scale)
            | WeightFormat::Int4Row(scale)
            | WeightFormat::Int4Group(_, scale)
            | WeightFormat::Int2Row(scale)
            | WeightFormat::Int3Group64(scale)
            | WeightFormat::Int8Group32(scale) => Some(HeadKind::Scales(scale)),
            WeightFormat::Mxfp4 => Some(HeadKind::Scales(ScaleType::Ue8m0)),
            WeightFormat::Q5_0 | WeightFormat::Iq4Nl => Some(HeadKind::Scales(ScaleType::F16)),
            WeightFormat::Q4_1 | WeightFormat::Q5_1 => Some(HeadKind::Minima),
            WeightFormat::Q3K | WeightFormat::Q6K | WeightFormat::Iq4Xs => Some(HeadKind::Nested),
            WeightFormat::Q4K | WeightFormat::Q5K => Some(HeadKind::NestedMinima),
            WeightFormat::Q2K => Some(HeadKind::NestedNibbles),
        }
    }

    /// Rows of a block in the compute layout: row views start at multiples of it.
    pub const fn row_block(self) -> usize {
        match self.codes() {
            None => 1,
            Some(_) => BLOCK_ROWS,
        }
    }

    /// Bytes of one row block (see [`WeightFormat::row_block`]) in the compute layout.
    pub const fn block_bytes(self, cols: usize) -> usize {
        if let Some(kind) = self.codes() {
            let lines = for_codes!(kind, C => block::code_bytes::<C>(cols));
            return self.block_scale_bytes(cols) + lines;
        }
        match self {
            WeightFormat::F32 => 4 * cols,
            WeightFormat::Fp8Block128(scale) => fp8::row_bytes(scale, cols),
            _ => 2 * cols,
        }
    }

    /// Bytes of the head of a block, its scales and minima; 0 for formats without blocks.
    pub const fn block_scale_bytes(self, cols: usize) -> usize {
        match Head::of(self, cols) {
            Some(head) => head.bytes(),
            None => 0,
        }
    }

    /// Bytes of a `rows` x `cols` matrix in the compute layout.
    pub const fn matrix_bytes(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(self.row_block()) * self.block_bytes(cols)
    }

    /// The layout that files of this format usually have: ggml's for formats that only ggml has.
    pub const fn file_layout(self) -> FileLayout {
        match self {
            WeightFormat::F32
            | WeightFormat::Bf16
            | WeightFormat::F16
            | WeightFormat::Fp8Block128(_)
            | WeightFormat::Int8Row(_)
            | WeightFormat::Int4Row(_)
            | WeightFormat::Int4Group(..)
            | WeightFormat::Int2Row(_)
            | WeightFormat::Int3Group64(_)
            | WeightFormat::Mxfp4
            | WeightFormat::Int8Group32(_) => FileLayout::Apart,
            WeightFormat::Q4_1
            | WeightFormat::Q5_0
            | WeightFormat::Q5_1
            | WeightFormat::Q2K
            | WeightFormat::Q3K
            | WeightFormat::Q4K
            | WeightFormat::Q5K
            | WeightFormat::Q6K
            | WeightFormat::Iq4Nl
            | WeightFormat::Iq4Xs => FileLayout::Ggml,
        }
    }

    /// Bytes of the weights of a `rows` x `cols` matrix in [`WeightFormat::file_layout`]: codes,
    /// floats, or blocks with all that is in them.
    pub const fn file_bytes(self, rows: usize, cols: usize) -> usize {
        match (GgmlType::of(self), self.file_layout()) {
            (Some(kind), FileLayout::Ggml) => rows * kind.whole_row_bytes(cols),
            _ if matches!(self, WeightFormat::Int3Group64(_)) => rows * cols.div_ceil(64) * 24,
            _ => rows * (cols * self.info().file_bits).div_ceil(8),
        }
    }

    /// Number of scales of a `rows` x `cols` matrix that lie apart in [`WeightFormat::file_layout`].
    pub const fn file_scales(self, rows: usize, cols: usize) -> usize {
        match (self.file_layout(), self.scales()) {
            (FileLayout::Ggml, _) => 0,
            (FileLayout::Apart, Scales::Block128) => {
                rows.div_ceil(fp8::BLOCK) * self.scales_per_row(cols)
            }
            (FileLayout::Apart, _) => rows * self.scales_per_row(cols),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_formats_are_in_one_order() {
        assert_eq!(FORMATS.len(), WeightFormat::EACH.len());
        for (format, info) in WeightFormat::EACH.into_iter().zip(FORMATS) {
            assert_eq!(format.info(), info, "{format}");
        }
    }

    #[test]
    fn real_sizes_are_those_of_the_container() {
        // GLM-5.2: one expert at int4 in groups of 64 is 21.2 MB.
        let format = WeightFormat::Int4Group(GroupSize::G64, ScaleType::F32);
        let expert = 2 * format.matrix_bytes(2048, 6144) + format.matrix_bytes(6144, 2048);
        assert_eq!(expert, 3 * 2048 * 6144 / 2 + 3 * 2048 * 6144 / 64 * 4);
        assert_eq!(format.file_bytes(2048, 6144) + 4 * format.file_scales(2048, 6144), expert / 3);
    }

    #[test]
    fn unit_divides_both_groups() {
        for columns in (32..=256).step_by(16) {
            let group = GroupSize::new(columns).expect("a multiple of 16");
            let format = WeightFormat::Int4Group(group, ScaleType::F16);
            let unit = format.unit();
            let whole = columns.is_multiple_of(unit);
            assert!(whole && format.activation_group().is_multiple_of(unit), "{columns}");
        }
        assert_eq!(GroupSize::new(16), None);
        assert_eq!(GroupSize::new(272), None);
        assert_eq!(GroupSize::new(40), None);
    }
}
