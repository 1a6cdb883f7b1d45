//! What an API's answers look like, whole and as a stream: one implementation an API.
//!
//! A shape is made with the request and knows its names and options; it owns nothing of the answers.

use super::answers::{Ending, News};
use super::errors::Fault;
use super::events::Events;
use super::scores::TokenScore;
use super::tools::ToolCall;
use serde_json::Value;

/// An answer that is complete.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its text, without calls.
    pub text: String,
    /// Of its tokens, if asked for.
    pub scores: Vec<TokenScore>,
    /// The tools that it calls.
    pub calls: Vec<ToolCall>,
    /// How it ended.
    pub ending: Ending,
}

/// How an API tells answers.
pub trait Shape: Send + Unpin + 'static {
    /// All answers in one object; `prompt_tokens` are those of all prompts.
    fn whole(&self, prompt_tokens: usize, answers: &[Told]) -> Value;

    /// A stream begins.
    fn begin(&mut self, prompt_tokens: usize, count: usize, out: &mut Events);

    /// More of an answer, or its end.
    fn news(&mut self, choice: u32, news: &News, out: &mut Events);

    /// All answers have ended.
    fn finish(&mut self, out: &mut Events);

    /// Something failed when the stream had begun; nothing comes after it.
    fn failed(&mut self, fault: &Fault, out: &mut Events);

    /// Nothing new for a while: says that the stream lives.
    fn ping(&self, out: &mut Events);
}
