//! What earlier sessions learned: how often each expert was used, kept in one small file a model.
//!
//! The engine loads it at start and its keeper (`engine/keeper.rs`), the one writer, saves it after each
//! answer. It is a help, never a condition: a file that is damaged, or belongs to another model, is a
//! warning and nothing is known. It lies next to the model, or, where that can't be written, in the
//! user's state directory under the model's fingerprint.
//!
//! A file is replaced as a whole: written beside, flushed, renamed. A kill leaves the old or the new one.

mod colibri;
mod fingerprint;

pub use fingerprint::fingerprint;

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The file's name next to a model.
const FILE_NAME: &str = ".millstream-uses.json";
/// What colibri calls its own.
const COLIBRI_FILE_NAME: &str = ".coli_usage";
/// What the file says that it is.
const FORMAT: &str = "millstream uses 1";
/// A larger file isn't ours.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// When an expert of a layer has more uses than this, all of the layer count half: what was learned
/// long ago fades, and no counter ends.
const USES_MAX: u32 = 1 << 20;

/// Uses by layer, by expert; layers without experts are empty.
pub type Uses = Vec<Vec<u32>>;

/// The file of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UseFile {
    /// Where it is saved.
    path: PathBuf,
    /// The model's directory, where others may have left theirs.
    model: PathBuf,
    fingerprint: String,
}

/// What the file holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format: String,
    model: String,
    layers: Uses,
}

impl UseFile {
    /// The file of the model in a directory: there, or in the user's state directory if that is
    /// read-only; none if neither can be had.
    ///
    /// # Errors
    /// When the model's own files can't be looked at.
    pub fn of_model(model: &Path) -> io::Result<Option<UseFile>> {
        UseFile::of_model_in(model, users_state_directory())
    }

    /// As [`UseFile::of_model`], with the state directory named.
    ///
    /// # Errors
    /// As there.
    pub fn of_model_in(model: &Path, state: Option<PathBuf>) -> io::Result<Option<UseFile>> {
        let fingerprint = fingerprint(model)?;
        let in_state = |state: PathBuf| state.join(format!("uses-{fingerprint}.json"));
        // A model in one file may have others beside it: its uses are called after it.
        let (directory, name) = match (model.is_file(), model.parent(), model.file_name()) {
            (true, Some(parent), Some(name)) => {
                (parent, format!(".{}{FILE_NAME}", name.to_string_lossy()))
            }
            _ => (model, FILE_NAME.to_owned()),
        };
        // A plain name has the empty path as its parent.
        let here = Path::new(".");
        let directory = if directory.as_os_str().is_empty() { here } else { directory };
        let path = match is_writable(directory) {
            true => Some(directory.join(name)),
            false => state.map(in_state),
        };
        let model = model.to_path_buf();
        Ok(path.map(|path| UseFile { path, model, fingerprint }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was learned, for a model whose layers have so many experts; no uses if there is no file. The second
    /// value says why a file was passed over.
    pub fn load(&self, experts: &[usize]) -> (Uses, Option<String>) {
        let nothing = || experts.iter().map(|&experts| vec![0; experts]).collect();
        match self.read(experts) {
            Ok(Some(uses)) => (uses, None),
            Ok(None) => (self.imported(experts).unwrap_or_else(nothing), None),
            Err(fault) => {
                let path = self.path.display();
                let warning =
                    format!("{path} is passed over ({fault}); what is used is learned anew");
                (nothing(), Some(warning))
            }
        }
    }

    fn read(&self, experts: &[usize]) -> Result<Option<Uses>, String> {
        let Some(bytes) = read_bounded(&self.path).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let content: Content = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if content.format != FORMAT {
            return Err(format!("its format is {:?}, not {FORMAT:?}", content.format));
        }
        if content.model != self.fingerprint {
            return Err("it belongs to another model".to_owned());
        }
        match content.layers.iter().map(Vec::len).eq(experts.iter().copied()) {
            true => Ok(Some(content.layers)),
            false => Err("its layers aren't the model's".to_owned()),
        }
    }

    /// What colibri learned of the same container, if it left a file there that fits.
    fn imported(&self, experts: &[usize]) -> Option<Uses> {
        let bytes = read_bounded(&self.model.join(COLIBRI_FILE_NAME)).ok()??;
        colibri::parse(std::str::from_utf8(&bytes).ok()?, experts)
    }

    /// Replaces the file; uses fade as they grow.
    ///
    /// # Errors
    /// When it can't be written; the old one is still there then.
    pub fn save(&self, mut uses: Uses) -> io::Result<()> {
        uses.iter_mut().for_each(|layer| fade(layer));
        self.remove_leftovers();
        let beside = self.write_beside(uses)?;
        std::fs::rename(&beside, &self.path).inspect_err(|_| {
            let _ = std::fs::remove_file(&beside);
        })?;
        // The rename itself; some file systems can't, and a lost one loses one answer's counts.
        let _ = File::open(self.directory()).and_then(|directory| directory.sync_all());
        Ok(())
    }

    /// Removes what processes that have ended in mid-save left beside the file.
    fn remove_leftovers(&self) {
        let stem = self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let Ok(entries) = std::fs::read_dir(self.directory()) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| {
                let rest = name.strip_prefix(stem)?.strip_prefix('.')?;
                rest.strip_suffix(".tmp")?.parse::<u32>().ok()
            });
            let ended = |process| !Path::new("/proc").join(format!("{process}")).exists();
            if process.is_some_and(ended) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Writes the new content next to the file, all of it on the drive.
    fn write_beside(&self, layers: Uses) -> io::Result<PathBuf> {
        std::fs::create_dir_all(self.directory())?;
        let beside = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let content =
            Content { format: FORMAT.to_owned(), model: self.fingerprint.clone(), layers };
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside)?;
        file.write_all(&serde_json::to_vec(&content)?)?;
        file.sync_all()?;
        Ok(beside)
    }

    fn directory(&self) -> &Path {
        self.path.parent().expect("a file in a directory")
    }
}

/// Halves a layer's uses until none is above the bound.
fn fade(layer: &mut [u32]) {
    while layer.iter().any(|&uses| uses > USES_MAX) {
        layer.iter_mut().for_each(|uses| *uses /= 2);
    }
}

/// The file's bytes; none if there is no file.
fn read_bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A pipe is told by its kind: opening it would wait for a writer.
    let file = match std::fs::metadata(path).and_then(|found| match found.is_file() {
        true => File::open(path),
        false => Err(io::Error::other("it is no file of this kind")),
    }) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() || file.metadata()?.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("it is no file of this kind"));
    }
    let mut bytes = vec![];
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// True when a file can be made in a directory.
fn is_writable(directory: &Path) -> bool {
    let trial = directory.join(format!(".millstream-trial-{}.tmp", std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).open(&trial).is_ok();
    made && std::fs::remove_file(&trial).is_ok()
}

/// The path of a file that is kept for the user from session to session; none where there is no place.
pub fn state_file(name: &str) -> Option<PathBuf> {
    users_state_directory().map(|directory| directory.join(name))
}

fn users_state_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    state_directory(variable("XDG_STATE_HOME"), variable("HOME"))
}

/// `$XDG_STATE_HOME/millstream` or `~/.local/state/millstream`; relative paths don't count.
fn state_directory(state: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
    let state = absolute(state).or_else(|| absolute(home).map(|home| home.join(".local/state")));
    state.map(|state| state.join("millstream"))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
