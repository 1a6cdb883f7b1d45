//! Which model a directory holds: its configuration, and the names and sizes of its weight files; of
//! a model in GGUF, its files' names and sizes alone.

use crate::checkpoint::gguf::files::GgufFiles;
use crate::checkpoint::model_dirs;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io;
use std::path::Path;

/// Hexadecimal digits of a fingerprint.
const DIGITS: usize = 32;

/// The model's fingerprint. Weights aren't read: a model whose weights were replaced by others of the
/// same sizes keeps it, which costs a few wrong guesses.
///
/// # Errors
/// When the directory can't be read.
pub fn fingerprint(model: &Path) -> io::Result<String> {
    if let Some(gguf) = GgufFiles::find(model, &model_dirs()).map_err(io::Error::other)? {
        let mut hash = Sha256::new();
        for file in gguf.files {
            let bytes = std::fs::metadata(&file.path)?.len();
            hash.update(format!("\n{} {bytes}", file.name));
        }
        return Ok(digits(hash));
    }
    let mut files = vec![];
    for entry in std::fs::read_dir(model)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") {
            files.push((name, std::fs::metadata(entry.path())?.len()));
        }
    }
    files.sort_unstable();
    let mut hash = Sha256::new();
    hash.update(std::fs::read(model.join("config.json"))?);
    for (name, bytes) in files {
        hash.update(format!("\n{name} {bytes}"));
    }
    Ok(digits(hash))
}

fn digits(hash: Sha256) -> String {
    let mut text = String::new();
    for byte in hash.finalize() {
        write!(text, "{byte:02x}").expect("a String takes everything");
    }
    text.truncate(DIGITS);
    text
}
