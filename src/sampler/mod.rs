//! Which token comes next: greedy, or drawn from what the settings keep.
//!
//! Logits of one position go in, one token id comes out. The engine owns one [`Sampler`] per
//! thread that samples; its buffers are made once for the vocabulary, so that a choice never
//! allocates. Nothing here remembers earlier choices: the randomness of a choice is a function of
//! (seed, choice index, position) alone, and penalties are of the tokens that are handed in, so that
//! the answer doesn't depend on batching, on company or on how often a position was tried.
//!
//! Order: penalties (`penalties.rs`), temperature, top-k, top-p, min-p, draw (`philox.rs`). Arithmetic:
//! `weight[i] = exp((logit[i] - max) / temperature)` in f32 with
//! `millstream_kernels::math::exp`; sums in f64 over ascending ids (the whole) and over falling
//! logits (what is kept). Equal logits go to the lower id; +0 equals -0.

mod candidates;
mod log_probabilities;
mod penalties;
mod philox;
mod settings;
#[cfg(test)]
mod tests;

pub use log_probabilities::{LogProbabilities, TOP_LOG_PROBABILITIES_MAX};
pub use penalties::History;
pub use settings::{Sampling, SamplingError};

use candidates::{Candidate, Candidates};
use penalties::Penalties;
use philox::uniform;

/// Chooses tokens for one vocabulary.
#[derive(Debug)]
pub struct Sampler {
    candidates: Candidates,
    penalties: Penalties,
    vocabulary: usize,
}

impl Sampler {
    /// A sampler for `vocabulary` tokens; holds 32 bytes for each.
    pub fn new(vocabulary: usize) -> Sampler {
        Sampler {
            candidates: Candidates::new(vocabulary),
            penalties: Penalties::new(vocabulary),
            vocabulary,
        }
    }

    /// Chooses a token from the logits of one position. `history` is what penalties look at, `choice`
    /// the index of the answer among those asked for at once (`n` of the HTTP APIs), `position` counts
    /// the sequence's tokens.
    ///
    /// # Errors
    /// When a setting is out of range, a logit is NaN or +infinity, or all are -infinity.
    ///
    /// # Panics
    /// When there are not `vocabulary` logits, or a token of the history isn't among them.
    pub fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        history: History<'_>,
        choice: u32,
        position: u64,
    ) -> Result<u32, SamplingError> {
        assert_eq!(logits.len(), self.vocabulary, "logits of another vocabulary");
        sampling.check()?;
        let mut logits = logits;
        let mut best = highest(logits, position)?;
        if Penalties::are_wanted(sampling) {
            logits = self.penalties.apply(logits, sampling, history);
            best = highest(logits, position)?;
        }
        if sampling.temperature == 0.0 {
            return Ok(best);
        }
        let uniform = uniform(sampling.seed, choice, position);
        Ok(self.candidates.draw(logits, logits[best as usize], sampling, uniform))
    }
}

/// The token with the highest logit, the lowest id among equals.
fn highest(logits: &[f32], position: u64) -> Result<u32, SamplingError> {
    let mut best: Option<(u32, f32)> = None;
    for (id, &logit) in logits.iter().enumerate() {
        let token = id as u32;
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SamplingError::NotFinite { position, token, logit });
        }
        let beaten = best.is_none_or(|(_, highest)| logit > highest);
        if beaten && logit > f32::NEG_INFINITY {
            best = Some((token, logit));
        }
    }
    best.map(|(token, _)| token).ok_or(SamplingError::NothingAllowed { position })
}
