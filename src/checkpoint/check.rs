//! The check of every tensor when a model is opened.
//!
//! Looks each tensor up that the spec calls for, resident ones and experts, collects what is
//! missing for one complaint, and keeps what was found so that nothing is looked up by name again.
//! Tensors that nobody asked for come out as the strangers.

use super::directory::Checkpoint;
use super::error::{OpenError, TensorError, TensorFault};
use super::experts::{LayerExperts, Misfit};
use super::stored::{self, Kind, Run, StoredTensor};
use crate::families::Blueprint;
use millstream_stages::ids::{ExpertId, FileId, LayerId};
use millstream_stages::parts::{expert_parts, part_shape, resident_parts};
use millstream_stages::weights::Part;
use std::collections::{BTreeSet, HashMap};

/// How many missing tensors a message lists.
const MISSING_SHOWN: usize = 8;
/// After so many missing tensors the check stops: this is another model's configuration.
const MISSING_MAX: usize = 1000;

/// The tensors of a model, found and checked.
#[derive(Debug)]
pub struct Found {
    /// Those that stay in memory.
    pub resident: HashMap<(Option<LayerId>, Part), StoredTensor>,
    /// For each layer its experts, if it has any.
    pub experts: Vec<Option<LayerExperts>>,
    /// Names of tensors that nothing uses and no family knows.
    pub unknown: Vec<String>,
}

/// Finds and checks every tensor that the blueprint calls for.
///
/// # Errors
/// When tensors are missing, or one has another type, shape or size than it should.
pub fn check(checkpoint: &Checkpoint, blueprint: &Blueprint) -> Result<Found, OpenError> {
    let (used, missing) = (BTreeSet::new(), Vec::new());
    let mut check = Check { checkpoint, blueprint, used, missing, missing_count: 0 };
    let mut resident = HashMap::new();
    for (layer, part) in resident_parts(&blueprint.spec) {
        if let Some(stored) = check.find(layer, part)? {
            resident.insert((layer, part), stored);
        }
    }
    let mut layers = Vec::with_capacity(blueprint.spec.layers.len());
    for layer in 0..blueprint.spec.layers.len() {
        layers.push(check.experts(LayerId(layer as u32))?);
    }
    if check.missing_count > 0 {
        return Err(check.missing());
    }
    let unknown = check.unknown();
    let lay_out = |(layer, experts): (usize, Option<Vec<[StoredTensor; 3]>>)| {
        let planned = experts.map(LayerExperts::new).transpose();
        planned.map_err(|misfit| misfits(checkpoint, blueprint, layer, misfit))
    };
    let experts = layers.into_iter().enumerate().map(lay_out).collect::<Result<_, _>>()?;
    Ok(Found { resident, experts, unknown })
}

fn misfits(
    checkpoint: &Checkpoint,
    blueprint: &Blueprint,
    layer: usize,
    misfit: Misfit,
) -> OpenError {
    let part = expert_parts(ExpertId(misfit.expert as u32))[misfit.matrix as usize];
    let file = checkpoint.directory().display().to_string();
    let tensor = (blueprint.tensor_name)(Some(LayerId(layer as u32)), part);
    OpenError::Tensor(TensorError { file, tensor, fault: misfit.fault })
}

/// Collects what is missing and what was used.
struct Check<'a> {
    checkpoint: &'a Checkpoint,
    blueprint: &'a Blueprint,
    used: BTreeSet<(FileId, u64)>,
    missing: Vec<String>,
    missing_count: usize,
}

impl Check<'_> {
    /// Checks one tensor; None when it is missing, which is reported at the end.
    fn find(
        &mut self,
        layer: Option<LayerId>,
        part: Part,
    ) -> Result<Option<StoredTensor>, OpenError> {
        let Blueprint { spec, quantisation, views, .. } = self.blueprint;
        let views = views(layer, part, spec);
        let shape = part_shape(spec, layer, part).expect("only parts of the spec are looked for");
        match stored::resolve(self.checkpoint, &views, shape, Kind::of(part), *quantisation) {
            Ok(stored) => {
                let runs = [Some(stored.weights), stored.scales].into_iter().flatten();
                self.used.extend(runs.map(|Run { file, offset, .. }| (file, offset)));
                Ok(Some(stored))
            }
            Err(TensorError { fault: TensorFault::Missing, tensor, .. }) => self.is_missing(tensor),
            Err(TensorError { fault: TensorFault::ScalesMissing { scales }, .. }) => {
                self.is_missing(scales)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn is_missing(&mut self, name: String) -> Result<Option<StoredTensor>, OpenError> {
        self.missing_count += 1;
        if self.missing.len() < MISSING_SHOWN {
            self.missing.push(name);
        }
        if self.missing_count == MISSING_MAX {
            return Err(self.missing());
        }
        Ok(None)
    }

    /// Finds the experts of a layer that are there.
    fn experts(&mut self, layer: LayerId) -> Result<Option<Vec<[StoredTensor; 3]>>, OpenError> {
        let Some(moe) = self.blueprint.spec.layers[layer.index()].moe() else { return Ok(None) };
        let mut experts = Vec::new();
        for expert in 0..moe.experts {
            let [gate, up, down] = expert_parts(ExpertId(expert as u32));
            let id = Some(layer);
            let found = (self.find(id, gate)?, self.find(id, up)?, self.find(id, down)?);
            if let (Some(gate), Some(up), Some(down)) = found {
                experts.push([gate, up, down]);
            }
        }
        Ok(Some(experts))
    }

    fn missing(&self) -> OpenError {
        OpenError::TensorsMissing {
            path: self.checkpoint.directory().to_path_buf(),
            count: self.missing_count,
            names: self.missing.clone(),
            shards: self.checkpoint.shards_listed(),
        }
    }

    /// The tensors that nobody asked for and no family knows.
    fn unknown(&self) -> Vec<String> {
        // A stack is used by its entries.
        let asked = |place: &super::TensorPlace| {
            let end = place.offset + place.bytes.max(1);
            self.used.range((place.file, place.offset)..(place.file, end)).next().is_some()
        };
        self.checkpoint
            .tensors()
            .filter(|(name, place)| !asked(place) && !self.blueprint.skipped.covers(name))
            .map(|(name, _)| name.to_string())
            .collect()
    }
}
