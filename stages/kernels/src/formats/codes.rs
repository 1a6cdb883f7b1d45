//! Which codes a format has, whatever its scales: the one table from formats to code types.
//!
//! Kernels, decoders and layouts are generic over [`BlockCode`](super::BlockCode). [`CodeKind`] names
//! the types at run time and [`for_codes`] turns a name into the type, so that a new kind of codes is
//! one line here.

/// The kinds of codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeKind {
    /// [`super::int8_row::Int8`].
    Int8,
    /// [`super::int4_group::Int4`].
    Int4,
    /// [`super::int3_group::Int3`].
    Int3,
    /// [`super::int2_row::Int2`].
    Int2,
    /// [`super::mxfp4::E2m1`].
    E2m1,
    /// [`super::q4_1::Uint4`].
    Uint4,
    /// [`super::iq4_nl::Iq4`].
    Iq4,
    /// [`super::five::Int5`].
    Int5,
    /// [`super::five::Uint5`].
    Uint5,
    /// [`super::q6_k::Int6`].
    Int6,
    /// [`super::q2_k::Uint2`].
    Uint2,
}

/// Evaluates an expression with the type of a kind of codes: `for_codes!(kind, C => C::ORDER)`.
macro_rules! for_codes {
    ($kind:expr, $codes:ident => $body:expr) => {
        match $kind {
            $crate::formats::codes::CodeKind::Int8 => {
                type $codes = $crate::formats::int8_row::Int8;
                $body
            }
            $crate::formats::codes::CodeKind::Int4 => {
                type $codes = $crate::formats::int4_group::Int4;
                $body
            }
            $crate::formats::codes::CodeKind::Int3 => {
                type $codes = $crate::formats::int3_group::Int3;
                $body
            }
            $crate::formats::codes::CodeKind::Int2 => {
                type $codes = $crate::formats::int2_row::Int2;
                $body
            }
            $crate::formats::codes::CodeKind::E2m1 => {
                type $codes = $crate::formats::mxfp4::E2m1;
                $body
            }
            $crate::formats::codes::CodeKind::Uint4 => {
                type $codes = $crate::formats::q4_1::Uint4;
                $body
            }
            $crate::formats::codes::CodeKind::Iq4 => {
                type $codes = $crate::formats::iq4_nl::Iq4;
                $body
            }
            $crate::formats::codes::CodeKind::Int5 => {
                type $codes = $crate::formats::five::Int5;
                $body
            }
            $crate::formats::codes::CodeKind::Uint5 => {
                type $codes = $crate::formats::five::Uint5;
                $body
            }
            $crate::formats::codes::CodeKind::Int6 => {
                type $codes = $crate::formats::q6_k::Int6;
                $body
            }
            $crate::formats::codes::CodeKind::Uint2 => {
                type $codes = $crate::formats::q2_k::Uint2;
                $body
            }
        }
    };
}
pub(crate) use for_codes;

/// The most codes that are packed at once.
pub const CODES_MAX: usize = 256;

/// Nibbles of pairs of codes: byte b holds code 2b in its low nibble, 2b + 1 in its high one.
#[inline(always)]
pub fn pack_nibbles(codes: &[u8], out: &mut [u8]) {
    for (pair, byte) in codes.as_chunks::<2>().0.iter().zip(out) {
        let pair = u16::from_le_bytes(*pair);
        *byte = (pair & 0x0f | pair >> 4 & 0xf0) as u8;
    }
}

/// Two bits of fours of codes: byte b holds codes 4b to 4b + 3, the lowest bits first.
#[inline(always)]
pub fn pack_pairs_of_bits(codes: &[u8], out: &mut [u8]) {
    for (four, byte) in codes.as_chunks::<4>().0.iter().zip(out) {
        let four = u32::from_le_bytes(*four);
        *byte = (four & 3 | four >> 6 & 0x0c | four >> 12 & 0x30 | four >> 18 & 0xc0) as u8;
    }
}

/// Sixteen bytes as four numbers.
#[inline(always)]
pub fn words(bytes: [u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}
