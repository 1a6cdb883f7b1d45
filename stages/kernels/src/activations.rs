//! Activations as kernels take them: f32 rows, or rows quantised to int8.
//!
//! Integer kernels multiply weight codes with int8 activations. A row (of a slice, where columns
//! are cut) is quantised in groups of 64 columns, 32 for formats in groups of 32 and nested ones, counted from its
//! start: scale = max|x| / 127, code = x * (127 / max|x|) rounded half to even. Codes lie in the
//! order of the format's quads; beside them lie, per *unit* of columns, the scale and the sum of
//! the codes (which takes the offset of unsigned weight bytes out again). The quantised form of a
//! row depends on nothing but the row and its [`ActivationLayout`].

use crate::formats::{ActivationKind, BlockCode, Order, WeightFormat, codes::for_codes};

/// f32 activation rows of a matmul: row t is `data[rows[t] * stride ..][.. cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    /// All rows, f32, `stride` elements apart.
    pub data: &'a [f32],
    /// Elements from the start of one row to the start of the next; at least the columns.
    pub stride: usize,
    /// The rows to multiply, in the order of the output.
    pub rows: &'a [u32],
}

impl<'a> Activations<'a> {
    /// The first `cols` elements of the t-th chosen row.
    ///
    /// # Panics
    /// If the row does not lie inside the data.
    #[inline(always)]
    pub fn token(&self, t: usize, cols: usize) -> &'a [f32] {
        let start = self.rows[t] as usize * self.stride;
        &self.data[start..start + cols]
    }
}

/// How rows of so many columns are quantised for a format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ActivationLayout {
    /// Columns of the row.
    pub cols: usize,
    /// Columns that share an activation scale.
    pub group: usize,
    /// Columns of one exact dot; divides `group`.
    pub unit: usize,
    /// The order of codes.
    pub order: Order,
}

impl ActivationLayout {
    /// The layout that a format's kernel takes; `None` if it takes f32.
    pub const fn of(format: WeightFormat, cols: usize) -> Option<ActivationLayout> {
        let Some(kind) = format.codes() else { return None };
        let order = for_codes!(kind, C => C::ORDER);
        match format.activations() {
            ActivationKind::F32 => None,
            ActivationKind::Int8 => {
                let (group, unit) = (format.activation_group(), format.unit());
                Some(ActivationLayout { cols, group, unit, order })
            }
        }
    }

    /// Codes of a row: its columns, filled up with zeros to a multiple of 64.
    pub const fn codes(&self) -> usize {
        self.cols.next_multiple_of(64)
    }

    /// Units of a row: scales and sums.
    pub const fn units(&self) -> usize {
        self.cols.div_ceil(self.unit)
    }
}

/// Quantised rows of one layout.
#[derive(Clone, Copy, Debug)]
pub struct Quantised<'a> {
    /// The layout of every row.
    pub layout: ActivationLayout,
    /// [`ActivationLayout::codes`] a row, each from -127 to 127.
    pub codes: &'a [i8],
    /// [`ActivationLayout::units`] a row.
    pub scales: &'a [f32],
    /// [`ActivationLayout::units`] a row: the sum of a unit's codes.
    pub sums: &'a [i32],
    /// The rows to multiply, in the order of the output.
    pub rows: &'a [u32],
}

/// One row of [`Quantised`].
#[derive(Clone, Copy, Debug)]
pub struct QuantisedRow<'a> {
    /// Codes, in the layout's order.
    pub codes: &'a [i8],
    /// Scale of every unit.
    pub scales: &'a [f32],
    /// Sum of every unit's codes.
    pub sums: &'a [i32],
}

impl<'a> Quantised<'a> {
    /// The t-th chosen row.
    ///
    /// # Panics
    /// If the row does not lie inside the data.
    #[inline(always)]
    pub fn token(&self, t: usize) -> QuantisedRow<'a> {
        let row = self.rows[t] as usize;
        let (codes, units) = (self.layout.codes(), self.layout.units());
        QuantisedRow {
            codes: &self.codes[row * codes..][..codes],
            scales: &self.scales[row * units..][..units],
            sums: &self.sums[row * units..][..units],
        }
    }
}

/// Where one row is quantised to.
#[derive(Debug)]
pub struct QuantisedRowMut<'a> {
    /// Codes.
    pub codes: &'a mut [i8],
    /// Scales.
    pub scales: &'a mut [f32],
    /// Sums.
    pub sums: &'a mut [i32],
}
