//! Reads tensors and experts through the stages' door, piece by piece, and decodes them to f32.
//!
//! Whatever the format and the cut, the values of the whole tensor come out, row-major.

use millstream::checkpoint::ModelFiles;
use millstream_kernels::{WeightFormat, Weights};
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::load::{EXPERT_MATRICES, ExpertMatrix, ExpertShape};
use millstream_stages::parts::part_shape;
use millstream_stages::pieces::pieces;
use millstream_stages::weights::{
    Part, Rectangle, SourceError, Staged, WeightSource, aligned_bytes,
};
use std::os::unix::fs::FileExt;

/// A tensor's values, read piece by piece.
pub fn read(
    files: &ModelFiles,
    layer: Option<LayerId>,
    part: Part,
) -> Result<Vec<f32>, SourceError> {
    let spec = &files.blueprint.spec;
    let format = files.format(layer, part);
    let [rows, cols] = part_shape(spec, layer, part).expect("a part of the model");
    let mut out = vec![f32::NAN; rows * cols];
    for piece in pieces(spec, layer, part) {
        let bytes_of_piece = format.matrix_bytes(piece.rows.len(), piece.cols.len());
        let mut lines = aligned_bytes(bytes_of_piece);
        let bytes = &mut bytemuck::cast_slice_mut(&mut lines)[..bytes_of_piece];
        files.read(layer, part, &piece, bytes)?;
        decode(format, bytes, &piece, cols, &mut out);
    }
    Ok(out)
}

/// Gate, up and down of an expert, read the way the loader does and unpacked slice by slice.
pub fn read_expert(files: &ModelFiles, layer: LayerId, expert: ExpertId) -> [Vec<f32>; 3] {
    let (mut staging, mut places) = (Vec::new(), Vec::new());
    for extent in files.expert_extents(layer, expert) {
        let start = staging.len();
        staging.resize(start + extent.bytes, 0);
        let file = &files.checkpoint.files()[extent.file.index()];
        file.read_exact_at(&mut staging[start..], extent.offset).expect("read");
        places.push(start..staging.len());
    }
    let spec = &files.blueprint.spec;
    let moe = spec.layers[layer.index()].moe().expect("a layer with experts");
    let shape = ExpertShape::new(spec.hidden, moe, spec.slices, files.expert_formats(layer));
    let mut out = [(); 3].map(|()| vec![f32::NAN; moe.intermediate * spec.hidden]);
    for slice in 0..spec.slices {
        let mut lines = aligned_bytes(shape.slice_bytes());
        let bytes = &mut bytemuck::cast_slice_mut(&mut lines)[..shape.slice_bytes()];
        bytes.fill(0xa5);
        let staged = Staged::new(&staging, &places);
        files.unpack_slice(layer, expert, &shape, slice, staged, bytes);
        let width = slice * shape.slice_width()..(slice + 1) * shape.slice_width();
        for matrix in EXPERT_MATRICES {
            let (rectangle, cols) = match matrix {
                ExpertMatrix::Gate | ExpertMatrix::Up => {
                    (Rectangle { rows: width.clone(), cols: 0..spec.hidden }, spec.hidden)
                }
                ExpertMatrix::Down => {
                    (Rectangle { rows: 0..spec.hidden, cols: width.clone() }, moe.intermediate)
                }
            };
            let format = shape.formats[matrix as usize];
            let bytes = &bytes[shape.range(matrix)];
            decode(format, bytes, &rectangle, cols, &mut out[matrix as usize]);
        }
    }
    out
}

/// Decodes a block that is laid out by itself into its place in a tensor of `cols` columns.
fn decode(format: WeightFormat, bytes: &[u8], block: &Rectangle, cols: usize, out: &mut [f32]) {
    let weights = Weights::new(format, block.rows.len(), block.cols.len(), bytes);
    for (row, place) in block.rows.clone().enumerate() {
        let out = &mut out[place * cols..(place + 1) * cols][block.cols.clone()];
        weights.decode_row(row, out);
    }
}
