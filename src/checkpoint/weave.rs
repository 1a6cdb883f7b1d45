//! A tensor whose elements lie among those of another: every other row, a column window, transposed.
//!
//! Such a tensor is a run of bytes (the entry of a stack that holds it) and a [`Weave`]: where its
//! first element is and how far rows and columns are apart. Bytes as the file has them flow in, the
//! kernels' layout flows out, without a copy in between where columns are neighbours.

use super::rows::{is_floats, lay_out};
use super::stored::StoredTensor;
use crate::families::{Share, View};
use millstream_kernels::{FileMatrix, ScaleType, WeightFormat};
use std::ops::Range;

/// How elements lie in the run that holds them, counted in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weave {
    /// The first element.
    pub first: usize,
    /// From one row to the next.
    pub row_stride: usize,
    /// From one column to the next; 1 for formats that share scales.
    pub col_stride: usize,
}

impl Weave {
    /// The weave of a part of this shape within its holder; None where it is a run by itself.
    pub fn of(view: &View, shape: [usize; 2]) -> Option<Weave> {
        if !view.transposed && matches!(view.share, Share::All | Share::HalfOfRows(_)) {
            return None;
        }
        let [_, file_cols] = View::holder(shape, view.share, view.transposed);
        let (first, apart) = match view.share {
            Share::All => ([0, 0], [1, 1]),
            Share::HalfOfRows(half) => ([half * shape[0], 0], [1, 1]),
            Share::EveryOtherRow(side) => ([side, 0], [2, 1]),
            Share::EveryOtherColumn(side) => ([0, side], [1, 2]),
        };
        // Elements from one row, and from one column, to the next in the holder.
        let (row, col) = if view.transposed { (1, file_cols) } else { (file_cols, 1) };
        Some(Weave {
            first: first[0] * row + first[1] * col,
            row_stride: apart[0] * row,
            col_stride: apart[1] * col,
        })
    }

    /// Whether each row is a run of bytes.
    pub fn has_whole_rows(&self) -> bool {
        self.col_stride == 1
    }
}

/// Lays out a rectangle of a stored tensor in format `target`; see [`lay_out`]. `weights` and
/// `scales` are all the bytes of its runs. Allocates nothing.
///
/// # Panics
/// As [`lay_out`].
pub fn lay_out_stored(
    stored: &StoredTensor,
    [weights, scales]: [&[u8]; 2],
    target: WeightFormat,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut [u8],
) {
    let StoredTensor { format, layout, .. } = *stored;
    let matrix = |cols| FileMatrix { format, layout, rows: stored.rows, cols, weights, scales };
    match stored.weave {
        None => lay_out(&matrix(stored.cols), target, rows, cols, out),
        Some(weave) if weave.has_whole_rows() => {
            let within = weave.first + cols.start..weave.first + cols.end;
            lay_out(&matrix(weave.row_stride), target, rows, within, out);
        }
        Some(weave) => {
            assert!(is_floats(format), "{format}: only floats lie element by element");
            let (from, to) = (format.info().file_bits / 8, target.info().file_bits / 8);
            let mut places = out.chunks_exact_mut(to);
            for row in rows {
                for col in cols.clone() {
                    let at = weave.first + row * weave.row_stride + col * weave.col_stride;
                    let element = &weights[at * from..(at + 1) * from];
                    let place = places.next().expect("as many places as elements");
                    let (weights, scales) = (element, &[][..]);
                    let element = FileMatrix { format, layout, rows: 1, cols: 1, weights, scales };
                    lay_out(&element, target, 0..1, 0..1, place);
                }
            }
        }
    }
}

/// Rows of a woven tensor as a matrix of their own in the file layout: `weights` and `scales` are
/// the bytes of its runs, the two buffers take what is gathered.
pub fn gather(
    stored: &StoredTensor,
    [weights, scales]: [&[u8]; 2],
    rows: Range<usize>,
    into_weights: &mut Vec<u8>,
    into_scales: &mut Vec<u8>,
) {
    let StoredTensor { format, cols, .. } = *stored;
    let weave = stored.weave.expect("only woven tensors are gathered");
    into_weights.clear();
    into_scales.clear();
    if !weave.has_whole_rows() {
        into_weights.resize(format.file_bytes(rows.len(), cols), 0);
        return lay_out_stored(stored, [weights, scales], format, rows, 0..cols, into_weights);
    }
    let scale_bytes = format.scale_type().map_or(0, ScaleType::bytes);
    let bytes =
        |cols: usize| [format.file_bytes(1, cols), format.scales_per_row(cols) * scale_bytes];
    let [first, apart, wanted] = [weave.first, weave.row_stride, cols].map(bytes);
    for (into, (from, index)) in
        [into_weights, into_scales].into_iter().zip([(weights, 0), (scales, 1)])
    {
        for row in rows.clone() {
            let at = row * apart[index] + first[index];
            into.extend_from_slice(&from[at..at + wanted[index]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Run;
    use millstream_kernels::formats::FileLayout;
    use millstream_stages::ids::FileId;

    /// A tensor of f32 numbers 0, 1, 2, .. seen through a view.
    fn seen(view: &View, shape: [usize; 2]) -> Vec<f32> {
        let [file_rows, file_cols] = View::holder(shape, view.share, view.transposed);
        let bytes: Vec<u8> =
            (0..file_rows * file_cols).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let weights = Run { file: FileId(0), offset: 0, bytes: bytes.len() };
        let format = WeightFormat::F32;
        let [rows, cols] = shape;
        let weave = Weave::of(view, shape);
        let (layout, scales, heads) = (FileLayout::Apart, None, None);
        let stored = StoredTensor { format, rows, cols, weights, scales, layout, weave, heads };
        let mut out = vec![0; 4 * rows * cols];
        lay_out_stored(&stored, [&bytes, &[]], format, 0..rows, 0..cols, &mut out);
        let mut gathered = vec![];
        if stored.weave.is_some() {
            gather(&stored, [&bytes, &[]], 0..rows, &mut gathered, &mut vec![]);
            assert_eq!(gathered, out, "{view:?}");
        }
        out.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn every_view_takes_the_elements_that_it_names() {
        let view = View::whole("t");
        let shape = [2, 3];
        assert_eq!(seen(&view.clone().transposed(), shape), [0., 2., 4., 1., 3., 5.]);
        let other = |side| view.clone().share(Share::EveryOtherRow(side));
        assert_eq!(seen(&other(0), shape), [0., 1., 2., 6., 7., 8.]);
        assert_eq!(seen(&other(1), shape), [3., 4., 5., 9., 10., 11.]);
        // The holder has 3 rows of 4: element (r, c) of the part is its element (c, 2r + side).
        assert_eq!(seen(&other(1).transposed(), shape), [1., 5., 9., 3., 7., 11.]);
        let half = view.clone().share(Share::HalfOfRows(1)).transposed();
        assert_eq!(seen(&half, shape), [2., 6., 10., 3., 7., 11.]);
        let columns = view.share(Share::EveryOtherColumn(1));
        assert_eq!(seen(&columns, shape), [1., 3., 5., 7., 9., 11.]);
    }

    #[test]
    fn woven_nibbles_take_their_scales_along() {
        let (format, [rows, cols]) = (WeightFormat::Mxfp4, [2, 32]);
        let view = View::whole("t").share(Share::EveryOtherRow(1));
        let weights: Vec<u8> = (0..64).collect();
        let scales = [120, 121, 122, 123];
        let run = Run { file: FileId(0), offset: 0, bytes: 64 };
        let weave = Weave::of(&view, [rows, cols]);
        let (layout, weights_run, scales_run, heads) = (FileLayout::Apart, run, Some(run), None);
        let stored = StoredTensor {
            format,
            rows,
            cols,
            weights: weights_run,
            scales: scales_run,
            layout,
            weave,
            heads,
        };
        let (mut into, mut into_scales) = (vec![], vec![]);
        gather(&stored, [&weights, &scales], 0..2, &mut into, &mut into_scales);
        let expected: Vec<u8> = (16..32).chain(48..64).collect();
        assert_eq!((into, into_scales), (expected, vec![121, 123]));
    }
}
