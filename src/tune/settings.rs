//! Chosen values of knobs, and what they mean for the engine.

use super::knobs::{KNOBS, Knob};
use crate::engine::Options;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Values by knob; what isn't in it is as it would be without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settings(BTreeMap<String, String>);

/// A setting that isn't one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No such knob.
    #[error("{name}: no such setting; there are {known}")]
    Name {
        /// What was named.
        name: String,
        /// What there is.
        known: String,
    },
    /// No value of it.
    #[error("{name}={value}: use {takes}")]
    Value {
        /// The knob.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        takes: String,
    },
    /// No pair at all.
    #[error("{text}: write NAME=VALUE, for example spin-us=0")]
    Pair {
        /// What was written.
        text: String,
    },
}

impl Settings {
    /// These, with one changed.
    pub fn with(&self, knob: &Knob, value: &str) -> Settings {
        let mut changed = self.clone();
        changed.0.insert(knob.name.to_owned(), value.to_owned());
        changed
    }

    /// The value of a knob.
    pub fn get(&self, knob: &Knob) -> Option<&str> {
        self.0.get(knob.name).map(String::as_str)
    }

    /// Nothing is chosen.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Leaves out what `keep` doesn't want.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| keep(name));
    }

    /// Changes options.
    ///
    /// # Errors
    /// When a name or a value isn't known.
    pub fn apply(&self, options: &mut Options) -> Result<(), SettingsError> {
        for (name, value) in &self.0 {
            let knob = Knob::named(name).ok_or_else(|| SettingsError::Name {
                name: name.clone(),
                known: KNOBS.iter().map(|knob| knob.name).collect::<Vec<_>>().join(", "),
            })?;
            (knob.set)(options, value).map_err(|takes| SettingsError::Value {
                name: knob.name,
                value: value.clone(),
                takes,
            })?;
        }
        Ok(())
    }
}

impl FromStr for Settings {
    type Err = SettingsError;

    /// `spin-us=0,threads=2`
    fn from_str(text: &str) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| SettingsError::Pair { text: pair.to_owned() })?;
            settings.0.insert(name.trim().to_owned(), value.trim().to_owned());
        }
        settings.apply(&mut Options::default())?;
        Ok(settings)
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("the default");
        }
        let pairs = self.0.iter().map(|(name, value)| format!("{name}={value}"));
        f.write_str(&pairs.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_applied_and_shown() {
        let settings: Settings = "threads=3, spin-us=0".parse().expect("two settings");
        let mut options = Options::default();
        settings.apply(&mut options).expect("both are known");
        assert_eq!((options.threads, options.spin_us), (Some(3), Some(0)));
        assert_eq!(settings.to_string(), "spin-us=0,threads=3");
        let wrong = |text: &str| text.parse::<Settings>().expect_err("refused").to_string();
        assert!(wrong("turbo=1").contains("there are topology, threads"));
        assert!(wrong("threads=0").contains("use 1 to 4096"));
        assert!(wrong("threads").contains("NAME=VALUE"));
    }
}
