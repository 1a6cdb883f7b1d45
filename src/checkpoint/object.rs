//! A JSON object read entry by entry, for tables whose every name matters.
//!
//! serde's maps keep the last of two equal names and its errors are plain text. Here a consumer
//! sees each entry as it is parsed, can refuse it with a typed error of its own (kept by the
//! consumer; the parse just stops), and nothing is stored on its behalf. Used for the header of
//! a safetensors file and for the index over several files.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Takes the entries of an object, one after the other.
pub(super) trait Entries<'de> {
    /// Takes the entry `name`; must read exactly one value from `map`.
    ///
    /// # Errors
    /// The parser's, or [`stop`] after noting down why.
    fn entry<A: MapAccess<'de>>(
        &mut self,
        name: Cow<'de, str>,
        map: &mut A,
    ) -> Result<(), A::Error>;
}

/// The error by which a consumer ends the parse after it has noted down the reason.
pub(super) fn stop<E: Error>() -> E {
    E::custom("stopped")
}

/// Parses `text`, which must be one object and nothing after it but white space.
///
/// # Errors
/// The parser's.
pub(super) fn read<'de>(
    text: &'de [u8],
    entries: &mut impl Entries<'de>,
) -> Result<(), serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    Object(entries).deserialize(&mut parser)?;
    parser.end()
}

/// An object as a value to be read with [`MapAccess::next_value_seed`].
pub(super) struct Object<'a, T>(pub(super) &'a mut T);

impl<'de, T: Entries<'de>> DeserializeSeed<'de> for Object<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Entries<'de>> Visitor<'de> for Object<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(Text)? {
            self.0.entry(name, &mut map)?;
        }
        Ok(())
    }
}

/// A text, borrowed from the input where it has no escapes.
pub(super) struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_string()))
    }
}
