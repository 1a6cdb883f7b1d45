//! How a model's makers advise to sample: `generation_config.json`.

use super::files::{TextError, read_settings};
use std::path::Path;

/// Temperature and nucleus, where the file names them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingAdvice {
    /// 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// The nucleus.
    pub top_p: Option<f32>,
}

/// The makers' advice; empty if there is no file, or if it says not to sample.
///
/// # Errors
/// When the file can't be read, or a figure is no number in its range.
pub fn sampling_advice(directory: &Path) -> Result<SamplingAdvice, TextError> {
    let path = directory.join("generation_config.json");
    let Some(settings) = read_settings(&path)? else { return Ok(SamplingAdvice::default()) };
    if settings["do_sample"].as_bool() != Some(true) {
        return Ok(SamplingAdvice::default());
    }
    let figure = |field: &str, most: f64| match &settings[field] {
        serde_json::Value::Null => Ok(None),
        value => match value.as_f64() {
            Some(number) if (0.0..=most).contains(&number) => Ok(Some(number as f32)),
            _ => Err(TextError::Content {
                file: path.display().to_string(),
                reason: format!("{field} is {value}, not a number from 0 to {most}"),
            }),
        },
    };
    Ok(SamplingAdvice { temperature: figure("temperature", 100.0)?, top_p: figure("top_p", 1.0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(text: &str) -> Result<SamplingAdvice, TextError> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("generation_config.json"), text).expect("written");
        sampling_advice(directory.path())
    }

    #[test]
    fn advice_counts_only_if_the_makers_sample() {
        let sampled = advice(r#"{"do_sample": true, "temperature": 0.8, "top_p": 0.95}"#).unwrap();
        assert_eq!(sampled, SamplingAdvice { temperature: Some(0.8), top_p: Some(0.95) });
        let greedy = advice(r#"{"do_sample": false, "temperature": 0.8}"#).unwrap();
        assert_eq!(greedy, SamplingAdvice::default());
        assert_eq!(advice("{}").unwrap(), SamplingAdvice::default());
    }

    #[test]
    fn advice_out_of_range_is_refused_by_name() {
        let error = advice(r#"{"do_sample": true, "top_p": 2}"#).unwrap_err().to_string();
        assert!(error.contains("top_p is 2"), "{error}");
        assert!(advice(r#"{"do_sample": true, "temperature": "hot"}"#).is_err());
    }
}
