//! What a conversion will write: a format for every tensor, and the bytes of each class.

use super::drafts::drafts;
use super::options::{CLASSES, Class, Options};
use super::rows::SourceTensor;
use crate::checkpoint::ModelFiles;
use crate::checkpoint::describe::size;
use crate::checkpoint::pack::layout::{FileLayout, expert_shape, file_layouts, tensor_bytes};
use crate::checkpoint::pack::{Formats, WholeTensor, slices_by};
use crate::families::Blueprint;
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::{expert_parts, is_vector, resident_parts};
use millstream_stages::weights::{Part, WeightSource};
use std::collections::BTreeSet;
use std::fmt;

/// What a conversion will write.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model, with the S that the new formats allow.
    pub blueprint: Blueprint,
    /// The new formats.
    pub formats: Formats,
    /// Where every byte of the files of weights goes.
    pub layouts: Vec<FileLayout>,
    /// The tensors for multi-token prediction, in the order of [`Formats::mtp`].
    pub mtp: Vec<SourceTensor>,
    /// Bytes and formats by class, for a table.
    pub classes: Vec<ClassTotal>,
    /// What the user should know before it begins.
    pub warnings: Vec<String>,
}

/// Bytes and formats of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassTotal {
    /// The class.
    pub class: Class,
    /// The names of the formats that it gets.
    pub formats: BTreeSet<String>,
    /// Tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The class of a resident tensor.
pub fn class_of(part: Part) -> Class {
    match part {
        Part::Embedding | Part::Head => Class::Io,
        Part::Router
        | Part::IndexWeights
        | Part::SharedScore
        | Part::ExpertGateBiases
        | Part::ExpertUpBiases
        | Part::ExpertDownBiases => Class::Kept,
        _ if is_vector(part) => Class::Kept,
        _ => Class::Dense,
    }
}

impl Plan {
    /// Plans the conversion of an open model.
    pub fn new(files: &ModelFiles, options: &Options) -> Plan {
        let mut warnings = warnings_of_source(files);
        let mut blueprint = files.blueprint.clone();
        let mtp = drafts(files, options, &mut warnings);
        let formats = formats(files, options, &mtp);
        blueprint.spec.slices = slices_by(&blueprint, &formats);
        let layouts = file_layouts(&blueprint, &formats);
        let classes = totals(&blueprint, &formats);
        warnings.extend(warnings_of_formats(&classes, &mtp));
        Plan { blueprint, formats, layouts, mtp, classes, warnings }
    }

    /// A tensor of the model and what it becomes.
    pub fn tensor(&self, files: &ModelFiles, layer: Option<LayerId>, part: Part) -> SourceTensor {
        let stored = files.stored(layer, part).expect("every part was found at open");
        let target = match (layer, part) {
            (Some(layer), Part::ExpertGate(_)) => self.experts(layer)[0],
            (Some(layer), Part::ExpertUp(_)) => self.experts(layer)[1],
            (Some(layer), Part::ExpertDown(_)) => self.experts(layer)[2],
            _ => {
                let parts = resident_parts(&self.blueprint.spec);
                let index = parts.iter().position(|place| *place == (layer, part));
                self.formats.resident[index.expect("a part of the model")]
            }
        };
        SourceTensor { name: (self.blueprint.tensor_name)(layer, part), stored, target }
    }

    fn experts(&self, layer: LayerId) -> [WeightFormat; 3] {
        self.formats.experts[layer.index()].expect("a layer with experts has their formats")
    }

    /// Bytes of all files of weights.
    pub fn bytes(&self) -> u64 {
        self.layouts.iter().map(FileLayout::bytes).sum()
    }
}

fn formats(files: &ModelFiles, options: &Options, mtp: &[SourceTensor]) -> Formats {
    let spec = &files.blueprint.spec;
    let resident = resident_parts(spec).into_iter();
    let experts = (0..spec.layers.len()).map(|index| {
        let layer = LayerId(index as u32);
        spec.layers[index].moe().map(|_| options.expert_targets(files.expert_formats(layer)))
    });
    let whole = |tensor: &SourceTensor| WholeTensor {
        name: tensor.name.clone(),
        format: tensor.target,
        rows: tensor.stored.rows,
        cols: tensor.stored.cols,
    };
    Formats {
        resident: resident
            .map(|(layer, part)| options.target(class_of(part), files.format(layer, part)))
            .collect(),
        experts: experts.collect(),
        mtp: mtp.iter().map(whole).collect(),
    }
}

fn totals(blueprint: &Blueprint, formats: &Formats) -> Vec<ClassTotal> {
    let mut totals =
        CLASSES.map(|class| ClassTotal { class, formats: BTreeSet::new(), tensors: 0, bytes: 0 });
    let mut add = |class: Class, formats: &[WeightFormat], tensors: usize, bytes: u64| {
        let total = totals.iter_mut().find(|total| total.class == class).expect("every class");
        total.formats.extend(formats.iter().map(WeightFormat::to_string));
        total.tensors += tensors;
        total.bytes += bytes;
    };
    for ((layer, part), &format) in
        resident_parts(&blueprint.spec).into_iter().zip(&formats.resident)
    {
        add(class_of(part), &[format], 1, tensor_bytes(blueprint, layer, part, format));
    }
    for (index, layer) in blueprint.spec.layers.iter().enumerate() {
        let shape = expert_shape(blueprint, formats, LayerId(index as u32));
        if let (Some(moe), Some(shape)) = (layer.moe(), shape) {
            let matrices = moe.experts * expert_parts(ExpertId(0)).len();
            let bytes = moe.experts * shape.expert_bytes();
            add(Class::Experts, &shape.formats, matrices, bytes as u64);
        }
    }
    for tensor in &formats.mtp {
        let bytes = tensor.format.matrix_bytes(tensor.rows, tensor.cols);
        add(Class::Mtp, &[tensor.format], 1, bytes as u64);
    }
    totals.into_iter().filter(|total| total.tensors > 0).collect()
}

fn warnings_of_source(files: &ModelFiles) -> Vec<String> {
    let mut warnings = vec![];
    if let Some(first) = files.unknown.first() {
        let count = files.unknown.len();
        warnings.push(format!(
            "{count} tensors are not used by this family and are left out, for example {first}"
        ));
    }
    if let Some(first) = files.checkpoint.unindexed().first() {
        let count = files.checkpoint.unindexed().len();
        warnings.push(format!(
            "{count} tensors are not in the index and are left out, such as {first}"
        ));
    }
    warnings
}

fn warnings_of_formats(classes: &[ClassTotal], mtp: &[SourceTensor]) -> Vec<String> {
    let mut warnings = vec![];
    for total in classes {
        if total.formats.iter().any(|name| name.starts_with("int4-row")) {
            warnings.push(format!(
                "{}: 4-bit weights with one scale a row are known to make answers incoherent; \
                 int4-g64 costs an eighth more bytes and doesn't",
                total.class.name()
            ));
        }
    }
    let coarse =
        |tensor: &&SourceTensor| tensor.stored.rows > 1 && tensor.target.info().file_bits < 8;
    if let Some(tensor) = mtp.iter().find(coarse) {
        warnings.push(format!(
            "mtp: {} in {}: below 8 bits drafts are hardly ever accepted, because the two halves of \
             eh_proj differ 20 times in size",
            tensor.name, tensor.target
        ));
    }
    warnings
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<9}{:>8}  {:>12}  formats", "class", "tensors", "size")?;
        for total in &self.classes {
            let formats: Vec<&str> = total.formats.iter().map(String::as_str).collect();
            let (name, formats) = (total.class.name(), formats.join(", "));
            writeln!(f, "{name:<9}{:>8}  {:>12}  {formats}", total.tensors, size(total.bytes))?;
        }
        let (files, bytes) = (self.layouts.len(), self.bytes());
        write!(f, "{:<9}{:>8}  {:>12}  in {files} files", "in all", "", size(bytes))
    }
}
