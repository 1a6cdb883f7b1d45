//! One tensor as it lies in a file: its stored format, its scales, and how to widen it.
//!
//! [`resolve`] finds a tensor and its scales in the directory and checks type and shape;
//! [`StoredTensor::widen`] turns the bytes into f32 by blocks of [`BLOCK_ROWS`] rows, the unit in
//! which block scales come. The arithmetic of each format is [`StoredFormat::widen`]'s. The scale
//! buffer of a block lives on the stack, so that unpacking an expert allocates nothing.

use super::directory::{Checkpoint, TensorPlace};
use super::error::{TensorError, TensorFault};
use crate::families::Quantisation;
use millstream_kernels::{StoredFormat, WeightFormat};
use millstream_stages::ids::FileId;
use rayon::prelude::*;
use safetensors::Dtype;

/// Rows that are widened together; the height of an FP8 scale block.
const BLOCK_ROWS: usize = 128;
/// Columns of an FP8 scale block.
const BLOCK_COLS: usize = 128;
/// Most scales of a block of rows.
const BLOCK_SCALES_MAX: usize = 2048;
/// Most columns of a tensor with block scales.
const COLS_MAX: usize = BLOCK_SCALES_MAX * BLOCK_COLS;
/// Tensors with at least this many weights are widened by several threads.
const PARALLEL_WEIGHTS_MIN: usize = 1 << 18;

/// A run of bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: usize,
}

/// The type of stored scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScaleType {
    F32,
    Bf16,
}

/// A tensor as it lies in a file, checked against the model's spec.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTensor {
    /// How the weights are stored.
    pub format: StoredFormat,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// The weights.
    pub weights: Run,
    /// Their scales, for formats that have them.
    pub scales: Option<Run>,
    scale_type: ScaleType,
}

/// Finds a tensor and checks its type and shape: `[rows, cols]`, or `[cols]` for a `vector`.
///
/// # Errors
/// When tensor or scales are missing, or of another type or shape; the message names the file.
pub fn resolve(
    checkpoint: &Checkpoint,
    name: &str,
    [rows, cols]: [usize; 2],
    vector: bool,
    scheme: Quantisation,
) -> Result<StoredTensor, TensorError> {
    let Some(place) = checkpoint.tensor(name) else {
        let file = checkpoint.directory().display().to_string();
        return Err(TensorError { file, tensor: name.to_string(), fault: TensorFault::Missing });
    };
    let expected = if vector { vec![cols as u64] } else { vec![rows as u64, cols as u64] };
    check_shape(checkpoint, name, place, &expected)?;
    let fail = |fault| Err(error(checkpoint, name, place, fault));
    let plain = |format| Ok(tensor(format, rows, cols, place, None));
    match place.dtype {
        Dtype::F32 => plain(StoredFormat::F32),
        Dtype::BF16 => plain(StoredFormat::Bf16),
        Dtype::F16 => plain(StoredFormat::F16),
        Dtype::F8_E4M3 if !vector => {
            if scheme != Quantisation::Fp8Block128 {
                return fail(TensorFault::NoScheme);
            }
            if cols > COLS_MAX {
                return fail(TensorFault::TooWide { found: cols, max: COLS_MAX });
            }
            let blocks = [rows.div_ceil(BLOCK_ROWS) as u64, cols.div_ceil(BLOCK_COLS) as u64];
            let scales = find_scales(checkpoint, name, place, &fp8_scales(name), &blocks)?;
            Ok(tensor(StoredFormat::Fp8E4M3Block128, rows, cols, place, Some(scales)))
        }
        Dtype::I8 if !vector => {
            let scales = find_scales(checkpoint, name, place, &row_scales(name), &[rows as u64])?;
            Ok(tensor(StoredFormat::Int8Row, rows, cols, place, Some(scales)))
        }
        found => {
            let readable =
                if vector { "F32, BF16 and F16" } else { "F32, BF16, F16, F8_E4M3 and I8" };
            fail(TensorFault::Dtype { found, readable })
        }
    }
}

/// The name of the block scales of an FP8 tensor, as DeepSeek and GLM checkpoints have it.
pub fn fp8_scales(name: &str) -> String {
    format!("{name}_scale_inv")
}

/// The name of the row scales of an int8 tensor.
pub fn row_scales(name: &str) -> String {
    format!("{name}.row_scale")
}

fn error(
    checkpoint: &Checkpoint,
    name: &str,
    place: &TensorPlace,
    fault: TensorFault,
) -> TensorError {
    let file = checkpoint.file_path(place.file).display().to_string();
    TensorError { file, tensor: name.to_string(), fault }
}

fn check_shape(
    checkpoint: &Checkpoint,
    name: &str,
    place: &TensorPlace,
    expected: &[u64],
) -> Result<(), TensorError> {
    if place.shape.lengths() == expected {
        return Ok(());
    }
    let fault =
        TensorFault::Shape { found: place.shape.lengths().to_vec(), expected: expected.to_vec() };
    Err(error(checkpoint, name, place, fault))
}

fn find_scales<'a>(
    checkpoint: &'a Checkpoint,
    name: &str,
    weights: &TensorPlace,
    scales: &str,
    expected: &[u64],
) -> Result<&'a TensorPlace, TensorError> {
    let Some(place) = checkpoint.tensor(scales) else {
        let fault = TensorFault::ScalesMissing { scales: scales.to_string() };
        return Err(error(checkpoint, name, weights, fault));
    };
    check_shape(checkpoint, scales, place, expected)?;
    match place.dtype {
        Dtype::F32 | Dtype::BF16 => Ok(place),
        found => {
            let fault = TensorFault::Dtype { found, readable: "F32 and BF16" };
            Err(error(checkpoint, scales, place, fault))
        }
    }
}

fn tensor(
    format: StoredFormat,
    rows: usize,
    cols: usize,
    weights: &TensorPlace,
    scales: Option<&TensorPlace>,
) -> StoredTensor {
    let bf16 = scales.is_some_and(|place| place.dtype == Dtype::BF16);
    StoredTensor {
        format,
        rows,
        cols,
        weights: run(weights),
        scales: scales.map(run),
        scale_type: if bf16 { ScaleType::Bf16 } else { ScaleType::F32 },
    }
}

fn run(place: &TensorPlace) -> Run {
    let bytes = usize::try_from(place.bytes).expect("the address space is as wide as a file");
    Run { file: place.file, offset: place.offset, bytes }
}

impl StoredTensor {
    /// The format that the kernels compute on: Bf16 stays, everything else becomes f32.
    pub fn kernel_format(&self) -> WeightFormat {
        self.format.kernel_format()
    }

    /// Widens the tensor to f32, exactly where the format has no scales. `weights` and `scales`
    /// are the bytes of the runs; `out` has `rows * cols` elements.
    ///
    /// # Panics
    /// When a slice has another length.
    pub fn widen(&self, weights: &[u8], scales: &[u8], out: &mut [f32]) {
        self.check_lengths(weights, scales, out);
        for (block, out) in out.chunks_mut(BLOCK_ROWS * self.cols).enumerate() {
            self.widen_block(block, weights, scales, out);
        }
    }

    /// [`StoredTensor::widen`] by several threads when the tensor is large.
    ///
    /// # Panics
    /// When a slice has another length.
    pub fn widen_parallel(&self, weights: &[u8], scales: &[u8], out: &mut [f32]) {
        if out.len() < PARALLEL_WEIGHTS_MIN {
            return self.widen(weights, scales, out);
        }
        self.check_lengths(weights, scales, out);
        out.par_chunks_mut(BLOCK_ROWS * self.cols)
            .enumerate()
            .for_each(|(block, out)| self.widen_block(block, weights, scales, out));
    }

    fn check_lengths(&self, weights: &[u8], scales: &[u8], out: &[f32]) {
        assert_eq!(out.len(), self.rows * self.cols);
        assert_eq!(weights.len(), self.weights.bytes);
        assert_eq!(scales.len(), self.scales.map_or(0, |run| run.bytes));
    }

    /// Widens the rows from `block * BLOCK_ROWS` on, as many as `out` holds.
    fn widen_block(&self, block: usize, weights: &[u8], scales: &[u8], out: &mut [f32]) {
        let first_row = block * BLOCK_ROWS;
        let rows = out.len() / self.cols;
        let row_bytes = weights.len() / self.rows;
        let weights = &weights[first_row * row_bytes..(first_row + rows) * row_bytes];
        let (first, count) = match self.format {
            StoredFormat::F32 | StoredFormat::F16 | StoredFormat::Bf16 => (0, 0),
            StoredFormat::Fp8E4M3Block128 => {
                let blocks = self.cols.div_ceil(BLOCK_COLS);
                (block * blocks, blocks)
            }
            StoredFormat::Int8Row => (first_row, rows),
        };
        let mut buffer = [0.0; BLOCK_SCALES_MAX];
        let buffer = &mut buffer[..count];
        self.scale_type.decode(first, scales, buffer);
        self.format.widen(weights, buffer, rows, self.cols, out);
    }
}

impl ScaleType {
    /// Decodes `out.len()` scales from the one numbered `first` on; the bytes may be unaligned.
    fn decode(self, first: usize, bytes: &[u8], out: &mut [f32]) {
        match self {
            ScaleType::F32 => {
                let bytes = &bytes[first * 4..(first + out.len()) * 4];
                for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *out = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            ScaleType::Bf16 => {
                let bytes = &bytes[first * 2..(first + out.len()) * 2];
                for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *out = f32::from_le_bytes([0, 0, bytes[0], bytes[1]]);
                }
            }
        }
    }
}
