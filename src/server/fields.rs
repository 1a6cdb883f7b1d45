//! A JSON object from a caller, read field by field.
//!
//! Every field is asked for by name, with its type and its range; what nobody asked for is refused
//! at the end, because it might change the answer. `null` is as good as left out, as in the public APIs.

use super::errors::Fault;
use serde_json::{Map, Value};

/// An object that is being read.
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Where it is in the request, with a dot at the end; empty for the request itself.
    path: String,
    known: Vec<&'a str>,
}

impl<'a> Fields<'a> {
    /// Begins to read; `path` says where in the request the value is.
    ///
    /// # Errors
    /// When it is no object.
    pub fn of(value: &'a Value, path: &str) -> Result<Fields<'a>, Fault> {
        let Some(object) = value.as_object() else {
            return Err(match path {
                "" => super::errors::Fault::new(
                    super::errors::FaultKind::Invalid,
                    "the body is no JSON object",
                ),
                path => Fault::field(path, "use an object"),
            });
        };
        let path = if path.is_empty() { String::new() } else { format!("{path}.") };
        Ok(Fields { object, path, known: vec![] })
    }

    /// A field's place in the request.
    pub fn place(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A complaint about a field.
    pub fn fault(&self, name: &str, message: impl Into<String>) -> Fault {
        Fault::field(self.place(name), message)
    }

    /// A field of any type.
    pub fn value(&mut self, name: &'a str) -> Option<&'a Value> {
        self.known.push(name);
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// A text.
    ///
    /// # Errors
    /// When it is something else.
    pub fn text(&mut self, name: &'a str) -> Result<Option<&'a str>, Fault> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.fault(name, "use a string"))
    }

    /// True or false.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&mut self, name: &'a str) -> Result<Option<bool>, Fault> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.fault(name, "use true or false"))
    }

    /// A number in a range.
    ///
    /// # Errors
    /// When it is something else or out of its range.
    pub fn number(&mut self, name: &'a str, least: f64, most: f64) -> Result<Option<f32>, Fault> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number as f32)),
            _ => Err(self.fault(name, format!("use a number from {least} to {most}"))),
        }
    }

    /// A whole number in a range.
    ///
    /// # Errors
    /// When it is something else or out of its range.
    pub fn count(&mut self, name: &'a str, least: u64, most: u64) -> Result<Option<u64>, Fault> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(self.fault(name, format!("use a whole number from {least} to {most}"))),
        }
    }

    /// A list with at most so many entries.
    ///
    /// # Errors
    /// When it is something else or too long.
    pub fn list(&mut self, name: &'a str, most: usize) -> Result<Option<&'a [Value]>, Fault> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.as_array() {
            Some(list) if list.len() <= most => Ok(Some(list)),
            _ => Err(self.fault(name, format!("use a list of at most {most}"))),
        }
    }

    /// A seed: any whole number of 64 bits, negative ones too.
    ///
    /// # Errors
    /// When it is something else.
    pub fn seed(&mut self, name: &'a str) -> Result<Option<u64>, Fault> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
        seed.map(Some).ok_or_else(|| self.fault(name, "use a whole number of 64 bits"))
    }

    /// Fields that never change the answer.
    pub fn ignore(&mut self, names: &[&'a str]) {
        self.known.extend_from_slice(names);
    }

    /// Fields that would change the answer and aren't supported: each is refused unless it says what
    /// is done anyway.
    ///
    /// # Errors
    /// When one says something else.
    pub fn only_neutral(&mut self, fields: &[(&'a str, &[Value])]) -> Result<(), Fault> {
        for (name, neutral) in fields {
            match self.value(name) {
                Some(value) if !neutral.iter().any(|neutral| same(neutral, value)) => {
                    return Err(self.fault(name, "this server doesn't support it; leave it out"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends: whatever wasn't asked for is refused.
    ///
    /// # Errors
    /// When there is such a field.
    pub fn finish(self) -> Result<(), Fault> {
        let unknown = |(name, value): &(&String, &Value)| {
            !value.is_null() && !self.known.contains(&name.as_str())
        };
        match self.object.iter().find(unknown) {
            None => Ok(()),
            Some((name, _)) => {
                let name: String = name.chars().take(64).collect();
                Err(self.fault(&name, "this server doesn't know the field; leave it out"))
            }
        }
    }
}

/// Equal, whether a number is written `1` or `1.0`.
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.is_number() && a.as_f64() == b.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_have_their_types_and_ranges() {
        let value = json!({"t": "x", "b": true, "n": 1.5, "c": 3, "l": [1], "s": -1, "z": null});
        let mut fields = Fields::of(&value, "").unwrap();
        assert_eq!(fields.text("t").unwrap(), Some("x"));
        assert_eq!(fields.flag("b").unwrap(), Some(true));
        assert_eq!(fields.number("n", 0.0, 2.0).unwrap(), Some(1.5));
        assert_eq!(fields.count("c", 1, 3).unwrap(), Some(3));
        assert_eq!(fields.list("l", 1).unwrap().unwrap().len(), 1);
        assert_eq!(fields.seed("s").unwrap(), Some(u64::MAX));
        assert_eq!(fields.text("absent").unwrap(), None);
        assert!(fields.finish().is_ok(), "null is as good as left out");
        let mut fields = Fields::of(&value, "a").unwrap();
        assert_eq!(fields.text("n").unwrap_err().field.as_deref(), Some("a.n"));
        assert!(fields.number("n", 0.0, 1.0).is_err());
        assert!(fields.count("n", 0, 9).is_err());
        assert!(fields.list("l", 0).is_err());
        assert!(Fields::of(&json!([1]), "a").is_err());
    }

    #[test]
    fn unknown_fields_are_refused_by_name_and_neutral_ones_pass() {
        let value = json!({"echo": false, "best_of": 1.0, "user": "u", "strange": 1});
        let mut fields = Fields::of(&value, "").unwrap();
        fields.ignore(&["user"]);
        fields.only_neutral(&[("echo", &[json!(false)]), ("best_of", &[json!(1)])]).unwrap();
        assert_eq!(fields.finish().unwrap_err().field.as_deref(), Some("strange"));
        let value = json!({"echo": true});
        let mut fields = Fields::of(&value, "").unwrap();
        let fault = fields.only_neutral(&[("echo", &[json!(false)])]).unwrap_err();
        assert_eq!(fault.field.as_deref(), Some("echo"));
    }
}
