//! One tensor as it lies in the files: its format, where its weights are and where its scales.
//!
//! [`resolve`] finds both in the directory and checks type, shape and size against what the
//! configuration calls for. How a quantised tensor is stored is told by its type and by what lies
//! beside it:
//!
//! | weights | scales | format |
//! |---|---|---|
//! | `N`: F32, BF16, F16 | | the same |
//! | `N`: F8_E4M3 | `N_scale_inv`: one per 128 x 128 | fp8-e4m3-b128 |
//! | `N`: I8 | `N.row_scale`: one a row | int8-row |
//! | `N_packed`: U8 `[rows, cols / 2]` | `N_scale`: U8, F8_E8M0 `[rows, cols / 32]` | mxfp4 |
//! | `N_blocks`: U8 `[rows, cols / 32, 16]` | `N_scales`: the same | mxfp4 |
//! | `N`: U8 of any shape | `N.qs`: F32, U8, F8_E8M0 of any shape | by size, see `colibri.rs` |
//! | `N` of a GGUF file: its type | in its blocks | by its type |
//! | `N` of a GGUF file: keys by head, transposed | `M`: the values | f32, see `heads.rs` |

use super::colibri::{self, Sizes};
use super::directory::{CONTAINER_SCALES, Checkpoint, TensorPlace};
use super::error::{TensorError, TensorFault};
use super::heads::HeadsOf;
use super::weave::Weave;
use crate::families::{HeadsApart, Quantisation, Share, View};
use millstream_kernels::formats::{FileLayout, GgmlType, Scales, fp8, mxfp4};
use millstream_kernels::{ScaleType, WeightFormat};
use millstream_stages::ids::FileId;
use millstream_stages::parts::is_vector;
use millstream_stages::weights::Part;
use safetensors::Dtype;
use std::ops::Range;

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

/// A tensor as it lies in the files, checked against the model's spec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredTensor {
    /// Codes and scale type.
    pub format: WeightFormat,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// The weights, [`WeightFormat::file_bytes`] of them; more where they are woven.
    pub weights: Run,
    /// Their scales, for formats that have them: [`WeightFormat::file_scales`]; likewise.
    pub scales: Option<Run>,
    /// Where the scales are: apart, or in the blocks of a GGUF file.
    pub layout: FileLayout,
    /// How they lie among others in these runs; None where they are all that is there.
    pub weave: Option<Weave>,
    /// Heads whose keys and values lie apart: the runs are those of keys and of values.
    pub heads: Option<HeadsOf>,
}

/// What a tensor may be stored as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Plain floats of one dimension.
    Vector,
    /// A matrix of plain floats.
    Floats,
    /// A matrix in any format.
    Matrix,
    /// A matrix of a routed expert, in any format; what metadata says of it doesn't count.
    Expert,
}

impl Kind {
    /// What a part may be stored as. The router chooses: it is never quantised.
    pub fn of(part: Part) -> Kind {
        match part {
            Part::ExpertGate(_) | Part::ExpertUp(_) | Part::ExpertDown(_) => Kind::Expert,
            Part::Router | Part::SharedScore => Kind::Floats,
            Part::ExpertGateBiases | Part::ExpertUpBiases | Part::ExpertDownBiases => Kind::Floats,
            _ if is_vector(part) => Kind::Vector,
            _ => Kind::Matrix,
        }
    }

    fn is_floats(self) -> bool {
        matches!(self, Kind::Vector | Kind::Floats)
    }
}

/// Finds a part, in the first of its views that is there, and checks type, shape `[rows, cols]`
/// (`[cols]` for a vector) and size.
///
/// # Errors
/// When tensor or scales are missing, or of another type, shape or size; the message names the file.
/// A missing one is called by the name of the first view.
///
/// # Panics
/// When there is no view.
pub fn resolve(
    checkpoint: &Checkpoint,
    views: &[View],
    [rows, cols]: [usize; 2],
    kind: Kind,
    scheme: Quantisation,
) -> Result<StoredTensor, TensorError> {
    let there = |view: &&View| !view.holders(checkpoint).is_empty();
    let view = views.iter().find(there).unwrap_or(&views[0]);
    let name = view.name.as_str();
    let finder = Finder { checkpoint, view, name, rows, cols, kind };
    let Some(place) = checkpoint.tensor(name) else { return finder.mxfp4_pair() };
    if let Some(ggml) = place.ggml {
        return match &view.heads {
            Some(apart) => finder.heads_apart(place, apart),
            None => finder.blocks(place, ggml),
        };
    }
    let scales = format!("{name}{CONTAINER_SCALES}");
    match checkpoint.tensor(&scales) {
        Some(found) if view.is_whole() => finder.container(place, &scales, found),
        None if place.dtype == Dtype::U8 && place.shape.lengths().len() == 1 => {
            finder.fail(place, TensorFault::ScalesMissing { scales })
        }
        _ => finder.plain(place, scheme),
    }
}

impl View {
    /// The tensors that hold it, or its weights and their scales: those that are there.
    pub fn holders<'c>(&self, checkpoint: &'c Checkpoint) -> Vec<&'c TensorPlace> {
        let there = |end: &str| checkpoint.tensor(&format!("{}{end}", self.name));
        let whole: Vec<_> = [""].iter().filter_map(|end| there(end)).collect();
        let pairs = [["_packed", "_scale"], ["_blocks", "_scales"]];
        let pair =
            |ends: &[&str; 2]| -> Vec<_> { ends.iter().filter_map(|end| there(end)).collect() };
        if whole.is_empty() { pairs.iter().flat_map(pair).collect() } else { whole }
    }
}

/// What is looked for.
#[derive(Clone, Copy)]
struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    view: &'a View,
    name: &'a str,
    rows: usize,
    cols: usize,
    kind: Kind,
}

impl Finder<'_> {
    /// A tensor of the dtype that says its format, with scales under the name that goes with it.
    fn plain(
        &self,
        place: &TensorPlace,
        scheme: Quantisation,
    ) -> Result<StoredTensor, TensorError> {
        let &Finder { checkpoint, name, rows, cols, kind, .. } = self;
        match kind {
            Kind::Vector => self.check_shape(name, place, &[cols])?,
            Kind::Floats | Kind::Matrix | Kind::Expert => {
                self.check_shape(name, place, &self.holder_shape())?;
            }
        }
        if !self.view.is_whole() && !matches!(place.dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
            let readable = "F32, BF16 and F16, or MXFP4 blocks, within a stack";
            return self.fail(place, TensorFault::Dtype { found: place.dtype, readable });
        }
        let stored = match place.dtype {
            Dtype::F32 => self.tensor(WeightFormat::F32, place, None),
            Dtype::BF16 => self.tensor(WeightFormat::Bf16, place, None),
            Dtype::F16 => self.tensor(WeightFormat::F16, place, None),
            Dtype::F8_E4M3 if !kind.is_floats() => {
                if scheme != Quantisation::Fp8Block128 {
                    return self.fail(place, TensorFault::NoScheme);
                }
                let blocks = [rows.div_ceil(fp8::BLOCK), cols.div_ceil(fp8::BLOCK)];
                let scales = format!("{name}_scale_inv");
                let (scales, scale) = self.scales(place, &scales, &blocks, SCALES_OF_BLOCKS)?;
                self.tensor(WeightFormat::Fp8Block128(scale), place, Some(scales))
            }
            Dtype::I8 if !kind.is_floats() => {
                let scales = format!("{name}.row_scale");
                let (scales, scale) = self.scales(place, &scales, &[rows], SCALES_OF_ROWS)?;
                self.tensor(WeightFormat::Int8Row(scale), place, Some(scales))
            }
            found => {
                let readable = match kind.is_floats() {
                    true => "F32, BF16 and F16",
                    false => "F32, BF16, F16, F8_E4M3 and I8",
                };
                return self.fail(place, TensorFault::Dtype { found, readable });
            }
        };
        let stamp = if kind == Kind::Expert { None } else { checkpoint.stamp(name) };
        match stamp {
            Some(stamp) if stored.format.info().colibri_name != Some(stamp) => {
                let (stamp, found) = (stamp.to_string(), place.dtype);
                self.fail(place, TensorFault::StampOfFloats { stamp, found })
            }
            _ => Ok(stored),
        }
    }

    /// A tensor of a GGUF file.
    fn blocks(&self, place: &TensorPlace, ggml: GgmlType) -> Result<StoredTensor, TensorError> {
        let &Finder { name, rows, cols, kind, .. } = self;
        // One row may be a vector.
        let is_vector = kind == Kind::Vector || rows == 1 && place.shape.lengths().len() == 1;
        match is_vector {
            true => self.check_shape(name, place, &[cols])?,
            false => self.check_shape(name, place, &self.holder_shape())?,
        }
        let format = self.ggml_format(place, ggml)?;
        if kind.is_floats() && !super::is_floats(format) {
            let found = ggml.name().to_string();
            return self.fail(place, TensorFault::NotFloats { found });
        }
        let layout = FileLayout::Ggml;
        let weights = self.share(place);
        let expected = layout.weight_bytes(format, rows, cols);
        assert_eq!(Some(weights.bytes), expected, "checked by shape and type");
        let weave = None;
        Ok(StoredTensor { format, rows, cols, weights, scales: None, layout, weave, heads: None })
    }

    /// What a type of a GGUF file is to the kernels.
    fn ggml_format(
        &self,
        place: &TensorPlace,
        ggml: GgmlType,
    ) -> Result<WeightFormat, TensorError> {
        ggml.format().map_or_else(|| self.fail(place, TensorFault::GgmlType { found: ggml }), Ok)
    }

    /// Keys and values of all heads, from two tensors of a GGUF file.
    fn heads_apart(
        &self,
        keys: &TensorPlace,
        apart: &HeadsApart,
    ) -> Result<StoredTensor, TensorError> {
        let &Finder { checkpoint, name, rows, cols, .. } = self;
        let HeadsApart { values: values_name, heads, key_rows } = apart;
        let value_rows = rows / heads - key_rows;
        let Some(values) = checkpoint.tensor(values_name) else {
            let scales = values_name.clone();
            return self.fail(keys, TensorFault::ScalesMissing { scales });
        };
        self.check_shape(name, keys, &[*heads, cols, *key_rows])?;
        self.check_shape(values_name, values, &[*heads, value_rows, cols])?;
        let format_of = |place: &TensorPlace| {
            self.ggml_format(place, place.ggml.expect("all tensors of a file are of its types"))
        };
        let of = HeadsOf {
            key_rows: *key_rows,
            value_rows,
            keys: format_of(keys)?,
            values: format_of(values)?,
        };
        let (format, layout) = (WeightFormat::F32, FileLayout::Apart);
        let (weights, scales) = (run(keys), Some(run(values)));
        let heads = Some(of);
        Ok(StoredTensor { format, rows, cols, weights, scales, layout, weave: None, heads })
    }

    /// A tensor of a container: its format follows from sizes and stamp.
    fn container(
        &self,
        place: &TensorPlace,
        scales_name: &str,
        scales: &TensorPlace,
    ) -> Result<StoredTensor, TensorError> {
        let &Finder { checkpoint, name, rows, cols, kind, .. } = self;
        if kind.is_floats() {
            let found = format!("{:?} with scales \"{scales_name}\"", place.dtype);
            return self.fail(place, TensorFault::NotFloats { found });
        }
        if place.dtype != Dtype::U8 {
            let (found, readable) = (place.dtype, "U8 beside scales in \".qs\"");
            return self.fail(place, TensorFault::Dtype { found, readable });
        }
        let Some(scale) = scale_type(scales.dtype, SCALES_OF_CONTAINERS) else {
            let fault =
                TensorFault::Dtype { found: scales.dtype, readable: SCALES_OF_CONTAINERS.0 };
            return Err(error(checkpoint, scales_name, scales, fault));
        };
        let (weight_bytes, scale_bytes) = (place.bytes, scales.bytes);
        let sizes = Sizes { rows, cols, weight_bytes, scale_bytes, scales: scale };
        let stamp = if kind == Kind::Expert { None } else { checkpoint.stamp(name) };
        match colibri::resolve_format(sizes, stamp) {
            Ok(format) => Ok(self.tensor(format, place, Some(scales))),
            Err(fault) => self.fail(place, TensorFault::Colibri(fault)),
        }
    }

    /// A matrix that is there as a pair of nibbles and scales, under names of their own.
    fn mxfp4_pair(&self) -> Result<StoredTensor, TensorError> {
        let &Finder { checkpoint, name, cols, kind, .. } = self;
        let blocks = cols / mxfp4::GROUP;
        // Blocks are never transposed: the summed dimension is the last one.
        let stacked = View { transposed: false, ..self.view.clone() };
        let finder = Finder { view: &stacked, ..*self };
        let of_rows = finder.holder_shape();
        let rows = &of_rows[..of_rows.len() - 1];
        let layouts = [
            ("_packed", "_scale", [rows, &[cols / 2]].concat()),
            ("_blocks", "_scales", [rows, &[blocks, mxfp4::GROUP / 2]].concat()),
        ];
        for (suffix, scales, shape) in layouts {
            let packed = format!("{name}{suffix}");
            let Some(place) = checkpoint.tensor(&packed) else { continue };
            if kind.is_floats() {
                let found = format!("\"{packed}\"");
                return self.fail(place, TensorFault::NotFloats { found });
            }
            if !cols.is_multiple_of(mxfp4::GROUP) {
                let fault = TensorFault::NoWholeBlocks { cols, block: mxfp4::GROUP };
                return Err(error(checkpoint, &packed, place, fault));
            }
            self.check_shape(&packed, place, &shape)?;
            if place.dtype != Dtype::U8 {
                let fault = TensorFault::Dtype { found: place.dtype, readable: "U8" };
                return Err(error(checkpoint, &packed, place, fault));
            }
            let scales = format!("{name}{scales}");
            let shape = [rows, &[blocks]].concat();
            let (scales, _) = self.scales(place, &scales, &shape, SCALES_OF_MXFP4)?;
            return Ok(finder.tensor(WeightFormat::Mxfp4, place, Some(scales)));
        }
        let file = checkpoint.directory().display().to_string();
        Err(TensorError { file, tensor: name.to_string(), fault: TensorFault::Missing })
    }

    /// The shape of the tensor in the file, entries first.
    fn holder_shape(&self) -> Vec<usize> {
        let View { entry, share, transposed, .. } = *self.view;
        let shape = View::holder([self.rows, self.cols], share, transposed);
        entry.map(|(_, count)| count).into_iter().chain(shape).collect()
    }

    fn tensor(
        &self,
        format: WeightFormat,
        weights: &TensorPlace,
        scales: Option<&TensorPlace>,
    ) -> StoredTensor {
        let (rows, cols) = (self.rows, self.cols);
        let weave = Weave::of(self.view, [rows, cols]);
        let [weights, scales] = [Some(weights), scales].map(|place| place.map(|p| self.share(p)));
        let weights = weights.expect("given");
        let (layout, heads) = (FileLayout::Apart, None);
        let stored = StoredTensor { format, rows, cols, weights, scales, layout, weave, heads };
        // Two woven tensors share a run.
        let times = if self.view.share != Share::All && weave.is_some() { 2 } else { 1 };
        let scale_bytes = format.scale_type().map_or(0, ScaleType::bytes);
        let expected = times * format.file_bytes(rows, cols);
        assert_eq!(stored.weights.bytes, expected, "checked by shape or size");
        let found = stored.scales.map_or(0, |run| run.bytes);
        let expected = times * format.file_scales(rows, cols) * scale_bytes;
        assert_eq!(found, expected, "checked by shape or size");
        stored
    }

    /// The run of a tensor that holds what is looked for: all of it, an entry, or half of that.
    fn share(&self, place: &TensorPlace) -> Run {
        let mut run = run(place);
        if let Some((index, count)) = self.view.entry {
            let bytes = run.bytes / count;
            run = run.part(index * bytes, bytes);
        }
        match self.view.share {
            Share::HalfOfRows(half) if !self.view.transposed => {
                let bytes = run.bytes / 2;
                run.part(half * bytes, bytes)
            }
            _ => run,
        }
    }

    fn scales(
        &self,
        weights: &TensorPlace,
        scales: &str,
        shape: &[usize],
        readable: ReadableScales,
    ) -> Result<(&TensorPlace, ScaleType), TensorError> {
        let Some(place) = self.checkpoint.tensor(scales) else {
            return self.fail(weights, TensorFault::ScalesMissing { scales: scales.to_string() });
        };
        self.check_shape(scales, place, shape)?;
        scale_type(place.dtype, readable).map(|scale| (place, scale)).ok_or_else(|| {
            let fault = TensorFault::Dtype { found: place.dtype, readable: readable.0 };
            error(self.checkpoint, scales, place, fault)
        })
    }

    fn check_shape(
        &self,
        name: &str,
        place: &TensorPlace,
        expected: &[usize],
    ) -> Result<(), TensorError> {
        let found = place.shape.lengths();
        let expected: Vec<u64> = expected.iter().map(|&length| length as u64).collect();
        if found == expected {
            return Ok(());
        }
        let fault = TensorFault::Shape { found: found.to_vec(), expected };
        Err(error(self.checkpoint, name, place, fault))
    }

    fn fail<T>(&self, place: &TensorPlace, fault: TensorFault) -> Result<T, TensorError> {
        Err(error(self.checkpoint, self.name, place, fault))
    }
}

/// Types that scales may have, in words and as a list.
type ReadableScales = (&'static str, &'static [Dtype]);

const SCALES_OF_BLOCKS: ReadableScales = (
    "F32, BF16, F16, F8_E8M0 and U8",
    &[Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E8M0, Dtype::U8],
);
const SCALES_OF_ROWS: ReadableScales =
    ("F32, BF16 and F16", &[Dtype::F32, Dtype::BF16, Dtype::F16]);
const SCALES_OF_MXFP4: ReadableScales = ("U8 and F8_E8M0", &[Dtype::U8, Dtype::F8_E8M0]);
const SCALES_OF_CONTAINERS: ReadableScales =
    ("F32, U8 and F8_E8M0", &[Dtype::F32, Dtype::U8, Dtype::F8_E8M0]);

/// What a type of scales means, if it is one of the readable ones.
fn scale_type(dtype: Dtype, readable: ReadableScales) -> Option<ScaleType> {
    if !readable.1.contains(&dtype) {
        return None;
    }
    match dtype {
        Dtype::F32 => Some(ScaleType::F32),
        Dtype::F16 => Some(ScaleType::F16),
        Dtype::BF16 => Some(ScaleType::Bf16),
        Dtype::U8 | Dtype::F8_E8M0 => Some(ScaleType::Ue8m0),
        _ => None,
    }
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

fn run(place: &TensorPlace) -> Run {
    let bytes = usize::try_from(place.bytes).expect("the address space is as wide as a file");
    Run { file: place.file, offset: place.offset, bytes }
}

impl Run {
    /// A part of it, `first` bytes in.
    ///
    /// # Panics
    /// If it ends before.
    pub fn part(self, first: usize, bytes: usize) -> Run {
        assert!(first + bytes <= self.bytes, "{bytes} bytes at {first} of {self:?}");
        Run { offset: self.offset + first as u64, bytes, ..self }
    }
}

impl StoredTensor {
    /// Bytes in the files, scales included; what others have in the same runs isn't counted.
    pub fn bytes(&self) -> usize {
        let all = self.weights.bytes + self.scales.map_or(0, |run| run.bytes);
        let own = self.row_bytes() * self.rows;
        if self.weave.is_some() && own < self.weights.bytes { all / 2 } else { all }
    }

    /// Bytes of a row's weights in the files; of heads that lie apart, as they are read.
    pub fn row_bytes(&self) -> usize {
        let bytes = self.layout.weight_bytes(self.format, 1, self.cols);
        bytes.expect("a tensor's layout holds its format")
    }

    /// Rows at whose multiples a run of rows may start: the height of what shares a scale.
    pub fn row_step(&self) -> usize {
        match self.format.scales() {
            Scales::Block128 => fp8::BLOCK,
            Scales::None | Scales::Row | Scales::Group(_) | Scales::Nested(_) => 1,
        }
    }

    /// Where the weights of some rows lie.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn weights_of(&self, rows: &Range<usize>) -> Run {
        assert!(self.weave.is_none() && self.heads.is_none(), "the rows of {self:?} are no run");
        let row_bytes = self.row_bytes();
        self.weights.part(rows.start * row_bytes, rows.len() * row_bytes)
    }

    /// Where the scales of some rows lie.
    ///
    /// # Panics
    /// If there are no such rows, or they don't start at a [`StoredTensor::row_step`].
    pub fn scales_of(&self, rows: &Range<usize>) -> Option<Run> {
        assert!(rows.start.is_multiple_of(self.row_step()), "{rows:?} cut a block of scales");
        let scale_bytes = self.format.scale_type().map_or(0, ScaleType::bytes);
        let scales = |rows| self.format.file_scales(rows, self.cols) * scale_bytes;
        self.scales.map(|run| run.part(scales(rows.start), scales(rows.len())))
    }
}
