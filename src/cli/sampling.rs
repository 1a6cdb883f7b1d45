//! Flags that say how tokens are chosen, for every command that answers.
//!
//! A flag or its variable counts, else what the model's makers advise, else the likeliest token.

use super::Failure;
use crate::sampler::Sampling;
use crate::text::SamplingAdvice;
use clap::Args;

/// How tokens are chosen.
#[derive(Args, Debug)]
pub struct SamplingFlags {
    /// 0 always takes the likeliest token; higher is more varied [default: what the model's
    /// generation_config.json advises for text, 0 for ids]
    #[arg(long, env = "MILLSTREAM_TEMPERATURE", allow_negative_numbers = true, value_name = "T")]
    temperature: Option<f32>,
    /// Draw from so many of the likeliest tokens; 0 is all of them [default: 0]
    #[arg(long, env = "MILLSTREAM_TOP_K", allow_negative_numbers = true, value_name = "N")]
    top_k: Option<u32>,
    /// Draw from the likeliest tokens whose probabilities reach this sum [default: as for the
    /// temperature, or 1]
    #[arg(long, env = "MILLSTREAM_TOP_P", allow_negative_numbers = true, value_name = "P")]
    top_p: Option<f32>,
    /// Leave out tokens that are less likely than this times the likeliest [default: 0]
    #[arg(long, env = "MILLSTREAM_MIN_P", allow_negative_numbers = true, value_name = "P")]
    min_p: Option<f32>,
    /// Make tokens of the prompt and the answer less likely: above 1 [default: 1]
    #[arg(
        long,
        env = "MILLSTREAM_REPETITION_PENALTY",
        allow_negative_numbers = true,
        value_name = "X"
    )]
    repetition_penalty: Option<f32>,
    /// Take this from the logit of tokens that the answer has [default: 0]
    #[arg(
        long,
        env = "MILLSTREAM_PRESENCE_PENALTY",
        allow_negative_numbers = true,
        value_name = "X"
    )]
    presence_penalty: Option<f32>,
    /// Take this from a token's logit as often as the answer has it [default: 0]
    #[arg(
        long,
        env = "MILLSTREAM_FREQUENCY_PENALTY",
        allow_negative_numbers = true,
        value_name = "X"
    )]
    frequency_penalty: Option<f32>,
    /// Which draw; the same seed gives the same answer
    #[arg(
        long,
        env = "MILLSTREAM_SEED",
        allow_negative_numbers = true,
        default_value = "0",
        value_name = "N"
    )]
    seed: u64,
}

impl SamplingFlags {
    /// The flags, or else the advice.
    ///
    /// # Errors
    /// When one is out of range; the message names it.
    pub fn sampling(&self, advice: &SamplingAdvice) -> Result<Sampling, Failure> {
        let usual = Sampling::GREEDY;
        let sampling = Sampling {
            temperature: self.temperature.or(advice.temperature).unwrap_or(usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.or(advice.top_p).unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(usual.frequency_penalty),
            seed: self.seed,
        };
        sampling.check().map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(sampling)
    }
}
