//! Which tokens end an answer.
//!
//! Models name their end tokens in three files that often disagree: the union counts, as a
//! chat model that runs past its turn is the worse fault.

use super::files::{TextError, read_settings};
use super::tokenizer::Tokenizer;
use serde_json::Value;
use std::path::Path;

/// Most end tokens that a file may list.
const STOP_IDS_MAX: usize = 64;

/// The ids that end an answer, ascending: `eos_token_id` of `config.json` and of
/// `generation_config.json` (one id or a list), and the `eos_token` of `tokenizer_config.json` if
/// it is one token of the tokenizer. Empty if no file names any.
///
/// # Errors
/// When one of the files can't be read or an id is no id.
pub fn stop_ids(directory: &Path, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, TextError> {
    let mut ids = vec![];
    for name in ["config.json", "generation_config.json"] {
        let path = directory.join(name);
        if let Some(settings) = read_settings(&path)? {
            let listed = listed(&settings["eos_token_id"]);
            ids.extend(listed.map_err(|reason| TextError::Content {
                file: path.display().to_string(),
                reason,
            })?);
        }
    }
    if let (Some(tokenizer), Some(settings)) =
        (tokenizer, read_settings(&directory.join("tokenizer_config.json"))?)
    {
        ids.extend(token_text(&settings, "eos_token").and_then(|token| tokenizer.id(token)));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// The text of a special token: a string, or an object with `content`.
pub(super) fn token_text<'a>(settings: &'a Value, field: &str) -> Option<&'a str> {
    let token = &settings[field];
    token.as_str().or_else(|| token["content"].as_str())
}

fn listed(value: &Value) -> Result<Vec<u32>, String> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("eos_token_id has {value}, which is no token id"))
    };
    match value {
        Value::Null => Ok(vec![]),
        Value::Array(list) if list.len() > STOP_IDS_MAX => {
            Err(format!("eos_token_id lists {} ids, more than {STOP_IDS_MAX}", list.len()))
        }
        Value::Array(list) => list.iter().map(id).collect(),
        one => Ok(vec![id(one)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tiny() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/glm-dsa")
    }

    #[test]
    fn stop_ids_are_the_union_of_three_files() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        assert_eq!(stop_ids(directory.path(), None).unwrap(), [0u32; 0]);
        write("config.json", r#"{"eos_token_id": [30, 10, 20]}"#);
        assert_eq!(stop_ids(directory.path(), None).unwrap(), [10, 20, 30]);
        write("generation_config.json", r#"{"eos_token_id": 20}"#);
        assert_eq!(stop_ids(directory.path(), None).unwrap(), [10, 20, 30]);
        fs::copy(tiny().join("tokenizer.json"), directory.path().join("tokenizer.json")).unwrap();
        let tokenizer = Tokenizer::open(directory.path()).unwrap().unwrap();
        let user = tokenizer.id("<|user|>").expect("known");
        write("tokenizer_config.json", r#"{"eos_token": {"content": "<|user|>"}}"#);
        assert_eq!(stop_ids(directory.path(), Some(&tokenizer)).unwrap(), [10, 20, 30, user]);
        write("tokenizer_config.json", r#"{"eos_token": "<|user|>"}"#);
        assert_eq!(stop_ids(directory.path(), Some(&tokenizer)).unwrap(), [10, 20, 30, user]);
        write("config.json", r#"{"eos_token_id": null}"#);
        write("tokenizer_config.json", r#"{"eos_token": "not one token"}"#);
        assert_eq!(stop_ids(directory.path(), Some(&tokenizer)).unwrap(), [20]);
    }

    #[test]
    fn id_that_is_no_id_is_refused_with_its_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for bad in ["-1", "4294967296", "\"2\"", "[1, 2.5]", "{}", "true"] {
            let text = format!("{{\"eos_token_id\": {bad}}}");
            fs::write(directory.path().join("config.json"), text).unwrap();
            let error = stop_ids(directory.path(), None).unwrap_err().to_string();
            assert!(error.contains("config.json") && error.contains("eos_token_id"), "{error}");
        }
    }
}
