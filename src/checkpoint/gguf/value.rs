//! The metadata of a GGUF file: keys, and values of a few kinds.
//!
//! The parser makes them; `config.rs` and `tokenizer.rs` read them, each value through a getter
//! that checks its kind and names the key.

use super::fault::GgufFault;
use std::collections::BTreeMap;
use std::fmt;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(i128),
    /// A number.
    Number(f64),
    /// A switch.
    Switch(bool),
    /// A text.
    Text(String),
    /// A list.
    List(List),
}

/// A list of values of one kind.
#[derive(Clone, Debug, PartialEq)]
pub enum List {
    /// Of whole numbers.
    Whole(Vec<i64>),
    /// Of numbers.
    Numbers(Vec<f32>),
    /// Of switches.
    Switches(Vec<bool>),
    /// Of texts.
    Texts(Vec<String>),
}

/// What a value is, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(&'static str);

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Value {
    fn kind(&self) -> Kind {
        Kind(match self {
            Value::Whole(_) => "a whole number",
            Value::Number(_) => "a number",
            Value::Switch(_) => "a switch",
            Value::Text(_) => "a text",
            Value::List(List::Whole(_)) => "a list of whole numbers",
            Value::List(List::Numbers(_)) => "a list of numbers",
            Value::List(List::Switches(_)) => "a list of switches",
            Value::List(List::Texts(_)) => "a list of texts",
        })
    }
}

type Result<T> = std::result::Result<T, GgufFault>;

/// All keys with their values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    /// By key.
    pub values: BTreeMap<String, Value>,
}

impl Metadata {
    /// The value of a key, if it is there.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A whole number from 0, if the key is there.
    ///
    /// # Errors
    /// When it is of another kind or negative.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Whole(whole)) => u64::try_from(*whole).map(Some).map_err(|_| {
                let (found, wanted) = (whole.to_string(), "a whole number from 0".to_owned());
                GgufFault::Value { key: key.to_owned(), found, wanted }
            }),
            Some(other) => Err(wrong(key, other, "a whole number")),
        }
    }

    /// A text, if the key is there.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(key, other, "a text")),
        }
    }

    /// A switch, if the key is there.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn switch(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Switch(switch)) => Ok(Some(*switch)),
            Some(other) => Err(wrong(key, other, "a switch")),
        }
    }

    /// A list of texts, if the key is there.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(List::Texts(texts))) => Ok(Some(texts)),
            Some(other) => Err(wrong(key, other, "a list of texts")),
        }
    }

    /// A list of whole numbers, if the key is there.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn wholes(&self, key: &str) -> Result<Option<&[i64]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(List::Whole(wholes))) => Ok(Some(wholes)),
            Some(other) => Err(wrong(key, other, "a list of whole numbers")),
        }
    }

    /// A list of numbers, if the key is there.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn numbers(&self, key: &str) -> Result<Option<&[f32]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(List::Numbers(numbers))) => Ok(Some(numbers)),
            Some(other) => Err(wrong(key, other, "a list of numbers")),
        }
    }
}

/// The complaint that a value is of another kind.
pub(super) fn wrong(key: &str, found: &Value, wanted: &'static str) -> GgufFault {
    GgufFault::Kind { key: key.to_owned(), found: found.kind(), wanted }
}
