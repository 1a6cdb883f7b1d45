//! Scales and minima of a unit's 16 rows from the head of a block: one type per kind of head.
//!
//! `quantised_tile` walks over groups and the units in them and asks for both;
//! [`formats::head`](crate::formats::head) says what the bytes are.

use super::Simd;
use super::integers::{IntegerSimd, load_scales};
use crate::formats::{BLOCK_ROWS, HeadKind, ScaleType};

/// Sixteen f32.
type Floats<S> = <<S as IntegerSimd>::Float as Simd>::Vector;

/// Scales and minima of 16 rows; the minima don't matter where there are none.
pub struct Rows16<S: IntegerSimd> {
    pub scales: Floats<S>,
    pub minima: Floats<S>,
}

impl<S: IntegerSimd> Clone for Rows16<S> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: IntegerSimd> Copy for Rows16<S> {}

impl<S: IntegerSimd> Rows16<S> {
    /// Scales alone.
    #[inline(always)]
    fn scales(scales: Floats<S>) -> Self {
        Rows16 { scales, minima: scales }
    }
}

/// A kind of heads.
pub trait Heads {
    /// The kind that it reads; the type of plain scales is told at run time.
    const KIND: HeadKind;
    /// True if parts have bytes of their own.
    const NESTED: bool = Self::KIND.part_bytes() > 0;
    /// True if weights have minima.
    const MINIMA: bool = Self::KIND.has_minima();

    /// The scales and minima of a group from its bytes.
    fn group<S: IntegerSimd>(cpu: S, scale: ScaleType, bytes: &[u8]) -> Rows16<S>;

    /// Those of a part from its bytes.
    #[inline(always)]
    fn part<S: IntegerSimd>(_cpu: S, group: Rows16<S>, _bytes: &[u8]) -> Rows16<S> {
        group
    }
}

const WHOLE: &str = "a block holds a scale of each of its 16 rows";

/// The f16 of 16 rows.
#[inline(always)]
fn halves<S: IntegerSimd>(cpu: S, bytes: &[u8]) -> Floats<S> {
    cpu.load_f16(bytes.first_chunk().expect(WHOLE))
}

/// A group's f16 scales and f16 minima.
#[inline(always)]
fn both_halves<S: IntegerSimd>(cpu: S, bytes: &[u8]) -> Rows16<S> {
    Rows16 { scales: halves(cpu, bytes), minima: halves(cpu, &bytes[2 * BLOCK_ROWS..]) }
}

/// Scales of any type.
pub struct Scales;

impl Heads for Scales {
    const KIND: HeadKind = HeadKind::Scales(ScaleType::F32);
    #[inline(always)]
    fn group<S: IntegerSimd>(cpu: S, scale: ScaleType, bytes: &[u8]) -> Rows16<S> {
        Rows16::scales(load_scales(cpu, scale, bytes))
    }
}

/// f16 scales and minima.
pub struct Minima;

impl Heads for Minima {
    const KIND: HeadKind = HeadKind::Minima;
    #[inline(always)]
    fn group<S: IntegerSimd>(cpu: S, _: ScaleType, bytes: &[u8]) -> Rows16<S> {
        both_halves(cpu, bytes)
    }
}

/// f16 scales times signed bytes.
pub struct Nested;

impl Heads for Nested {
    const KIND: HeadKind = HeadKind::Nested;
    #[inline(always)]
    fn group<S: IntegerSimd>(cpu: S, _: ScaleType, bytes: &[u8]) -> Rows16<S> {
        Rows16::scales(halves(cpu, bytes))
    }
    #[inline(always)]
    fn part<S: IntegerSimd>(cpu: S, group: Rows16<S>, bytes: &[u8]) -> Rows16<S> {
        let part = cpu.to_float(cpu.load_i8(bytes.first_chunk().expect(WHOLE)));
        Rows16::scales(cpu.float().mul(group.scales, part))
    }
}

/// f16 scales and minima times bytes.
pub struct NestedMinima;

impl Heads for NestedMinima {
    const KIND: HeadKind = HeadKind::NestedMinima;
    #[inline(always)]
    fn group<S: IntegerSimd>(cpu: S, _: ScaleType, bytes: &[u8]) -> Rows16<S> {
        both_halves(cpu, bytes)
    }
    #[inline(always)]
    fn part<S: IntegerSimd>(cpu: S, group: Rows16<S>, bytes: &[u8]) -> Rows16<S> {
        let (scales, minima) = bytes.split_at(BLOCK_ROWS);
        let scales = cpu.to_float(cpu.load_u8(scales.first_chunk().expect(WHOLE)));
        let minima = cpu.to_float(cpu.load_u8(minima.first_chunk().expect(WHOLE)));
        times(cpu, group, scales, minima)
    }
}

/// f16 scales and minima times the low and the high nibbles of bytes.
pub struct NestedNibbles;

impl Heads for NestedNibbles {
    const KIND: HeadKind = HeadKind::NestedNibbles;
    #[inline(always)]
    fn group<S: IntegerSimd>(cpu: S, _: ScaleType, bytes: &[u8]) -> Rows16<S> {
        both_halves(cpu, bytes)
    }
    #[inline(always)]
    fn part<S: IntegerSimd>(cpu: S, group: Rows16<S>, bytes: &[u8]) -> Rows16<S> {
        let both = cpu.load_u8(bytes.first_chunk().expect(WHOLE));
        let scales = cpu.to_float(cpu.and(both, cpu.splat(15)));
        let minima = cpu.to_float(cpu.shift_right(both, 4));
        times(cpu, group, scales, minima)
    }
}

/// A group's scales and minima times those of a part.
#[inline(always)]
fn times<S: IntegerSimd>(
    cpu: S,
    group: Rows16<S>,
    scales: Floats<S>,
    minima: Floats<S>,
) -> Rows16<S> {
    let float = cpu.float();
    Rows16 { scales: float.mul(group.scales, scales), minima: float.mul(group.minima, minima) }
}
