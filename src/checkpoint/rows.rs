//! Reading rows of a tensor out of the files and laying them out for the kernels.
//!
//! Several threads read and lay out the rows of a large block, each its own. Floats whose rows are
//! taken whole lie in the compute layout as they lie in the file: they are read straight to where
//! they belong. The slices of a tensor that is cut by columns are asked for one after the other and
//! all need the same rows, so the rows that were read for one, at most [`CHUNK_BYTES`] at a time,
//! are kept for the next.

use super::directory::Checkpoint;
use super::error::TensorFault;
use super::stored::{Run, StoredTensor};
use super::weave::{gather, lay_out_stored};
use millstream_kernels::formats::bf16::bf16_to_f32;
use millstream_kernels::formats::f16::f16_to_f32;
use millstream_kernels::{FileMatrix, WeightFormat};
use millstream_stages::weights::Rectangle;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes of weights that are kept.
const CHUNK_BYTES: usize = 64 << 20;
/// Rows of which all runs but the last are multiples; a multiple of every row block.
const RUN_ROWS: usize = 16;
/// Bytes of weights that one thread reads or lays out at a time.
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
#[derive(Debug)]
pub struct KeptRows {
    buffers: Mutex<RowBuffers>,
    chunk_bytes: usize,
    task_bytes: usize,
}

impl Default for KeptRows {
    fn default() -> KeptRows {
        let (chunk_bytes, task_bytes) = (CHUNK_BYTES, TASK_BYTES);
        KeptRows { buffers: Mutex::default(), chunk_bytes, task_bytes }
    }
}

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
    if let Some(heads) = stored.heads {
        heads.read(checkpoint, stored, rows.clone(), weights)?;
        scales.clear();
        return Ok(matrix(stored, rows.len(), weights, scales));
    }
    if stored.weave.is_some() {
        let whole = read_whole(checkpoint, stored)?;
        gather(stored, [&whole[0], &whole[1]], rows.clone(), weights, scales);
        return Ok(matrix(stored, rows.len(), weights, scales));
    }
    let (run, scales_run) = (stored.weights_of(&rows), stored.scales_of(&rows));
    set_length(weights, run.bytes);
    checkpoint.read(run, weights)?;
    set_length(scales, scales_run.map_or(0, |run| run.bytes));
    if let Some(run) = scales_run {
        checkpoint.read(run, scales)?;
    }
    Ok(matrix(stored, rows.len(), weights, scales))
}

/// All bytes of a tensor's runs: weights, then scales.
fn read_whole(checkpoint: &Checkpoint, stored: &StoredTensor) -> Result<[Vec<u8>; 2], TensorFault> {
    let read = |run: Option<Run>| {
        let mut bytes = vec![0; run.map_or(0, |run| run.bytes)];
        run.map_or(Ok(()), |run| checkpoint.read(run, &mut bytes)).map(|()| bytes)
    };
    Ok([read(Some(stored.weights))?, read(stored.scales)?])
}

/// Makes a buffer so long, whatever is in it. Fresh memory is zeros without being written.
fn set_length(buffer: &mut Vec<u8>, bytes: usize) {
    match bytes > buffer.capacity() {
        true => *buffer = vec![0; bytes],
        false => buffer.resize(bytes, 0),
    }
}

/// Some rows of a tensor as a matrix of their own.
fn matrix<'a>(
    stored: &StoredTensor,
    rows: usize,
    weights: &'a [u8],
    scales: &'a [u8],
) -> FileMatrix<'a> {
    let StoredTensor { format, layout, cols, .. } = *stored;
    FileMatrix { format, layout, rows, cols, weights, scales }
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
        if stored.heads.is_some() {
            let (mut weights, mut scales) = (vec![], vec![]);
            let count = rows.len();
            let read = read_rows(checkpoint, stored, rows, &mut weights, &mut scales)?;
            lay_out(&read, target, 0..count, cols, out);
            return Ok(());
        }
        if stored.weave.is_some() {
            let whole = read_whole(checkpoint, stored)?;
            lay_out_stored(stored, [&whole[0], &whole[1]], target, rows, cols, out);
            return Ok(());
        }
        let whole_rows = cols == (0..stored.cols);
        if whole_rows && target == stored.format && is_floats(target) {
            return checkpoint.read(stored.weights_of(&rows), out);
        }
        let job = Job { checkpoint, stored, target, cols };
        if whole_rows {
            // Another tensor: the last one's slices are done.
            *self.lock() = RowBuffers::default();
            return job.by_threads(rows, self.task_bytes, out);
        }
        let mut buffers = std::mem::take(&mut *self.lock());
        let step = job.rows_of(self.chunk_bytes);
        let chunk_bytes = target.matrix_bytes(step, job.cols.len());
        for (first, out) in rows.clone().step_by(step).zip(out.chunks_mut(chunk_bytes)) {
            let (rows, within) = job.whole_blocks(first..rows.end.min(first + step));
            let matrix = buffers.read(checkpoint, stored, rows)?;
            job.lay_out_by_threads(&matrix, within, self.task_bytes, out);
        }
        *self.lock() = buffers;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, RowBuffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reading of a block.
struct Job<'a> {
    checkpoint: &'a Checkpoint,
    stored: &'a StoredTensor,
    target: WeightFormat,
    cols: Range<usize>,
}

impl Job<'_> {
    /// How many rows take so many bytes in the file: whole row blocks, at least one.
    fn rows_of(&self, bytes: usize) -> usize {
        let align = RUN_ROWS.max(self.stored.row_step());
        let rows = bytes / self.stored.row_bytes().max(1);
        (rows - rows % align).max(align)
    }

    /// The rows that must be read for some rows, as a row's scales may be those of rows before it,
    /// and where among them the wanted ones are.
    fn whole_blocks(&self, rows: Range<usize>) -> (Range<usize>, Range<usize>) {
        let from = rows.start - rows.start % self.stored.row_step();
        (from..rows.end, rows.start - from..rows.end - from)
    }

    /// Reads and lays out rows, each thread those of its task.
    fn by_threads(
        &self,
        rows: Range<usize>,
        task_bytes: usize,
        out: &mut [u8],
    ) -> Result<(), TensorFault> {
        self.tasks(&rows, task_bytes, out, RowBuffers::default, |buffers, rows, out| {
            let (rows, within) = self.whole_blocks(rows);
            let RowBuffers { weights, scales, .. } = buffers;
            let matrix = read_rows(self.checkpoint, self.stored, rows, weights, scales)?;
            lay_out(&matrix, self.target, within, self.cols.clone(), out);
            Ok(())
        })
    }

    /// Lays out rows of a matrix, each thread those of its task.
    fn lay_out_by_threads(
        &self,
        matrix: &FileMatrix<'_>,
        rows: Range<usize>,
        task_bytes: usize,
        out: &mut [u8],
    ) {
        let done = self.tasks(
            &rows,
            task_bytes,
            out,
            || (),
            |(), rows, out| {
                lay_out(matrix, self.target, rows, self.cols.clone(), out);
                Ok(())
            },
        );
        done.expect("laying out doesn't fail");
    }

    /// Divides rows and their place in `out` into tasks; one task needs no other thread.
    fn tasks<T>(
        &self,
        rows: &Range<usize>,
        task_bytes: usize,
        out: &mut [u8],
        buffers: impl Fn() -> T + Sync + Send,
        work: impl Fn(&mut T, Range<usize>, &mut [u8]) -> Result<(), TensorFault> + Sync + Send,
    ) -> Result<(), TensorFault> {
        let step = self.rows_of(task_bytes);
        if rows.len() <= step {
            return work(&mut buffers(), rows.clone(), out);
        }
        let bytes = self.target.matrix_bytes(step, self.cols.len());
        out.par_chunks_mut(bytes).enumerate().try_for_each_init(buffers, |buffers, (task, out)| {
            let first = rows.start + task * step;
            work(buffers, first..rows.end.min(first + step), out)
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::{Dtype, TensorView};

    const ROWS: usize = 300;
    const COLS: usize = 512;

    /// A tensor of pseudo-random bytes in a file.
    struct Written {
        _directory: tempfile::TempDir,
        checkpoint: Checkpoint,
        stored: StoredTensor,
        weights: Vec<u8>,
        scales: Vec<u8>,
    }

    fn written(format: WeightFormat) -> Written {
        let bytes = |count: usize| (0..count).map(|i| (i * 37 + i / 251) as u8).collect();
        let scale_bytes = format.scale_type().map_or(0, |scale| scale.bytes());
        let weights: Vec<u8> = bytes(format.file_bytes(ROWS, COLS));
        let scales: Vec<u8> = bytes(format.file_scales(ROWS, COLS) * scale_bytes);
        let directory = tempfile::tempdir().expect("a directory");
        let tensors = [("w", &weights), ("w.qs", &scales)].map(|(name, data)| {
            (name, TensorView::new(Dtype::U8, vec![data.len()], data).expect("as long as it is"))
        });
        let file = safetensors::serialize(tensors, None).expect("serialisable");
        std::fs::write(directory.path().join("out-00000.safetensors"), file).expect("written");
        let checkpoint = Checkpoint::open_with(directory.path(), &[]).expect("opens");
        let run = |name| {
            let place = checkpoint.tensor(name).expect("written");
            Run { file: place.file, offset: place.offset, bytes: place.bytes as usize }
        };
        let scales_run = (!scales.is_empty()).then(|| run("w.qs"));
        let stored = StoredTensor {
            format,
            rows: ROWS,
            cols: COLS,
            weights: run("w"),
            scales: scales_run,
            layout: format.file_layout(),
            heads: None,
            weave: None,
        };
        Written { _directory: directory, checkpoint, stored, weights, scales }
    }

    /// A block's bytes, read with chunks of so many bytes.
    fn read(file: &Written, kept: &KeptRows, target: WeightFormat, block: &Rectangle) -> Vec<u8> {
        let mut out = vec![0xa5; target.matrix_bytes(block.rows.len(), block.cols.len())];
        kept.read_block(&file.checkpoint, &file.stored, target, block, &mut out).expect("reads");
        out
    }

    #[test]
    fn block_is_the_same_however_few_rows_are_read_at_a_time() {
        let whole = Rectangle { rows: 0..ROWS, cols: 0..COLS };
        // Heads begin and end anywhere; slices of columns come in order, then out of order.
        let heads = [0..5, 5..130, 130..ROWS].map(|rows| Rectangle { rows, cols: 0..COLS });
        let slices = [0..256, 256..COLS, 0..256].map(|cols| Rectangle { rows: 0..ROWS, cols });
        let blocks: Vec<Rectangle> = [whole].into_iter().chain(heads).chain(slices).collect();
        for format in WeightFormat::EACH {
            let file = written(format);
            let matrix = matrix(&file.stored, ROWS, &file.weights, &file.scales);
            for bytes in [1, 20_000, CHUNK_BYTES] {
                let (chunk_bytes, task_bytes) = (bytes, bytes / 2);
                let kept = KeptRows { chunk_bytes, task_bytes, ..KeptRows::default() };
                for block in &blocks {
                    let found = read(&file, &kept, format, block);
                    let mut expected = vec![0; found.len()];
                    matrix.lay_out(block.rows.clone(), block.cols.clone(), &mut expected);
                    assert!(found == expected, "{format}: {block:?} by {bytes} bytes");
                }
            }
        }
    }

    #[test]
    fn rows_that_were_read_for_a_slice_serve_the_next() {
        let file = written(WeightFormat::Int8Row(millstream_kernels::ScaleType::F32));
        let kept = KeptRows::default();
        let block = |cols| Rectangle { rows: 0..ROWS, cols };
        let first = read(&file, &kept, file.stored.format, &block(0..256));
        let path = file.checkpoint.file_path(file.stored.weights.file);
        std::fs::OpenOptions::new()
            .write(true)
            .open(path)
            .expect("opened")
            .set_len(0)
            .expect("cut");
        assert!(read(&file, &kept, file.stored.format, &block(0..256)) == first);
        let mut out = first;
        let target = file.stored.format;
        let others = Rectangle { rows: 0..16, cols: 0..256 };
        let out = &mut out[..target.matrix_bytes(16, 256)];
        let failed = kept.read_block(&file.checkpoint, &file.stored, target, &others, out);
        assert!(failed.is_err(), "other rows must be read, and the file is empty");
    }

    #[test]
    fn floats_become_f32_value_by_value() {
        for (format, widen) in [
            (WeightFormat::Bf16, bf16_to_f32 as fn(u16) -> f32),
            (WeightFormat::F16, f16_to_f32 as fn(u16) -> f32),
        ] {
            let file = written(format);
            let block = Rectangle { rows: 3..7, cols: 100..COLS };
            let found = read(&file, &KeptRows::default(), WeightFormat::F32, &block);
            let values = file.weights.as_chunks::<2>().0;
            for (index, found) in found.as_chunks::<4>().0.iter().enumerate() {
                let place = (3 + index / 412) * COLS + 100 + index % 412;
                let expected = widen(u16::from_le_bytes(values[place])).to_bits();
                assert_eq!(u32::from_le_bytes(*found), expected, "{format}: {place}");
            }
        }
    }
}
