//! Conversion: any readable model into a Millstream pack.
//!
//! | file | what it does |
//! |---|---|
//! | `options.rs` | what the user asks: a format per class of tensors |
//! | `plan.rs`, `drafts.rs` | a format for every tensor, sizes, warnings; tensors for multi-token prediction |
//! | `rows.rs` | rows of the source in the format that they become |
//! | `write.rs` | one file of weights: written, synced, read back |
//! | `destination.rs` | whose a directory is, and how far it has come |
//! | `origin.rs` | what the source is, and its small files |
//! | `observer.rs` | progress, and a stop at any point |
//! | `error.rs` | everything that can stop it |
//!
//! [`Conversion::prepare`] looks and plans without writing anything; [`Conversion::run`] writes,
//! or goes on where an earlier run was stopped. Same source, same options: same bytes, whatever
//! the threads and however often it was killed. The pack itself is `src/checkpoint/pack`'s.

mod destination;
mod drafts;
mod error;
mod observer;
mod options;
mod origin;
mod plan;
mod rows;
mod write;

pub use crate::checkpoint::describe::size;
pub use error::ConvertError;
pub use observer::{Event, Nobody, Observer};
pub use options::{Bits, Choice, Class, Options, Scales};
pub use origin::{Companion, companions};
pub use plan::{ClassTotal, Plan};

use crate::checkpoint::ModelFiles;
use crate::checkpoint::pack::checksum::{checksum, checksum_of_both, from_hex, to_hex};
use crate::checkpoint::pack::layout::FileLayout;
use crate::checkpoint::pack::manifest::FileEntry;
use crate::checkpoint::pack::{Manifest, PackFile, PackFiles, check_small, read_manifest};
use destination::{Destination, State};
use std::path::{Path, PathBuf};
use write::FileWriter;

/// Room on the drive for manifests while they are replaced, and for the directory itself.
const SPARE_BYTES: u64 = 4 << 20;

/// A conversion that is planned.
pub struct Conversion {
    source: ModelFiles,
    companions: Vec<Companion>,
    destination: PathBuf,
    /// The manifest that it begins with.
    fresh: Manifest,
    /// What it will write.
    pub plan: Plan,
    /// Bytes that earlier runs haven't written yet.
    pub remaining_bytes: u64,
}

/// What a conversion made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The manifest of the pack.
    pub manifest: Manifest,
    /// Nothing had to be done: it was complete already.
    pub was_complete: bool,
}

impl Conversion {
    /// Opens the source, plans, and looks at the destination. Writes nothing.
    ///
    /// # Errors
    /// When the source can't be opened, or the destination holds something else.
    pub fn prepare(
        source: &Path,
        destination: &Path,
        options: &Options,
    ) -> Result<Conversion, ConvertError> {
        if PackFiles::is_pack(source) {
            let from = read_manifest(source)?.source.name;
            return Err(ConvertError::SourceIsPack { path: source.to_path_buf(), from });
        }
        let files = ModelFiles::open(source)?;
        let plan = Plan::new(&files, options);
        let companions = origin::companions(&files)?;
        let of_companion = |companion: &Companion| FileEntry {
            name: companion.name.to_owned(),
            bytes: companion.bytes.len() as u64,
            checksum: None,
        };
        let of_layout = |layout: &FileLayout| FileEntry {
            name: layout.name.clone(),
            bytes: layout.bytes(),
            checksum: None,
        };
        let small = companions.iter().map(of_companion);
        let entries = small.chain(plan.layouts.iter().map(of_layout)).collect();
        let origin = origin::source(&files, source, &companions)?;
        let (blueprint, formats) = (&plan.blueprint, &plan.formats);
        let fresh = Manifest::new(origin, options.parameters(), blueprint, formats, entries);
        let state = destination::look(destination, &fresh)?;
        let written = match &state {
            State::Fresh => &fresh,
            State::Begun(manifest) | State::Complete(manifest) => manifest,
        };
        let unfinished = written.files.iter().filter(|file| file.checksum.is_none());
        let remaining_bytes = unfinished.map(|file| file.bytes).sum();
        let destination = destination.to_path_buf();
        let source = files;
        Ok(Conversion { source, companions, destination, fresh, plan, remaining_bytes })
    }

    /// Files of the pack, the manifest aside.
    pub fn files(&self) -> usize {
        self.fresh.files.len()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.fresh.files.iter().map(|file| file.bytes).sum()
    }

    /// Refuses when the drive has too little room for what is left to write.
    ///
    /// # Errors
    /// With both numbers.
    pub fn check_room(&self) -> Result<(), ConvertError> {
        let spare = if self.remaining_bytes == 0 { 0 } else { SPARE_BYTES };
        // A file in progress has its room already; it is made anew in the same place.
        let begun = self.plan.layouts.iter().map(|layout| {
            let path = self.destination.join(write::unfinished(&layout.name));
            std::fs::metadata(path).map_or(0, |found| allocated_bytes(&found))
        });
        let begun: u64 = begun.sum();
        let needed = (self.remaining_bytes + spare).saturating_sub(begun);
        destination::check_room(&self.destination, needed)
    }

    /// Writes the pack, or goes on with it.
    ///
    /// # Errors
    /// When the source can't be read or rounded, or the destination can't be written. What is
    /// finished stays.
    pub fn run(&self, observer: &dyn Observer) -> Result<Outcome, ConvertError> {
        let destination = Destination::open(&self.destination)?;
        let mut manifest = match destination::look(&self.destination, &self.fresh)? {
            State::Complete(manifest) => {
                return Ok(Outcome { manifest: *manifest, was_complete: true });
            }
            State::Begun(manifest) => *manifest,
            State::Fresh => {
                destination.put_manifest(&self.fresh, observer)?;
                self.fresh.clone()
            }
        };
        for index in 0..manifest.files.len() {
            let entry = &manifest.files[index];
            let (file, bytes) = (entry.name.clone(), entry.bytes);
            if self.is_finished(&manifest, index) {
                // Nothing happens, so there is nothing to stop.
                let _ = observer.event(Event::Kept { file: &file, bytes });
                continue;
            }
            if observer.event(Event::Begin { file: &file, bytes }).is_break() {
                return Err(ConvertError::Stopped);
            }
            let sum = self.make(&destination, &file, observer)?;
            manifest.files[index].checksum = Some(to_hex(sum));
            destination.put_manifest(&manifest, observer)?;
            let _ = observer.event(Event::Finished { file: &file });
        }
        manifest.fingerprint = Some(manifest.expected_fingerprint());
        manifest.complete = true;
        destination.put_manifest(&manifest, observer)?;
        Ok(Outcome { manifest, was_complete: false })
    }

    /// Makes one file and gives its checksum.
    fn make(
        &self,
        destination: &Destination,
        name: &str,
        observer: &dyn Observer,
    ) -> Result<u64, ConvertError> {
        if let Some(companion) = self.companions.iter().find(|small| small.name == name) {
            destination.put(name, &companion.bytes, observer)?;
            return Ok(checksum(&companion.bytes));
        }
        let layout = self.layout(name).expect("the manifest lists what was planned");
        let (files, plan, directory) = (&self.source, &self.plan, destination.path());
        let sum = FileWriter { files, plan, observer, directory }.write(layout)?;
        destination.rename(name, observer)?;
        Ok(sum)
    }

    fn layout(&self, name: &str) -> Option<&FileLayout> {
        self.plan.layouts.iter().find(|layout| layout.name == name)
    }

    /// Whether an earlier run finished a file, and it is still what it was: its length, and what
    /// its checksum covers.
    fn is_finished(&self, manifest: &Manifest, index: usize) -> bool {
        let entry = &manifest.files[index];
        let Some(sum) = entry.checksum.as_deref().and_then(from_hex) else { return false };
        let Some(layout) = self.layout(&entry.name) else {
            return check_small(&self.destination, manifest, &entry.name).is_ok();
        };
        let ends = |file: &PackFile| {
            let mut header = vec![0; layout.header.len()];
            let mut table = vec![0; layout.checksums * 8];
            file.read(0, &mut header)?;
            file.read(layout.checksums_offset, &mut table)?;
            Ok::<_, std::io::Error>(checksum_of_both(&header, &table))
        };
        PackFile::open(&self.destination, &entry.name).is_ok_and(|file| {
            file.bytes().is_ok_and(|bytes| bytes == entry.bytes)
                && ends(&file).is_ok_and(|found| found == sum)
        })
    }
}

fn allocated_bytes(found: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    found.blocks().saturating_mul(512)
}
