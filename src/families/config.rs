//! The one door through which `config.json` is read.
//!
//! A model's configuration is text from the world: every number, name, switch and list that the
//! families use comes out of a [`ConfigReader`] and so has a type, a range and a message that
//! names file, field, value and remedy. Nothing else in the program looks into that JSON. Bytes
//! flow in (capped by [`CONFIG_BYTES_MAX`]), checked values flow out.

use super::config_fault::{ConfigError, ConfigFault, shorten};
use serde_json::{Map, Value};
use std::fmt;
use std::ops::RangeInclusive;

/// Longest `config.json` that is read. Real ones are a few kilobytes; the cap bounds the memory
/// that the parsed tree can take (about 32 bytes for every two bytes of text).
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Most entries of a list in a configuration.
const LIST_MAX: usize = 4096;

/// Reads fields of a configuration, each with its type and range.
///
/// A field whose value is `null` counts as missing, as in the Python that writes such files.
#[derive(Debug, Clone)]
pub struct ConfigReader {
    file: String,
    section: String,
    fields: Map<String, Value>,
}

type Result<T> = std::result::Result<T, ConfigError>;

impl ConfigReader {
    /// Parses a configuration. `file` is its name in messages.
    ///
    /// # Errors
    /// When the text is too long, no JSON object, nested deeper than 127 levels, or has a name
    /// twice at its top level.
    pub fn parse(file: &str, text: &[u8]) -> Result<ConfigReader> {
        let fail = |fault| ConfigError { file: shorten(file), fault };
        let bytes = text.len() as u64;
        if bytes > CONFIG_BYTES_MAX {
            return Err(fail(ConfigFault::TooLong { bytes, max: CONFIG_BYTES_MAX }));
        }
        let mut root = Root::default();
        let mut parser = serde_json::Deserializer::from_slice(text);
        let parsed = serde::de::DeserializeSeed::deserialize(&mut root, &mut parser)
            .and_then(|()| parser.end());
        if let Some(fault) = root.fault {
            return Err(fail(fault));
        }
        match parsed {
            Ok(()) => Ok(ConfigReader {
                file: file.to_string(),
                section: String::new(),
                fields: root.fields,
            }),
            Err(e) => Err(fail(ConfigFault::NotJson { reason: shorten(&e.to_string()) })),
        }
    }

    /// The object under `field` as a configuration of its own, if there is one.
    ///
    /// # Errors
    /// When the field holds something that isn't an object.
    pub fn section(&self, field: &str) -> Result<Option<ConfigReader>> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(ConfigReader {
                file: self.file.clone(),
                section: format!("{}.", self.path(field)),
                fields: fields.clone(),
            })),
            Some(other) => Err(self.unusable(field, other, "an object")),
        }
    }

    /// Takes a field out, as if it had never been there.
    pub fn remove(&mut self, field: &str) {
        self.fields.remove(field);
    }

    /// Whether the field is there and not null.
    pub fn has(&self, field: &str) -> bool {
        self.value(field).is_some()
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// When it is missing, no whole number (64.0 is none), or outside the range.
    pub fn count(&self, field: &str, range: RangeInclusive<usize>) -> Result<usize> {
        self.optional_count(field, range.clone())?
            .ok_or_else(|| self.missing(field, &counts(&range)))
    }

    /// A whole number within `range`, or `default` when the field is missing.
    ///
    /// # Errors
    /// As [`ConfigReader::count`], except when it is missing.
    pub fn count_or(
        &self,
        field: &str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize> {
        Ok(self.optional_count(field, range)?.unwrap_or(default))
    }

    /// A whole number within `range`, if the field is there.
    ///
    /// # Errors
    /// As [`ConfigReader::count`], except when it is missing.
    pub fn optional_count(
        &self,
        field: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        match as_count(value, &range) {
            Some(count) => Ok(Some(count)),
            None => Err(self.unusable(field, value, &counts(&range))),
        }
    }

    /// One whole number or a list of them, each within `range`; an absent field is an empty list.
    ///
    /// # Errors
    /// When an entry is no whole number in the range, or the list is longer than 4096.
    pub fn count_list(&self, field: &str, range: RangeInclusive<usize>) -> Result<Vec<usize>> {
        let Some(value) = self.value(field) else { return Ok(Vec::new()) };
        let entries = match value {
            Value::Array(entries) => entries.as_slice(),
            one => std::slice::from_ref(one),
        };
        if entries.len() > LIST_MAX {
            return Err(self.unusable(field, value, &format!("at most {LIST_MAX} entries")));
        }
        let wanted = || format!("{} or a list of such", counts(&range));
        entries
            .iter()
            .map(|entry| {
                as_count(entry, &range).ok_or_else(|| self.unusable(field, entry, &wanted()))
            })
            .collect()
    }

    /// A number within `range`, rounded to single precision.
    ///
    /// # Errors
    /// When it is missing, no number, or outside the range.
    pub fn number(&self, field: &str, range: RangeInclusive<f64>) -> Result<f32> {
        self.optional_number(field, range.clone())?
            .ok_or_else(|| self.missing(field, &numbers(&range)))
    }

    /// A number within `range`, if the field is there.
    ///
    /// # Errors
    /// As [`ConfigReader::number`], except when it is missing.
    pub fn optional_number(&self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f32>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number as f32)),
            None => Err(self.unusable(field, value, &numbers(&range))),
        }
    }

    /// A switch, or `default` when the field is missing.
    ///
    /// # Errors
    /// When it is neither true nor false.
    pub fn flag_or(&self, field: &str, default: bool) -> Result<bool> {
        match self.value(field) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.unusable(field, other, "true or false")),
        }
    }

    /// A text, if the field is there.
    ///
    /// # Errors
    /// When it is no text.
    pub fn optional_text(&self, field: &str) -> Result<Option<&str>> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.unusable(field, other, "a text")),
        }
    }

    /// A text.
    ///
    /// # Errors
    /// When it is missing or no text.
    pub fn text(&self, field: &str) -> Result<&str> {
        self.optional_text(field)?.ok_or_else(|| self.missing(field, "a text"))
    }

    /// Refuses every value of `field` but the one that this build computes; a missing field
    /// stands for that one.
    ///
    /// # Errors
    /// When the field has another value or is no text.
    pub fn only_text(&self, field: &str, supported: &str) -> Result<()> {
        match self.optional_text(field)? {
            Some(found) if found != supported => {
                Err(self.unsupported(field, &format!("\"{found}\""), &format!("\"{supported}\"")))
            }
            _ => Ok(()),
        }
    }

    /// A list of exactly `len` texts, if the field is there.
    ///
    /// # Errors
    /// When it is no list, has another length, or an entry is no text.
    pub fn text_list(&self, field: &str, len: usize) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let wanted = format!("a list of {len} texts");
        match value {
            Value::Array(entries) if entries.len() == len => entries
                .iter()
                .map(|entry| entry.as_str().ok_or_else(|| self.unusable(field, entry, &wanted)))
                .collect::<Result<Vec<&str>>>()
                .map(Some),
            Value::Array(entries) => Err(self.error(ConfigFault::Unusable {
                field: self.path(field),
                found: format!("a list of {}", entries.len()),
                wanted,
            })),
            other => Err(self.unusable(field, other, &wanted)),
        }
    }

    /// The product of fields that were read before, checked for overflow and against a cap.
    ///
    /// # Errors
    /// When the product overflows or is larger than `max`.
    pub fn product(&self, factors: &[(&str, usize)], max: usize) -> Result<usize> {
        let product = factors.iter().try_fold(1usize, |sum, (_, factor)| sum.checked_mul(*factor));
        match product.filter(|&product| product <= max) {
            Some(product) => Ok(product),
            None => {
                let named: Vec<String> =
                    factors.iter().map(|(name, value)| format!("{name} ({value})")).collect();
                let product = named.join(" x ");
                Err(self.error(ConfigFault::ProductTooLarge { product, max }))
            }
        }
    }

    /// Complains that fields contradict each other, unless `holds`.
    ///
    /// # Errors
    /// When `holds` is false, with the words of `reason`.
    pub fn require(&self, holds: bool, reason: impl FnOnce() -> String) -> Result<()> {
        if holds {
            return Ok(());
        }
        Err(self.error(ConfigFault::Contradiction { reason: reason() }))
    }

    /// The complaint that this build can't compute a value.
    pub fn unsupported(&self, field: &str, found: &str, supported: &str) -> ConfigError {
        self.error(ConfigFault::Unsupported {
            field: self.path(field),
            found: shorten(found),
            supported: supported.to_string(),
        })
    }

    fn value(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn path(&self, field: &str) -> String {
        format!("{}{field}", self.section)
    }

    fn error(&self, fault: ConfigFault) -> ConfigError {
        ConfigError { file: self.file.clone(), fault }
    }

    fn missing(&self, field: &str, wanted: &str) -> ConfigError {
        self.error(ConfigFault::Missing { field: self.path(field), wanted: wanted.to_string() })
    }

    fn unusable(&self, field: &str, found: &Value, wanted: &str) -> ConfigError {
        let found = match found {
            Value::Array(_) => "a list".to_string(),
            Value::Object(_) => "an object".to_string(),
            other => shorten(&other.to_string()),
        };
        self.error(ConfigFault::Unusable {
            field: self.path(field),
            found,
            wanted: wanted.to_string(),
        })
    }
}

fn as_count(value: &Value, range: &RangeInclusive<usize>) -> Option<usize> {
    let count = usize::try_from(value.as_u64()?).ok()?;
    range.contains(&count).then_some(count)
}

fn counts(range: &RangeInclusive<usize>) -> String {
    format!("a whole number from {} to {}", range.start(), range.end())
}

fn numbers(range: &RangeInclusive<f64>) -> String {
    format!("a number from {} to {}", range.start(), range.end())
}

/// The top level of a configuration while it is parsed.
#[derive(Default)]
struct Root {
    fields: Map<String, Value>,
    /// The fault that ended the parse, when it can be told which field is at fault.
    fault: Option<ConfigFault>,
}

impl<'de> serde::de::DeserializeSeed<'de> for &mut Root {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> serde::de::Visitor<'de> for &mut Root {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let field = shorten(&name);
            if self.fields.contains_key(&name) {
                self.fault = Some(ConfigFault::Duplicate { field });
                return Err(serde::de::Error::custom("a name occurs twice"));
            }
            match map.next_value::<Value>() {
                Ok(value) => self.fields.insert(name, value),
                Err(e) => {
                    let reason = shorten(&e.to_string());
                    self.fault = Some(ConfigFault::NoValue { field, reason });
                    return Err(e);
                }
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(text: &str) -> ConfigReader {
        ConfigReader::parse("config.json", text.as_bytes()).expect("valid")
    }

    #[test]
    fn count_refuses_what_is_no_whole_number_in_range() {
        for value in ["0", "-1", "4.0", "\"4\"", "true", "[4]", "9", "18446744073709551616"] {
            let error = reader(&format!("{{\"n\":{value}}}")).count("n", 1..=8).unwrap_err();
            assert!(error.to_string().contains("\"n\""), "{error}");
        }
        assert_eq!(reader("{\"n\":8}").count("n", 1..=8), Ok(8));
    }

    #[test]
    fn null_is_missing() {
        let config = reader("{\"n\":null}");
        assert!(matches!(config.count("n", 1..=8).unwrap_err().fault, ConfigFault::Missing { .. }));
        assert_eq!(config.count_or("n", 3, 1..=8), Ok(3));
    }

    #[test]
    fn name_that_occurs_twice_is_refused() {
        let error = ConfigReader::parse("config.json", b"{\"a\":1,\"a\":2}").unwrap_err();
        assert_eq!(error.fault, ConfigFault::Duplicate { field: "a".into() });
    }

    #[test]
    fn product_that_overflows_is_refused() {
        let config = reader("{}");
        assert!(config.product(&[("a", usize::MAX), ("b", 2)], usize::MAX).is_err());
        assert!(config.product(&[("a", 3), ("b", 3)], 8).is_err());
        assert_eq!(config.product(&[("a", 2), ("b", 4)], 8), Ok(8));
    }

    #[test]
    fn section_is_named_in_messages() {
        let section = reader("{\"rope\":{\"theta\":\"x\"}}").section("rope").unwrap().unwrap();
        let error = section.number("theta", 1.0..=2.0).unwrap_err();
        assert!(error.to_string().contains("rope.theta"), "{error}");
    }
}
