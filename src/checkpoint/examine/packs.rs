//! A Millstream pack, looked at as a whole: manifest, files, formats; with every byte on request.
//!
//! The checks themselves are the pack's own (`pack/`); this file runs them past the first fault.

use super::faults::Faults;
use super::finding::Findings;
use super::tensors::{draft_bits, few_bits, row_scales};
use super::{Checked, Kind, Progress};
use crate::checkpoint::OpenError;
use crate::checkpoint::pack::{self, Manifest, PackChecks, PackError, PackFiles};
use crate::families::Blueprint;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::{expert_parts, part_shape};

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
    checked.files_bytes = manifest.files.iter().map(|file| file.bytes).sum();
    checked.tensors = manifest.tensors.len() + manifest.mtp.len();
    checked.tensors += manifest.experts.iter().map(|layer| 3 * layer.experts).sum::<usize>();
    if !manifest.complete {
        incomplete(faults, &manifest, findings);
    }
    match pack::read_blueprint(directory, &manifest) {
        Ok((blueprint, formats)) => {
            checked.family = Some(blueprint.family.clone());
            checked.vocabulary = Some(blueprint.spec.vocabulary);
            unwise(&blueprint, &formats, findings);
        }
        Err(error) if !manifest.complete => findings.extend(faults.open(&error)),
        Err(_) => {}
    }
    if manifest.complete {
        let damage = match deep {
            true => {
                progress.expect(checked.files_bytes);
                let read = |bytes| progress.read(bytes);
                checked.read_bytes = checked.files_bytes;
                pack::check_deep(directory, &read)
            }
            false => pack::check_headers(directory),
        };
        findings.extend(damage.iter().map(|damage| faults.damaged(damage)));
    }
    if !findings.has_error()
        && let Err(error) = PackFiles::open(directory, PackChecks::default())
    {
        findings.extend(faults.open(&error));
    }
    Some(manifest)
}

/// A conversion that isn't finished, and what became of the files that are.
fn incomplete(faults: Faults<'_>, manifest: &Manifest, findings: &mut Findings) {
    let (path, files) = (faults.directory.to_path_buf(), manifest.files.len());
    let error = PackError::Incomplete { path, files, missing: manifest.missing() };
    findings.extend(faults.open(&OpenError::Pack(error)));
    for file in manifest.files.iter().filter(|file| file.checksum.is_some()) {
        let path = faults.directory.join(&file.name);
        let error = match std::fs::metadata(&path) {
            Ok(found) if found.len() == file.bytes => continue,
            Ok(found) => PackError::FileLength { path, found: found.len(), expected: file.bytes },
            Err(error) => PackError::io(path, &error),
        };
        findings.extend(faults.open(&OpenError::Pack(error)));
    }
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
