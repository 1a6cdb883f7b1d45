//! A Millstream pack, looked at as a whole: manifest, files, formats; with every byte on request.
//!
//! The checks themselves are the pack's own (`pack/`); this file runs them past the first fault.

use super::faults::Faults;
use super::finding::{Finding, Findings, Place};
use super::tensors::{draft_bits, few_bits, row_scales};
use super::{Checked, Kind, Progress};
use crate::checkpoint::OpenError;
use crate::checkpoint::pack::{self, Manifest, PackChecks, PackError, PackFiles};
use crate::families::Blueprint;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::{expert_parts, part_shape};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};

/// Looks at a pack; with `deep`, at every byte.
pub fn examine(
    faults: Faults<'_>,
    deep: bool,
    progress: &dyn Progress,
    findings: &mut Findings,
    checked: &mut Checked,
) -> Option<Manifest> {
    let directory = faults.directory;
    checked.kind = Some(Kind::Pack);
    let manifest = match pack::read_manifest(directory) {
        Ok(manifest) => manifest,
        Err(error) => {
            findings.extend(faults.open(&error));
            return None;
        }
    };
    checked.files = manifest.files.len();
    checked.files_bytes = bytes(&manifest);
    let of_experts = manifest.experts.iter().map(|layer| layer.experts.saturating_mul(3));
    let others = manifest.tensors.len() + manifest.mtp.len();
    checked.tensors = of_experts.fold(others, usize::saturating_add);
    let blueprint = pack::read_blueprint(directory, &manifest);
    if let Ok((blueprint, formats)) = &blueprint {
        checked.family = Some(blueprint.family.clone());
        checked.vocabulary = Some(blueprint.spec.vocabulary);
        unwise(blueprint, formats, findings);
    }
    if manifest.complete {
        checked.read_bytes = complete(faults, &manifest, deep, progress, findings);
    } else {
        let (path, files) = (directory.to_path_buf(), manifest.files.len());
        let error = PackError::Incomplete { path, files, missing: manifest.missing() };
        findings.extend(faults.open(&OpenError::Pack(error)));
        findings.extend(blueprint.as_ref().err().iter().flat_map(|error| faults.open(error)));
    }
    if blueprint.is_err() || !manifest.complete {
        lengths(faults, &manifest, findings);
    }
    if !findings.has_error()
        && let Err(error) = PackFiles::open(directory, PackChecks::default())
    {
        findings.extend(faults.open(&error));
    }
    Some(manifest)
}

/// A pack that says that it is complete: its headers, or with `deep` its bytes, of which it gives
/// the count.
fn complete(
    faults: Faults<'_>,
    manifest: &Manifest,
    deep: bool,
    progress: &dyn Progress,
    findings: &mut Findings,
) -> u64 {
    let read = AtomicU64::new(0);
    let damage = match deep {
        true => {
            progress.expect(bytes(manifest));
            let count = |bytes| {
                read.fetch_add(bytes, Ordering::Relaxed);
                progress.read(bytes);
            };
            pack::check_deep(faults.directory, &count)
        }
        false => pack::check_headers(faults.directory),
    };
    findings.extend(damage.iter().map(|damage| faults.damaged(damage)));
    read.into_inner()
}

/// The length of all files, whatever a manifest made by hand says of each.
fn bytes(manifest: &Manifest) -> u64 {
    manifest.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
}

/// The lengths of the weights' files, where more can't be told: the conversion isn't finished, or
/// the configuration is no good.
fn lengths(faults: Faults<'_>, manifest: &Manifest, findings: &mut Findings) {
    let weights = |file: &&pack::manifest::FileEntry| {
        file.checksum.is_some() && file.name.ends_with(".safetensors")
    };
    for file in manifest.files.iter().filter(weights) {
        let path = faults.directory.join(&file.name);
        let error = match std::fs::metadata(&path) {
            Ok(found) if found.len() == file.bytes => continue,
            Ok(found) => PackError::FileLength { path, found: found.len(), expected: file.bytes },
            Err(error) if error.kind() == ErrorKind::NotFound => PackError::FileMissing {
                path: faults.directory.to_path_buf(),
                file: file.name.clone(),
            },
            Err(error) => PackError::io(path, &error),
        };
        findings.extend(faults.open(&OpenError::Pack(error)));
    }
    let finding = "of the weights only the lengths were checked";
    let remedy = "see to the errors first, then look again";
    findings.add(Finding::note(Place::file(pack::MANIFEST_FILE), finding, remedy));
}

/// Formats that are known to do badly.
fn unwise(blueprint: &Blueprint, formats: &pack::Formats, findings: &mut Findings) {
    for (layer, formats) in formats.experts.iter().enumerate() {
        let layer = LayerId(layer as u32);
        let Some(formats) = formats else { continue };
        let cols = expert_parts(ExpertId(0))
            .map(|part| part_shape(&blueprint.spec, Some(layer), part).map_or(0, |[_, cols]| cols));
        findings.extend(row_scales(layer, *formats, cols));
    }
    let poor = formats.mtp.iter().filter_map(|tensor| few_bits(tensor.format)).collect();
    findings.extend(draft_bits(LayerId(blueprint.spec.layers.len() as u32), poor));
}
