//! `model.safetensors.index.json`: which of several files holds which tensor.
//!
//! Read as text from a stranger: a file name must be a plain name beside the index, a tensor may
//! be listed once, and every bound is checked before anything is allocated for it. Bytes flow in,
//! a [`ShardIndex`] flows out; whether the files and tensors exist is checked by
//! `directory.rs`.

use super::header::HEADER_LIMITS;
use super::object::{self, Entries, Object, Text};
use crate::families::shorten;
use serde::de::{IgnoredAny, MapAccess};
use std::borrow::Cow;
use std::collections::HashMap;

/// Longest index that is read; GLM-5.2's has about 10 MB.
pub const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Most files of a model.
pub const SHARDS_MAX: usize = 4096;
/// Most bytes of a file name.
const SHARD_NAME_BYTES_MAX: usize = 255;

/// Which file holds which tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardIndex {
    /// The files, in order of name.
    pub shards: Vec<String>,
    /// For each tensor its place in `shards`.
    pub tensors: HashMap<String, usize>,
}

/// What is wrong with an index.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum IndexFault {
    /// The file is longer than the cap.
    #[error("the index has {bytes} bytes, more than {max}; it is damaged")]
    TooLong {
        /// Length of the file.
        bytes: u64,
        /// The cap.
        max: u64,
    },
    /// The text isn't the JSON it should be.
    #[error("not a valid index: {reason}; download the file again")]
    NotJson {
        /// The parser's words.
        reason: String,
    },
    /// An entry that isn't a file name.
    #[error("tensor \"{name}\" has no valid entry: {reason}; the index is damaged")]
    Malformed {
        /// The tensor.
        name: String,
        /// The parser's words.
        reason: String,
    },
    /// No `weight_map`, or an empty one.
    #[error("field \"weight_map\" is missing or empty; download the file again")]
    Empty,
    /// A name that occurs twice.
    #[error("\"{name}\" is listed twice; the index is damaged")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A tensor name that is too long.
    #[error("tensor name \"{name}\" has {bytes} bytes, more than {max}; the index is damaged")]
    NameTooLong {
        /// Its beginning.
        name: String,
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A file name that could lead out of the directory or to another kind of file.
    #[error(
        "file name \"{shard}\" is not the plain name of a .safetensors file; the index is damaged \
         or hostile"
    )]
    ShardName {
        /// The name.
        shard: String,
    },
    /// More files or tensors than any model has.
    #[error("the index lists more than {max} {what}; it is damaged")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
}

/// Parses an index.
///
/// # Errors
/// When it is too long, malformed, lists a tensor twice, or names a file that isn't plain.
pub fn parse_index(text: &[u8]) -> Result<ShardIndex, IndexFault> {
    let bytes = text.len() as u64;
    if bytes > INDEX_BYTES_MAX {
        return Err(IndexFault::TooLong { bytes, max: INDEX_BYTES_MAX });
    }
    let mut root = Root::default();
    let parsed = object::read(text, &mut root);
    if let Some(fault) = root.map.fault.or(root.fault) {
        return Err(fault);
    }
    parsed.map_err(|e| IndexFault::NotJson { reason: shorten(&e.to_string()) })?;
    if root.map.index.tensors.is_empty() {
        return Err(IndexFault::Empty);
    }
    Ok(sorted(root.map.index))
}

/// Puts the files in order of name, so that ids don't depend on the order of the index.
fn sorted(index: ShardIndex) -> ShardIndex {
    let mut order: Vec<usize> = (0..index.shards.len()).collect();
    order.sort_by(|&a, &b| index.shards[a].cmp(&index.shards[b]));
    let mut place = vec![0; order.len()];
    for (new, &old) in order.iter().enumerate() {
        place[old] = new;
    }
    let tensors = index.tensors.into_iter().map(|(name, shard)| (name, place[shard])).collect();
    ShardIndex { shards: order.into_iter().map(|old| index.shards[old].clone()).collect(), tensors }
}

/// The top level while it is parsed.
#[derive(Default)]
struct Root {
    map: WeightMap,
    seen: bool,
    fault: Option<IndexFault>,
}

impl<'de> Entries<'de> for Root {
    fn entry<A: MapAccess<'de>>(
        &mut self,
        name: Cow<'de, str>,
        map: &mut A,
    ) -> Result<(), A::Error> {
        if name != "weight_map" {
            return map.next_value::<IgnoredAny>().map(|_| ());
        }
        if std::mem::replace(&mut self.seen, true) {
            self.fault = Some(IndexFault::Duplicate { name: name.into_owned() });
            return Err(object::stop());
        }
        map.next_value_seed(Object(&mut self.map))
    }
}

/// The `weight_map` while it is parsed.
#[derive(Default)]
struct WeightMap {
    index: ShardIndex,
    shard_ids: HashMap<String, usize>,
    fault: Option<IndexFault>,
}

impl<'de> Entries<'de> for WeightMap {
    fn entry<A: MapAccess<'de>>(
        &mut self,
        name: Cow<'de, str>,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let shard = map.next_value_seed(Text).inspect_err(|e| {
            let (name, reason) = (shorten(&name), shorten(&e.to_string()));
            self.fault = Some(IndexFault::Malformed { name, reason });
        })?;
        self.insert(&name, &shard).map_err(|fault| {
            self.fault = Some(fault);
            object::stop()
        })
    }
}

impl WeightMap {
    fn insert(&mut self, name: &str, shard: &str) -> Result<(), IndexFault> {
        let (bytes, max) = (name.len(), HEADER_LIMITS.name_bytes_max);
        if bytes > max {
            return Err(IndexFault::NameTooLong { name: shorten(name), bytes, max });
        }
        let max = HEADER_LIMITS.tensors_max;
        if self.index.tensors.len() >= max {
            return Err(IndexFault::TooMany { what: "tensors", max });
        }
        let id = self.shard_id(shard)?;
        match self.index.tensors.insert(name.to_string(), id) {
            Some(_) => Err(IndexFault::Duplicate { name: name.to_string() }),
            None => Ok(()),
        }
    }

    fn shard_id(&mut self, shard: &str) -> Result<usize, IndexFault> {
        if let Some(&id) = self.shard_ids.get(shard) {
            return Ok(id);
        }
        if !is_plain_name(shard) {
            return Err(IndexFault::ShardName { shard: shorten(shard) });
        }
        let id = self.index.shards.len();
        if id >= SHARDS_MAX {
            return Err(IndexFault::TooMany { what: "files", max: SHARDS_MAX });
        }
        self.index.shards.push(shard.to_string());
        self.shard_ids.insert(shard.to_string(), id);
        Ok(id)
    }
}

/// Whether a name stays in its directory and is a safetensors file's.
fn is_plain_name(name: &str) -> bool {
    name.len() <= SHARD_NAME_BYTES_MAX
        && name.ends_with(".safetensors")
        && !name.starts_with('.')
        && !name.contains(['/', '\\', '\0', ':'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_numbered_by_name() {
        let text = br#"{"weight_map":{"x":"b.safetensors","y":"a.safetensors"}}"#;
        let index = parse_index(text).expect("valid");
        assert_eq!(index.shards, ["a.safetensors", "b.safetensors"]);
        assert_eq!((index.tensors["x"], index.tensors["y"]), (1, 0));
    }

    #[test]
    fn shard_outside_the_directory_is_refused() {
        for shard in [
            "../a.safetensors",
            "/a.safetensors",
            "d/a.safetensors",
            ".safetensors",
            "a.bin",
            "..",
            "a\\\\b.safetensors",
        ] {
            let text = format!(r#"{{"weight_map":{{"x":"{shard}"}}}}"#);
            let fault = parse_index(text.as_bytes()).unwrap_err();
            assert!(matches!(fault, IndexFault::ShardName { .. }), "{shard}: {fault}");
        }
    }

    #[test]
    fn tensor_that_is_listed_twice_is_refused() {
        let text = br#"{"weight_map":{"x":"a.safetensors","x":"a.safetensors"}}"#;
        assert_eq!(parse_index(text), Err(IndexFault::Duplicate { name: "x".into() }));
    }

    #[test]
    fn index_without_tensors_is_refused() {
        assert_eq!(parse_index(b"{}"), Err(IndexFault::Empty));
        assert_eq!(parse_index(br#"{"weight_map":{}}"#), Err(IndexFault::Empty));
    }
}
