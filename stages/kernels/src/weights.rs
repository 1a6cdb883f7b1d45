//! Borrowed views: a matrix in the compute layout, and runs of plain floats.
//!
//! Stages turn arena bytes into [`Weights`] and hand them to a kernel; nothing here owns memory.
//! [`Weights::decode_row`] and its kin are the one decoder per format that every consumer shares:
//! embedding rows, absorbed attention, references.

use crate::formats::{
    BLOCK_ROWS, BlockCode, Head, WeightFormat, bf16::bf16_to_f32, block::LINE_BYTES,
    codes::for_codes, f16::f16_to_f32, fp8,
};
use std::ops::Range;

/// A matrix in the compute layout.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

/// A run of floats, row-major; the view knows no shape.
#[derive(Clone, Copy, Debug)]
pub enum Floats<'a> {
    /// IEEE 754 singles.
    F32(&'a [f32]),
    /// Upper halves of singles.
    Bf16(&'a [u16]),
    /// IEEE 754 halves.
    F16(&'a [u16]),
}

impl<'a> Weights<'a> {
    /// Views bytes as a matrix.
    ///
    /// # Panics
    /// If there aren't [`WeightFormat::matrix_bytes`] bytes, or they aren't aligned (16 bytes for
    /// integer formats and fp8, the float's size for others): arenas see to both.
    pub fn new(format: WeightFormat, rows: usize, cols: usize, bytes: &'a [u8]) -> Weights<'a> {
        assert_eq!(bytes.len(), format.matrix_bytes(rows, cols), "{format}: {rows} x {cols}");
        let align = match format {
            WeightFormat::F32 => 4,
            WeightFormat::Bf16 | WeightFormat::F16 => 2,
            _ => 16,
        };
        assert!(
            bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(align),
            "{format}: alignment"
        );
        Weights { format, rows, cols, bytes }
    }

    /// f32 values as a matrix.
    ///
    /// # Panics
    /// If `cols` is 0 or doesn't divide the values.
    pub fn from_f32(values: &'a [f32], cols: usize) -> Weights<'a> {
        assert!(
            cols > 0 && values.len().is_multiple_of(cols),
            "{} values, {cols} cols",
            values.len()
        );
        Weights::new(WeightFormat::F32, values.len() / cols, cols, bytemuck::cast_slice(values))
    }

    /// The format.
    pub const fn format(&self) -> WeightFormat {
        self.format
    }
    /// Rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }
    /// Columns: the summed dimension.
    pub const fn cols(&self) -> usize {
        self.cols
    }
    /// The bytes, in the compute layout.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Some rows as a matrix of their own.
    ///
    /// # Panics
    /// If the range isn't inside, doesn't start at a row block or ends within one (but the last).
    pub fn slice(&self, rows: Range<usize>) -> Weights<'a> {
        let block = self.format.row_block();
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let whole = rows.end == self.rows || rows.end.is_multiple_of(block);
        assert!(rows.start.is_multiple_of(block) && whole, "rows {rows:?} cut a block of {block}");
        let bytes = self.format.block_bytes(self.cols);
        let bytes = &self.bytes[rows.start / block * bytes..rows.end.div_ceil(block) * bytes];
        Weights { rows: rows.len(), bytes, ..*self }
    }

    /// The floats of the matrix, row after row, if its format is one of plain floats.
    pub fn floats(&self) -> Option<Floats<'a>> {
        match self.format {
            WeightFormat::F32 => Some(Floats::F32(cast(self.bytes))),
            WeightFormat::Bf16 => Some(Floats::Bf16(cast(self.bytes))),
            WeightFormat::F16 => Some(Floats::F16(cast(self.bytes))),
            _ => None,
        }
    }

    /// A weight as f32: a float widened; a code times its scale, rounded once; or that plus the
    /// minimum where a format has minima, rounded once (their products are exact in f32).
    ///
    /// # Panics
    /// If there is no such row or column.
    #[inline]
    pub fn weight(&self, row: usize, column: usize) -> f32 {
        assert!(
            row < self.rows && column < self.cols,
            "row {row}, column {column} of {} x {}",
            self.rows,
            self.cols
        );
        if let Some(kind) = self.format.codes() {
            return for_codes!(kind, C => self.decode::<C>(row, column));
        }
        let index = row * self.cols + column;
        match self.format {
            WeightFormat::F32 => cast::<f32>(self.bytes)[index],
            WeightFormat::Bf16 => bf16_to_f32(cast::<u16>(self.bytes)[index]),
            WeightFormat::F16 => f16_to_f32(cast::<u16>(self.bytes)[index]),
            WeightFormat::Fp8Block128(scale) => {
                let row = &self.bytes[row * self.format.block_bytes(self.cols)..];
                let code = row[fp8::row_scale_bytes(scale, self.cols) + column];
                fp8::FP8_VALUES[code as usize] * scale.read(row, column / fp8::BLOCK)
            }
            _ => unreachable!("all other formats have codes"),
        }
    }

    #[inline]
    fn decode<C: BlockCode>(&self, row: usize, column: usize) -> f32 {
        let product = C::value(self.code::<C>(row, column)) as f32 * self.scale::<C>(row, column);
        self.minimum(row, column).map_or(product, |minimum| product + minimum)
    }

    /// A row as f32, each weight as [`Weights::weight`] has it.
    ///
    /// # Panics
    /// If there is no such row, or `out` isn't as long as one.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "decode: output");
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if let Some(floats) = self.floats() {
            return floats.slice(row * self.cols..(row + 1) * self.cols).widen(out);
        }
        for (column, out) in out.iter_mut().enumerate() {
            *out = self.weight(row, column);
        }
    }

    /// The code at a row and column; `C` is the format's codes.
    pub fn code<C: BlockCode>(&self, row: usize, column: usize) -> u8 {
        let step_bytes = C::STEP_LINES * LINE_BYTES;
        let lines = &self.block(row)[self.format.block_scale_bytes(self.cols)..];
        let step = &lines[column / C::STEP_COLUMNS * step_bytes..][..step_bytes];
        C::get(step, row % BLOCK_ROWS, column % C::STEP_COLUMNS)
    }

    /// The scale of a row and column, the format's constant factor included.
    pub fn scale<C: BlockCode>(&self, row: usize, column: usize) -> f32 {
        self.head().scale(self.block(row), row % BLOCK_ROWS, column) * C::FACTOR
    }

    /// What is added to a row's codes times their scale at a column, in formats that have minima.
    pub fn minimum(&self, row: usize, column: usize) -> Option<f32> {
        self.head().minimum(self.block(row), row % BLOCK_ROWS, column)
    }

    /// The heads of the blocks.
    fn head(&self) -> Head {
        Head::of(self.format, self.cols).expect("codes have scales")
    }

    /// The block of 16 rows that a row is in.
    fn block(&self, row: usize) -> &'a [u8] {
        let bytes = self.format.block_bytes(self.cols);
        &self.bytes[row / BLOCK_ROWS * bytes..][..bytes]
    }
}

/// The bytes as numbers; no bytes need no alignment.
fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}

impl<'a> Floats<'a> {
    /// Number of floats.
    pub const fn len(&self) -> usize {
        match self {
            Floats::F32(values) => values.len(),
            Floats::Bf16(values) | Floats::F16(values) => values.len(),
        }
    }

    /// True if there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part.
    ///
    /// # Panics
    /// If the range isn't inside.
    pub fn slice(&self, range: Range<usize>) -> Floats<'a> {
        match self {
            Floats::F32(values) => Floats::F32(&values[range]),
            Floats::Bf16(values) => Floats::Bf16(&values[range]),
            Floats::F16(values) => Floats::F16(&values[range]),
        }
    }

    /// Every float as f32, exactly.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn widen(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.len(), "widen: output");
        match self {
            Floats::F32(values) => out.copy_from_slice(values),
            Floats::Bf16(values) => {
                for (out, &value) in out.iter_mut().zip(*values) {
                    *out = bf16_to_f32(value);
                }
            }
            Floats::F16(values) => {
                for (out, &value) in out.iter_mut().zip(*values) {
                    *out = f16_to_f32(value);
                }
            }
        }
    }
}
