//! A model on disk as the stages see it: the [`WeightSource`] over an open checkpoint.
//!
//! [`ModelFiles::open`] reads the configuration, lets the family turn it into a blueprint, and
//! checks the presence, type and shape of every tensor before anything is loaded. After that,
//! resident tensors are read and widened on request, and experts are described by the extents
//! that the loader reads by itself.

use super::directory::Checkpoint;
use super::error::{OpenError, TensorError, TensorFault};
use super::experts::LayerExperts;
use super::stored::{self, Run, StoredTensor};
use crate::families::config::CONFIG_BYTES_MAX;
use crate::families::{self, Blueprint, ConfigReader};
use millstream_kernels::{StoredFormat, WeightFormat};
use millstream_stages::ids::{ExpertId, FileId, LayerId};
use millstream_stages::parts::{expert_parts, is_vector, part_shape, resident_parts};
use millstream_stages::weights::{
    ExpertParts, Extent, Matrix, MatrixData, Part, SourceError, WeightSource,
};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How many missing tensors a message lists.
const MISSING_SHOWN: usize = 8;
/// After so many missing tensors the check stops: this is another model's configuration.
const MISSING_MAX: usize = 1000;

/// A model on disk, checked.
#[derive(Debug)]
pub struct ModelFiles {
    /// The files and their tensors.
    pub checkpoint: Checkpoint,
    /// What the family made of the configuration.
    pub blueprint: Blueprint,
    /// Tensors that nothing uses and no family knows: worth a warning.
    pub unknown: Vec<String>,
    /// For each layer its experts, if it has any.
    experts: Vec<Option<LayerExperts>>,
}

impl ModelFiles {
    /// Opens a model directory and checks it completely, weights' values aside.
    ///
    /// # Errors
    /// When a file is missing or malformed, the configuration isn't supported, or a tensor is
    /// missing or has another type or shape than the configuration calls for.
    pub fn open(directory: &Path) -> Result<ModelFiles, OpenError> {
        let checkpoint = Checkpoint::open(directory)?;
        let Some(config) = read_config(&checkpoint, "config.json")? else {
            let (path, file) = (directory.to_path_buf(), "config.json".to_string());
            return Err(OpenError::FileMissing { path, file });
        };
        let mut blueprint =
            families::blueprint(&config, &|name| checkpoint.tensor(name).is_some())?;
        add_generation_tokens(&checkpoint, &mut blueprint)?;
        let mut check = Check::new(&checkpoint, &blueprint);
        for (layer, part) in resident_parts(&blueprint.spec) {
            check.find(layer, part)?;
        }
        let experts = check.experts()?;
        let unknown = check.finish()?;
        Ok(ModelFiles { checkpoint, blueprint, unknown, experts })
    }

    /// A tensor as it lies in the files.
    ///
    /// # Errors
    /// When the model has no such part.
    pub fn stored(&self, layer: Option<LayerId>, part: Part) -> Result<StoredTensor, TensorError> {
        stored_part(&self.checkpoint, &self.blueprint, layer, part)
    }

    /// The routed experts of a layer, if it has any.
    pub fn experts(&self, layer: LayerId) -> Option<&LayerExperts> {
        self.experts.get(layer.index())?.as_ref()
    }

    fn expert_layer(&self, layer: LayerId) -> &LayerExperts {
        self.experts(layer).expect("only layers with experts are asked for experts")
    }

    fn load_part(&self, layer: Option<LayerId>, part: Part) -> Result<Matrix, TensorError> {
        let stored = self.stored(layer, part)?;
        let fail = |fault: TensorFault| TensorError {
            file: self.checkpoint.file_path(stored.weights.file).display().to_string(),
            tensor: (self.blueprint.tensor_name)(layer, part),
            fault,
        };
        let weights = stored.rows * stored.cols;
        let data = match stored.format {
            StoredFormat::F32 => {
                let mut data = vec![0f32; weights];
                self.read(stored.weights, bytemuck::cast_slice_mut(&mut data)).map_err(fail)?;
                MatrixData::F32(data)
            }
            StoredFormat::Bf16 => {
                let mut data = vec![0u16; weights];
                self.read(stored.weights, bytemuck::cast_slice_mut(&mut data)).map_err(fail)?;
                MatrixData::Bf16(data)
            }
            StoredFormat::F16 | StoredFormat::Fp8E4M3Block128 | StoredFormat::Int8Row => {
                let mut bytes = vec![0; stored.weights.bytes];
                self.read(stored.weights, &mut bytes).map_err(fail)?;
                let mut scales = vec![0; stored.scales.map_or(0, |run| run.bytes)];
                if let Some(run) = stored.scales {
                    self.read(run, &mut scales).map_err(fail)?;
                }
                let mut data = vec![0f32; weights];
                stored.widen_parallel(&bytes, &scales, &mut data);
                MatrixData::F32(data)
            }
        };
        Ok(Matrix { rows: stored.rows, cols: stored.cols, data })
    }

    /// Reads a run into `out`, which has its length.
    fn read(&self, run: Run, out: &mut [u8]) -> Result<(), TensorFault> {
        assert_eq!(out.len(), run.bytes);
        let file = &self.checkpoint.files()[run.file.index()];
        let mut got = 0;
        while got < out.len() {
            let reason = match file.read_at(&mut out[got..], run.offset + got as u64) {
                Ok(0) => "the file ends there; it was truncated after it was opened".to_string(),
                Ok(bytes) => {
                    got += bytes;
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => e.to_string(),
            };
            return Err(TensorFault::Read { got, wanted: out.len(), offset: run.offset, reason });
        }
        Ok(())
    }
}

impl WeightSource for ModelFiles {
    fn load(&self, layer: Option<LayerId>, part: Part) -> Result<Matrix, SourceError> {
        self.load_part(layer, part).map_err(|e| SourceError(e.to_string()))
    }

    fn expert_format(&self, layer: LayerId) -> WeightFormat {
        self.expert_layer(layer).format()
    }

    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent] {
        self.expert_layer(layer).extents(expert.index())
    }

    fn unpack_expert(
        &self,
        layer: LayerId,
        expert: ExpertId,
        staging: &[u8],
        parts: ExpertParts<'_>,
    ) {
        self.expert_layer(layer).unpack(expert.index(), staging, parts);
    }

    fn file_name(&self, file: FileId) -> String {
        self.checkpoint.file_name(file).to_string()
    }
}

fn stored_part(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    layer: Option<LayerId>,
    part: Part,
) -> Result<StoredTensor, TensorError> {
    let Some(shape) = part_shape(&blueprint.spec, layer, part) else {
        return Err(TensorError {
            file: checkpoint.directory().display().to_string(),
            tensor: format!("{part:?} of {layer:?}"),
            fault: TensorFault::NoSuchPart,
        });
    };
    let name = (blueprint.tensor_name)(layer, part);
    stored::resolve(checkpoint, &name, shape, is_vector(part), blueprint.quantisation)
}

fn read_config(checkpoint: &Checkpoint, name: &str) -> Result<Option<ConfigReader>, OpenError> {
    let Some(text) = checkpoint.read_small(name, CONFIG_BYTES_MAX)? else { return Ok(None) };
    let shown = checkpoint.directory().join(name).display().to_string();
    Ok(Some(ConfigReader::parse(&shown, &text)?))
}

/// Adds the end tokens of `generation_config.json`: chat models list more of them there.
fn add_generation_tokens(
    checkpoint: &Checkpoint,
    blueprint: &mut Blueprint,
) -> Result<(), OpenError> {
    let Some(config) = read_config(checkpoint, "generation_config.json")? else { return Ok(()) };
    for id in config.count_list("eos_token_id", 0..=blueprint.spec.vocabulary - 1)? {
        let id = id as u32;
        if !blueprint.tokens.eos.contains(&id) {
            blueprint.tokens.eos.push(id);
        }
    }
    Ok(())
}

/// The check of all tensors at open: collects what is missing and what was used.
struct Check<'a> {
    checkpoint: &'a Checkpoint,
    blueprint: &'a Blueprint,
    used: HashSet<String>,
    missing: Vec<String>,
    missing_count: usize,
}

impl<'a> Check<'a> {
    fn new(checkpoint: &'a Checkpoint, blueprint: &'a Blueprint) -> Check<'a> {
        let (used, missing) = (HashSet::new(), Vec::new());
        Check { checkpoint, blueprint, used, missing, missing_count: 0 }
    }

    /// Checks one tensor; None when it is missing, which is reported at the end.
    fn find(
        &mut self,
        layer: Option<LayerId>,
        part: Part,
    ) -> Result<Option<StoredTensor>, OpenError> {
        let name = (self.blueprint.tensor_name)(layer, part);
        match stored_part(self.checkpoint, self.blueprint, layer, part) {
            Ok(stored) => {
                match stored.format {
                    StoredFormat::Fp8E4M3Block128 => self.used.insert(stored::fp8_scales(&name)),
                    StoredFormat::Int8Row => self.used.insert(stored::row_scales(&name)),
                    StoredFormat::F32 | StoredFormat::F16 | StoredFormat::Bf16 => false,
                };
                self.used.insert(name);
                Ok(Some(stored))
            }
            Err(TensorError { fault: TensorFault::Missing, .. }) => {
                self.missing_count += 1;
                if self.missing.len() < MISSING_SHOWN {
                    self.missing.push(name);
                }
                if self.missing_count == MISSING_MAX {
                    return Err(self.missing());
                }
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Checks and lays out the experts of all layers.
    fn experts(&mut self) -> Result<Vec<Option<LayerExperts>>, OpenError> {
        let blueprint = self.blueprint;
        let mut layers = Vec::with_capacity(blueprint.spec.layers.len());
        for (index, layer) in blueprint.spec.layers.iter().enumerate() {
            let Some(moe) = layer.moe() else {
                layers.push(None);
                continue;
            };
            let id = Some(LayerId(index as u32));
            let mut experts = Vec::new();
            for expert in 0..moe.experts {
                let [gate, up, down] = expert_parts(ExpertId(expert as u32));
                let found = (self.find(id, gate)?, self.find(id, up)?, self.find(id, down)?);
                if let (Some(gate), Some(up), Some(down)) = found {
                    experts.push([gate, up, down]);
                }
            }
            layers.push(Some(LayerExperts::new(experts)));
        }
        Ok(layers)
    }

    fn missing(&self) -> OpenError {
        OpenError::TensorsMissing {
            path: self.checkpoint.directory().to_path_buf(),
            count: self.missing_count,
            names: self.missing.clone(),
        }
    }

    /// Complains of what is missing; returns the tensors that nobody knows.
    fn finish(self) -> Result<Vec<String>, OpenError> {
        if self.missing_count > 0 {
            return Err(self.missing());
        }
        let names = self.checkpoint.tensors().map(|(name, _)| name);
        Ok(names
            .filter(|name| !self.used.contains(*name) && !self.blueprint.skipped.covers(name))
            .map(str::to_string)
            .collect())
    }
}
