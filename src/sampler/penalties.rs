//! Penalties for tokens that were there before: logits in, logits out.
//!
//! The sampler owns one [`Penalties`]: a copy of the logits and a count for each token, made once for
//! the vocabulary. Counts are zero between uses. First the repetition penalty, then frequency and
//! presence, as vLLM has it; each token is changed once, whatever the order of the text.

use super::Sampling;

/// What a choice follows.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// The prompt's tokens.
    pub prompt: &'a [u32],
    /// The answer's tokens so far.
    pub answer: &'a [u32],
}

impl History<'_> {
    /// Nothing.
    pub const NONE: History<'static> = History { prompt: &[], answer: &[] };
}

/// Room to change logits in.
#[derive(Debug)]
pub struct Penalties {
    logits: Vec<f32>,
    counts: Vec<u32>,
}

impl Penalties {
    /// Room for a vocabulary.
    pub fn new(vocabulary: usize) -> Penalties {
        Penalties { logits: Vec::with_capacity(vocabulary), counts: vec![0; vocabulary] }
    }

    /// True when the settings change any logit.
    pub fn are_wanted(sampling: &Sampling) -> bool {
        sampling.repetition_penalty != 1.0
            || sampling.presence_penalty != 0.0
            || sampling.frequency_penalty != 0.0
    }

    /// The logits with the penalties taken. Every token of `history` is in the vocabulary.
    pub fn apply(&mut self, logits: &[f32], sampling: &Sampling, history: History<'_>) -> &[f32] {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        let factor = sampling.repetition_penalty;
        if factor != 1.0 {
            self.once(history.prompt.iter().chain(history.answer), |logit, _| match *logit > 0.0 {
                true => *logit / factor,
                false => *logit * factor,
            });
        }
        let Sampling { presence_penalty, frequency_penalty, .. } = *sampling;
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            self.once(history.answer.iter(), |logit, count| {
                *logit - frequency_penalty * count as f32 - presence_penalty
            });
        }
        &self.logits
    }

    /// Changes the logit of each token once; `change` gets how often it is there.
    fn once<'a>(
        &mut self,
        tokens: impl Iterator<Item = &'a u32> + Clone,
        change: impl Fn(&f32, u32) -> f32,
    ) {
        for &token in tokens.clone() {
            self.counts[token as usize] += 1;
        }
        for &token in tokens {
            let count = std::mem::take(&mut self.counts[token as usize]);
            if count > 0 {
                let logit = &mut self.logits[token as usize];
                *logit = change(logit, count);
            }
        }
    }
}
