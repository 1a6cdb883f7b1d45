//! The tokenizer of a GGUF file as a `tokenizer.json`: the same bytes that a snapshot would have.
//!
//! Two kinds are known: byte-level merges (`gpt2`) and SentencePiece's merges by score (`llama`),
//! whose merges are found again from vocabulary and scores. The tokens that control things become
//! added tokens. Metadata flows in, JSON flows out; `src/text` makes a tokenizer of it.

use super::fault::GgufFault;
use super::pretokenizers::{PreTokenizer, known_names, pre_tokenizer};
use super::value::Metadata;
use crate::families::shorten;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The mark that stands for a blank in SentencePiece's vocabularies.
const BLANK: &str = "\u{2581}";
/// Longest token of which merges are sought.
const MERGED_BYTES_MAX: usize = 256;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const READY: &str = "tokenizer.huggingface.json";

/// What a token is for; other types are ordinary.
const TYPE_NORMAL: i64 = 1;
const TYPE_UNKNOWN: i64 = 2;
const TYPE_CONTROL: i64 = 3;
const TYPE_USER: i64 = 4;

type Result<T> = std::result::Result<T, GgufFault>;

/// The `tokenizer.json` of a file; none if it has no vocabulary.
///
/// # Errors
/// When keys are of other kinds than they should be, or the tokenizer is of an unknown kind.
pub fn tokenizer_json(metadata: &Metadata) -> Result<Option<Vec<u8>>> {
    if let Some(ready) = metadata.text(READY)? {
        return Ok(Some(ready.as_bytes().to_vec()));
    }
    let Some(model) = metadata.text(MODEL)? else { return Ok(None) };
    if model == "none" || model == "no_vocab" {
        return Ok(None);
    }
    let vocabulary = Vocabulary::read(metadata)?;
    let json = match model {
        "gpt2" => byte_level(metadata, &vocabulary)?,
        "llama" => sentence_piece(metadata, &vocabulary)?,
        found => {
            let (key, found) = (MODEL.to_owned(), format!("\"{}\"", shorten(found)));
            let wanted = "\"gpt2\" or \"llama\", the tokenizers that this build knows".to_owned();
            return Err(GgufFault::Value { key, found, wanted });
        }
    };
    Ok(Some(json.to_string().into_bytes()))
}

/// The tokens and what they are for.
pub(super) struct Vocabulary {
    /// By id.
    pub tokens: Vec<String>,
    types: Vec<i64>,
    ids: HashMap<String, u32>,
}

impl Vocabulary {
    pub(super) fn read(metadata: &Metadata) -> Result<Vocabulary> {
        let missing = || GgufFault::KeyMissing { key: TOKENS.to_owned() };
        let named = metadata.texts(TOKENS)?.ok_or_else(missing)?;
        // A token without text can't be spelt; it keeps its id.
        let spelt = |(id, token): (usize, &String)| match token.is_empty() {
            true => format!("[EMPTY_{id}]"),
            false => token.clone(),
        };
        let tokens: Vec<String> = named.iter().enumerate().map(spelt).collect();
        let types = match metadata.wholes(TOKEN_TYPE)? {
            Some(types) => same_length(TOKEN_TYPE, types, tokens.len())?.to_vec(),
            None => vec![TYPE_NORMAL; tokens.len()],
        };
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if ids.insert(token.clone(), id as u32).is_some() {
                return Err(GgufFault::Duplicate { what: "token", name: shorten(token) });
            }
        }
        Ok(Vocabulary { tokens, types, ids })
    }

    /// The id of a token that controls things and is spelt so.
    pub(super) fn control(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied().filter(|&id| self.types[id as usize] == TYPE_CONTROL)
    }

    fn vocab(&self) -> Map<String, Value> {
        let entry = |(id, token): (usize, &String)| (token.clone(), json!(id));
        self.tokens.iter().enumerate().map(entry).collect()
    }

    fn added(&self) -> Vec<Value> {
        let of = |id: usize| {
            let special = match self.types[id] {
                TYPE_CONTROL | TYPE_UNKNOWN => true,
                TYPE_USER => false,
                _ => return None,
            };
            Some(json!({
                "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special,
            }))
        };
        (0..self.tokens.len()).filter_map(of).collect()
    }
}

fn same_length<'a, T>(key: &str, list: &'a [T], len: usize) -> Result<&'a [T]> {
    if list.len() == len {
        return Ok(list);
    }
    let found = format!("a list of {}", list.len());
    let wanted = format!("as long as {TOKENS} with its {len}");
    Err(GgufFault::Value { key: key.to_owned(), found, wanted })
}

fn byte_level(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Value> {
    let name = metadata.text(PRE)?.unwrap_or("missing");
    let Some(way) = pre_tokenizer(name) else {
        let (key, found) = (PRE.to_owned(), format!("\"{}\"", shorten(name)));
        return Err(GgufFault::Value { key, found, wanted: format!("one of {}", known_names()) });
    };
    let merges = metadata.texts(MERGES)?;
    let merges = merges.ok_or_else(|| GgufFault::KeyMissing { key: MERGES.to_owned() })?;
    let pairs: Vec<Value> = merges.iter().map(|merge| pair(merge)).collect::<Result<_>>()?;
    let byte_level = |regex: bool| {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
               "use_regex": regex})
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": if way.composed { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": words(way, byte_level)},
        "post_processor": ends(metadata, vocabulary, way.begins)?,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": way.whole_words, "vocab": vocabulary.vocab(), "merges": pairs,
        },
    }))
}

fn words(way: &PreTokenizer, byte_level: impl Fn(bool) -> Value) -> Vec<Value> {
    let split = |regex: &&str| {
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
               "invert": false})
    };
    way.splits.iter().map(split).chain([byte_level(way.like_gpt2)]).collect()
}

/// The two parts of a merge, which a blank divides; the first part has at least one byte.
fn pair(merge: &str) -> Result<Value> {
    let blank = merge.char_indices().skip(1).find(|(_, character)| *character == ' ');
    match blank {
        Some((at, _)) => Ok(json!([merge[..at], merge[at + 1..]])),
        None => Err(GgufFault::Value {
            key: MERGES.to_owned(),
            found: format!("a list with \"{}\"", shorten(merge)),
            wanted: "of two tokens with a blank between".to_owned(),
        }),
    }
}

fn sentence_piece(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Value> {
    let scores = metadata.numbers(SCORES)?;
    let scores = scores.ok_or_else(|| GgufFault::KeyMissing { key: SCORES.to_owned() })?;
    let merges = merges_by_score(vocabulary, same_length(SCORES, scores, vocabulary.tokens.len())?);
    let blank = json!({"type": "Replace", "pattern": {"String": " "}, "content": BLANK});
    let prefix = metadata.switch("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let (normalizers, strip) = match prefix {
        true => (vec![json!({"type": "Prepend", "prepend": BLANK}), blank], 1),
        false => (vec![blank], 0),
    };
    let unknown = metadata.count("tokenizer.ggml.unknown_token_id")?.unwrap_or(0) as usize;
    let unknown = vocabulary.tokens.get(unknown);
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": ends(metadata, vocabulary, true)?,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": strip, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocabulary.vocab(),
            "merges": merges,
        },
    }))
}

/// All pairs of tokens that make a token, the best score first. Of the pairs of one token the one
/// with the longer first part comes first, and so on as SentencePiece's converters have it.
fn merges_by_score(vocabulary: &Vocabulary, scores: &[f32]) -> Vec<Value> {
    let normal = |text: &str| {
        let id = *vocabulary.ids.get(text)?;
        (vocabulary.types[id as usize] == TYPE_NORMAL).then_some(id)
    };
    let mut merges = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        if vocabulary.types[id] != TYPE_NORMAL || token.len() > MERGED_BYTES_MAX {
            continue;
        }
        for (at, _) in token.char_indices().skip(1) {
            let (first, second) = token.split_at(at);
            if let (Some(left), Some(right)) = (normal(first), normal(second)) {
                merges.push((scores[id], first, second, (left, right)));
            }
        }
    }
    let lengths = |first: &str, second: &str| (first.chars().count(), second.chars().count());
    merges.sort_by(|a, b| {
        let by_length = || lengths(b.1, b.2).cmp(&lengths(a.1, a.2));
        b.0.total_cmp(&a.0).then_with(by_length).then_with(|| b.3.cmp(&a.3))
    });
    merges.into_iter().map(|(_, first, second, _)| json!([first, second])).collect()
}

/// What puts tokens before and behind a text.
fn ends(metadata: &Metadata, vocabulary: &Vocabulary, begins: bool) -> Result<Value> {
    let token = |key: &str| -> Result<Option<(u64, &String)>> {
        let Some(id) = metadata.count(key)? else { return Ok(None) };
        let token = usize::try_from(id).ok().and_then(|id| vocabulary.tokens.get(id));
        Ok(token.map(|token| (id, token)))
    };
    let begins = metadata.switch("tokenizer.ggml.add_bos_token")?.unwrap_or(begins);
    let stops = metadata.switch("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    let first = if begins { token("tokenizer.ggml.bos_token_id")? } else { None };
    let last = if stops { token("tokenizer.ggml.eos_token_id")? } else { None };
    let special = |found: Option<(u64, &String)>| {
        found.map(|(_, token)| json!({"SpecialToken": {"id": token, "type_id": 0}}))
    };
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let around = |middle: Vec<Value>| -> Vec<Value> {
        special(first).into_iter().chain(middle).chain(special(last)).collect()
    };
    let tokens = [first, last].into_iter().flatten();
    let tokens: Map<String, Value> = tokens
        .map(|(id, token)| (token.clone(), json!({"id": token, "ids": [id], "tokens": [token]})))
        .collect();
    if tokens.is_empty() {
        return Ok(Value::Null);
    }
    Ok(json!({
        "type": "TemplateProcessing", "single": around(vec![sequence("A")]),
        "pair": around(vec![sequence("A"), sequence("B")]), "special_tokens": tokens,
    }))
}
