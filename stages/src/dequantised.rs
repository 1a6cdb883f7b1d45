//! A source seen through f32: every weight decoded, every sum by the f32 rule.
//!
//! Wraps another [`WeightSource`] for proofs: a model run through it differs from the model itself
//! only by what int8 activations cost. Slices, extents and files are the wrapped source's. It
//! allocates where it decodes, so it isn't for steady decode.

use crate::ids::{ExpertId, FileId, LayerId};
use crate::load::{EXPERT_MATRICES, ExpertShape};
use crate::weights::{Extent, Part, Rectangle, SourceError, Staged, WeightSource, aligned_bytes};
use millstream_kernels::{WeightFormat, Weights};
use std::sync::Arc;

/// The wrapper.
pub struct Dequantised(pub Arc<dyn WeightSource>);

/// Every weight of `from` as f32 bytes, row by row.
fn decode(from: Weights<'_>, out: &mut [u8]) {
    let mut row = vec![0.0f32; from.cols()];
    for (r, out) in out.chunks_exact_mut(from.cols() * 4).enumerate() {
        from.decode_row(r, &mut row);
        out.copy_from_slice(bytemuck::cast_slice(&row));
    }
}

impl WeightSource for Dequantised {
    fn format(&self, _: Option<LayerId>, _: Part) -> WeightFormat {
        WeightFormat::F32
    }

    fn read(
        &self,
        layer: Option<LayerId>,
        part: Part,
        block: &Rectangle,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let format = self.0.format(layer, part);
        let (rows, cols) = (block.rows.len(), block.cols.len());
        let bytes = format.matrix_bytes(rows, cols);
        let mut lines = aligned_bytes(bytes);
        let stored = &mut bytemuck::cast_slice_mut::<_, u8>(&mut lines)[..bytes];
        self.0.read(layer, part, block, stored)?;
        decode(Weights::new(format, rows, cols, stored), out);
        Ok(())
    }

    fn expert_formats(&self, _: LayerId) -> [WeightFormat; 3] {
        [WeightFormat::F32; 3]
    }

    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent] {
        self.0.expert_extents(layer, expert)
    }

    fn unpack_slice(
        &self,
        layer: LayerId,
        expert: ExpertId,
        shape: &ExpertShape,
        slice: usize,
        staged: Staged<'_>,
        out: &mut [u8],
    ) {
        let stored = ExpertShape { formats: self.0.expert_formats(layer), ..*shape };
        let mut lines = aligned_bytes(stored.slice_bytes());
        let bytes = &mut bytemuck::cast_slice_mut::<_, u8>(&mut lines)[..stored.slice_bytes()];
        self.0.unpack_slice(layer, expert, &stored, slice, staged, bytes);
        for which in EXPERT_MATRICES {
            decode(stored.weights(bytes, which), &mut out[shape.range(which)]);
        }
    }

    fn file_name(&self, file: FileId) -> String {
        self.0.file_name(file)
    }
}
