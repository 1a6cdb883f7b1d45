//! What a container's metadata calls the formats of its tensors.
//!
//! `__metadata__` of a safetensors file maps names to texts. Under `colibri.fmt` lies a text that
//! is a JSON object of its own: tensor -> stamp. It is read entry by entry, with a bound on each;
//! everything else in the metadata is left alone. Whether a stamp is true is `colibri.rs`'s
//! business.

use super::header::HEADER_LIMITS;
use super::object::{self, Entries, Text};
use crate::families::shorten;
use serde::de::{IgnoredAny, MapAccess};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Tensor -> what it is stamped.
pub type Stamps = BTreeMap<String, String>;

/// Most stamps of a file, and of all files of a model together.
pub const STAMPS_MAX: usize = 4096;
/// Longest stamp in bytes.
const STAMP_BYTES_MAX: usize = 64;
/// The metadata's entry of stamps.
const KEY: &str = "colibri.fmt";

/// What is wrong with the stamps of a file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StampsFault {
    /// The text isn't the JSON it should be.
    #[error("\"{KEY}\" is not a valid object of tensor and format: {reason}; the file is damaged")]
    NotJson {
        /// The parser's words.
        reason: String,
    },
    /// More stamps than a container may have.
    #[error("\"{KEY}\" has more than {max} entries; the file is damaged")]
    TooMany {
        /// The bound.
        max: usize,
    },
    /// A name or stamp that is too long.
    #[error(
        "\"{KEY}\" has an entry \"{entry}\" of {bytes} bytes, more than {max}; the file is damaged"
    )]
    TooLong {
        /// Its beginning.
        entry: String,
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A tensor that is stamped twice.
    #[error("\"{KEY}\" lists \"{tensor}\" twice; the file is damaged")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
}

/// `__metadata__` while it is parsed.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub(super) stamps: Stamps,
    pub(super) fault: Option<StampsFault>,
    seen: bool,
}

impl<'de> Entries<'de> for Metadata {
    fn entry<A: MapAccess<'de>>(
        &mut self,
        name: Cow<'de, str>,
        map: &mut A,
    ) -> Result<(), A::Error> {
        if name != KEY {
            return map.next_value::<IgnoredAny>().map(|_| ());
        }
        if std::mem::replace(&mut self.seen, true) {
            self.fault = Some(StampsFault::Duplicate { tensor: KEY.to_string() });
            return Err(object::stop());
        }
        let text = map.next_value_seed(Text).inspect_err(|e| {
            self.fault = Some(StampsFault::NotJson { reason: shorten(&e.to_string()) });
        })?;
        self.stamps = parse_stamps(text.as_bytes()).map_err(|fault| {
            self.fault = Some(fault);
            object::stop()
        })?;
        Ok(())
    }
}

/// Parses the text under `colibri.fmt`.
///
/// # Errors
/// When it is no object of texts, has too many or too long entries, or a tensor twice.
pub fn parse_stamps(text: &[u8]) -> Result<Stamps, StampsFault> {
    let mut table = Table::default();
    let parsed = object::read(text, &mut table);
    if let Some(fault) = table.fault {
        return Err(fault);
    }
    parsed.map_err(|e| StampsFault::NotJson { reason: shorten(&e.to_string()) })?;
    Ok(table.stamps)
}

/// The stamps while they are parsed.
#[derive(Default)]
struct Table {
    stamps: Stamps,
    fault: Option<StampsFault>,
}

impl<'de> Entries<'de> for Table {
    fn entry<A: MapAccess<'de>>(
        &mut self,
        tensor: Cow<'de, str>,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let stamp = map.next_value_seed(Text)?;
        self.insert(&tensor, &stamp).map_err(|fault| {
            self.fault = Some(fault);
            object::stop()
        })
    }
}

impl Table {
    fn insert(&mut self, tensor: &str, stamp: &str) -> Result<(), StampsFault> {
        for (entry, max) in [(tensor, HEADER_LIMITS.name_bytes_max), (stamp, STAMP_BYTES_MAX)] {
            let bytes = entry.len();
            if bytes > max {
                return Err(StampsFault::TooLong { entry: shorten(entry), bytes, max });
            }
        }
        if self.stamps.len() >= STAMPS_MAX {
            return Err(StampsFault::TooMany { max: STAMPS_MAX });
        }
        match self.stamps.insert(tensor.to_string(), stamp.to_string()) {
            Some(_) => Err(StampsFault::Duplicate { tensor: tensor.to_string() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{HeaderFault, parse_header};
    use super::*;

    /// A header of no tensors whose metadata has this text under `colibri.fmt`.
    fn stamps_of(text: &str) -> Result<Stamps, HeaderFault> {
        let text = serde_json::to_string(text).expect("JSON");
        let json = format!("{{\"__metadata__\":{{\"format\":\"pt\",\"colibri.fmt\":{text}}}}}");
        parse_header(json.as_bytes(), 0).map(|header| header.stamps)
    }

    #[test]
    fn stamps_are_read_out_of_a_text_within_a_text() {
        let stamps = stamps_of(r#"{"a":"int8-row","b":"int4-grouped"}"#).expect("valid");
        assert_eq!(stamps["a"], "int8-row");
        assert_eq!(stamps.len(), 2);
        assert_eq!(stamps_of("{}"), Ok(Stamps::new()));
    }

    #[test]
    fn damaged_stamps_are_refused() {
        let bomb = "{\"a\":".repeat(100_000);
        for text in ["", "7", "[]", "{\"a\":1}", "{\"a\":{\"b\":\"c\"}}", "{\"a\":\"b\"", &bomb] {
            let fault = stamps_of(text).expect_err(text);
            assert!(matches!(fault, HeaderFault::Stamps(StampsFault::NotJson { .. })), "{fault}");
        }
        let fault = stamps_of(r#"{"a":"x","a":"x"}"#).expect_err("twice");
        assert!(fault.to_string().contains("\"a\" twice"), "{fault}");
    }

    #[test]
    fn each_bound_of_stamps_holds() {
        let list = |count: usize| {
            let entries: Vec<String> = (0..count).map(|i| format!("\"t{i}\":\"x\"")).collect();
            format!("{{{}}}", entries.join(","))
        };
        assert_eq!(stamps_of(&list(STAMPS_MAX)).map(|stamps| stamps.len()), Ok(STAMPS_MAX));
        assert!(stamps_of(&list(STAMPS_MAX + 1)).is_err());
        let long = "x".repeat(1_000_000);
        for text in [format!("{{\"{long}\":\"x\"}}"), format!("{{\"x\":\"{long}\"}}")] {
            let message = stamps_of(&text).expect_err("too long").to_string();
            assert!(message.contains("1000000 bytes") && message.len() < 1000, "{message}");
        }
    }
}
