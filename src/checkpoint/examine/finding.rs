//! A finding of an examination: how bad it is, where, what is wrong and what to do about it.
//!
//! [`Findings`] collects them in the order in which they are found, up to a bound, and is what the
//! parts of an examination share. Plain data; it serialises to JSON and leaves printing to the
//! command line.

use serde::Serialize;
use std::fmt;

/// Most findings that are kept; the others are counted.
pub const FINDINGS_MAX: usize = 1 << 16;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The model can't run, or would compute with wrong weights.
    Error,
    /// It runs, worse than it could, or not as the user may think.
    Warning,
    /// Worth knowing.
    Note,
}

/// Where something is wrong; what doesn't apply is absent.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Place {
    /// The file: its name in the model's directory, or its whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// The layer that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<u32>,
    /// The routed expert that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert: Option<u32>,
}

/// Something that was found.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub finding: String,
    /// What to do about it.
    pub remedy: String,
}

/// Findings, as they come.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Findings {
    kept: Vec<Finding>,
    left_out: usize,
    left_out_worst: Option<Severity>,
}

impl Place {
    /// No place: the model as a whole.
    pub const EMPTY: Place = Place { file: None, tensor: None, layer: None, expert: None };

    /// A file as a whole.
    pub fn file(name: impl Into<String>) -> Place {
        Place { file: Some(name.into()), ..Place::default() }
    }

    /// A tensor of a file.
    pub fn tensor(file: impl Into<String>, tensor: impl Into<String>) -> Place {
        Place { tensor: Some(tensor.into()), ..Place::file(file) }
    }

    /// A layer as a whole.
    pub fn layer(layer: u32) -> Place {
        Place { layer: Some(layer), ..Place::default() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.file.iter().cloned().collect();
        parts.extend(self.tensor.iter().cloned());
        // A tensor's name says which layer and expert it belongs to.
        if self.tensor.is_none() {
            parts.extend(self.layer.map(|layer| format!("layer {layer}")));
            parts.extend(self.expert.map(|expert| format!("expert {expert}")));
        }
        f.write_str(&parts.join(": "))
    }
}

impl Finding {
    /// A finding of any severity.
    pub fn new(
        severity: Severity,
        place: Place,
        finding: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { severity, place, finding: finding.into(), remedy: remedy.into() }
    }

    /// An error.
    pub fn error(place: Place, finding: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding::new(Severity::Error, place, finding, remedy)
    }

    /// A warning.
    pub fn warning(place: Place, finding: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding::new(Severity::Warning, place, finding, remedy)
    }

    /// A note.
    pub fn note(place: Place, finding: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding::new(Severity::Note, place, finding, remedy)
    }
}

impl Findings {
    /// Adds one.
    pub fn add(&mut self, finding: Finding) {
        if self.kept.len() < FINDINGS_MAX {
            self.kept.push(finding);
            return;
        }
        self.left_out += 1;
        let worst = self.left_out_worst.get_or_insert(finding.severity);
        *worst = finding.severity.min(*worst);
    }

    /// Adds several.
    pub fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        findings.into_iter().for_each(|finding| self.add(finding));
    }

    /// Whether one of them is an error.
    pub fn has_error(&self) -> bool {
        let kept = self.kept.iter().map(|finding| finding.severity);
        kept.chain(self.left_out_worst).any(|severity| severity == Severity::Error)
    }

    /// All of them, the worst first, each severity in the order in which it was found. Where some
    /// were left out, a last one says how many.
    pub fn into_sorted(mut self) -> Vec<Finding> {
        if let Some(worst) = self.left_out_worst {
            let text = format!("{} more findings are left out here", self.left_out);
            let remedy = "repair what is listed, then look again";
            self.kept.push(Finding::new(worst, Place::default(), text, remedy));
        }
        self.kept.sort_by_key(|finding| finding.severity);
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_come_first_and_what_is_left_out_is_counted() {
        let mut findings = Findings::default();
        findings.add(Finding::note(Place::default(), "a", "b"));
        for index in 0..FINDINGS_MAX as u32 {
            findings.add(Finding::warning(Place::layer(index), "a", "b"));
        }
        assert!(!findings.has_error());
        findings.add(Finding::error(Place::file("f"), "a", "b"));
        assert!(findings.has_error(), "left out, but not forgotten");
        let sorted = findings.into_sorted();
        assert_eq!(sorted.len(), FINDINGS_MAX + 1);
        assert!(sorted[0].severity == Severity::Error && sorted[0].finding.starts_with("2 more"));
        assert_eq!(sorted[FINDINGS_MAX].severity, Severity::Note);
    }

    #[test]
    fn places_read_as_paths_into_the_model() {
        assert_eq!(Place::tensor("f", "t").to_string(), "f: t");
        let expert = Place { expert: Some(4), ..Place::layer(3) };
        assert_eq!(expert.to_string(), "layer 3: expert 4");
        assert_eq!(Place { tensor: Some("t".into()), ..expert }.to_string(), "t");
        let json = serde_json::to_value(Place::file("f")).expect("JSON");
        assert_eq!(json, serde_json::json!({"file": "f"}));
    }
}
