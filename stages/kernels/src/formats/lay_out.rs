//! From the file layout to the compute layout, for any rectangle of a matrix.
//!
//! Checkpoint readers hand in a [`FileMatrix`] (borrowed bytes, as the file has them) and a
//! rectangle; the arena's or the pack's bytes come out. Codes and scales keep their values to the
//! bit: nothing is rounded here. A column cut must be at a multiple of the format's group.

use super::block::{self, BLOCK_ROWS, BlockCode, LINE_BYTES, dword};
use super::{
    ScaleType, WeightFormat, fp8, int2_row::Int2, int3_group::Int3, int4_group::Int4,
    int8_row::Int8, mxfp4::E2m1,
};
use std::ops::Range;

/// A matrix in the file layout.
#[derive(Clone, Copy, Debug)]
pub struct FileMatrix<'a> {
    /// Codes and scale type.
    pub format: WeightFormat,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Codes or floats, [`WeightFormat::file_bytes`] of them.
    pub weights: &'a [u8],
    /// Scales, row-major, [`WeightFormat::file_scales`] of them; empty for floats.
    pub scales: &'a [u8],
}

impl FileMatrix<'_> {
    /// Writes the rectangle into `out`, in the compute layout of a matrix of its own.
    ///
    /// # Panics
    /// When a length doesn't fit the shape, the rectangle isn't inside, or its columns don't start
    /// at a multiple of the format's group: checkpoint readers and [`WeightFormat::group`] see to
    /// all of these.
    pub fn lay_out(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [u8]) {
        let FileMatrix { format, .. } = *self;
        let scale_bytes = format.scale_type().map_or(0, ScaleType::bytes);
        assert_eq!(
            self.weights.len(),
            format.file_bytes(self.rows, self.cols),
            "{format}: weights"
        );
        let scales = format.file_scales(self.rows, self.cols) * scale_bytes;
        assert_eq!(self.scales.len(), scales, "{format}: scales");
        assert!(rows.end <= self.rows && cols.end <= self.cols, "{format}: rectangle");
        assert!(cols.start.is_multiple_of(format.group()), "{format}: columns cut within a group");
        assert_eq!(out.len(), format.matrix_bytes(rows.len(), cols.len()), "{format}: output");
        if out.is_empty() {
            return;
        }
        match format {
            WeightFormat::F32 => self.float_rows(4, rows, cols, out),
            WeightFormat::Bf16 | WeightFormat::F16 => self.float_rows(2, rows, cols, out),
            WeightFormat::Fp8Block128(scale) => self.fp8_rows(scale, rows, cols, out),
            WeightFormat::Int8Row(_) => self.blocks::<Int8>(rows, cols, out),
            WeightFormat::Int4Row(_) | WeightFormat::Int4Group(..) => {
                self.blocks::<Int4>(rows, cols, out);
            }
            WeightFormat::Int2Row(_) => self.blocks::<Int2>(rows, cols, out),
            WeightFormat::Int3Group64(_) => self.blocks::<Int3>(rows, cols, out),
            WeightFormat::Mxfp4 => self.blocks::<E2m1>(rows, cols, out),
        }
    }

    fn float_rows(&self, bytes: usize, rows: Range<usize>, cols: Range<usize>, out: &mut [u8]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(cols.len() * bytes)) {
            let first = row * self.cols + cols.start;
            out.copy_from_slice(&self.weights[first * bytes..(first + cols.len()) * bytes]);
        }
    }

    fn fp8_rows(&self, scale: ScaleType, rows: Range<usize>, cols: Range<usize>, out: &mut [u8]) {
        let row_bytes = fp8::row_bytes(scale, cols.len());
        let blocks = self.cols.div_ceil(fp8::BLOCK);
        let wanted = cols.len().div_ceil(fp8::BLOCK) * scale.bytes();
        out.fill(0);
        for (row, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
            let first = (row / fp8::BLOCK * blocks + cols.start / fp8::BLOCK) * scale.bytes();
            out[..wanted].copy_from_slice(&self.scales[first..first + wanted]);
            let codes = &mut out[fp8::row_scale_bytes(scale, cols.len())..][..cols.len()];
            codes.copy_from_slice(&self.weights[row * self.cols + cols.start..][..cols.len()]);
        }
    }

    fn blocks<C: BlockCode>(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [u8]) {
        let block_bytes = self.format.block_bytes(cols.len());
        let scale_bytes = self.format.block_scale_bytes(cols.len());
        for (first, out) in rows.clone().step_by(BLOCK_ROWS).zip(out.chunks_exact_mut(block_bytes))
        {
            let rows = first..rows.end.min(first + BLOCK_ROWS);
            let (scales, lines) = out.split_at_mut(scale_bytes);
            self.block_scales(rows.clone(), &cols, scales);
            self.block_codes::<C>(rows, &cols, lines);
        }
    }

    fn block_scales(&self, rows: Range<usize>, cols: &Range<usize>, out: &mut [u8]) {
        let bytes = self.format.scale_type().map_or(0, ScaleType::bytes);
        let per_row = self.format.scales_per_row(self.cols);
        // A row's only scale serves every cut of it; then group() is 1.
        let first = if per_row == 1 { 0 } else { cols.start / self.format.group() };
        out.fill(0);
        for (r, row) in rows.enumerate() {
            for group in 0..self.format.scales_per_row(cols.len()) {
                let from = (row * per_row + first + group) * bytes;
                let to = (group * BLOCK_ROWS + r) * bytes;
                out[to..to + bytes].copy_from_slice(&self.scales[from..from + bytes]);
            }
        }
    }

    fn block_codes<C: BlockCode>(&self, rows: Range<usize>, cols: &Range<usize>, out: &mut [u8]) {
        let row_bytes = self.format.file_bytes(1, self.cols);
        out.fill(0);
        for r in 0..BLOCK_ROWS {
            let row = rows.start + r;
            let file = (row < rows.end).then(|| &self.weights[row * row_bytes..][..row_bytes]);
            let mut done = 0;
            if let Some(file) = file
                && C::STEP_LINES == 1
                && cols.start.is_multiple_of(C::STEP_COLUMNS)
            {
                // A row's dwords are the file's.
                let first = cols.start / C::STEP_COLUMNS * 4;
                let whole = cols.len() / C::STEP_COLUMNS;
                let dwords = file[first..first + 4 * whole].as_chunks::<4>().0;
                for (line, word) in out.chunks_exact_mut(LINE_BYTES).zip(dwords) {
                    line[dword(r)..dword(r) + 4].copy_from_slice(word);
                }
                done = whole * C::STEP_COLUMNS;
            }
            let step_bytes = C::STEP_LINES * LINE_BYTES;
            for column in done..cols.len().next_multiple_of(C::STEP_COLUMNS) {
                let code = match file {
                    Some(file) if column < cols.len() => C::file_get(file, cols.start + column),
                    _ => C::ZERO_CODE,
                };
                let step = &mut out[column / C::STEP_COLUMNS * step_bytes..][..step_bytes];
                C::put(step, r, column % C::STEP_COLUMNS, code);
            }
        }
    }
}

const _: () = assert!(block::LINE_BYTES == BLOCK_ROWS * 4);
