//! What a caller asks, whichever API it came by.
//!
//! Made by the shapes of the APIs (`chat.rs`, `completions.rs`, `messages.rs`), taken by
//! [`super::served::Served`].

use crate::text::Message;
use serde_json::Value;

/// What the answer continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A conversation, rendered by the model's template.
    Chat {
        /// What was said.
        messages: Vec<Message>,
        /// Tools that the model may call, in OpenAI's shape.
        tools: Option<Vec<Value>>,
    },
    /// A text as it is.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// One request's question.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// One or more prompts, each answered.
    pub prompts: Vec<Prompt>,
    /// Answers to each prompt.
    pub choices: u32,
    /// Tokens of each answer at most; none lets it fill the context.
    pub max_tokens: Option<usize>,
    /// 0 takes the likeliest token; none follows the makers' advice.
    pub temperature: Option<f32>,
    /// The nucleus; none follows the makers' advice.
    pub top_p: Option<f32>,
    /// So many likeliest tokens are kept; none keeps all.
    pub top_k: Option<u32>,
    /// Tokens less likely than this share of the likeliest are left out.
    pub min_p: Option<f32>,
    /// Of tokens that prompt or answer have.
    pub repetition_penalty: Option<f32>,
    /// Of tokens that the answer has.
    pub presence_penalty: Option<f32>,
    /// Of tokens as often as the answer has them.
    pub frequency_penalty: Option<f32>,
    /// Say the log-probabilities of tokens and of so many likeliest.
    pub log_probabilities: Option<usize>,
    /// Which draw; none takes a new one.
    pub seed: Option<u64>,
    /// Any of these ends an answer, and isn't in it.
    pub stops: Vec<String>,
}

impl Question {
    /// The tools of an answer's prompt; answers are counted prompt by prompt, choice by choice.
    pub fn tools(&self, answer: usize) -> Option<&[Value]> {
        match self.prompts.get(answer / self.choices as usize) {
            Some(Prompt::Chat { tools, .. }) => tools.as_deref(),
            _ => None,
        }
    }

    /// A question with nothing set but its prompt.
    pub fn new(prompt: Prompt) -> Question {
        Question {
            prompts: vec![prompt],
            choices: 1,
            max_tokens: None,
            temperature: None,
            top_p: None,
            top_k: None,
            min_p: None,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            log_probabilities: None,
            seed: None,
            stops: vec![],
        }
    }
}
