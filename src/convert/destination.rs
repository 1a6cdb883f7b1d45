//! The directory that a conversion writes into: whose it is, and how far it has come.
//!
//! A conversion's first act is its manifest with `complete: false`; whoever finds that manifest
//! later with the same source and parameters goes on, everybody else keeps away. Files get their
//! names by a rename when they are finished and synced, and are entered into the manifest after
//! that, so a kill at any moment loses at most the file in progress.

use super::error::ConvertError;
use super::observer::{Event, Observer};
use super::write::unfinished;
use crate::checkpoint::pack::manifest::Parameters;
use crate::checkpoint::pack::{MANIFEST_FILE, Manifest, PackFiles, read_manifest};
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// What is in the destination.
#[derive(Debug)]
pub enum State {
    /// Nothing.
    Fresh,
    /// The same conversion, begun: its manifest.
    Begun(Box<Manifest>),
    /// The same conversion, complete.
    Complete(Box<Manifest>),
}

/// Looks at a destination without changing it; `fresh` is the manifest that the conversion would
/// begin with.
///
/// # Errors
/// When it holds anything but this conversion.
pub fn look(path: &Path, fresh: &Manifest) -> Result<State, ConvertError> {
    let taken = |found: String| ConvertError::Taken { path: path.to_path_buf(), found };
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::Fresh),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(taken("this is a file".to_owned()));
        }
        Err(error) => return Err(ConvertError::io(path, "looking into it")(error)),
    };
    if !PackFiles::is_pack(path) {
        // A kill before the first manifest had its name leaves that much.
        let ours = unfinished(MANIFEST_FILE);
        let names = entries.flatten().map(|entry| entry.file_name());
        return match names.into_iter().find(|name| *name != *ours) {
            None => Ok(State::Fresh),
            Some(name) => Err(taken(format!("it holds {}", name.display()))),
        };
    }
    let found = read_manifest(path)?;
    let differences = differences(&found, fresh);
    if !differences.is_empty() {
        return Err(ConvertError::Differs { path: path.to_path_buf(), differences });
    }
    let found = Box::new(found);
    Ok(if found.complete { State::Complete(found) } else { State::Begun(found) })
}

/// What differs between a conversion that was begun and one that would go on with it.
fn differences(then: &Manifest, now: &Manifest) -> Vec<String> {
    let mut found = vec![];
    let mut compare = |what: &str, then: Option<&str>, now: Option<&str>| {
        if then != now {
            let show = |value: Option<&str>| value.unwrap_or("not given").to_owned();
            found.push(format!("{what} (then {}, now {})", show(then), show(now)));
        }
    };
    let bits = |bits: Option<u32>| bits.map(|bits| bits.to_string());
    let pair = |parameters: &Parameters| {
        let Parameters { gate_bits, up_bits, down_bits, .. } = parameters;
        [bits(*gate_bits), bits(*up_bits), bits(*down_bits)]
    };
    let (old, new) = (&then.parameters, &now.parameters);
    compare("--experts", old.experts.as_deref(), new.experts.as_deref());
    compare("--dense", old.dense.as_deref(), new.dense.as_deref());
    compare("--io", old.io.as_deref(), new.io.as_deref());
    compare("--mtp", old.mtp.as_deref(), new.mtp.as_deref());
    for ((flag, old), new) in
        ["--gate-bits", "--up-bits", "--down-bits"].into_iter().zip(pair(old)).zip(pair(new))
    {
        compare(flag, old.as_deref(), new.as_deref());
    }
    compare("--scales", old.scales.as_deref(), new.scales.as_deref());
    if then.source.fingerprint != now.source.fingerprint {
        let (old, new) = (&then.source, &now.source);
        compare("the source", Some(&shown(old)), Some(&shown(new)));
    }
    compare("the program", Some(&then.made_by), Some(&now.made_by));
    let contents = |manifest: &Manifest| {
        let files = manifest.files.iter().map(|file| (file.name.clone(), file.bytes));
        let files: Vec<_> = files.collect();
        (manifest.slices, manifest.tensors.clone(), manifest.experts.clone(), files)
    };
    if found.is_empty() && contents(then) != contents(now) {
        found.push("what becomes of the source: its small files or this build changed".to_owned());
    }
    found
}

fn shown(source: &crate::checkpoint::pack::manifest::Source) -> String {
    format!("{} {}", source.name, &source.fingerprint[..source.fingerprint.len().min(12)])
}

/// A directory that is locked for a conversion.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    lock: File,
}

impl Destination {
    /// Makes the directory if need be and locks it against other processes.
    ///
    /// # Errors
    /// When it can't be made, or somebody has it.
    pub fn open(path: &Path) -> Result<Destination, ConvertError> {
        fs::create_dir_all(path).map_err(ConvertError::io(path, "making the directory"))?;
        let lock = File::open(path).map_err(ConvertError::io(path, "opening the directory"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ConvertError::Busy { path: path.to_path_buf() });
            }
            // File systems without locks are trusted to have one writer.
            Err(TryLockError::Error(_)) => {}
        }
        Ok(Destination { path: path.to_path_buf(), lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a small file whole: under another name, synced, renamed.
    ///
    /// # Errors
    /// When the system refuses, or the observer stops it.
    pub fn put(
        &self,
        name: &str,
        bytes: &[u8],
        observer: &dyn Observer,
    ) -> Result<(), ConvertError> {
        let other = self.path.join(unfinished(name));
        let io = ConvertError::io(&other, "writing");
        if observer.event(Event::Write { bytes: bytes.len() as u64 }).is_break() {
            return Err(ConvertError::Stopped);
        }
        let mut file = File::create(&other).map_err(&io)?;
        file.write_all(bytes).map_err(&io)?;
        file.sync_all().map_err(&io)?;
        self.rename(name, observer)
    }

    /// Gives a finished file its name.
    ///
    /// # Errors
    /// When the system refuses, or the observer stops it.
    pub fn rename(&self, name: &str, observer: &dyn Observer) -> Result<(), ConvertError> {
        if observer.event(Event::Rename { file: name }).is_break() {
            return Err(ConvertError::Stopped);
        }
        let path = self.path.join(name);
        fs::rename(self.path.join(unfinished(name)), &path)
            .map_err(ConvertError::io(&path, "renaming"))?;
        self.lock.sync_all().map_err(ConvertError::io(&self.path, "syncing the directory"))
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// As [`Destination::put`].
    pub fn put_manifest(
        &self,
        manifest: &Manifest,
        observer: &dyn Observer,
    ) -> Result<(), ConvertError> {
        self.put(MANIFEST_FILE, manifest.to_text().as_bytes(), observer)
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        // Said aloud, because a child process that is being started may still share the handle.
        let _ = self.lock.unlock();
    }
}

/// Refuses when the drive has less room than `needed`.
///
/// # Errors
/// With both numbers.
pub fn check_room(path: &Path, needed: u64) -> Result<(), ConvertError> {
    // The directory may have to be made: then its nearest ancestor says what the drive has.
    let absolute = std::path::absolute(path).map_err(ConvertError::io(path, "finding it"))?;
    let existing = absolute.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(&absolute);
    let drive = rustix::fs::statvfs(existing)
        .map_err(|errno| ConvertError::io(existing, "asking for free room")(errno.into()))?;
    let free = drive.f_bavail.saturating_mul(drive.f_frsize);
    match needed > free {
        true => Err(ConvertError::Room { path: path.to_path_buf(), needed, free }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_small_a_drive_is_refused_with_both_numbers() {
        let room = tempfile::tempdir().expect("a temporary directory");
        let place = room.path().join("not/yet/made");
        check_room(&place, 1).expect("a byte is free");
        let error = check_room(&place, u64::MAX).expect_err("no drive is so large");
        let ConvertError::Room { needed, free, .. } = &error else { panic!("{error}") };
        assert!(*needed == u64::MAX && *free > 0 && *free < u64::MAX, "{error}");
        let text = error.to_string();
        assert!(text.contains(&free.to_string()) && text.contains("not/yet/made"), "{text}");
    }
}
