//! Reads a model's text files within bounds, and says what is wrong with them.
//!
//! The files come from strangers: none is read beyond its bound, and every complaint names the
//! file and the remedy.

use crate::checkpoint::gguf::files::GgufFiles;
use crate::checkpoint::{OpenError, model_dirs};
use serde_json::Value;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Longest JSON file of settings that is read. `tokenizer_config.json` lists every added token.
pub(super) const SETTINGS_BYTES_MAX: u64 = 16 << 20;

/// What is wrong with a model's text files, or with a text that they can't take.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file is there and can't be read.
    #[error("{file}: {source}; check the file and its permissions")]
    Read {
        /// The file.
        file: String,
        /// The system's complaint.
        source: std::io::Error,
    },
    /// The file is longer than any good one.
    #[error("{file}: longer than {bytes_max} bytes; it can't be the file that this name says")]
    TooLong {
        /// The file.
        file: String,
        /// What is allowed.
        bytes_max: u64,
    },
    /// The model is a GGUF file that doesn't hold what it should.
    #[error("{reason}")]
    Gguf {
        /// The file.
        file: String,
        /// The reader's complaint.
        reason: Box<OpenError>,
    },
    /// The file's content is no good.
    #[error("{file}: {reason}; download it again or use another copy of the model")]
    Content {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer makes ids that the model doesn't have.
    #[error(
        "{file}: its ids go up to {largest} and the model's vocabulary has {vocabulary} tokens; \
         it belongs to another model: copy the tokenizer.json that came with these weights"
    )]
    Vocabulary {
        /// The file.
        file: String,
        /// Largest id of the tokenizer.
        largest: u32,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// A text or a list of ids that the tokenizer refuses.
    #[error("{file}: the tokenizer refused its input: {reason}")]
    Refused {
        /// The file.
        file: String,
        /// The tokenizer's complaint.
        reason: String,
    },
    /// The chat template refused the conversation or went beyond its bounds.
    #[error("{file}: the chat template failed: {reason}; give the prompt as it is with --raw")]
    Template {
        /// The file.
        file: String,
        /// The template's complaint, with its line.
        reason: String,
    },
}

/// The file's bytes; none if there is no such file. Of a model in GGUF they are made from its
/// metadata, where that has what the file is for.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, TextError> {
    let file = path.display().to_string();
    if let Some(bytes) = from_gguf(path)? {
        return match bytes.len() as u64 > bytes_max {
            true => Err(TextError::TooLong { file, bytes_max }),
            false => Ok(Some(bytes)),
        };
    }
    // Looked at before it is opened: opening a pipe waits for a writer.
    let open = match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            return Err(TextError::Content { file, reason: "not a regular file".to_owned() });
        }
        Ok(_) => File::open(path),
        Err(error) => Err(error),
    };
    let open = match open {
        Ok(open) => open,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(source) => return Err(TextError::Read { file, source }),
    };
    let mut bytes = Vec::new();
    let read = open.take(bytes_max + 1).read_to_end(&mut bytes);
    read.map_err(|source| TextError::Read { file: file.clone(), source })?;
    if bytes.len() as u64 > bytes_max {
        return Err(TextError::TooLong { file, bytes_max });
    }
    Ok(Some(bytes))
}

/// The file as a model in GGUF has it in its metadata.
fn from_gguf(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    let (Some(model), Some(name)) =
        (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(None);
    };
    if !model.exists() {
        return Ok(None);
    }
    let found = GgufFiles::find(model, &model_dirs());
    let made = found.and_then(|files| files.map_or(Ok(None), |files| files.companion(name)));
    made.map_err(|reason| TextError::Gguf {
        file: path.display().to_string(),
        reason: Box::new(reason),
    })
}

/// Whether a file isn't there; below a file (a model in GGUF) there are none.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The file as a JSON object; none if there is no such file.
pub(super) fn read_settings(path: &Path) -> Result<Option<Value>, TextError> {
    let Some(bytes) = read(path, SETTINGS_BYTES_MAX)? else {
        return Ok(None);
    };
    let content = |reason: String| TextError::Content { file: path.display().to_string(), reason };
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|error| content(format!("not JSON ({error})")))?;
    if value.is_object() { Ok(Some(value)) } else { Err(content("no JSON object".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_over_its_bound_is_refused_and_a_missing_one_is_none() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("a.json");
        assert!(read(&path, 4).unwrap().is_none());
        std::fs::write(&path, "12345").unwrap();
        assert!(matches!(read(&path, 4), Err(TextError::TooLong { bytes_max: 4, .. })));
        assert_eq!(read(&path, 5).unwrap().unwrap(), b"12345");
    }

    #[test]
    fn what_is_no_regular_file_is_refused_before_it_is_opened() {
        let error = read(Path::new("/dev/zero"), 4).unwrap_err().to_string();
        assert!(error.contains("/dev/zero") && error.contains("regular file"), "{error}");
    }

    #[test]
    fn settings_that_are_no_object_are_refused_by_name() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("tokenizer_config.json");
        for content in ["[1]", "{", "\u{0}"] {
            std::fs::write(&path, content).unwrap();
            let error = read_settings(&path).unwrap_err().to_string();
            assert!(error.contains("tokenizer_config.json"), "{error}");
        }
    }
}
