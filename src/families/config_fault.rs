//! What can be wrong with a configuration, in words that name file, field, value and remedy.

/// Most characters of a value from the world that a message repeats.
const SHOWN_MAX: usize = 60;

/// A complaint about a configuration: where, and what.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{file}: {fault}")]
pub struct ConfigError {
    /// The file, as the user knows it.
    pub file: String,
    /// What is wrong with it.
    pub fault: ConfigFault,
}

/// What is wrong with a configuration. `field` is the path of the field, sections joined by dots.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigFault {
    /// The file is longer than the cap.
    #[error("the file has {bytes} bytes, more than {max}: this is no model configuration")]
    TooLong {
        /// Length of the file.
        bytes: u64,
        /// The cap.
        max: u64,
    },
    /// The text isn't a JSON object.
    #[error("not valid JSON: {reason}; download the file again")]
    NotJson {
        /// The parser's words.
        reason: String,
    },
    /// A field has no value that JSON knows, such as NaN, 1e999 or a bomb of brackets.
    #[error("field \"{field}\" has no valid value: {reason}; the file is damaged or made by hand")]
    NoValue {
        /// The field.
        field: String,
        /// The parser's words.
        reason: String,
    },
    /// A name occurs twice.
    #[error("field \"{field}\" occurs twice; keep one of them")]
    Duplicate {
        /// The name.
        field: String,
    },
    /// A needed field is absent or null.
    #[error("field \"{field}\" is missing; expected {wanted}")]
    Missing {
        /// The field.
        field: String,
        /// What would be right.
        wanted: String,
    },
    /// A field has a value of another type or outside its range.
    #[error("field \"{field}\" is {found}; expected {wanted}; the file is damaged or made by hand")]
    Unusable {
        /// The field.
        field: String,
        /// Its value, shortened.
        found: String,
        /// What would be right.
        wanted: String,
    },
    /// A value that is legal but that this build can't compute.
    #[error(
        "field \"{field}\" is {found}, which this build doesn't support; it supports {supported}"
    )]
    Unsupported {
        /// The field.
        field: String,
        /// Its value, shortened.
        found: String,
        /// What is supported.
        supported: String,
    },
    /// Fields that are right one by one and contradict each other.
    #[error("{reason}; the file doesn't belong to a working model")]
    Contradiction {
        /// Which fields, with their values.
        reason: String,
    },
    /// A product of fields is larger than any model has.
    #[error("{product} is more than {max}; the file is damaged")]
    ProductTooLarge {
        /// The fields and their values.
        product: String,
        /// The cap.
        max: usize,
    },
}

/// The first characters of a text from the world, fit for a message.
pub fn shorten(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_MAX).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}
