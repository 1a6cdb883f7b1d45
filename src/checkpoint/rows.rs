//! Reading rows of a tensor out of the files and laying them out for the kernels.
//!
//! A block of a tensor is read in runs of whole rows, at most [`CHUNK_BYTES`] at a time, and laid
//! out from there, by several threads when it is large. Floats whose rows are taken whole lie in
//! the compute layout as they lie in the file: they are read straight to where they belong. The
//! slices of a tensor that is cut by columns are asked for one after the other and all need the
//! same rows, so the last rows that were read for one are kept for the next.

use super::directory::Checkpoint;
use super::error::TensorFault;
use super::stored::{Run, StoredTensor};
use millstream_kernels::formats::bf16::bf16_to_f32;
use millstream_kernels::formats::f16::f16_to_f32;
use millstream_kernels::{FileMatrix, WeightFormat};
use millstream_stages::weights::Rectangle;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Most bytes of weights that are read before they are laid out.
const CHUNK_BYTES: usize = 64 << 20;
/// Rows of which the chunks are multiples; a multiple of every row block.
const CHUNK_ROWS: usize = 16;
/// Bytes that one thread lays out at a time.
const TASK_BYTES: usize = 1 << 20;

/// Rows of a tensor, as the file has them.
#[derive(Debug, Default)]
pub struct RowBuffers {
    /// Whose weights these are.
    run: Option<Run>,
    weights: Vec<u8>,
    scales: Vec<u8>,
}

/// Keeps the rows that were read last for a slice.
#[derive(Debug, Default)]
pub struct KeptRows(Mutex<RowBuffers>);

/// Reads rows of a tensor, in the file layout, into the two buffers.
///
/// # Errors
/// When they can't be read.
///
/// # Panics
/// When there are no such rows, or they don't start at a [`StoredTensor::row_step`].
pub fn read_rows<'a>(
    checkpoint: &Checkpoint,
    stored: &StoredTensor,
    rows: Range<usize>,
    weights: &'a mut Vec<u8>,
    scales: &'a mut Vec<u8>,
) -> Result<FileMatrix<'a>, TensorFault> {
    let (run, scales_run) = (stored.weights_of(&rows), stored.scales_of(&rows));
    weights.resize(run.bytes, 0);
    checkpoint.read(run, weights)?;
    scales.resize(scales_run.map_or(0, |run| run.bytes), 0);
    if let Some(run) = scales_run {
        checkpoint.read(run, scales)?;
    }
    Ok(matrix(stored, rows.len(), weights, scales))
}

/// Some rows of a tensor as a matrix of their own.
fn matrix<'a>(
    stored: &StoredTensor,
    rows: usize,
    weights: &'a [u8],
    scales: &'a [u8],
) -> FileMatrix<'a> {
    FileMatrix { format: stored.format, rows, cols: stored.cols, weights, scales }
}

impl RowBuffers {
    /// [`read_rows`], unless these are the rows that were read last.
    fn read(
        &mut self,
        checkpoint: &Checkpoint,
        stored: &StoredTensor,
        rows: Range<usize>,
    ) -> Result<FileMatrix<'_>, TensorFault> {
        let run = Some(stored.weights_of(&rows));
        let count = rows.len();
        if self.run != run {
            self.run = None;
            read_rows(checkpoint, stored, rows, &mut self.weights, &mut self.scales)?;
            self.run = run;
        }
        Ok(matrix(stored, count, &self.weights, &self.scales))
    }
}

impl KeptRows {
    /// Reads a block of a tensor into `out`, in the compute layout of format `target`: the
    /// tensor's own, or f32 for other floats.
    ///
    /// # Errors
    /// When it can't be read.
    ///
    /// # Panics
    /// When the block isn't in the tensor, or `out` has another length than it takes.
    pub fn read_block(
        &self,
        checkpoint: &Checkpoint,
        stored: &StoredTensor,
        target: WeightFormat,
        block: &Rectangle,
        out: &mut [u8],
    ) -> Result<(), TensorFault> {
        let Rectangle { rows, cols } = block.clone();
        assert!(rows.end <= stored.rows && cols.end <= stored.cols, "{block:?} of {stored:?}");
        assert_eq!(out.len(), target.matrix_bytes(rows.len(), cols.len()), "{target}: {block:?}");
        if out.is_empty() {
            return Ok(());
        }
        let whole_rows = cols == (0..stored.cols);
        if whole_rows && target == stored.format && is_floats(target) {
            return checkpoint.read(stored.weights_of(&rows), out);
        }
        let mut buffers = match whole_rows {
            true => RowBuffers::default(),
            false => std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        let step = rows_of_chunk(stored);
        let chunk_bytes = target.matrix_bytes(step, cols.len());
        for (first, out) in rows.clone().step_by(step).zip(out.chunks_mut(chunk_bytes)) {
            let end = rows.end.min(first + step);
            // A row's scales may be those of rows before it.
            let from = first - first % stored.row_step();
            let matrix = buffers.read(checkpoint, stored, from..end)?;
            lay_out_by_threads(&matrix, target, first - from..end - from, &cols, out);
        }
        if !whole_rows {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = buffers;
        }
        Ok(())
    }
}

fn rows_of_chunk(stored: &StoredTensor) -> usize {
    let align = CHUNK_ROWS.max(stored.row_step());
    let rows = CHUNK_BYTES / stored.format.file_bytes(1, stored.cols).max(1);
    (rows - rows % align).max(align)
}

/// Lays out a rectangle, a run of row blocks per thread and turn.
fn lay_out_by_threads(
    matrix: &FileMatrix<'_>,
    target: WeightFormat,
    rows: Range<usize>,
    cols: &Range<usize>,
    out: &mut [u8],
) {
    let (block_rows, block_bytes) = (target.row_block(), target.block_bytes(cols.len()));
    let blocks = (TASK_BYTES / block_bytes).max(1);
    out.par_chunks_mut(blocks * block_bytes).enumerate().for_each(|(task, out)| {
        let first = rows.start + task * blocks * block_rows;
        let end = rows.end.min(first + blocks * block_rows);
        lay_out(matrix, target, first..end, cols.clone(), out);
    });
}

/// Whether weights of a format are plain floats.
pub fn is_floats(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::F32 | WeightFormat::Bf16 | WeightFormat::F16)
}

/// Lays out a rectangle of a matrix in format `target`: its own, or f32 for other floats. Allocates
/// nothing.
///
/// # Panics
/// When the rectangle isn't inside, `out` has another length than it takes, or the formats don't
/// go together.
pub fn lay_out(
    matrix: &FileMatrix<'_>,
    target: WeightFormat,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut [u8],
) {
    if matrix.format == target {
        return matrix.lay_out(rows, cols, out);
    }
    assert!(
        target == WeightFormat::F32 && is_floats(matrix.format),
        "{} does not become {target}",
        matrix.format
    );
    assert_eq!(out.len(), target.matrix_bytes(rows.len(), cols.len()), "{target}: output");
    if cols.is_empty() {
        return;
    }
    for (row, out) in rows.zip(out.chunks_exact_mut(4 * cols.len())) {
        for (column, out) in cols.clone().zip(out.as_chunks_mut::<4>().0) {
            *out = float(matrix, row * matrix.cols + column).to_le_bytes();
        }
    }
}

/// A float of a matrix of plain floats, widened exactly.
fn float(matrix: &FileMatrix<'_>, index: usize) -> f32 {
    let half = |at: usize| u16::from_le_bytes([matrix.weights[at], matrix.weights[at + 1]]);
    match matrix.format {
        WeightFormat::Bf16 => bf16_to_f32(half(2 * index)),
        WeightFormat::F16 => f16_to_f32(half(2 * index)),
        _ => {
            let at = 4 * index;
            f32::from_bits(u32::from(half(at)) | u32::from(half(at + 2)) << 16)
        }
    }
}
