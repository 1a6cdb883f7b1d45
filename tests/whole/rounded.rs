//! A source whose routed experts are rounded to another format on the way in.
//!
//! Wraps another [`WeightSource`]: an expert is decoded and rounded matrix by matrix, slice by slice.
//! For tests that need the small model in every format, of which the repository holds one.

use millstream_kernels::formats::round::round_rows;
use millstream_kernels::{FileMatrix, ScaleType, WeightFormat};
use millstream_stages::ids::{ExpertId, FileId, LayerId};
use millstream_stages::load::{EXPERT_MATRICES, ExpertShape};
use millstream_stages::weights::{
    Extent, Part, Rectangle, SourceError, Staged, WeightSource, aligned_bytes,
};
use std::sync::Arc;

/// The wrapper: a source, and the format that its experts get.
pub struct RoundedExperts(pub Arc<dyn WeightSource>, pub WeightFormat);

impl WeightSource for RoundedExperts {
    fn format(&self, layer: Option<LayerId>, part: Part) -> WeightFormat {
        self.0.format(layer, part)
    }

    fn read(
        &self,
        layer: Option<LayerId>,
        part: Part,
        block: &Rectangle,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        self.0.read(layer, part, block, out)
    }

    fn expert_formats(&self, _: LayerId) -> [WeightFormat; 3] {
        [self.1; 3]
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
        let format = self.1;
        for which in EXPERT_MATRICES {
            let from = stored.weights(bytes, which);
            let (rows, cols) = (from.rows(), from.cols());
            let mut values = vec![0.0; rows * cols];
            for (row, out) in values.chunks_exact_mut(cols).enumerate() {
                from.decode_row(row, out);
            }
            let scale_bytes = format.scale_type().map_or(0, ScaleType::bytes);
            let mut weights = vec![0; format.file_bytes(rows, cols)];
            let mut scales = vec![0; format.file_scales(rows, cols) * scale_bytes];
            round_rows(&values, cols, format, &mut weights, &mut scales).expect("finite weights");
            let rounded = FileMatrix {
                format,
                layout: format.file_layout(),
                rows,
                cols,
                weights: &weights,
                scales: &scales,
            };
            rounded.lay_out(0..rows, 0..cols, &mut out[shape.range(which)]);
        }
    }

    fn file_name(&self, file: FileId) -> String {
        self.0.file_name(file)
    }
}
