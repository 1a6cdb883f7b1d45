//! `millstream.json`: what a pack holds, where it came from, and how far the conversion is.
//!
//! The converter writes it first with `complete: false`, again after each finished file, and last
//! with `complete: true`; each time whole, under another name, synced, then renamed. It is text
//! from a stranger as any other: unknown fields, wild sizes and a wrong checksum are refused.

use super::checksum::{checksum, from_hex, to_hex};
use super::error::PackError;
use super::layout::{Formats, WholeTensor};
use crate::checkpoint::{Kind, is_floats};
use crate::families::{Blueprint, shorten};
use millstream_kernels::WeightFormat;
use millstream_stages::ids::LayerId;
use millstream_stages::parts::{part_shape, resident_parts};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::Path;

/// The manifest's name in a pack.
pub const MANIFEST_FILE: &str = "millstream.json";
/// The value of [`Manifest::format`].
const FORMAT: &str = "millstream-pack";
/// The version that this build writes and reads.
pub const VERSION: u32 = 1;

/// Longest manifest in bytes.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Most entries in each of its lists.
const ENTRIES_MAX: usize = 1 << 20;
/// Longest text in it.
const TEXT_BYTES_MAX: usize = 4096;
/// Most rows or columns.
const LENGTH_MAX: usize = 1 << 32;

/// What a pack holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always `millstream-pack`.
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Program and version that made the pack.
    pub made_by: String,
    /// What it was made from.
    pub source: Source,
    /// What the user asked for.
    pub parameters: Parameters,
    /// S: slices of every expert and dense layer.
    pub slices: usize,
    /// Tensors that stay in memory, in the order of the file.
    pub tensors: Vec<TensorEntry>,
    /// Layers with routed experts, ascending.
    pub experts: Vec<ExpertsEntry>,
    /// Tensors for multi-token prediction, in the order of the file.
    pub mtp: Vec<TensorEntry>,
    /// Every file of the pack but this one.
    pub files: Vec<FileEntry>,
    /// SHA-256 over the list of files: which model this is. None until complete.
    pub fingerprint: Option<String>,
    /// Whether every file is there and was read back.
    pub complete: bool,
    /// XXH3 of this file with these 16 digits taken as zeros.
    pub checksum: String,
}

/// What a pack was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// `safetensors` (a Hugging Face snapshot) or `colibri`.
    pub kind: String,
    /// Name of its directory.
    pub name: String,
    /// SHA-256 of configuration, file lengths and headers.
    pub fingerprint: String,
}

/// What the user asked for, in the words of the command line; None is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// `--experts`
    pub experts: Option<String>,
    /// `--dense`
    pub dense: Option<String>,
    /// `--io`
    pub io: Option<String>,
    /// `--mtp`
    pub mtp: Option<String>,
    /// `--gate-bits`
    pub gate_bits: Option<u32>,
    /// `--up-bits`
    pub up_bits: Option<u32>,
    /// `--down-bits`
    pub down_bits: Option<u32>,
    /// `--scales`
    pub scales: Option<String>,
}

/// A tensor and its format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// Its format's name.
    pub format: String,
    /// Rows; 1 for a vector.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// A layer's experts and their formats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsEntry {
    /// The layer.
    pub layer: u32,
    /// How many experts.
    pub experts: usize,
    /// Format of the gate.
    pub gate: String,
    /// Format of up.
    pub up: String,
    /// Format of down.
    pub down: String,
}

/// A file of a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// XXH3: of header and checksums for files of weights, of everything for the others. None
    /// until the file is finished.
    pub checksum: Option<String>,
}

impl Manifest {
    /// A manifest of a conversion that begins.
    pub fn new(
        source: Source,
        parameters: Parameters,
        blueprint: &Blueprint,
        formats: &Formats,
        files: Vec<FileEntry>,
    ) -> Manifest {
        Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            made_by: made_by(),
            source,
            parameters,
            slices: blueprint.spec.slices,
            tensors: tensor_entries(blueprint, formats),
            experts: experts_entries(blueprint, formats),
            mtp: formats.mtp.iter().map(TensorEntry::of).collect(),
            files,
            fingerprint: None,
            complete: false,
            checksum: to_hex(0),
        }
    }

    /// The text of the file, with its checksum.
    pub fn to_text(&self) -> String {
        let blank = Manifest { checksum: to_hex(0), ..self.clone() };
        let mut text = serde_json::to_string_pretty(&blank).expect("plain data");
        text.push('\n');
        let digits = to_hex(checksum(text.as_bytes()));
        let at = checksum_place(&text).expect("it was just written");
        text.replace_range(at..at + digits.len(), &digits);
        text
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// When it is no manifest of this version, is over a limit, or its checksum is wrong.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Manifest, PackError> {
        let fail = |reason: String| PackError::Manifest { path: path.to_path_buf(), reason };
        let text = std::str::from_utf8(text).map_err(|_| fail("it isn't UTF-8".to_owned()))?;
        let version: Version = serde_json::from_str(text)
            .map_err(|e| fail(format!("it isn't a manifest: {}", shorten(&e.to_string()))))?;
        if version.format != FORMAT {
            return Err(fail(format!("its format is \"{}\"", shorten(&version.format))));
        }
        if version.version != u64::from(VERSION) {
            let (path, found) = (path.to_path_buf(), version.version);
            return Err(PackError::Version { path, found, known: VERSION });
        }
        let manifest: Manifest =
            serde_json::from_str(text).map_err(|e| fail(shorten(&e.to_string())))?;
        if manifest.to_text() != text {
            return Err(fail("its checksum is wrong: it was changed after it was written".into()));
        }
        manifest.check_limits().map_err(|what| fail(format!("{what} beyond every limit")))?;
        Ok(manifest)
    }

    /// Names the first thing that is beyond its limit.
    fn check_limits(&self) -> Result<(), &'static str> {
        let within = |inside: bool, what| if inside { Ok(()) } else { Err(what) };
        within(matches!(self.slices, 1 | 2 | 4 | 8), "slices")?;
        within(self.tensors.len() <= ENTRIES_MAX && self.mtp.len() <= ENTRIES_MAX, "tensors")?;
        within(self.experts.len() <= ENTRIES_MAX && self.files.len() <= ENTRIES_MAX, "lists")?;
        for tensor in self.tensors.iter().chain(&self.mtp) {
            let sizes = 1..=LENGTH_MAX;
            within(sizes.contains(&tensor.rows) && sizes.contains(&tensor.cols), "a tensor")?;
            within(tensor.name.len() <= TEXT_BYTES_MAX, "a name")?;
            // Compute layouts are at most 8 bytes a weight, and blocks of 16 rows.
            within(tensor.rows.saturating_mul(tensor.cols) <= 1 << 40, "a tensor")?;
        }
        for file in &self.files {
            let plain = !file.name.is_empty() && !file.name.contains(['/', '\0']);
            within(plain && file.name.len() <= 255 && file.name != "..", "a file's name")?;
            within(file.bytes <= 1 << 50, "a file's length")?;
        }
        Ok(())
    }

    /// The files that aren't finished.
    pub fn missing(&self) -> Vec<String> {
        let unfinished = self.files.iter().filter(|file| file.checksum.is_none());
        unfinished.map(|file| file.name.clone()).collect()
    }

    /// What [`Manifest::fingerprint`] has to be: SHA-256 of a line "name bytes checksum" for each
    /// file, in order of name.
    pub fn expected_fingerprint(&self) -> String {
        let mut lines: Vec<String> = self.files.iter().map(FileEntry::line).collect();
        lines.sort();
        let mut hash = Sha256::new();
        hash.update(format!("{FORMAT} {VERSION}\n"));
        lines.iter().for_each(|line| hash.update(line));
        super::checksum::hex(&hash.finalize())
    }

    /// A file's entry.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The formats, checked against the model.
    ///
    /// # Errors
    /// When the manifest doesn't list the model's tensors, or lists them with other shapes; says
    /// which.
    pub fn formats(&self, blueprint: &Blueprint) -> Result<Formats, String> {
        let parts = resident_parts(&blueprint.spec);
        if parts.len() != self.tensors.len() {
            let (ours, listed) = (parts.len(), self.tensors.len());
            return Err(format!("config.json calls for {ours} tensors in memory, not {listed}"));
        }
        let resident = parts.iter().zip(&self.tensors).map(|(&(layer, part), entry)| {
            let name = (blueprint.tensor_name)(layer, part);
            if entry.name != name {
                return Err(format!("tensor \"{}\" stands where {name} should", entry.name));
            }
            let shape = part_shape(&blueprint.spec, layer, part);
            if shape != Some([entry.rows, entry.cols]) {
                let found = [entry.rows, entry.cols];
                return Err(format!("{name} is {found:?}, config.json calls for {shape:?}"));
            }
            let format = parse_format(&entry.format)?;
            if matches!(Kind::of(part), Kind::Vector | Kind::Floats) && !is_floats(format) {
                return Err(format!("{name} is {format}, and it is never anything but floats"));
            }
            Ok(format)
        });
        let mtp = self.mtp.iter().map(|entry| {
            let format = parse_format(&entry.format)?;
            let TensorEntry { name, rows, cols, .. } = entry.clone();
            Ok(WholeTensor { name, format, rows, cols })
        });
        Ok(Formats {
            resident: resident.collect::<Result<_, String>>()?,
            experts: self.expert_formats(blueprint)?,
            mtp: mtp.collect::<Result<_, String>>()?,
        })
    }

    fn expert_formats(
        &self,
        blueprint: &Blueprint,
    ) -> Result<Vec<Option<[WeightFormat; 3]>>, String> {
        let mut entries = self.experts.iter();
        let mut formats = vec![];
        for (index, layer) in blueprint.spec.layers.iter().enumerate() {
            let Some(moe) = layer.moe() else {
                formats.push(None);
                continue;
            };
            let entry = entries.next().ok_or(format!("layer {index} has no experts"))?;
            if entry.layer as usize != index || entry.experts != moe.experts {
                let (layer, experts) = (entry.layer, entry.experts);
                return Err(format!(
                    "layer {layer} has {experts} experts, config.json calls for {} in layer {index}",
                    moe.experts
                ));
            }
            let [gate, up, down] =
                [&entry.gate, &entry.up, &entry.down].map(|name| parse_format(name));
            formats.push(Some([gate?, up?, down?]));
        }
        match entries.next() {
            Some(entry) => Err(format!("layer {} has no experts by config.json", entry.layer)),
            None => Ok(formats),
        }
    }
}

/// Program and version, as manifests name them.
pub fn made_by() -> String {
    format!("millstream {}", env!("CARGO_PKG_VERSION"))
}

fn parse_format(name: &str) -> Result<WeightFormat, String> {
    shorten(name)
        .parse()
        .map_err(|error: millstream_kernels::formats::UnknownFormat| error.to_string())
}

fn tensor_entries(blueprint: &Blueprint, formats: &Formats) -> Vec<TensorEntry> {
    let parts = resident_parts(&blueprint.spec).into_iter().zip(&formats.resident);
    let entry = |((layer, part), format): ((Option<LayerId>, _), &WeightFormat)| {
        let [rows, cols] = part_shape(&blueprint.spec, layer, part).expect("the model has it");
        let name = (blueprint.tensor_name)(layer, part);
        TensorEntry { name, format: format.to_string(), rows, cols }
    };
    parts.map(entry).collect()
}

fn experts_entries(blueprint: &Blueprint, formats: &Formats) -> Vec<ExpertsEntry> {
    let layers = blueprint.spec.layers.iter().zip(&formats.experts).enumerate();
    let entry = |(index, (layer, formats)): (usize, (&_, &Option<[WeightFormat; 3]>))| {
        let layer: &millstream_stages::spec::LayerSpec = layer;
        let [gate, up, down] = formats.as_ref()?.map(|format| format.to_string());
        let experts = layer.moe()?.experts;
        Some(ExpertsEntry { layer: index as u32, experts, gate, up, down })
    };
    layers.filter_map(entry).collect()
}

impl TensorEntry {
    fn of(tensor: &WholeTensor) -> TensorEntry {
        let WholeTensor { name, format, rows, cols } = tensor.clone();
        TensorEntry { name, format: format.to_string(), rows, cols }
    }
}

impl FileEntry {
    /// The checksum, if the file is finished.
    pub fn sum(&self) -> Option<u64> {
        self.checksum.as_deref().and_then(from_hex)
    }

    fn line(&self) -> String {
        let FileEntry { name, bytes, checksum } = self;
        format!("{name} {bytes} {}\n", checksum.as_deref().unwrap_or("-"))
    }
}

/// Where the digits of the checksum stand: it is the last field.
fn checksum_place(text: &str) -> Option<usize> {
    const FIELD: &str = "\"checksum\": \"";
    text.rfind(FIELD).map(|at| at + FIELD.len())
}

/// What every version of a manifest has.
#[derive(Deserialize)]
struct Version {
    format: String,
    version: u64,
}
