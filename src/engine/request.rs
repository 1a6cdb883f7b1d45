//! What a caller asks of the engine, and what comes back.

use super::statistics::Statistics;
use crate::sampler::{LogProbabilities, Sampling};
use serde::Serialize;

/// One generation.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt; not empty, every id below the vocabulary's size.
    pub prompt_ids: Vec<u32>,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// How to choose them.
    pub sampling: Sampling,
    /// Which of the answers asked for at once this is: others draw other tokens with the same seed.
    pub choice: u32,
    /// Say each token's log-probability, and those of so many likeliest, at most
    /// [`crate::sampler::TOP_LOG_PROBABILITIES_MAX`]; none says nothing.
    pub log_probabilities: Option<usize>,
    /// Any of these ends the answer.
    pub stop_ids: Vec<u32>,
    /// Feed these instead of what is sampled, so that routing is the same in every run; nothing
    /// else ends the answer then.
    pub forced: Option<Vec<u32>>,
    /// Tokens of the prompt that are context only: figures of the prefill begin after them.
    pub depth: usize,
    /// Keep the logits of every position.
    pub keep_logits: bool,
    /// Keep what routers and indexers chose; needs [`super::Options::trace`].
    pub keep_trace: bool,
}

impl Request {
    /// Tokens of the answer at most; 0 reads the prompt and answers nothing.
    pub fn answer_max(&self) -> usize {
        self.forced.as_ref().map_or(self.max_tokens, Vec::len)
    }

    /// The request so many times, each as another choice.
    pub fn choices(&self, count: u32) -> impl Iterator<Item = Request> + '_ {
        (0..count).map(|choice| Request { choice, ..self.clone() })
    }

    /// It may begin with pages that others filled: nothing is wanted of positions that are fed.
    pub(super) fn may_share(&self) -> bool {
        !(self.keep_logits || self.keep_trace || self.depth > 0)
    }

    /// A greedy generation without stop tokens.
    pub fn greedy(prompt_ids: Vec<u32>, max_tokens: usize) -> Request {
        Request {
            prompt_ids,
            max_tokens,
            sampling: Sampling::GREEDY,
            choice: 0,
            log_probabilities: None,
            stop_ids: vec![],
            forced: None,
            depth: 0,
            keep_logits: false,
            keep_trace: false,
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// A stop token came.
    Stop,
    /// `max_tokens` are there, or the forced ids are used up.
    Length,
    /// The context is full.
    ContextFull,
    /// The caller cancelled.
    Cancelled,
}

/// What one position chose on its way through the layers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PositionTrace {
    /// Position in the sequence.
    pub position: u32,
    /// The sequence's forward step: positions of one step went through the layers together.
    pub step: u32,
    /// It belongs to the prompt.
    pub prefill: bool,
    /// By layer: experts by falling score; empty for dense layers.
    pub experts: Vec<Vec<u32>>,
    /// By layer: their weights.
    pub weights: Vec<Vec<f32>>,
    /// By layer: positions that its own indexer selected; none if it has none or kept all.
    pub selections: Vec<Option<Vec<u32>>>,
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The tokens, a stop token included.
    pub answer_ids: Vec<u32>,
    /// What the sampler chose at each of them: the same, unless ids were forced.
    pub chosen_ids: Vec<u32>,
    /// Of each of them, if asked for; else empty.
    pub log_probabilities: Vec<LogProbabilities>,
    /// Why it ended.
    pub finish: Finish,
    /// `[positions, vocabulary]` if asked for: every position that was fed.
    pub logits: Option<Vec<f32>>,
    /// One entry per position that was fed, if asked for.
    pub trace: Option<Vec<PositionTrace>>,
    /// What was measured.
    pub statistics: Statistics,
}

impl Answer {
    /// The answer of a request that was cancelled before its turn came.
    pub fn cancelled() -> Answer {
        Answer {
            answer_ids: vec![],
            chosen_ids: vec![],
            log_probabilities: vec![],
            finish: Finish::Cancelled,
            logits: None,
            trace: None,
            statistics: Statistics::default(),
        }
    }
}
