//! Rows of a source's tensor in the format that they become.
//!
//! Where the format stays, rows are handed on as the file has them, to the bit. Where it changes,
//! they are decoded by the decoder that every consumer shares (`Weights::decode_row`) and rounded
//! (`millstream_kernels::formats::round`). A few rows are held at a time, so that a matrix of any
//! size goes through in little memory.

use super::error::ConvertError;
use crate::checkpoint::{ModelFiles, StoredTensor, is_floats, lay_out};
use millstream_kernels::formats::CannotRound;
use millstream_kernels::{FileMatrix, ScaleType, WeightFormat, Weights, round_rows};
use millstream_stages::weights::Line;
use std::ops::Range;

/// Rows that are decoded and rounded at once: the height of an fp8 block of scales.
pub const STEP_ROWS: usize = 128;

/// A tensor of the source and what it becomes.
#[derive(Clone, Debug)]
pub struct SourceTensor {
    /// Its name.
    pub name: String,
    /// As it lies in the files.
    pub stored: StoredTensor,
    /// The format that it becomes.
    pub target: WeightFormat,
}

/// One thread's buffers; they grow to what the widest rows need and are used again.
#[derive(Default)]
pub struct RowBuffers {
    raw_weights: Vec<u8>,
    raw_scales: Vec<u8>,
    laid_out: Vec<Line>,
    floats: Vec<f32>,
    weights: Vec<u8>,
    scales: Vec<u8>,
}

/// Rows in the file layout of the format that they become.
pub struct Rows<'a> {
    /// A matrix that holds them.
    pub matrix: FileMatrix<'a>,
    /// Where in it they begin.
    pub first: usize,
}

impl RowBuffers {
    /// Reads rows of a tensor.
    ///
    /// # Errors
    /// When they can't be read, or hold what the format can't.
    pub fn rows(
        &mut self,
        files: &ModelFiles,
        tensor: &SourceTensor,
        rows: Range<usize>,
    ) -> Result<Rows<'_>, ConvertError> {
        let SourceTensor { stored, target, .. } = tensor;
        if stored.format == *target {
            // Rows may share their scales with rows before them.
            let from = rows.start - rows.start % stored.row_step();
            let (weights, scales) = (&mut self.raw_weights, &mut self.raw_scales);
            let matrix = files.read_rows(stored, from..rows.end, weights, scales)?;
            return Ok(Rows { matrix, first: rows.start - from });
        }
        self.round(files, tensor, rows.clone())?;
        let (rows, cols, format) = (rows.len(), stored.cols, *target);
        let (weights, scales) = (self.weights.as_slice(), self.scales.as_slice());
        let layout = format.file_layout();
        Ok(Rows { matrix: FileMatrix { format, layout, rows, cols, weights, scales }, first: 0 })
    }

    /// Fills `weights` and `scales` with rounded rows.
    fn round(
        &mut self,
        files: &ModelFiles,
        tensor: &SourceTensor,
        rows: Range<usize>,
    ) -> Result<(), ConvertError> {
        let SourceTensor { stored, target, .. } = tensor;
        let (cols, count) = (stored.cols, rows.len());
        let row_weights = target.file_bytes(1, cols);
        let scale_bytes = target.scale_type().map_or(0, ScaleType::bytes);
        let row_scales = target.file_scales(1, cols) * scale_bytes;
        self.weights.clear();
        self.weights.resize(count * row_weights, 0);
        self.scales.clear();
        self.scales.resize(count * row_scales, 0);
        let mut start = rows.start;
        while start < rows.end {
            let end = rows.end.min(start - start % STEP_ROWS + STEP_ROWS);
            self.decode(files, stored, start..end)?;
            let (first, last) = (start - rows.start, end - rows.start);
            let weights = &mut self.weights[first * row_weights..last * row_weights];
            let scales = &mut self.scales[first * row_scales..last * row_scales];
            round_rows(&self.floats, cols, *target, weights, scales).map_err(|fault| {
                let file = files.checkpoint.file_path(stored.weights.file);
                ConvertError::Rounding {
                    file: file.display().to_string(),
                    tensor: tensor.name.clone(),
                    fault: CannotRound { row: fault.row + start, ..fault },
                }
            })?;
            start = end;
        }
        Ok(())
    }

    /// Fills `floats` with decoded rows, which lie within one step.
    fn decode(
        &mut self,
        files: &ModelFiles,
        stored: &StoredTensor,
        rows: Range<usize>,
    ) -> Result<(), ConvertError> {
        let from = rows.start - rows.start % stored.row_step();
        let (weights, scales) = (&mut self.raw_weights, &mut self.raw_scales);
        let matrix = files.read_rows(stored, from..rows.end, weights, scales)?;
        let cols = stored.cols;
        let wanted = rows.start - from..rows.end - from;
        self.floats.resize(rows.len() * cols, 0.0);
        if is_floats(stored.format) {
            let out = bytemuck::cast_slice_mut(&mut self.floats);
            lay_out(&matrix, WeightFormat::F32, wanted, 0..cols, out);
            return Ok(());
        }
        let bytes = stored.format.matrix_bytes(rows.len(), cols);
        self.laid_out.resize(bytes.div_ceil(64), bytemuck::Zeroable::zeroed());
        let laid_out = &mut bytemuck::cast_slice_mut(&mut self.laid_out)[..bytes];
        matrix.lay_out(wanted, 0..cols, laid_out);
        let decoded = Weights::new(stored.format, rows.len(), cols, laid_out);
        for (row, out) in self.floats.chunks_exact_mut(cols).enumerate() {
            decoded.decode_row(row, out);
        }
        Ok(())
    }
}
