//! Where every byte of a pack's safetensors files lies: a pure function of model and formats.
//!
//! The converter writes by it, the reader checks the files against it, so that nothing in a file
//! has to be believed. A file is its header, tensors of bytes without gaps, and at the end a
//! tensor of checksums. A tensor is cut into [`Section`]s: the pieces of a resident tensor
//! (`stages::pieces`) or the slices of an expert (`stages::load::ExpertShape`), each in the
//! compute layout. docs/format.md draws it to scale.

use crate::families::Blueprint;
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::load::ExpertShape;
use millstream_stages::parts::{expert_parts, resident_parts};
use millstream_stages::pieces::pieces;
use millstream_stages::weights::{Part, Rectangle};
use std::fmt::Write;
use std::ops::Range;

/// The file of the tensors that are always in memory.
pub const RESIDENT_FILE: &str = "resident.safetensors";
/// The file of the tensors for multi-token prediction.
pub const MTP_FILE: &str = "mtp.safetensors";
/// The tensor of checksums in each file.
pub const CHECKSUMS_TENSOR: &str = "millstream.checksums";

/// Alignment of sections that a drive can read directly, and of the data in a file.
pub const DIRECT_ALIGN_BYTES: u64 = 4096;
/// Sections at least as long as this are aligned so.
const DIRECT_BYTES_MIN: u64 = 64 << 10;
/// Alignment of the others.
const ALIGN_BYTES: u64 = 64;
/// A piece is checked in runs of whole row blocks of at most this (or of one row block).
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a checksum.
const CHECKSUM_BYTES: u64 = 8;

/// A tensor outside the model proper, kept whole: those of multi-token prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeTensor {
    /// Its name.
    pub name: String,
    /// Its format.
    pub format: WeightFormat,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// The formats of everything in a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    /// Of the tensors that stay in memory, in the order of [`resident_parts`].
    pub resident: Vec<WeightFormat>,
    /// Of gate, up and down of each layer's experts, by layer.
    pub experts: Vec<Option<[WeightFormat; 3]>>,
    /// The tensors for multi-token prediction.
    pub mtp: Vec<WholeTensor>,
}

/// What a tensor of a pack is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A tensor that stays in memory; its sections are its pieces.
    Resident(Option<LayerId>, Part),
    /// A routed expert; its sections are its slices.
    Expert(LayerId, ExpertId),
    /// A tensor of [`Formats::mtp`], by index; one section.
    Mtp(usize),
}

/// A piece or slice: a matrix or three in the compute layout, checked by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Length of the runs that have a checksum each; the last may be shorter.
    pub run_bytes: u64,
    /// Which of the file's checksums is the first run's.
    pub first_checksum: usize,
}

impl Section {
    /// How many checksums it has.
    pub fn runs(&self) -> usize {
        self.bytes.div_ceil(self.run_bytes) as usize
    }

    /// The bytes of a run, counted from the section's start.
    pub fn run(&self, run: usize) -> Range<u64> {
        let first = run as u64 * self.run_bytes;
        first..self.bytes.min(first + self.run_bytes)
    }
}

/// A tensor in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorLayout {
    /// Its name.
    pub name: String,
    /// What it is.
    pub content: Content,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, with what fills up the space to the next tensor.
    pub bytes: u64,
    /// Its sections, in order.
    pub sections: Vec<Section>,
}

/// A file of a pack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileLayout {
    /// Its name.
    pub name: String,
    /// The length and text of the header: everything in front of the data.
    pub header: Vec<u8>,
    /// Its tensors, in order, the checksums aside.
    pub tensors: Vec<TensorLayout>,
    /// Where the checksums begin; they are the file's end.
    pub checksums_offset: u64,
    /// How many there are.
    pub checksums: usize,
}

impl FileLayout {
    /// Length of the whole file.
    pub fn bytes(&self) -> u64 {
        self.checksums_offset + self.checksums as u64 * CHECKSUM_BYTES
    }
}

/// The name of the file of a layer's experts.
pub fn experts_file(layer: LayerId) -> String {
    format!("experts-{:05}.safetensors", layer.0)
}

/// The shape of a layer's experts; None where the layer has none or no formats for them.
pub fn expert_shape(
    blueprint: &Blueprint,
    formats: &Formats,
    layer: LayerId,
) -> Option<ExpertShape> {
    let spec = &blueprint.spec;
    let moe = spec.layers.get(layer.index())?.moe()?;
    let formats = formats.experts.get(layer.index()).copied().flatten()?;
    Some(ExpertShape::new(spec.hidden, moe, spec.slices, formats))
}

/// All files of a pack, in the order in which they are written.
///
/// # Panics
/// When `formats` isn't as long as the model asks: whoever makes one sees to it.
pub fn file_layouts(blueprint: &Blueprint, formats: &Formats) -> Vec<FileLayout> {
    let mut files = vec![resident_layout(blueprint, formats)];
    for index in 0..blueprint.spec.layers.len() {
        let layer = LayerId(index as u32);
        if let Some(shape) = expert_shape(blueprint, formats, layer) {
            files.push(experts_layout(blueprint, layer, &shape));
        }
    }
    if !formats.mtp.is_empty() {
        files.push(mtp_layout(&formats.mtp));
    }
    files
}

fn resident_layout(blueprint: &Blueprint, formats: &Formats) -> FileLayout {
    let parts = resident_parts(&blueprint.spec);
    assert_eq!(parts.len(), formats.resident.len(), "a format for every resident tensor");
    let mut file = FileBuilder::new(RESIDENT_FILE.to_owned());
    for ((layer, part), &format) in parts.into_iter().zip(&formats.resident) {
        let pieces = pieces(&blueprint.spec, layer, part);
        let sections = pieces.iter().map(|piece| NewSection::matrix(format, piece));
        let name = (blueprint.tensor_name)(layer, part);
        file.add(name, Content::Resident(layer, part), sections.collect());
    }
    file.finish()
}

fn experts_layout(blueprint: &Blueprint, layer: LayerId, shape: &ExpertShape) -> FileLayout {
    let experts = blueprint.spec.layers[layer.index()].moe().map_or(0, |moe| moe.experts);
    let mut file = FileBuilder::new(experts_file(layer));
    let bytes = shape.slice_bytes() as u64;
    let slice = |slice: usize| NewSection {
        bytes,
        run_bytes: bytes,
        // The slices of an expert follow on each other; it begins where a drive can read it.
        align: if slice == 0 { DIRECT_ALIGN_BYTES } else { 1 },
    };
    for expert in 0..experts {
        let expert = ExpertId(expert as u32);
        let name = expert_name(blueprint, layer, expert);
        file.add(name, Content::Expert(layer, expert), (0..shape.slices).map(slice).collect());
    }
    file.pad_to(DIRECT_ALIGN_BYTES);
    file.finish()
}

fn mtp_layout(tensors: &[WholeTensor]) -> FileLayout {
    let mut file = FileBuilder::new(MTP_FILE.to_owned());
    for (index, tensor) in tensors.iter().enumerate() {
        let whole = Rectangle { rows: 0..tensor.rows, cols: 0..tensor.cols };
        let section = NewSection::matrix(tensor.format, &whole);
        file.add(tensor.name.clone(), Content::Mtp(index), vec![section]);
    }
    file.finish()
}

/// An expert's tensor: what the names of its three matrices have in common, and "packed".
fn expert_name(blueprint: &Blueprint, layer: LayerId, expert: ExpertId) -> String {
    let [gate, up, down] =
        expert_parts(expert).map(|part| (blueprint.tensor_name)(Some(layer), part));
    let shared = |(at, byte): &(usize, u8)| {
        [&up, &down].iter().all(|other| other.as_bytes().get(*at) == Some(byte))
    };
    let common = gate.bytes().enumerate().take_while(shared).count();
    let stem = gate[..common].rfind('.').map_or("", |dot| &gate[..=dot]);
    format!("{stem}packed")
}

/// Bytes of a tensor of the model in the pack, what fills up the space to the next one left out.
pub fn tensor_bytes(
    blueprint: &Blueprint,
    layer: Option<LayerId>,
    part: Part,
    format: WeightFormat,
) -> u64 {
    let pieces = pieces(&blueprint.spec, layer, part);
    pieces.iter().map(|piece| NewSection::matrix(format, piece).bytes).sum()
}

/// A section that has no place yet.
struct NewSection {
    bytes: u64,
    run_bytes: u64,
    align: u64,
}

impl NewSection {
    fn matrix(format: WeightFormat, piece: &Rectangle) -> NewSection {
        let bytes = format.matrix_bytes(piece.rows.len(), piece.cols.len()) as u64;
        let block_bytes = format.block_bytes(piece.cols.len()).max(1) as u64;
        let align = if bytes >= DIRECT_BYTES_MIN { DIRECT_ALIGN_BYTES } else { ALIGN_BYTES };
        NewSection { bytes, run_bytes: block_bytes * (RUN_BYTES_MAX / block_bytes).max(1), align }
    }
}

/// A file while tensors are added; offsets count from the start of the data.
struct FileBuilder {
    name: String,
    tensors: Vec<TensorLayout>,
    end: u64,
    checksums: usize,
}

impl FileBuilder {
    fn new(name: String) -> FileBuilder {
        FileBuilder { name, tensors: vec![], end: 0, checksums: 0 }
    }

    /// Fills up the last tensor.
    fn pad_to(&mut self, align: u64) {
        self.end = self.end.next_multiple_of(align);
        if let Some(last) = self.tensors.last_mut() {
            last.bytes = self.end - last.offset;
        }
    }

    fn add(&mut self, name: String, content: Content, new: Vec<NewSection>) {
        self.pad_to(new.iter().map(|section| section.align).max().unwrap_or(1));
        let offset = self.end;
        let mut sections = Vec::with_capacity(new.len());
        for NewSection { bytes, run_bytes, align } in new {
            let offset = self.end.next_multiple_of(align);
            let section = Section { offset, bytes, run_bytes, first_checksum: self.checksums };
            self.end = offset + bytes;
            self.checksums += section.runs();
            sections.push(section);
        }
        let bytes = self.end - offset;
        self.tensors.push(TensorLayout { name, content, offset, bytes, sections });
    }

    fn finish(mut self) -> FileLayout {
        self.pad_to(ALIGN_BYTES);
        let header = self.header();
        let start = header.len() as u64;
        for tensor in &mut self.tensors {
            tensor.offset += start;
            tensor.sections.iter_mut().for_each(|section| section.offset += start);
        }
        FileLayout {
            name: self.name,
            header,
            tensors: self.tensors,
            checksums_offset: start + self.end,
            checksums: self.checksums,
        }
    }

    /// The header, filled up with spaces so that the data begins where a drive can read it.
    fn header(&self) -> Vec<u8> {
        let mut json = String::from("{\"__metadata__\":{\"format\":\"millstream-pack\"}");
        let mut entry = |name: &str, dtype: &str, length: u64, begin: u64, end: u64| {
            let name = serde_json::Value::from(name);
            let written = write!(
                json,
                ",{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{length}],\"data_offsets\":[{begin},{end}]}}"
            );
            written.expect("a string takes all");
        };
        for tensor in &self.tensors {
            let end = tensor.offset + tensor.bytes;
            entry(&tensor.name, "U8", tensor.bytes, tensor.offset, end);
        }
        let count = self.checksums as u64;
        entry(CHECKSUMS_TENSOR, "U64", count, self.end, self.end + count * CHECKSUM_BYTES);
        json.push('}');
        let length = (8 + json.len() as u64).next_multiple_of(DIRECT_ALIGN_BYTES) - 8;
        let mut header = length.to_le_bytes().to_vec();
        header.extend(json.bytes());
        header.resize(8 + length as usize, b' ');
        header
    }
}
