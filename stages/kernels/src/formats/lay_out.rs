//! From the file layouts to the compute layout, for any rectangle of a matrix.
//!
//! Checkpoint readers hand in a [`FileMatrix`] (borrowed bytes, as the file has them) and a
//! rectangle; the arena's or the pack's bytes come out. Codes and scales keep their values to the
//! bit: nothing is rounded here. A column cut must be at a multiple of the format's group.

use super::block::{self, BLOCK_ROWS, FileCode, LINE_BYTES, dword};
use super::ggml::{GgmlType, lay_out::lay_out};
use super::{
    ScaleType, WeightFormat, fp8, int2_row::Int2, int3_group::Int3, int4_group::Int4,
    int8_row::Int8, mxfp4::E2m1,
};
use super::{
    int4_group, int8_group, iq4_nl, iq4_xs, mxfp4, q2_k, q3_k, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k,
};
use std::ops::Range;

/// Where a file has the scales of a matrix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileLayout {
    /// Codes row by row, scales in a run of their own (colibri containers, Hugging Face snapshots).
    Apart,
    /// In ggml's blocks, beside the codes (GGUF files). Floats lie row by row in either.
    Ggml,
}

impl FileLayout {
    /// Bytes of the weights of a `rows` x `cols` matrix; `None` if this layout doesn't hold the format,
    /// or no such row.
    pub const fn weight_bytes(
        self,
        format: WeightFormat,
        rows: usize,
        cols: usize,
    ) -> Option<usize> {
        match (self, format.file_layout(), GgmlType::of(format)) {
            (FileLayout::Apart, FileLayout::Apart, _) => Some(format.file_bytes(rows, cols)),
            (FileLayout::Ggml, _, Some(kind)) => match kind.row_bytes(cols) {
                Some(row) => row.checked_mul(rows),
                None => None,
            },
            (FileLayout::Apart, FileLayout::Ggml, _) | (FileLayout::Ggml, _, None) => None,
        }
    }

    /// Bytes of the scales that lie apart; `None` as with [`FileLayout::weight_bytes`].
    pub const fn scale_bytes(
        self,
        format: WeightFormat,
        rows: usize,
        cols: usize,
    ) -> Option<usize> {
        match (self, self.weight_bytes(format, rows, cols), format.scale_type()) {
            (_, None, _) => None,
            (FileLayout::Apart, Some(_), Some(scale)) => {
                Some(format.file_scales(rows, cols) * scale.bytes())
            }
            (_, Some(_), _) => Some(0),
        }
    }
}

/// A matrix in a file layout.
#[derive(Clone, Copy, Debug)]
pub struct FileMatrix<'a> {
    /// Codes and scale type.
    pub format: WeightFormat,
    /// Where the scales are.
    pub layout: FileLayout,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Codes, floats or blocks: [`FileLayout::weight_bytes`]. In blocks a row's last block is whole.
    pub weights: &'a [u8],
    /// Scales, row-major: [`FileLayout::scale_bytes`]; empty for floats and blocks.
    pub scales: &'a [u8],
}

impl FileMatrix<'_> {
    /// Writes the rectangle into `out`, in the compute layout of a matrix of its own.
    ///
    /// # Panics
    /// When a length doesn't fit the shape, the rectangle isn't inside, its columns don't start at a
    /// multiple of the format's [`WeightFormat::cut`], or the layout doesn't hold the format:
    /// checkpoint readers see to all of these.
    pub fn lay_out(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [u8]) {
        let FileMatrix { format, .. } = *self;
        assert!(rows.end <= self.rows && cols.end <= self.cols, "{format}: rectangle");
        let cut = format.cut(cols.len());
        assert!(cols.start.is_multiple_of(cut), "{format}: columns cut within a group");
        assert_eq!(out.len(), format.matrix_bytes(rows.len(), cols.len()), "{format}: output");
        let blocks = match (self.layout, GgmlType::of(format)) {
            (FileLayout::Apart, _) => None,
            (FileLayout::Ggml, kind) => Some(kind.expect("a format that ggml has")),
        };
        let row_bytes = blocks.map_or(0, |kind| kind.whole_row_bytes(self.cols));
        let weight_bytes = match self.layout {
            FileLayout::Apart => format.file_bytes(self.rows, self.cols),
            FileLayout::Ggml => self.rows * row_bytes,
        };
        assert_eq!(self.weights.len(), weight_bytes, "{format}: weights");
        let scales = match (self.layout, format.scale_type()) {
            (FileLayout::Apart, Some(scale)) => {
                format.file_scales(self.rows, self.cols) * scale.bytes()
            }
            (FileLayout::Apart, None) | (FileLayout::Ggml, _) => 0,
        };
        assert_eq!(self.scales.len(), scales, "{format}: scales");
        if out.is_empty() {
            return;
        }
        match self.layout {
            FileLayout::Apart => self.lay_out_apart(rows, cols, out),
            FileLayout::Ggml => self.lay_out_blocks(rows, cols, out),
        }
    }

    fn lay_out_apart(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [u8]) {
        match self.format {
            WeightFormat::F32 => self.float_rows(4, rows, cols, out),
            WeightFormat::Bf16 | WeightFormat::F16 => self.float_rows(2, rows, cols, out),
            WeightFormat::Fp8Block128(scale) => self.fp8_rows(scale, rows, cols, out),
            WeightFormat::Int8Row(_) | WeightFormat::Int8Group32(_) => {
                self.blocks::<Int8>(rows, cols, out);
            }
            WeightFormat::Int4Row(_) | WeightFormat::Int4Group(..) => {
                self.blocks::<Int4>(rows, cols, out);
            }
            WeightFormat::Int2Row(_) => self.blocks::<Int2>(rows, cols, out),
            WeightFormat::Int3Group64(_) => self.blocks::<Int3>(rows, cols, out),
            WeightFormat::Mxfp4 => self.blocks::<E2m1>(rows, cols, out),
            WeightFormat::Q4_1
            | WeightFormat::Q5_0
            | WeightFormat::Q5_1
            | WeightFormat::Q2K
            | WeightFormat::Q3K
            | WeightFormat::Q4K
            | WeightFormat::Q5K
            | WeightFormat::Q6K
            | WeightFormat::Iq4Nl
            | WeightFormat::Iq4Xs => panic!("{}: its scales never lie apart", self.format),
        }
    }

    fn lay_out_blocks(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [u8]) {
        match self.format {
            WeightFormat::F32 => self.float_rows(4, rows, cols, out),
            WeightFormat::Bf16 | WeightFormat::F16 => self.float_rows(2, rows, cols, out),
            WeightFormat::Int4Group(..) => lay_out::<int4_group::Block>(self, rows, cols, out),
            WeightFormat::Int8Group32(_) => lay_out::<int8_group::Block>(self, rows, cols, out),
            WeightFormat::Mxfp4 => lay_out::<mxfp4::Block>(self, rows, cols, out),
            WeightFormat::Q4_1 => lay_out::<q4_1::Block>(self, rows, cols, out),
            WeightFormat::Q5_0 => lay_out::<q5_0::Block>(self, rows, cols, out),
            WeightFormat::Q5_1 => lay_out::<q5_1::Block>(self, rows, cols, out),
            WeightFormat::Q2K => lay_out::<q2_k::Block>(self, rows, cols, out),
            WeightFormat::Q3K => lay_out::<q3_k::Block>(self, rows, cols, out),
            WeightFormat::Q4K => lay_out::<q4_k::Block>(self, rows, cols, out),
            WeightFormat::Q5K => lay_out::<q5_k::Block>(self, rows, cols, out),
            WeightFormat::Q6K => lay_out::<q6_k::Block>(self, rows, cols, out),
            WeightFormat::Iq4Nl => lay_out::<iq4_nl::Block>(self, rows, cols, out),
            WeightFormat::Iq4Xs => lay_out::<iq4_xs::Block>(self, rows, cols, out),
            WeightFormat::Fp8Block128(_)
            | WeightFormat::Int8Row(_)
            | WeightFormat::Int4Row(_)
            | WeightFormat::Int2Row(_)
            | WeightFormat::Int3Group64(_) => panic!("{}: ggml has no such blocks", self.format),
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

    fn blocks<C: FileCode>(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [u8]) {
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

    fn block_codes<C: FileCode>(&self, rows: Range<usize>, cols: &Range<usize>, out: &mut [u8]) {
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
