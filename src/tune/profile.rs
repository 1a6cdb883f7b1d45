//! The file that keeps what tuning found, for one model on one machine with one version of the program.
//!
//! It lies in the user's configuration directory and is replaced as a whole. A file that is damaged, or
//! belongs to something else, is passed over with a word; nothing depends on it.

use super::settings::Settings;
use crate::engine::Options;
use crate::learn::fingerprint;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What the file says that it is.
const FORMAT: &str = "millstream tuned 1";
/// A larger file isn't ours.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What the file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    format: String,
    /// Version of the program that it was found with.
    version: String,
    /// Fingerprint of the machine.
    machine: String,
    /// Fingerprint of the model.
    model: String,
    /// What to run with.
    pub settings: Settings,
    /// The last check against the default was made and passed.
    pub checked: bool,
    /// How much faster than the default it was in that check: 0.1 is 10 % more tokens a second.
    pub gain: Option<f64>,
}

/// Why there is no profile, or none can be kept.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No place for it.
    #[error("there is no configuration directory; set XDG_CONFIG_HOME or HOME")]
    NoPlace,
    /// The model's files can't be looked at.
    #[error("the model's fingerprint can't be made: {0}")]
    Fingerprint(io::Error),
    /// The file can't be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It isn't a profile, or another one's.
    #[error("{} is passed over: {reason}; `millstream tune` makes a new one", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Where the profile of a model on a machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileFile {
    path: PathBuf,
    machine: String,
    model: String,
}

impl ProfileFile {
    /// In the user's configuration directory; `machine` is the machine's fingerprint.
    ///
    /// # Errors
    /// When there is no such directory, or the model's files can't be looked at.
    pub fn of(model: &Path, machine: &str) -> Result<ProfileFile, ProfileError> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let place = config_directory(variable("XDG_CONFIG_HOME"), variable("HOME"));
        ProfileFile::of_in(model, machine, &place.ok_or(ProfileError::NoPlace)?)
    }

    /// Whether there may be a profile of this model, on whatever machine: a cheap look.
    pub fn may_exist(model: &Path) -> bool {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let place = config_directory(variable("XDG_CONFIG_HOME"), variable("HOME"));
        let (Some(place), Ok(model)) = (place, fingerprint(model)) else { return false };
        let start = format!("tuned-{model}-");
        let mine = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with(&start))
        };
        fs::read_dir(place).is_ok_and(|mut entries| entries.any(mine))
    }

    /// As [`ProfileFile::of`], with the directory named.
    ///
    /// # Errors
    /// When the model's files can't be looked at.
    pub fn of_in(model: &Path, machine: &str, place: &Path) -> Result<ProfileFile, ProfileError> {
        let model = fingerprint(model).map_err(ProfileError::Fingerprint)?;
        let path = place.join(format!("tuned-{model}-{machine}.json"));
        Ok(ProfileFile { path, machine: machine.to_owned(), model })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The profile, if there is one.
    ///
    /// # Errors
    /// When the file can't be read, or belongs to something else.
    pub fn load(&self) -> Result<Option<Profile>, ProfileError> {
        let path = || self.path.clone();
        // A pipe is told by its kind: opening it would wait for a writer.
        let file = match fs::metadata(&self.path).and_then(|found| match found.is_file() {
            true => fs::File::open(&self.path),
            false => Err(io::Error::other("it is no file")),
        }) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ProfileError::File { path: path(), source }),
            Ok(file) => file,
        };
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|source| ProfileError::File { path: path(), source })?;
        let foreign = |reason: String| ProfileError::Foreign { path: path(), reason };
        let profile: Profile =
            serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))?;
        let ours = [
            ("format", &profile.format, FORMAT),
            ("version", &profile.version, env!("CARGO_PKG_VERSION")),
            ("machine", &profile.machine, &self.machine),
            ("model", &profile.model, &self.model),
        ];
        for (what, found, wanted) in ours {
            if found != wanted {
                return Err(foreign(format!("its {what} is {found:?}, not {wanted:?}")));
            }
        }
        let known = profile.settings.apply(&mut Options::default());
        known.map_err(|error| foreign(error.to_string()))?;
        Ok(Some(profile))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// When it can't be written; the old one is still there then.
    pub fn save(&self, settings: &Settings, gain: Option<f64>) -> Result<(), ProfileError> {
        let profile = Profile {
            format: FORMAT.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: self.machine.clone(),
            model: self.model.clone(),
            settings: settings.clone(),
            checked: gain.is_some(),
            gain,
        };
        let failed = |source| ProfileError::File { path: self.path.clone(), source };
        self.replace(&profile).map_err(failed)
    }

    fn replace(&self, profile: &Profile) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let beside = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let mut file = fs::File::create(&beside)?;
        let written = serde_json::to_writer_pretty(&mut file, profile).map_err(io::Error::from);
        let written = written.and_then(|()| file.write_all(b"\n")).and_then(|()| file.sync_all());
        written.and_then(|()| fs::rename(&beside, &self.path)).inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })
    }

    /// Removes the file, if there is one.
    ///
    /// # Errors
    /// When it is there and can't be removed.
    pub fn remove(&self) -> Result<(), ProfileError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ProfileError::File { path: self.path.clone(), source: error })
            }
            _ => Ok(()),
        }
    }
}

/// `$XDG_CONFIG_HOME/millstream` or `~/.config/millstream`; relative paths don't count.
fn config_directory(config: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |path: Option<PathBuf>| path.filter(|path| path.is_absolute());
    let config = absolute(config).or_else(|| absolute(home).map(|home| home.join(".config")));
    config.map(|config| config.join("millstream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> tempfile::TempDir {
        let model = tempfile::tempdir().expect("a directory");
        fs::write(model.path().join("config.json"), "{}").expect("written");
        model
    }

    #[test]
    fn what_is_saved_is_loaded_and_what_is_foreign_is_passed_over() {
        let (model, place) = (model(), tempfile::tempdir().expect("a directory"));
        let file =
            ProfileFile::of_in(model.path(), "m1", &place.path().join("new")).expect("a place");
        assert!(file.load().expect("nothing is no fault").is_none());
        let settings: Settings = "threads=2".parse().expect("a setting");
        file.save(&settings, Some(0.2)).expect("saved");
        let profile = file.load().expect("ours").expect("there");
        assert_eq!(
            (&profile.settings, profile.checked, profile.gain),
            (&settings, true, Some(0.2))
        );
        file.save(&settings, None).expect("replaced");
        assert!(!file.load().expect("ours").expect("there").checked);

        let text = fs::read_to_string(file.path()).expect("text");
        let changed = |from: &str, to: &str| {
            fs::write(file.path(), text.replace(from, to)).expect("written");
            file.load().expect_err("passed over").to_string()
        };
        assert!(changed("\"m1\"", "\"m2\"").contains("its machine is"));
        assert!(changed("tuned 1", "tuned 2").contains("its format is"));
        assert!(changed(env!("CARGO_PKG_VERSION"), "9.9").contains("its version is"));
        assert!(changed("threads", "turbo").contains("no such setting"));
        assert!(changed("\"checked\"", "\"chequed\"").contains("unknown field"));
        assert!(changed("{", "").contains("passed over"));
        file.remove().expect("removed");
        file.remove().expect("nothing to remove is no fault");
    }

    #[test]
    fn configuration_is_where_the_user_has_it() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(config_directory(path("/c"), path("/h")), path("/c/millstream"));
        assert_eq!(config_directory(path("c"), path("/h")), path("/h/.config/millstream"));
        assert_eq!(config_directory(None, None), None);
    }
}
