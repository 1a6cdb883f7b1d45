//! Log-probabilities of a position: of the token that came, and of the likeliest.
//!
//! They are the log-softmax of the raw logits, before penalties, temperature and cuts, as the public APIs
//! have it. Made only for requests that ask; each is owned by the event that carries it.

use super::Candidate;

/// Likeliest tokens that a request may ask for.
pub const TOP_LOG_PROBABILITIES_MAX: usize = 20;

/// Of one position.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbabilities {
    /// Of the token that came.
    pub token: f32,
    /// The likeliest tokens and theirs, by falling probability; the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

impl LogProbabilities {
    /// Of `token` and of the `top` likeliest.
    ///
    /// # Panics
    /// When the vocabulary hasn't the token.
    pub fn new(logits: &[f32], token: u32, top: usize) -> LogProbabilities {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exp = |logit: f32| f64::from(millstream_kernels::math::exp(logit - max));
        let sum: f64 = logits.iter().map(|&logit| exp(logit)).sum();
        let log_sum = libm::log(sum);
        let of = |logit: f32| (f64::from(logit) - f64::from(max) - log_sum) as f32;
        // The least of the kept is the last one, so most logits cost one comparison.
        let mut kept: Vec<Candidate> = Vec::with_capacity(top + 1);
        for (id, &logit) in logits.iter().enumerate() {
            let candidate = Candidate { logit, weight: 0.0, id: id as u32 };
            if top > 0 && (kept.len() < top || kept.last().is_some_and(|last| candidate > *last)) {
                let place = kept.partition_point(|other| *other > candidate);
                kept.insert(place, candidate);
                kept.truncate(top);
            }
        }
        LogProbabilities {
            token: of(logits[token as usize]),
            top: kept.iter().map(|candidate| (candidate.id, of(candidate.logit))).collect(),
        }
    }
}
