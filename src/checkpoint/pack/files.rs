//! An open pack: manifest, model and files, all checked against each other.
//!
//! Opening reads the manifest, lets the family read `config.json`, computes from both where every
//! byte has to lie ([`super::layout`]) and holds the files to it: names, lengths, headers and
//! checksums of checksums. Weights are read later, each run against its checksum.

use super::checksum::{checksum, checksum_of_both, from_bytes};
use super::error::{Finding, PackError, Place};
use super::file::PackFile;
use super::layout::{self, Content, FileLayout, Formats, Section, TensorLayout};
use super::manifest::{MANIFEST_BYTES_MAX, MANIFEST_FILE, Manifest};
use crate::checkpoint::directory::read_bounded;
use crate::checkpoint::{OpenError, slices_of};
use crate::families::config::CONFIG_BYTES_MAX;
use crate::families::{self, Blueprint, ConfigReader};
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{FileId, LayerId};
use millstream_stages::load::ExpertShape;
use millstream_stages::parts::resident_parts;
use millstream_stages::weights::{Extent, Part};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is checked while a pack is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackChecks {
    /// Tensors that stay in memory, when they are loaded.
    pub resident: bool,
    /// Experts, each time one is read.
    pub experts: bool,
}

impl Default for PackChecks {
    /// Resident tensors only: checking an expert costs about a tenth of a fast drive's read.
    fn default() -> PackChecks {
        PackChecks { resident: true, experts: false }
    }
}

/// An open pack.
#[derive(Debug)]
pub struct PackFiles {
    /// What the family made of the configuration, with the pack's S.
    pub blueprint: Blueprint,
    /// What the pack says of itself.
    pub manifest: Manifest,
    pub(super) checks: PackChecks,
    directory: PathBuf,
    formats: Formats,
    weights: Vec<WeightFile>,
    resident: HashMap<(Option<LayerId>, Part), Resident>,
    experts: Vec<Option<PackedExperts>>,
}

/// A file of weights.
#[derive(Debug)]
pub(super) struct WeightFile {
    pub file: PackFile,
    pub layout: FileLayout,
    pub checksums: Vec<u64>,
}

/// A tensor that stays in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    /// Where in the first file's layout.
    pub tensor: usize,
    pub format: WeightFormat,
}

/// The experts of a layer.
#[derive(Debug)]
pub(super) struct PackedExperts {
    pub file: FileId,
    pub shape: ExpertShape,
    pub extents: Vec<Extent>,
}

impl PackFiles {
    /// Whether a directory holds a pack, finished or not.
    pub fn is_pack(directory: &Path) -> bool {
        directory.join(MANIFEST_FILE).exists()
    }

    /// Opens a pack and checks everything but the weights' bytes.
    ///
    /// # Errors
    /// When the pack is incomplete, damaged or contradicts itself; says where and what to do.
    pub fn open(directory: &Path, checks: PackChecks) -> Result<PackFiles, OpenError> {
        let manifest = read_manifest(directory)?;
        if !manifest.complete {
            let (path, files) = (directory.to_path_buf(), manifest.files.len());
            return Err(PackError::Incomplete { path, files, missing: manifest.missing() }.into());
        }
        let (blueprint, formats) = read_blueprint(directory, &manifest)?;
        let layouts = layout::file_layouts(&blueprint, &formats);
        check_list(directory, &manifest, &layouts)?;
        let mut weights = Vec::with_capacity(layouts.len());
        for layout in layouts {
            weights.push(WeightFile::open(directory, &manifest, layout)?);
        }
        let resident = resident_places(&blueprint, &formats, &weights[0].layout);
        let experts = expert_places(&blueprint, &formats, &weights);
        let directory = directory.to_path_buf();
        Ok(PackFiles {
            blueprint,
            manifest,
            checks,
            directory,
            formats,
            weights,
            resident,
            experts,
        })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The formats of everything in it.
    pub fn formats(&self) -> &Formats {
        &self.formats
    }

    /// The open files of weights; a [`FileId`] is an index into them.
    pub fn handles(&self) -> Vec<Arc<File>> {
        self.weights.iter().map(|weights| Arc::clone(weights.file.handle())).collect()
    }

    /// The paths of the files of weights, by [`FileId`].
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.weights.iter().map(|weights| weights.file.path())
    }

    /// Where every byte of the files lies; a [`FileId`] is an index into them.
    pub fn layouts(&self) -> impl Iterator<Item = &FileLayout> {
        self.weights.iter().map(|weights| &weights.layout)
    }

    /// The shape of a layer's experts.
    ///
    /// # Panics
    /// When the layer has none.
    pub fn expert_shape(&self, layer: LayerId) -> ExpertShape {
        self.experts(layer).shape
    }

    pub(super) fn weights(&self, file: FileId) -> &WeightFile {
        &self.weights[file.index()]
    }

    pub(super) fn resident(&self, layer: Option<LayerId>, part: Part) -> Resident {
        *self
            .resident
            .get(&(layer, part))
            .unwrap_or_else(|| panic!("{part:?} of {layer:?} isn't a part of the model"))
    }

    pub(super) fn experts(&self, layer: LayerId) -> &PackedExperts {
        let experts = self.experts.get(layer.index()).and_then(Option::as_ref);
        experts.expect("only layers with experts are asked for experts")
    }
}

/// Reads a pack's manifest, complete or not.
///
/// # Errors
/// When it isn't there, or as [`Manifest::parse`].
pub fn read_manifest(directory: &Path) -> Result<Manifest, OpenError> {
    let path = directory.join(MANIFEST_FILE);
    let Some(text) = read_bounded(&path, MANIFEST_BYTES_MAX)? else {
        let (path, file) = (directory.to_path_buf(), MANIFEST_FILE.to_owned());
        return Err(PackError::FileMissing { path, file }.into());
    };
    Ok(Manifest::parse(&path, &text)?)
}

/// Reads the configuration of a pack, and the formats by its manifest.
///
/// # Errors
/// When the configuration is missing, damaged or not supported, or the manifest is of another
/// model.
pub fn read_blueprint(
    directory: &Path,
    manifest: &Manifest,
) -> Result<(Blueprint, Formats), OpenError> {
    let Some(mut config) = read_config(directory, manifest, "config.json")? else {
        let (path, file) = (directory.to_path_buf(), "config.json".to_owned());
        return Err(PackError::FileMissing { path, file }.into());
    };
    let generation = read_config(directory, manifest, "generation_config.json")?;
    // It speaks of the files that the pack was made from.
    config.remove("quantization_config");
    let names: HashSet<&str> = manifest.tensors.iter().map(|entry| entry.name.as_str()).collect();
    let mut blueprint = families::blueprint(&config, &|name| names.contains(name))?;
    if let Some(generation) = generation {
        blueprint.add_end_tokens(&generation)?;
    }
    let mismatch = |what| PackError::Mismatch { path: directory.to_path_buf(), what };
    let formats = manifest.formats(&blueprint).map_err(mismatch)?;
    blueprint.spec.slices = slices_by(&blueprint, &formats);
    if blueprint.spec.slices != manifest.slices {
        let (ours, theirs) = (blueprint.spec.slices, manifest.slices);
        let what = format!("the formats make for {ours} slices, the manifest says {theirs}");
        return Err(mismatch(what).into());
    }
    Ok((blueprint, formats))
}

/// S of a model with these formats.
pub fn slices_by(blueprint: &Blueprint, formats: &Formats) -> usize {
    let parts = resident_parts(&blueprint.spec).into_iter().zip(formats.resident.iter().copied());
    let resident: HashMap<(Option<LayerId>, Part), WeightFormat> = parts.collect();
    slices_of(&blueprint.spec, |layer, part| match (layer, part) {
        (Some(layer), Part::ExpertDown(_)) => {
            formats.experts[layer.index()].expect("a layer with experts has their formats")[2]
        }
        place => resident[&place],
    })
}

/// A configuration file, checked against the manifest.
fn read_config(
    directory: &Path,
    manifest: &Manifest,
    name: &str,
) -> Result<Option<ConfigReader>, OpenError> {
    let Some(entry) = manifest.file(name) else { return Ok(None) };
    let path = directory.join(name);
    let Some(text) = read_bounded(&path, CONFIG_BYTES_MAX)? else {
        let (path, file) = (directory.to_path_buf(), name.to_owned());
        return Err(PackError::FileMissing { path, file }.into());
    };
    if entry.sum() != Some(checksum(&text)) {
        return Err(PackError::from(changed(name)).into());
    }
    Ok(Some(ConfigReader::parse(&path.display().to_string(), &text)?))
}

/// A small file that isn't the one that was copied.
pub(super) fn changed(name: &str) -> Finding {
    let fault = "it was changed after the conversion".to_owned();
    Finding { file: name.to_owned(), place: Place::File, fault }
}

/// The manifest must list the files of weights that the model needs, with their lengths.
fn check_list(
    directory: &Path,
    manifest: &Manifest,
    layouts: &[FileLayout],
) -> Result<(), PackError> {
    for layout in layouts {
        let listed = manifest.file(&layout.name).map(|entry| entry.bytes);
        if listed != Some(layout.bytes()) {
            let (name, wanted) = (&layout.name, layout.bytes());
            let what = match listed {
                Some(bytes) => format!("{name} is listed with {bytes} bytes, not {wanted}"),
                None => format!("{name} is not listed"),
            };
            return Err(PackError::Mismatch { path: directory.to_path_buf(), what });
        }
    }
    Ok(())
}

impl WeightFile {
    fn open(
        directory: &Path,
        manifest: &Manifest,
        layout: FileLayout,
    ) -> Result<WeightFile, PackError> {
        let file = open_file(directory, &layout)?;
        let sum = manifest.file(&layout.name).and_then(|entry| entry.sum());
        let checksums = read_checksums(&file, &layout, sum)?;
        Ok(WeightFile { file, layout, checksums })
    }
}

/// Opens a file of weights and checks its length.
pub(super) fn open_file(directory: &Path, layout: &FileLayout) -> Result<PackFile, PackError> {
    let path = directory.join(&layout.name);
    let file = PackFile::open(directory, &layout.name).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            PackError::FileMissing { path: directory.to_path_buf(), file: layout.name.clone() }
        }
        _ => PackError::io(&path, &error),
    })?;
    let found = file.bytes().map_err(|error| PackError::io(&path, &error))?;
    let expected = layout.bytes();
    if found != expected {
        return Err(PackError::FileLength { path, found, expected });
    }
    Ok(file)
}

/// Reads header and checksums of a file and checks both against the manifest's checksum.
pub(super) fn read_checksums(
    file: &PackFile,
    layout: &FileLayout,
    expected: Option<u64>,
) -> Result<Vec<u64>, PackError> {
    let read = |offset: u64, bytes: usize| {
        let mut out = vec![0; bytes];
        file.read(offset, &mut out).map_err(|error| PackError::io(file.path(), &error))?;
        Ok::<_, PackError>(out)
    };
    let damaged = |place, fault: &str| {
        let fault = fault.to_owned();
        Err(PackError::Damaged(Finding { file: layout.name.clone(), place, fault }))
    };
    let header = read(0, layout.header.len())?;
    if header != layout.header {
        return damaged(Place::Header, "it isn't what the manifest calls for");
    }
    let checksums = read(layout.checksums_offset, layout.checksums * 8)?;
    if expected != Some(checksum_of_both(&header, &checksums)) {
        return damaged(Place::Checksums, "they aren't the ones that the manifest calls for");
    }
    Ok(from_bytes(&checksums))
}

fn resident_places(
    blueprint: &Blueprint,
    formats: &Formats,
    layout: &FileLayout,
) -> HashMap<(Option<LayerId>, Part), Resident> {
    let parts = resident_parts(&blueprint.spec).into_iter().zip(&formats.resident).enumerate();
    let place = |(tensor, ((layer, part), &format)): (usize, ((Option<LayerId>, Part), &_))| {
        assert_eq!(layout.tensors[tensor].content, Content::Resident(layer, part));
        ((layer, part), Resident { tensor, format })
    };
    parts.map(place).collect()
}

fn expert_places(
    blueprint: &Blueprint,
    formats: &Formats,
    weights: &[WeightFile],
) -> Vec<Option<PackedExperts>> {
    let place = |index: usize| {
        let layer = LayerId(index as u32);
        let shape = layout::expert_shape(blueprint, formats, layer)?;
        let name = layout::experts_file(layer);
        let found = weights.iter().position(|weights| weights.layout.name == name);
        let file = FileId(found.expect("the layouts have every layer's file") as u32);
        let tensors = &weights[file.index()].layout.tensors;
        let extent = |tensor: &TensorLayout| Extent {
            file,
            offset: tensor.offset,
            bytes: shape.expert_bytes(),
        };
        Some(PackedExperts { file, shape, extents: tensors.iter().map(extent).collect() })
    };
    (0..blueprint.spec.layers.len()).map(place).collect()
}

impl WeightFile {
    /// Checks bytes that are a run of a section.
    ///
    /// # Errors
    /// When they aren't the ones that were written.
    pub fn check_run(
        &self,
        tensor: &TensorLayout,
        section: usize,
        run: usize,
        bytes: &[u8],
    ) -> Result<(), Finding> {
        check_run(&self.layout.name, tensor, section, run, bytes, &self.checksums)
    }
}

/// Checks bytes that are a run of a section of a file with these checksums.
///
/// # Errors
/// When they aren't the ones that were written.
pub(super) fn check_run(
    file: &str,
    tensor: &TensorLayout,
    section: usize,
    run: usize,
    bytes: &[u8],
    checksums: &[u64],
) -> Result<(), Finding> {
    let found: Section = tensor.sections[section];
    if checksum(bytes) == checksums[found.first_checksum + run] {
        return Ok(());
    }
    let offset = found.offset + found.run(run).start;
    let bytes = bytes.len() as u64;
    let place = match tensor.content {
        Content::Expert(layer, expert) => {
            Place::Slice { layer, expert, slice: section, offset, bytes }
        }
        Content::Resident(..) | Content::Mtp(_) => {
            Place::Tensor { name: tensor.name.clone(), piece: section, offset, bytes }
        }
    };
    let fault = "the bytes aren't the ones that were written".to_owned();
    Err(Finding { file: file.to_owned(), place, fault })
}
