//! The small files that a snapshot has beside its weights, made from a GGUF file's metadata.
//!
//! Everything else in the program asks for `config.json`, `tokenizer.json` and so on by name; for
//! a GGUF file the answer is written here, so that families, tokenizer, template and packs see the
//! same thing whatever form the model came in.

use super::config::config_json;
use super::fault::GgufFault;
use super::parse::GgufHeader;
use super::tokenizer::{Vocabulary, tokenizer_json};
use super::value::{Metadata, Value};
use serde_json::{Map, json};

type Result<T> = std::result::Result<T, GgufFault>;

/// Names of the files that can be made.
pub const COMPANIONS: [&str; 4] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

/// A small file by its name; none if this model would have no such file.
///
/// # Errors
/// When the metadata doesn't hold what the file is made from.
pub fn companion(header: &GgufHeader, name: &str) -> Result<Option<Vec<u8>>> {
    let metadata = &header.metadata;
    match name {
        "config.json" => config_json(header).map(Some),
        "generation_config.json" => generation_json(metadata),
        "tokenizer.json" => tokenizer_json(metadata),
        "tokenizer_config.json" => tokenizer_config_json(metadata),
        _ => Ok(None),
    }
}

/// Ids of the tokens that end an answer: the file's own end tokens, and those of chats that older
/// files have in their vocabulary but don't name.
pub(super) fn end_tokens(metadata: &Metadata) -> Result<Vec<u64>> {
    let mut ids = vec![];
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ids.extend(metadata.count(&format!("tokenizer.ggml.{key}"))?);
    }
    if metadata.get("tokenizer.ggml.eot_token_id").is_none()
        && metadata.get("tokenizer.ggml.tokens").is_some()
    {
        let vocabulary = Vocabulary::read(metadata)?;
        let chats = ["<|im_end|>", "<|eot_id|>"];
        ids.extend(chats.iter().filter_map(|token| vocabulary.control(token)).map(u64::from));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// How the makers advise to sample, if the file says so.
fn generation_json(metadata: &Metadata) -> Result<Option<Vec<u8>>> {
    let mut fields = Map::new();
    for (key, field) in
        [("general.sampling.temp", "temperature"), ("general.sampling.top_p", "top_p")]
    {
        match metadata.get(key) {
            Some(Value::Number(number)) => fields.insert(field.to_owned(), json!(number)),
            Some(Value::Whole(whole)) => fields.insert(field.to_owned(), json!(*whole as f64)),
            Some(other) => return Err(super::value::wrong(key, other, "a number")),
            None => None,
        };
    }
    if fields.is_empty() {
        return Ok(None);
    }
    fields.insert("do_sample".to_owned(), json!(true));
    Ok(Some(json!(fields).to_string().into_bytes()))
}

/// The template of chats, and the spelling of the tokens that it uses.
fn tokenizer_config_json(metadata: &Metadata) -> Result<Option<Vec<u8>>> {
    let mut fields = Map::new();
    if let Some(template) = metadata.text("tokenizer.chat_template")? {
        fields.insert("chat_template".to_owned(), json!(template));
    }
    if let Some(tokens) = metadata.texts("tokenizer.ggml.tokens")? {
        let specials = [
            ("bos_token_id", "bos_token"),
            ("eos_token_id", "eos_token"),
            ("unknown_token_id", "unk_token"),
            ("padding_token_id", "pad_token"),
        ];
        for (key, field) in specials {
            let Some(id) = metadata.count(&format!("tokenizer.ggml.{key}"))? else { continue };
            if let Some(token) = usize::try_from(id).ok().and_then(|id| tokens.get(id)) {
                fields.insert(field.to_owned(), json!(token));
            }
        }
    }
    Ok((!fields.is_empty()).then(|| json!(fields).to_string().into_bytes()))
}
