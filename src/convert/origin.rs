//! What a source is: its fingerprint, and the small files that go with the weights.

use super::error::ConvertError;
use crate::checkpoint::ModelFiles;
use crate::checkpoint::pack::checksum::hex;
use crate::checkpoint::pack::manifest::Source;
use sha2::{Digest, Sha256};
use std::path::Path;

/// Files that are copied as they are, where the source has them.
const COMPANIONS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// Longest of them.
const COMPANION_BYTES_MAX: u64 = 256 << 20;

/// A small file of the source.
pub struct Companion {
    /// Its name.
    pub name: &'static str,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// Reads the small files.
///
/// # Errors
/// When one can't be read or is too long.
pub fn companions(files: &ModelFiles) -> Result<Vec<Companion>, ConvertError> {
    let mut found = vec![];
    for name in COMPANIONS {
        if let Some(bytes) = files.checkpoint.read_small(name, COMPANION_BYTES_MAX)? {
            found.push(Companion { name, bytes });
        }
    }
    Ok(found)
}

/// What the manifest says of a source. Its fingerprint is SHA-256 over `config.json` and, for each
/// file of weights in order of name, its name, length and header; each part follows its own length
/// as 8 bytes, so that no two lists look alike. The weights themselves aren't read.
///
/// # Errors
/// When a header can't be read.
pub fn source(
    files: &ModelFiles,
    directory: &Path,
    companions: &[Companion],
) -> Result<Source, ConvertError> {
    let checkpoint = &files.checkpoint;
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    let config = companions.iter().find(|companion| companion.name == "config.json");
    add(config.map_or(&[], |companion| &companion.bytes));
    let mut shards: Vec<_> = (0..checkpoint.files().len() as u32)
        .map(millstream_stages::ids::FileId)
        .map(|id| (checkpoint.file_name(id), id))
        .collect();
    shards.sort();
    for (name, id) in shards {
        let file = &checkpoint.files()[id.index()];
        let io = ConvertError::io(checkpoint.file_path(id), "reading the header");
        let header = checkpoint.read_header_bytes(id).map_err(&io)?;
        add(name.as_bytes());
        add(&file.metadata().map_err(&io)?.len().to_le_bytes());
        add(&header);
    }
    let name = std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf());
    let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let kind = match (checkpoint.is_gguf(), checkpoint.is_container()) {
        (true, _) => "gguf",
        (_, true) => "colibri",
        _ => "safetensors",
    };
    Ok(Source { kind: kind.to_owned(), name, fingerprint: hex(&hash.finalize()) })
}
