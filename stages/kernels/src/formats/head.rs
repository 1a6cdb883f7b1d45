//! The head of a block in the compute layout: its scales, and its minima where there are any.
//!
//! ```text
//! head   | group 0 | group 1 | ..  | zeros up to a multiple of 64 bytes |
//! group  | scales of rows 0..16 | minima of rows 0..16 | part 0 | part 1 | .. |
//! part   | scales of rows 0..16, one byte each | minima of rows 0..16, one byte each |
//! ```
//!
//! Most formats have scales only. *Nested* formats have an f16 per super-block of 256 columns and a
//! byte per part of it; a group is then a super-block, or as much of one as a cut of columns leaves:
//! the greatest common divisor of the cut's width and 256, so that a group of any of the equal cuts of
//! a row lies within one super-block. A weight is code x scale + minimum; a nested scale is the
//! group's times the part's, which f32 holds exactly.

use super::block::{BLOCK_ROWS, LINE_BYTES};
use super::{ScaleType, Scales, WeightFormat};

/// Columns of a super-block.
pub const SUPER_COLUMNS: usize = 256;

/// Columns at whose multiples a matrix of a nested format may be cut: a part, or two of the short ones.
pub const NESTED_CUT: usize = 32;

/// What a head holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadKind {
    /// A scale per group.
    Scales(ScaleType),
    /// A scale and a minimum per group, both f16.
    Minima,
    /// An f16 scale per group, a signed byte per part.
    Nested,
    /// An f16 scale and an f16 minimum per group, an unsigned byte of each per part.
    NestedMinima,
    /// The same with both of a part in one byte: the scale in the low nibble.
    NestedNibbles,
}

/// The head of every block of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// What it holds.
    pub kind: HeadKind,
    /// Columns of a group.
    pub group: usize,
    /// Columns of a part; those of a group where there are no parts.
    pub part: usize,
    /// Groups of a row.
    pub groups: usize,
}

impl HeadKind {
    /// Bytes of a group's own scales and minima, of 16 rows.
    pub const fn group_bytes(self) -> usize {
        BLOCK_ROWS
            * match self {
                HeadKind::Scales(scale) => scale.bytes(),
                HeadKind::Nested => 2,
                HeadKind::Minima | HeadKind::NestedMinima | HeadKind::NestedNibbles => 4,
            }
    }

    /// Bytes of a part's scales and minima, of 16 rows.
    pub const fn part_bytes(self) -> usize {
        BLOCK_ROWS
            * match self {
                HeadKind::Scales(_) | HeadKind::Minima => 0,
                HeadKind::Nested | HeadKind::NestedNibbles => 1,
                HeadKind::NestedMinima => 2,
            }
    }

    /// True if weights have a minimum.
    pub const fn has_minima(self) -> bool {
        match self {
            HeadKind::Scales(_) | HeadKind::Nested => false,
            HeadKind::Minima | HeadKind::NestedMinima | HeadKind::NestedNibbles => true,
        }
    }
}

impl Head {
    /// The head of blocks of `cols` columns; `None` for formats without blocks of codes.
    pub const fn of(format: WeightFormat, cols: usize) -> Option<Head> {
        let Some(kind) = format.head() else { return None };
        let groups = format.scales_per_row(cols);
        let (group, part) = match format.scales() {
            Scales::None | Scales::Block128 => return None,
            // A group of no columns would divide nothing.
            Scales::Row if cols == 0 => (1, 1),
            Scales::Row => (cols, cols),
            Scales::Group(columns) => (columns, columns),
            Scales::Nested(part) => (nested_group(cols), part),
        };
        Some(Head { kind, group, part, groups })
    }

    /// Bytes of a part.
    pub const fn part_bytes(&self) -> usize {
        self.kind.part_bytes()
    }

    /// Bytes of a group and its parts.
    pub const fn group_bytes(&self) -> usize {
        self.kind.group_bytes() + self.group / self.part * self.part_bytes()
    }

    /// Bytes of the head.
    pub const fn bytes(&self) -> usize {
        (self.groups * self.group_bytes()).next_multiple_of(LINE_BYTES)
    }

    /// Where a part's bytes begin.
    const fn part_place(&self, part: usize) -> usize {
        let parts = self.group / self.part;
        part / parts * self.group_bytes()
            + self.kind.group_bytes()
            + part % parts * self.part_bytes()
    }

    /// The bytes of the group that a part is in, and the part's own.
    #[inline(always)]
    pub fn part_bytes_of<'a>(&self, head: &'a [u8], part: usize) -> (&'a [u8], &'a [u8]) {
        let group = part / (self.group / self.part) * self.group_bytes();
        let place = self.part_place(part);
        (&head[group..][..self.kind.group_bytes()], &head[place..][..self.part_bytes()])
    }

    /// The f16 of a group: its scale (0) or minimum (1).
    #[inline]
    fn half(&self, head: &[u8], row: usize, column: usize, which: usize) -> f32 {
        let group = &head[column / self.group * self.group_bytes()..];
        ScaleType::F16.read(group, which * BLOCK_ROWS + row)
    }

    /// The scale of a row (0 to 15) and column.
    #[inline]
    pub fn scale(&self, head: &[u8], row: usize, column: usize) -> f32 {
        let part = || head[self.part_place(column / self.part) + row];
        match self.kind {
            HeadKind::Scales(scale) => {
                scale.read(&head[column / self.group * self.group_bytes()..], row)
            }
            HeadKind::Minima => self.half(head, row, column, 0),
            HeadKind::Nested => self.half(head, row, column, 0) * f32::from(part() as i8),
            HeadKind::NestedMinima => self.half(head, row, column, 0) * f32::from(part()),
            HeadKind::NestedNibbles => self.half(head, row, column, 0) * f32::from(part() & 15),
        }
    }

    /// The minimum of a row (0 to 15) and column, if the format has minima.
    #[inline]
    pub fn minimum(&self, head: &[u8], row: usize, column: usize) -> Option<f32> {
        let part = |place: usize| head[self.part_place(column / self.part) + place + row];
        let part = match self.kind {
            HeadKind::Scales(_) | HeadKind::Nested => return None,
            HeadKind::Minima => return Some(self.half(head, row, column, 1)),
            HeadKind::NestedMinima => part(BLOCK_ROWS),
            HeadKind::NestedNibbles => part(0) >> 4,
        };
        Some(self.half(head, row, column, 1) * f32::from(part))
    }

    /// Writes a group's scale and minimum, little-endian, for a row (0 to 15); `out` starts with the
    /// group.
    #[inline(always)]
    pub fn put_group(&self, row: usize, scale: [u8; 2], minimum: [u8; 2], out: &mut [u8]) {
        match self.kind {
            HeadKind::Scales(ScaleType::Ue8m0) => out[row] = scale[0],
            _ => out[2 * row..2 * row + 2].copy_from_slice(&scale),
        }
        if self.kind.has_minima() {
            out[2 * (BLOCK_ROWS + row)..][..2].copy_from_slice(&minimum);
        }
    }

    /// Writes a part's scale and minimum for a row; nibbles come as one byte in `scale`. `out` starts
    /// with the part.
    #[inline(always)]
    pub fn put_part(&self, row: usize, scale: u8, minimum: u8, out: &mut [u8]) {
        out[row] = scale;
        if self.kind == HeadKind::NestedMinima {
            out[BLOCK_ROWS + row] = minimum;
        }
    }
}

/// Columns of a group of a nested format in a matrix of so many columns.
pub const fn nested_group(cols: usize) -> usize {
    // The greatest common divisor with a power of two is the lowest bit that is set.
    let cols = cols.next_multiple_of(NESTED_CUT) | SUPER_COLUMNS;
    1 << cols.trailing_zeros()
}

/// The f16 bits of an f16's negative.
pub const fn negated(half: [u8; 2]) -> [u8; 2] {
    [half[0], half[1] ^ 0x80]
}
