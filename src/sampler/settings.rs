//! How a caller wants tokens chosen, and the range of each setting.
//!
//! Comes with a request, is checked once when the request is taken, and is read by the sampler at every
//! choice. The definitions are the public ones: temperature, top-k, top-p and min-p as transformers
//! applies them, in this order; the repetition penalty of CTRL (arXiv 1909.05858); presence and
//! frequency penalties of OpenAI's API.

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the highest logit; larger is more even. Finite, not negative.
    pub temperature: f32,
    /// So many of the most likely tokens are kept; 0 keeps all.
    pub top_k: u32,
    /// The nucleus: the fewest most likely of those kept whose probabilities reach this sum, at
    /// least one token. 0 to 1; 1 keeps all.
    pub top_p: f32,
    /// A token whose probability is less than this times the likeliest's isn't kept. 0 to 1; 0
    /// keeps all.
    pub min_p: f32,
    /// Divides the positive logits, and multiplies the others, of tokens that the prompt or the answer
    /// has. 0.01 to 100; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Is taken from the logit of a token that the answer has. -2 to 2; 0 changes nothing.
    pub presence_penalty: f32,
    /// Is taken from the logit of a token as often as the answer has it. -2 to 2; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Key of the random generator.
    pub seed: u64,
}

/// A setting: its name, its value of a [`Sampling`], whether that is allowed, and what is.
type Range = (&'static str, fn(&Sampling) -> f32, fn(f32) -> bool, &'static str);

/// Every setting that has a range.
const RANGES: [Range; 6] = [
    ("temperature", |s| s.temperature, |v| v >= 0.0 && v.is_finite(), "a finite number, 0 or more"),
    ("top_p", |s| s.top_p, |v| (0.0..=1.0).contains(&v), "0 to 1"),
    ("min_p", |s| s.min_p, |v| (0.0..=1.0).contains(&v), "0 to 1"),
    (
        "repetition_penalty",
        |s| s.repetition_penalty,
        |v| (0.01..=100.0).contains(&v),
        "0.01 to 100",
    ),
    ("presence_penalty", |s| s.presence_penalty, |v| (-2.0..=2.0).contains(&v), "-2 to 2"),
    ("frequency_penalty", |s| s.frequency_penalty, |v| (-2.0..=2.0).contains(&v), "-2 to 2"),
];

impl Sampling {
    /// The highest logit, always.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
    };

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`SamplingError::Setting`] names the field, its value and what is allowed.
    pub fn check(&self) -> Result<(), SamplingError> {
        for (field, value, is_allowed, allowed) in RANGES {
            let value = value(self);
            if !is_allowed(value) {
                return Err(SamplingError::Setting { field, value, allowed });
            }
        }
        Ok(())
    }

    /// Some of the tokens are left out before one is drawn.
    pub(super) fn cuts(&self) -> bool {
        self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0
    }
}

/// Why no token could be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A setting is out of range.
    #[error("{field} is {value}; use {allowed}")]
    Setting {
        /// Which setting.
        field: &'static str,
        /// What it was.
        value: f32,
        /// What it may be.
        allowed: &'static str,
    },
    /// The model's output isn't a distribution.
    #[error(
        "position {position}: the logit of token {token} is {logit}; the model's weights or its \
         input are damaged (check the files' checksums)"
    )]
    NotFinite {
        /// Position of the logits.
        position: u64,
        /// First token concerned.
        token: u32,
        /// NaN or +infinity.
        logit: f32,
    },
    /// Every token is forbidden.
    #[error("position {position}: every logit is -infinity, so no token may follow")]
    NothingAllowed {
        /// Position of the logits.
        position: u64,
    },
}
