//! A prompt's ids: of a conversation through the model's chat template, or of a text as it is.
//!
//! The command line and the server make their prompts here, so that both say the same to a model.

use super::files::TextError;
use super::template::{ChatTemplate, Message};
use super::tokenizer::Tokenizer;
use serde_json::Value;

/// A conversation as ids, up to where the assistant begins. The template writes the model's first
/// tokens itself.
///
/// # Errors
/// When the template refuses the conversation, or the tokenizer its text.
pub fn chat_ids(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Message],
    tools: Option<&[Value]>,
) -> Result<Vec<u32>, TextError> {
    tokenizer.encode(&template.render_with(messages, tools, true)?, false)
}

/// A text as ids, with the first tokens that the tokenizer puts in front.
///
/// # Errors
/// When the tokenizer refuses it.
pub fn text_ids(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TextError> {
    tokenizer.encode(text, true)
}
