//! Every tensor against what the configuration calls for: missing, wrong, mixed, unknown, unwise.
//!
//! Walks over the tensors of the spec as opening does, and goes on after each complaint. What a
//! tensor must be is decided in `stored.rs` and `experts.rs`; this file looks at what they say,
//! and remembers what every run of bytes is for whoever reads them all ([`Purposes`]).

use super::faults::Faults;
use super::finding::{Finding, Findings, Place, Severity};
use crate::checkpoint::drafts::{DraftTensor, draft_layers, draft_tensors};
use crate::checkpoint::experts::LayerExperts;
use crate::checkpoint::stored::{self, Kind, Run, StoredTensor};
use crate::checkpoint::{Checkpoint, TensorError, TensorFault};
use crate::families::{Blueprint, View};
use millstream_kernels::{GroupSize, ScaleType, WeightFormat};
use millstream_stages::ids::{ExpertId, FileId, LayerId};
use millstream_stages::load::EXPERT_MATRICES;
use millstream_stages::parts::{expert_parts, part_shape, resident_parts};
use millstream_stages::weights::Part;
use std::collections::{BTreeSet, HashMap};

/// Least bits of the tensors for multi-token prediction.
const DRAFT_BITS_MIN: usize = 8;

/// What a run of bytes is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Weights in a format.
    Weights(WeightFormat),
    /// Scales of a type.
    Scales(ScaleType),
}

/// What a run of bytes is, and whose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Purpose {
    /// What it is.
    pub role: Role,
    /// The layer that it belongs to.
    pub layer: Option<u32>,
    /// The routed expert that it belongs to.
    pub expert: Option<u32>,
}

/// What the runs of bytes of a checkpoint are for, by file and first byte.
pub type Purposes = HashMap<(FileId, u64), Purpose>;

/// The walk over the tensors of a model.
pub struct Walk<'a> {
    checkpoint: &'a Checkpoint,
    blueprint: &'a Blueprint,
    faults: Faults<'a>,
    /// Tensors that another finding covers: their file is missing or unreadable.
    accounted: &'a BTreeSet<String>,
    findings: &'a mut Findings,
    purposes: Purposes,
    /// Names of tensors that are there and no good.
    refused: BTreeSet<String>,
    missing: usize,
}

impl<'a> Walk<'a> {
    /// A walk that adds to `findings`. Tensors of `accounted` aren't called missing.
    pub fn new(
        checkpoint: &'a Checkpoint,
        blueprint: &'a Blueprint,
        faults: Faults<'a>,
        accounted: &'a BTreeSet<String>,
        findings: &'a mut Findings,
    ) -> Walk<'a> {
        let (purposes, refused) = (Purposes::new(), BTreeSet::new());
        Walk { checkpoint, blueprint, faults, accounted, findings, purposes, refused, missing: 0 }
    }

    /// Looks at every tensor. Gives what the bytes are, and how many tensors are missing without
    /// another finding that covers them.
    pub fn run(mut self) -> (Purposes, usize) {
        for (layer, part) in resident_parts(&self.blueprint.spec) {
            self.find(layer, part);
        }
        for layer in 0..self.blueprint.spec.layers.len() {
            self.experts(LayerId(layer as u32));
        }
        for layer in draft_layers(self.blueprint) {
            self.draft(layer);
        }
        self.unknown();
        (self.purposes, self.missing)
    }

    /// Finds one tensor, or says why not.
    fn find(&mut self, layer: Option<LayerId>, part: Part) -> Option<StoredTensor> {
        let Blueprint { spec, quantisation, views, .. } = self.blueprint;
        let views = views(layer, part, spec);
        let shape = part_shape(spec, layer, part).expect("only parts of the spec are looked for");
        match stored::resolve(self.checkpoint, &views, shape, Kind::of(part), *quantisation) {
            Ok(stored) => {
                self.remember(&stored, &views, layer, Some(part));
                Some(stored)
            }
            Err(error) => {
                self.complain(&error, &error.tensor, layer, part);
                None
            }
        }
    }

    fn complain(&mut self, error: &TensorError, name: &str, layer: Option<LayerId>, part: Part) {
        let wanted = match &error.fault {
            TensorFault::Missing => name,
            TensorFault::ScalesMissing { scales } => scales,
            _ => {
                self.refused.insert(name.to_string());
                return self.add(error, layer, part);
            }
        };
        self.refused.insert(name.to_string());
        // A pair of codes and scales has names that begin with the tensor's.
        let covered = self.accounted.range(wanted.to_string()..).next();
        if covered.is_none_or(|covered| !covered.starts_with(wanted)) {
            self.missing += 1;
            self.add(error, layer, part);
        }
    }

    fn add(&mut self, error: &TensorError, layer: Option<LayerId>, part: Part) {
        let mut finding = self.faults.tensor(error);
        finding.place.layer = layer.map(|layer| layer.0);
        finding.place.expert = expert_of(part);
        self.findings.add(finding);
    }

    fn remember(
        &mut self,
        stored: &StoredTensor,
        views: &[View],
        layer: Option<LayerId>,
        part: Option<Part>,
    ) {
        let (layer, expert) = (layer.map(|layer| layer.0), part.and_then(expert_of));
        let at = |run: Run| (run.file, run.offset);
        let purpose = |role| Purpose { role, layer, expert };
        let there = |view: &&View| !view.holders(self.checkpoint).is_empty();
        if let Some(view) = views.iter().find(there).filter(|view| !view.is_whole()) {
            // A stack's bytes are for all experts alike.
            let roles =
                [Some(Role::Weights(stored.format)), stored.format.scale_type().map(Role::Scales)];
            for (place, role) in
                view.holders(self.checkpoint).into_iter().zip(roles.into_iter().flatten())
            {
                let purpose = Purpose { role, layer, expert: None };
                self.purposes.insert((place.file, place.offset), purpose);
            }
            return;
        }
        self.purposes.insert(at(stored.weights), purpose(Role::Weights(stored.format)));
        if let (Some(run), Some(scale)) = (stored.scales, stored.format.scale_type()) {
            self.purposes.insert(at(run), purpose(Role::Scales(scale)));
        }
    }

    /// Looks at the experts of a layer, one by one and as a whole.
    fn experts(&mut self, layer: LayerId) {
        let Some(moe) = self.blueprint.spec.layers[layer.index()].moe() else { return };
        let mut found = vec![];
        for expert in (0..moe.experts).map(|expert| ExpertId(expert as u32)) {
            let tensors = expert_parts(expert).map(|part| self.find(Some(layer), part));
            if let [Some(gate), Some(up), Some(down)] = tensors {
                found.push((expert, [gate, up, down]));
            }
        }
        let Some(&(_, first)) = found.first() else { return };
        let all = found.iter().map(|&(_, tensors)| tensors).collect();
        match LayerExperts::new(all) {
            Ok(experts) => {
                let cols = first.map(|tensor| tensor.cols);
                self.findings.extend(row_scales(layer, experts.formats(), cols));
            }
            // It stops at the first misfit; each by itself beside the first shows them all.
            Err(_) => found.iter().for_each(|&(id, tensors)| self.pair(layer, first, id, tensors)),
        }
    }

    fn pair(
        &mut self,
        layer: LayerId,
        first: [StoredTensor; 3],
        expert: ExpertId,
        tensors: [StoredTensor; 3],
    ) {
        let Err(misfit) = LayerExperts::new(vec![first, tensors]) else { return };
        let part = expert_parts(expert)[misfit.matrix as usize];
        let file = self.checkpoint.file_path(tensors[misfit.matrix as usize].weights.file);
        let tensor = (self.blueprint.tensor_name)(Some(layer), part);
        let file = file.display().to_string();
        self.add(&TensorError { file, tensor, fault: misfit.fault }, Some(layer), part);
    }

    /// Looks at a draft layer: its tensors aren't run, and may lack, but few bits spoil them.
    fn draft(&mut self, layer: LayerId) {
        let scheme = self.blueprint.quantisation;
        let mut formats = BTreeSet::new();
        for (name, DraftTensor { shape, part }) in draft_tensors(self.blueprint, layer) {
            let kind = part.map_or(Kind::Matrix, Kind::of);
            let views = [View::whole(name)];
            match stored::resolve(self.checkpoint, &views, shape, kind, scheme) {
                Ok(stored) => {
                    self.remember(&stored, &views, Some(layer), part);
                    formats.extend(few_bits(stored.format));
                }
                Err(TensorError { fault: TensorFault::Missing, .. }) => {}
                Err(error) => {
                    let mut finding = self.faults.tensor(&error);
                    finding.severity = Severity::Warning;
                    finding.place.layer = Some(layer.0);
                    self.findings.add(finding);
                }
            }
        }
        self.findings.extend(draft_bits(layer, formats));
    }

    /// Names the tensors that nobody asked for.
    fn unknown(&mut self) {
        for (name, place) in self.checkpoint.tensors() {
            let known = self.purposes.contains_key(&(place.file, place.offset))
                || self.blueprint.skipped.covers(name)
                // What belongs to a tensor that was refused.
                || self.refused.range(..=name.to_string()).next_back().is_some_and(|r| name.starts_with(r));
            if known {
                continue;
            }
            let file = self.faults.shown(self.checkpoint.file_path(place.file));
            let finding = "unknown: the model's family has no such tensor, and nothing uses it";
            let remedy = "if it belongs to the model, a newer build may know it; else ignore it";
            self.findings.add(Finding::warning(Place::tensor(file, name), finding, remedy));
        }
    }
}

fn expert_of(part: Part) -> Option<u32> {
    match part {
        Part::ExpertGate(expert) | Part::ExpertUp(expert) | Part::ExpertDown(expert) => {
            Some(expert.0)
        }
        _ => None,
    }
}

/// The warning about matrices of routed experts with one int4 scale for a row longer than the usual group.
pub fn row_scales(layer: LayerId, formats: [WeightFormat; 3], cols: [usize; 3]) -> Option<Finding> {
    let is_poor = |&matrix: &millstream_stages::load::ExpertMatrix| {
        matches!(formats[matrix as usize], WeightFormat::Int4Row(_))
            && cols[matrix as usize] > GroupSize::G64.columns()
    };
    let poor: Vec<String> = EXPERT_MATRICES
        .iter()
        .filter(|matrix| is_poor(matrix))
        .map(|matrix| format!("{matrix:?}").to_lowercase())
        .collect();
    let finding = format!("experts are int4 with one scale a row ({})", poor.join(", "));
    let remedy = "answers become incoherent: convert the original model again with int4 in groups \
                  of 64";
    (!poor.is_empty()).then(|| Finding::warning(Place::layer(layer.0), finding, remedy))
}

/// The name of a format that has too few bits for multi-token prediction.
pub fn few_bits(format: WeightFormat) -> Option<String> {
    (format.info().file_bits < DRAFT_BITS_MIN).then(|| format.to_string())
}

/// The warning about a draft layer with tensors in these formats.
pub fn draft_bits(layer: LayerId, formats: BTreeSet<String>) -> Option<Finding> {
    let names = formats.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let finding = format!("the layer for multi-token prediction has less than 8 bits ({names})");
    let remedy =
        "its guesses are hardly ever right: convert the original model again with 8 bits for it";
    (!formats.is_empty()).then(|| Finding::warning(Place::layer(layer.0), finding, remedy))
}
