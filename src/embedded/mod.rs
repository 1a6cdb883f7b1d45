//! The small trained model inside the binary, so that every command works on a fresh machine.
//!
//! The files of `models/nano-glm-dsa` are part of the program. [`unpack`] puts them into the user's
//! cache directory once and hands out that directory, which is then opened like any other model.
//! On every start each file is compared byte by byte with the one inside; a damaged or missing one is
//! replaced. A file gets its name by a rename when it is complete, so two processes that unpack at
//! once don't see each other's halves.

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../../models/nano-glm-dsa/", $name)))),*]
    };
}

/// Every file of the model, by name: a pack.
const FILES: [(&str, &[u8]); 13] = files![
    "millstream.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "resident.safetensors",
    "experts-00001.safetensors",
    "experts-00002.safetensors",
    "experts-00003.safetensors",
    "experts-00004.safetensors",
    "experts-00005.safetensors",
    "experts-00006.safetensors",
    "mtp.safetensors"
];

/// The name that the model goes by.
pub const NAME: &str = "nano-glm-dsa";

/// A beginning that the model continues well; it knows books, not conversations.
pub const PROMPT: &str = "It is a truth universally acknowledged, that";

/// Bytes that are compared at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Where the model lies now.
#[derive(Debug)]
pub struct Unpacked {
    /// The model directory.
    pub directory: PathBuf,
    /// Why it isn't in the user's cache directory.
    pub warning: Option<String>,
}

/// There is no place to put the model.
#[derive(Debug, thiserror::Error)]
#[error(
    "the embedded model can't be unpacked ({}); set XDG_CACHE_HOME to a directory that \
     is writable and has {} MB free, or name another model with -m", listed(.0), total_bytes() / 1_000_000 + 1
)]
pub struct UnpackError(Vec<Refusal>);

/// A place that didn't work, and why.
#[derive(Debug)]
struct Refusal {
    place: String,
    reason: io::Error,
}

/// Makes sure that the embedded model lies in a directory, and gives that directory:
/// `nano-glm-dsa-<16 hex digits of its SHA-256>` in `cache_directory`. If that isn't named, in
/// `$XDG_CACHE_HOME/millstream` or `~/.cache/millstream`, or, with a warning, in the system's
/// directory for temporary files.
///
/// # Errors
/// When no place takes it; names each and why.
pub fn unpack(cache_directory: Option<&Path>) -> Result<Unpacked, UnpackError> {
    match cache_directory {
        Some(directory) => unpack_into(&[directory.to_owned()]),
        None => {
            let home = user_cache(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"));
            let places: Vec<PathBuf> = home.into_iter().chain([temporary()]).collect();
            unpack_into(&places)
        }
    }
}

/// The first place that takes the model.
fn unpack_into(places: &[PathBuf]) -> Result<Unpacked, UnpackError> {
    let mut refusals = vec![];
    for place in places {
        let directory = place.join(&*DIRECTORY_NAME);
        match complete(place, &directory) {
            Ok(()) => {
                let warning = (!refusals.is_empty()).then(|| {
                    format!(
                        "the embedded model is in {} because the cache directory can't be used ({}); \
                         set XDG_CACHE_HOME to a writable directory",
                        directory.display(),
                        listed(&refusals)
                    )
                });
                return Ok(Unpacked { directory, warning });
            }
            Err(reason) => refusals.push(Refusal { place: place.display().to_string(), reason }),
        }
    }
    Err(UnpackError(refusals))
}

/// Puts in place what is missing or damaged.
fn complete(place: &Path, directory: &Path) -> io::Result<()> {
    // Readable for the user alone, as a stranger must not be able to swap files after the check.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    if fs::metadata(place)?.uid() != user()? {
        return Err(io::Error::other("it belongs to another user"));
    }
    for (name, bytes) in FILES {
        let path = directory.join(name);
        if !equals(&path, bytes)? {
            replace(&path, bytes)?;
        }
    }
    Ok(())
}

/// Whether the file is there and holds these bytes.
fn equals(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() != bytes.len() as u64 {
        return Ok(false);
    }
    let mut block = vec![0; BLOCK_BYTES.min(bytes.len())];
    for expected in bytes.chunks(BLOCK_BYTES) {
        let block = &mut block[..expected.len()];
        match file.read_exact(block) {
            // Cut short by somebody since its length was asked for.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            outcome => outcome?,
        }
        if block != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes the file under another name and renames it when it is complete.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_extension(format!("{}-{count}.unfinished", std::process::id()));
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    let outcome = write();
    if outcome.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&unfinished);
    }
    outcome
}

/// The user's cache directory by the XDG base directory specification; relative paths don't count.
fn user_cache(
    cache: Option<std::ffi::OsString>,
    home: Option<std::ffi::OsString>,
) -> Option<PathBuf> {
    let absolute = |path: Option<std::ffi::OsString>| {
        path.map(PathBuf::from).filter(|path| path.is_absolute())
    };
    let cache = absolute(cache).or_else(|| absolute(home).map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("millstream"))
}

/// A place of this user's own among the temporary files.
fn temporary() -> PathBuf {
    let user = user().map_or_else(|_| "unknown".to_owned(), |user| user.to_string());
    std::env::temp_dir().join(format!("millstream-{user}"))
}

/// The user that this process runs as.
fn user() -> io::Result<u32> {
    Ok(fs::metadata("/proc/self")?.uid())
}

fn total_bytes() -> usize {
    FILES.iter().map(|(_, bytes)| bytes.len()).sum()
}

fn listed(refusals: &[Refusal]) -> String {
    let line = |refusal: &Refusal| format!("{}: {}", refusal.place, refusal.reason);
    refusals.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Another model gets another directory, so that two versions of the program don't fight.
static DIRECTORY_NAME: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for (name, bytes) in FILES {
        hash.update(name);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    let digits: String = hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{NAME}-{digits}")
});

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn cache() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary directory")
    }

    /// All files of a directory: name, inode (a rewritten file has another), time of change.
    fn state(directory: &Path) -> Vec<(String, u64, SystemTime)> {
        let mut state: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let about = entry.metadata().unwrap();
                let name = entry.file_name().into_string().unwrap();
                (name, about.ino(), about.modified().unwrap())
            })
            .collect();
        state.sort();
        state
    }

    fn assert_complete(directory: &Path) {
        for (name, bytes) in FILES {
            assert!(fs::read(directory.join(name)).unwrap() == bytes, "{name}");
        }
        assert_eq!(state(directory).len(), FILES.len(), "and nothing else");
    }

    #[test]
    fn fresh_cache_gets_the_whole_model_and_a_second_start_writes_nothing() {
        let cache = cache();
        let place = cache.path().join("a/b");
        let first = unpack(Some(&place)).unwrap();
        assert!(first.warning.is_none() && first.directory.starts_with(&place));
        assert_complete(&first.directory);
        let before = state(&first.directory);
        let second = unpack(Some(&place)).unwrap();
        assert_eq!(second.directory, first.directory);
        assert_eq!(state(&first.directory), before);
    }

    #[test]
    fn damaged_short_and_missing_files_are_replaced() {
        let cache = cache();
        let directory = unpack(Some(cache.path())).unwrap().directory;
        let before = state(&directory);
        let weights = directory.join("experts-00003.safetensors");
        let mut bytes = fs::read(&weights).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&weights, &bytes).unwrap();
        fs::write(directory.join("config.json"), "{").unwrap();
        fs::remove_file(directory.join("tokenizer.json")).unwrap();
        assert_eq!(unpack(Some(cache.path())).unwrap().directory, directory);
        assert_complete(&directory);
        let untouched = |state: &[(String, u64, SystemTime)]| {
            state.iter().find(|file| file.0 == "generation_config.json").cloned()
        };
        assert_eq!(untouched(&state(&directory)), untouched(&before));
    }

    #[test]
    fn many_at_once_all_find_a_whole_model() {
        let cache = cache();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let directory = unpack(Some(cache.path())).unwrap().directory;
                    for (name, bytes) in FILES {
                        assert!(fs::read(directory.join(name)).unwrap() == bytes, "{name}");
                    }
                });
            }
        });
        assert_complete(&unpack(Some(cache.path())).unwrap().directory);
    }

    #[test]
    fn unusable_place_leads_to_the_next_with_a_warning_and_none_to_an_error() {
        let cache = cache();
        // A file where a directory should be stops root as well.
        let blocked = cache.path().join("blocked");
        fs::write(&blocked, "").unwrap();
        let fallback = cache.path().join("fallback");
        let unpacked = unpack_into(&[blocked.clone(), fallback.clone()]).unwrap();
        assert!(unpacked.directory.starts_with(&fallback));
        let warning = unpacked.warning.expect("it says so");
        assert!(warning.contains("blocked") && warning.contains("XDG_CACHE_HOME"), "{warning}");
        let error = unpack(Some(&blocked)).unwrap_err().to_string();
        assert!(error.contains("blocked") && error.contains("-m"), "{error}");
    }

    #[test]
    fn cache_directory_is_found_as_xdg_says() {
        let find = |cache: Option<&str>, home: Option<&str>| {
            user_cache(cache.map(Into::into), home.map(Into::into))
        };
        assert_eq!(find(Some("/c"), Some("/h")), Some("/c/millstream".into()));
        assert_eq!(find(None, Some("/h")), Some("/h/.cache/millstream".into()));
        assert_eq!(find(Some("relative"), Some("/h")), Some("/h/.cache/millstream".into()));
        assert_eq!(find(Some(""), None), None);
    }
}
