//! The up-projection of a latent whose heads lie in two tensors: keys transposed, values as they are.
//!
//! GGUF files of newer converters hold it so. The keys' columns are what the kernels need as rows, and
//! blocks of quantised weights can't be turned: so both are decoded to f32 when they are read, each
//! weight exactly. A [`HeadsOf`] says where things are; bytes flow in, rows of f32 flow out.

use super::directory::Checkpoint;
use super::error::TensorFault;
use super::stored::{Run, StoredTensor};
use millstream_kernels::formats::{FileLayout, FileMatrix};
use millstream_kernels::{WeightFormat, Weights};
use std::ops::Range;

/// Heads whose keys and values lie apart. The tensor's `weights` are the keys, `[heads, latent,
/// key_rows]`; its `scales` are the values, `[heads, value_rows, latent]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsOf {
    /// Rows of a head that are keys; they come first.
    pub key_rows: usize,
    /// Rows of a head that are values.
    pub value_rows: usize,
    /// How the keys are stored.
    pub keys: WeightFormat,
    /// How the values are stored.
    pub values: WeightFormat,
}

/// What is decoded at once, aligned as the kernels want it.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl HeadsOf {
    /// Reads rows of the tensor as f32, row by row, into `out`.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn read(
        &self,
        checkpoint: &Checkpoint,
        stored: &StoredTensor,
        rows: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), TensorFault> {
        let latent = stored.cols;
        out.clear();
        out.resize(rows.len() * latent * 4, 0);
        let height = self.key_rows + self.value_rows;
        let mut places = out.chunks_exact_mut(latent * 4);
        let mut row = rows.start;
        while row < rows.end {
            let (head, first) = (row / height, row % height);
            let last = height.min(first + rows.end - row);
            let keys = first.min(self.key_rows)..last.min(self.key_rows);
            let values = first.max(self.key_rows)..last.max(self.key_rows);
            if !keys.is_empty() {
                let decoded = self.keys_of(checkpoint, stored, head)?;
                for key in keys {
                    let place = places.next().expect("a place a row");
                    for (latent, place) in place.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        *place = decoded[latent * self.key_rows + key].to_le_bytes();
                    }
                }
            }
            if !values.is_empty() {
                let within = values.start - self.key_rows..values.end - self.key_rows;
                let decoded = self.values_of(checkpoint, stored, head, within)?;
                for value in decoded.chunks_exact(latent) {
                    let place = places.next().expect("a place a row");
                    for (number, place) in value.iter().zip(place.as_chunks_mut::<4>().0) {
                        *place = number.to_le_bytes();
                    }
                }
            }
            row += last - first;
        }
        Ok(())
    }

    /// A head's keys, `[latent, key_rows]`.
    fn keys_of(
        &self,
        checkpoint: &Checkpoint,
        stored: &StoredTensor,
        head: usize,
    ) -> Result<Vec<f32>, TensorFault> {
        let rows = head * stored.cols..(head + 1) * stored.cols;
        decode(checkpoint, stored.weights, self.keys, rows, self.key_rows)
    }

    /// Rows of a head's values.
    fn values_of(
        &self,
        checkpoint: &Checkpoint,
        stored: &StoredTensor,
        head: usize,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, TensorFault> {
        let first = head * self.value_rows;
        let rows = first + rows.start..first + rows.end;
        let run = stored.scales.expect("the values' run");
        decode(checkpoint, run, self.values, rows, stored.cols)
    }
}

/// Rows of a tensor in blocks, decoded.
fn decode(
    checkpoint: &Checkpoint,
    run: Run,
    format: WeightFormat,
    rows: Range<usize>,
    cols: usize,
) -> Result<Vec<f32>, TensorFault> {
    let layout = FileLayout::Ggml;
    let row_bytes = layout.weight_bytes(format, 1, cols).expect("checked when it was found");
    let run = run.part(rows.start * row_bytes, rows.len() * row_bytes);
    let mut weights = vec![0; run.bytes];
    checkpoint.read(run, &mut weights)?;
    let count = rows.len();
    let matrix = FileMatrix { format, layout, rows: count, cols, weights: &weights, scales: &[] };
    let bytes = format.matrix_bytes(count, cols);
    let mut lines: Vec<Line> = vec![bytemuck::Zeroable::zeroed(); bytes.div_ceil(64)];
    let laid_out = &mut bytemuck::cast_slice_mut(&mut lines)[..bytes];
    matrix.lay_out(0..count, 0..cols, laid_out);
    let decoded = Weights::new(format, count, cols, laid_out);
    let mut out = vec![0.0; count * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        decoded.decode_row(row, out);
    }
    Ok(out)
}
