//! A model on disk as the stages see it: the [`WeightSource`] over an open checkpoint.
//!
//! [`ModelFiles::open`] reads the configuration, lets the family turn it into a blueprint, checks
//! the presence, type and shape of every tensor before anything is loaded, and chooses S by the
//! formats that it found. After that, pieces of tensors are read and laid out on request, and
//! experts are described by the extents that the loader reads by itself.

use super::check::{self, Found};
use super::directory::Checkpoint;
use super::error::{OpenError, TensorError, TensorFault};
use super::experts::LayerExperts;
use super::gguf::names;
use super::rows::{KeptRows, read_rows};
use super::shards::model_dirs;
use super::slices::slices_of;
use super::stored::{Run, StoredTensor};
use crate::families::config::CONFIG_BYTES_MAX;
use crate::families::{self, Blueprint, ConfigReader, Quantisation};
use millstream_kernels::{FileMatrix, WeightFormat};
use millstream_stages::ids::{ExpertId, FileId, LayerId};
use millstream_stages::load::{ExpertMatrix, ExpertShape};
use millstream_stages::weights::{Extent, Part, Rectangle, SourceError, Staged, WeightSource};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A model on disk, checked.
#[derive(Debug)]
pub struct ModelFiles {
    /// The files and their tensors.
    pub checkpoint: Checkpoint,
    /// What the family made of the configuration, with the S that the formats allow.
    pub blueprint: Blueprint,
    /// Tensors that nothing uses and no family knows: worth a warning.
    pub unknown: Vec<String>,
    /// Where the tensors lie that stay in memory.
    resident: HashMap<(Option<LayerId>, Part), StoredTensor>,
    /// For each layer its experts, if it has any.
    experts: Vec<Option<LayerExperts>>,
    kept: KeptRows,
}

impl ModelFiles {
    /// Opens a model directory and checks it completely, weights' values aside. Shards may also lie
    /// in the directories that `MILLSTREAM_MODEL_DIRS` names.
    ///
    /// # Errors
    /// As [`ModelFiles::open_with`].
    pub fn open(directory: &Path) -> Result<ModelFiles, OpenError> {
        ModelFiles::open_with(directory, &model_dirs())
    }

    /// Opens a model directory, with further directories that shards may lie in.
    ///
    /// # Errors
    /// When a file is missing or malformed, the configuration isn't supported, or a tensor is
    /// missing or has another type, shape or size than the configuration calls for.
    pub fn open_with(directory: &Path, further: &[PathBuf]) -> Result<ModelFiles, OpenError> {
        let checkpoint = Checkpoint::open_with(directory, further)?;
        let exists = |name: &str| checkpoint.tensor(name).is_some();
        let mut blueprint = read_blueprint(&checkpoint, &exists)?;
        if let Some(generation) = read_config(&checkpoint, "generation_config.json")? {
            blueprint.add_end_tokens(&generation)?;
        }
        let Found { resident, experts, unknown } = check::check(&checkpoint, &blueprint)?;
        let kept = KeptRows::default();
        let mut files = ModelFiles { checkpoint, blueprint, unknown, resident, experts, kept };
        files.blueprint.spec.slices =
            slices_of(&files.blueprint.spec, |layer, part| files.format(layer, part));
        Ok(files)
    }

    /// A tensor as it lies in the files.
    ///
    /// # Errors
    /// When the model has no such part.
    pub fn stored(&self, layer: Option<LayerId>, part: Part) -> Result<StoredTensor, TensorError> {
        let found = match (layer, expert_matrix(part)) {
            (Some(layer), Some((expert, matrix))) => {
                self.experts(layer).and_then(|experts| experts.stored(expert.index(), matrix))
            }
            _ => self.resident.get(&(layer, part)),
        };
        found.copied().ok_or_else(|| TensorError {
            file: self.checkpoint.directory().display().to_string(),
            tensor: format!("{part:?} of {layer:?}"),
            fault: TensorFault::NoSuchPart,
        })
    }

    /// The routed experts of a layer, if it has any.
    pub fn experts(&self, layer: LayerId) -> Option<&LayerExperts> {
        self.experts.get(layer.index())?.as_ref()
    }

    /// Reads a run of bytes into `out`, which has its length.
    ///
    /// # Errors
    /// When it can't be read; the message names file and offset.
    pub fn read_run(&self, run: Run, out: &mut [u8]) -> Result<(), SourceError> {
        self.checkpoint.read(run, out).map_err(|fault| self.read_error(run, &fault))
    }

    /// Reads rows of a tensor, in the file layout, into the two buffers: a matrix of those rows
    /// alone.
    ///
    /// # Errors
    /// When they can't be read; the message names file and offset.
    ///
    /// # Panics
    /// When there are no such rows, or they don't start at a [`StoredTensor::row_step`].
    pub fn read_rows<'a>(
        &self,
        stored: &StoredTensor,
        rows: Range<usize>,
        weights: &'a mut Vec<u8>,
        scales: &'a mut Vec<u8>,
    ) -> Result<FileMatrix<'a>, SourceError> {
        read_rows(&self.checkpoint, stored, rows, weights, scales)
            .map_err(|fault| self.read_error(stored.weights, &fault))
    }

    fn read_error(&self, run: Run, fault: &TensorFault) -> SourceError {
        SourceError(format!("{}: {fault}", self.checkpoint.file_path(run.file).display()))
    }

    fn expert_layer(&self, layer: LayerId) -> &LayerExperts {
        self.experts(layer).expect("only layers with experts are asked for experts")
    }
}

impl WeightSource for ModelFiles {
    fn format(&self, layer: Option<LayerId>, part: Part) -> WeightFormat {
        match (layer, expert_matrix(part)) {
            (Some(layer), Some((_, matrix))) => self.expert_formats(layer)[matrix as usize],
            _ => self.resident.get(&(layer, part)).expect("only parts of the model").format,
        }
    }

    fn read(
        &self,
        layer: Option<LayerId>,
        part: Part,
        block: &Rectangle,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let stored = self.stored(layer, part).map_err(|e| SourceError(e.to_string()))?;
        let target = self.format(layer, part);
        self.kept.read_block(&self.checkpoint, &stored, target, block, out).map_err(|fault| {
            let file = self.checkpoint.file_path(stored.weights.file).display().to_string();
            let tensor = (self.blueprint.tensor_name)(layer, part);
            SourceError(TensorError { file, tensor, fault }.to_string())
        })
    }

    fn expert_formats(&self, layer: LayerId) -> [WeightFormat; 3] {
        self.expert_layer(layer).formats()
    }

    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent] {
        self.expert_layer(layer).extents(expert.index())
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
        self.expert_layer(layer).unpack_slice(expert.index(), shape, slice, staged, out);
    }

    fn file_name(&self, file: FileId) -> String {
        self.checkpoint.file_name(file).to_string()
    }
}

/// Which expert's matrix a part is, if it is one.
pub(super) fn expert_matrix(part: Part) -> Option<(ExpertId, ExpertMatrix)> {
    match part {
        Part::ExpertGate(expert) => Some((expert, ExpertMatrix::Gate)),
        Part::ExpertUp(expert) => Some((expert, ExpertMatrix::Up)),
        Part::ExpertDown(expert) => Some((expert, ExpertMatrix::Down)),
        _ => None,
    }
}

/// The configuration as its family reads it; `exists` says which tensors there are. What a
/// container's `quantization_config` says is about the model that it was made from: its own tensors
/// say for themselves how they are stored.
pub(super) fn read_blueprint(
    checkpoint: &Checkpoint,
    exists: &dyn Fn(&str) -> bool,
) -> Result<Blueprint, OpenError> {
    let Some(mut config) = read_config(checkpoint, "config.json")? else {
        let (path, file) = (checkpoint.directory().to_path_buf(), "config.json".to_string());
        return Err(OpenError::FileMissing { path, file });
    };
    if checkpoint.is_container() {
        config.remove("quantization_config");
    }
    if checkpoint.is_gguf() {
        let indexers = checkpoint.tensors().any(|(name, _)| name.contains(".indexer."));
        // Families ask for what they call the indexers' tensors.
        let exists = |name: &str| indexers && name.contains(".indexer.");
        let mut blueprint = families::blueprint(&config, &exists)?;
        blueprint.views = names::views;
        blueprint.skipped = names::skipped(blueprint.spec.layers.len(), blueprint.draft_layers);
        return Ok(blueprint);
    }
    let mut blueprint = families::blueprint(&config, exists)?;
    if checkpoint.is_container() {
        blueprint.quantisation = Quantisation::Fp8Block128;
    }
    Ok(blueprint)
}

pub(super) fn read_config(
    checkpoint: &Checkpoint,
    name: &str,
) -> Result<Option<ConfigReader>, OpenError> {
    let Some(text) = checkpoint.read_small(name, CONFIG_BYTES_MAX)? else { return Ok(None) };
    let shown = checkpoint.directory().join(name).display().to_string();
    Ok(Some(ConfigReader::parse(&shown, &text)?))
}
