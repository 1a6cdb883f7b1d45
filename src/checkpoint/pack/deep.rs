//! The deep check: every byte of a pack against its checksum.
//!
//! `doctor --deep` and the converter use it. Damage is collected, not thrown: each finding names
//! file, tensor or expert, and offset. Spaces between tensors have no checksum; they must be zero.

use super::checksum::checksum;
use super::error::{Finding, PackError, Place};
use super::file::PackFile;
use super::files::{changed, check_run, open_file, read_blueprint, read_checksums, read_manifest};
use super::layout::{FileLayout, TensorLayout, file_layouts};
use super::manifest::Manifest;
use crate::checkpoint::OpenError;
use rayon::prelude::*;
use std::path::Path;

/// Most findings that are listed for one file.
const FINDINGS_MAX: usize = 64;
/// Bytes of a small file that are read at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Reads all of a pack and says what is wrong with it; nothing means that every byte is the one
/// that was written. `progress` is told of bytes that were read.
pub fn check_deep(directory: &Path, progress: &(dyn Fn(u64) + Sync)) -> Vec<Finding> {
    check(directory, Some(progress))
}

/// Says what is wrong with a pack as far as that can be told without reading the weights: its
/// files, their lengths, headers, checksums of checksums, and all of the small ones.
pub fn check_headers(directory: &Path) -> Vec<Finding> {
    check(directory, None)
}

/// Checks everything; the weights, if there is somebody to tell of the progress.
fn check(directory: &Path, progress: Option<&(dyn Fn(u64) + Sync)>) -> Vec<Finding> {
    let whole =
        |file: &str, fault: String| Finding { file: file.to_owned(), place: Place::File, fault };
    let manifest = match read_manifest(directory) {
        Ok(manifest) => manifest,
        Err(error) => return vec![whole(super::MANIFEST_FILE, error.to_string())],
    };
    if !manifest.complete {
        let (path, files) = (directory.to_path_buf(), manifest.files.len());
        let error = PackError::Incomplete { path, files, missing: manifest.missing() };
        return vec![whole(super::MANIFEST_FILE, error.to_string())];
    }
    let mut findings = vec![];
    if manifest.fingerprint.as_deref() != Some(manifest.expected_fingerprint().as_str()) {
        let fault = "its fingerprint isn't that of its files".to_owned();
        findings.push(whole(super::MANIFEST_FILE, fault));
    }
    let layouts = match read_blueprint(directory, &manifest) {
        Ok((blueprint, formats)) => file_layouts(&blueprint, &formats),
        // Named below, with the other small files.
        Err(OpenError::Pack(PackError::Damaged(_))) => vec![],
        Err(error) => {
            findings.push(whole("config.json", error.to_string()));
            vec![]
        }
    };
    for entry in &manifest.files {
        match layouts.iter().find(|layout| layout.name == entry.name) {
            Some(layout) => findings.extend(check_weights(directory, &manifest, layout, progress)),
            None if entry.name.ends_with(".safetensors") => {}
            None => findings.extend(check_small(directory, &manifest, &entry.name).err()),
        }
    }
    findings
}

/// Checks a small file: its length and its bytes.
///
/// # Errors
/// When they aren't those of the manifest.
pub fn check_small(directory: &Path, manifest: &Manifest, name: &str) -> Result<(), Finding> {
    let fail = |fault: String| Finding { file: name.to_owned(), place: Place::File, fault };
    let entry = manifest.file(name).ok_or_else(|| fail("the manifest doesn't list it".into()))?;
    let file = PackFile::open(directory, name).map_err(|error| fail(error.to_string()))?;
    let found = file.bytes().map_err(|error| fail(error.to_string()))?;
    if found != entry.bytes {
        return Err(fail(format!("{found} bytes, not {}", entry.bytes)));
    }
    let mut text = vec![0; found as usize];
    for (block, out) in text.chunks_mut(BLOCK_BYTES).enumerate() {
        let read = file.read((block * BLOCK_BYTES) as u64, out);
        read.map_err(|error| fail(error.to_string()))?;
    }
    if entry.sum() == Some(checksum(&text)) { Ok(()) } else { Err(changed(name)) }
}

fn check_weights(
    directory: &Path,
    manifest: &Manifest,
    layout: &FileLayout,
    progress: Option<&(dyn Fn(u64) + Sync)>,
) -> Vec<Finding> {
    let whole = |error: PackError| match error {
        PackError::Damaged(finding) => finding,
        error => {
            Finding { file: layout.name.clone(), place: Place::File, fault: error.to_string() }
        }
    };
    let file = match open_file(directory, layout) {
        Ok(file) => file,
        Err(error) => return vec![whole(error)],
    };
    let sum = manifest.file(&layout.name).and_then(|entry| entry.sum());
    match read_checksums(&file, layout, sum) {
        Ok(checksums) => {
            progress.map_or(vec![], |progress| check_data(&file, layout, &checksums, progress))
        }
        // Without checksums nothing can be said of the data.
        Err(error) => vec![whole(error)],
    }
}

/// Checks all data of a file against its checksums.
pub fn check_data(
    file: &PackFile,
    layout: &FileLayout,
    checksums: &[u64],
    progress: &(dyn Fn(u64) + Sync),
) -> Vec<Finding> {
    let ends = layout.tensors.iter().skip(1).map(|next| next.offset);
    let ends = ends.chain([layout.checksums_offset]);
    let tensors: Vec<_> = layout.tensors.iter().zip(ends).collect();
    let check = |(tensor, end): &(&TensorLayout, u64)| {
        let check = Check { file, name: &layout.name, tensor, checksums, progress };
        check.sections(*end)
    };
    let mut findings: Vec<Finding> = tensors.par_iter().flat_map_iter(check).collect();
    findings.truncate(FINDINGS_MAX);
    findings
}

/// The check of one tensor.
struct Check<'a> {
    file: &'a PackFile,
    name: &'a str,
    tensor: &'a TensorLayout,
    checksums: &'a [u64],
    progress: &'a (dyn Fn(u64) + Sync),
}

impl Check<'_> {
    /// Checks every section and the spaces after each; the tensor's own end with `end`.
    fn sections(&self, end: u64) -> Vec<Finding> {
        let sections = &self.tensor.sections;
        let mut findings = vec![];
        for (index, section) in sections.iter().enumerate() {
            let runs = (0..section.runs()).into_par_iter();
            findings.par_extend(runs.filter_map(|run| self.run(index, run).err()));
            let next = sections.get(index + 1).map_or(end, |next| next.offset);
            findings.extend(self.filling(section.offset + section.bytes, next).err());
        }
        findings
    }

    fn run(&self, index: usize, run: usize) -> Result<(), Finding> {
        let section = self.tensor.sections[index];
        let range = section.run(run);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read(section.offset + range.start, &mut bytes)?;
        check_run(self.name, self.tensor, index, run, &bytes, self.checksums)
    }

    fn filling(&self, first: u64, end: u64) -> Result<(), Finding> {
        let mut bytes = vec![0; (end - first) as usize];
        self.read(first, &mut bytes)?;
        match bytes.iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(at) => {
                let place =
                    Place::Filling { name: self.tensor.name.clone(), offset: first + at as u64 };
                let fault = "a byte isn't zero".to_owned();
                Err(Finding { file: self.name.to_owned(), place, fault })
            }
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Finding> {
        let outcome = self.file.read(offset, out);
        (self.progress)(out.len() as u64);
        outcome.map_err(|error| Finding {
            file: self.name.to_owned(),
            place: Place::File,
            fault: format!("reading {} bytes at offset {offset}: {error}", out.len()),
        })
    }
}
