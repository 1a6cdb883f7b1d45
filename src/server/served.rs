//! The model that is served: its engine, its words and its names.
//!
//! Made once by whoever starts the server, shared by all requests and never changed. A question
//! becomes the engine's requests here.

use super::errors::{Fault, FaultKind};
use super::question::{Prompt, Question};
use crate::engine::{Engine, EngineError, Request};
use crate::sampler::Sampling;
use crate::text::{ChatTemplate, SamplingAdvice, Tokenizer, chat_ids, text_ids};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// What a model needs to be served.
pub struct Served {
    /// The engine.
    pub engine: Engine,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// The model's chat template; without one there is no chat.
    pub template: Option<ChatTemplate>,
    /// Tokens that end an answer.
    pub stop_ids: Vec<u32>,
    /// How its makers advise to sample.
    pub advice: SamplingAdvice,
    /// What it is called; the first is its name, all are taken.
    pub names: Vec<String>,
    /// When it was started, in seconds since 1970.
    pub created: u64,
    /// Numbers that no other process and no other request has.
    pub numbers: Numbers,
}

/// Makes numbers that nobody can guess: identities and seeds.
#[derive(Debug, Default)]
pub struct Numbers {
    key: RandomState,
    count: AtomicU64,
}

impl Numbers {
    /// The next number.
    pub fn fresh(&self) -> u64 {
        self.key.hash_one(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// An identity such as `chatcmpl-0123456789abcdef01234567`.
    pub fn identity(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}{:08x}", self.fresh(), self.fresh() as u32)
    }
}

/// Seconds since 1970.
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Served {
    /// The model's name.
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// Checks that a request means this model; one that names none does.
    ///
    /// # Errors
    /// When it names another.
    pub fn check_name(&self, name: Option<&str>) -> Result<(), Fault> {
        match name {
            Some(name) if !self.names.iter().any(|known| known == name) => {
                let name: String = name.chars().take(128).collect();
                let message = format!(
                    "the model `{name}` isn't served here; use {}",
                    self.names.join(" or ")
                );
                Err(Fault {
                    field: Some("model".into()),
                    ..Fault::new(FaultKind::NoModel, message)
                })
            }
            _ => Ok(()),
        }
    }

    /// Positions that prompt and answer may have together.
    pub fn context(&self) -> usize {
        self.engine.setting.limits.context_max
    }

    /// The ids of a prompt. May take a while: not for a thread that serves others.
    ///
    /// # Errors
    /// When the model has no words for it, or it can't fit.
    pub fn ids(&self, prompt: &Prompt) -> Result<Vec<u32>, Fault> {
        let ids = match prompt {
            Prompt::Ids(ids) => ids.clone(),
            Prompt::Text(text) => {
                self.check_bytes(text.len())?;
                text_ids(&self.tokenizer, text)?
            }
            Prompt::Chat { messages, tools } => {
                let Some(template) = &self.template else {
                    return Err(Fault::field(
                        "messages",
                        "this model has no chat template; use /v1/completions with its own format",
                    ));
                };
                if tools.is_some() && !template.knows_tools() {
                    let message = "this model's chat template knows no tools; leave them out";
                    return Err(Fault::field("tools", message));
                }
                self.check_bytes(messages.iter().map(|message| message.content.len()).sum())?;
                chat_ids(&self.tokenizer, template, messages, tools.as_deref())?
            }
        };
        Ok(ids)
    }

    /// A text with more bytes than a full context of the longest tokens isn't tokenized at all.
    fn check_bytes(&self, bytes: usize) -> Result<(), Fault> {
        match bytes > self.context().saturating_mul(self.tokenizer.token_bytes_max()) {
            true => Err(Fault::new(
                FaultKind::TooManyTokens,
                format!("the prompt's {bytes} bytes can't fit into {} tokens", self.context()),
            )),
            false => Ok(()),
        }
    }

    /// The engine's requests of a question, prompt by prompt, choice by choice.
    ///
    /// # Errors
    /// As [`Self::ids`].
    pub fn requests(&self, question: &Question) -> Result<Vec<Request>, Fault> {
        let seed = question.seed.unwrap_or_else(|| self.numbers.fresh());
        let mut requests = vec![];
        for prompt in &question.prompts {
            let ids = self.ids(prompt)?;
            if ids.len() >= self.context() {
                let message = format!(
                    "the prompt has {} tokens, and the context of {} must hold it and an answer",
                    ids.len(),
                    self.context()
                );
                return Err(Fault::new(FaultKind::TooManyTokens, message));
            }
            let room = self.context() - ids.len();
            let none = Sampling::GREEDY;
            let request = Request {
                sampling: Sampling {
                    temperature: question.temperature.or(self.advice.temperature).unwrap_or(1.0),
                    top_p: question.top_p.or(self.advice.top_p).unwrap_or(none.top_p),
                    top_k: question.top_k.unwrap_or(none.top_k),
                    min_p: question.min_p.unwrap_or(none.min_p),
                    repetition_penalty: question
                        .repetition_penalty
                        .unwrap_or(none.repetition_penalty),
                    presence_penalty: question.presence_penalty.unwrap_or(none.presence_penalty),
                    frequency_penalty: question.frequency_penalty.unwrap_or(none.frequency_penalty),
                    seed,
                },
                log_probabilities: question.log_probabilities,
                stop_ids: self.stop_ids.clone(),
                ..Request::greedy(ids, question.max_tokens.unwrap_or(room).min(room))
            };
            requests.extend(request.choices(question.choices));
        }
        Ok(requests)
    }

    /// Begins an answer.
    ///
    /// # Errors
    /// As the engine's.
    pub fn begin(&self, request: &Request) -> Result<crate::engine::Generation, EngineError> {
        self.engine.begin(request)
    }
}
