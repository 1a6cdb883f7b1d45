//! `POST /v1/chat/completions`: OpenAI's chat, its request, its answer and its stream.

use super::answers::News;
use super::errors::Fault;
use super::events::Events;
use super::fields::Fields;
use super::limits::{BLOCKS_MAX, MESSAGES_MAX, TOKENS_MAX};
use super::openai::{
    NO_EFFECT, Telling, failed, fingerprint, finish_reason, sampling, telling, usage,
};
use super::question::{Prompt, Question};
use super::shape::{Shape, Told};
use crate::text::Message;
use serde_json::{Value, json};

/// A chat request.
#[derive(Debug)]
pub struct ChatRequest {
    /// The model that is meant.
    pub model: Option<String>,
    /// What is asked.
    pub question: Question,
    /// How it is told.
    pub telling: Telling,
}

impl ChatRequest {
    /// Reads a request's body.
    ///
    /// # Errors
    /// When a field is wrong, unknown or not supported; names it.
    pub fn read(body: &Value) -> Result<ChatRequest, Fault> {
        let mut fields = Fields::of(body, "")?;
        let model = fields.text("model")?.map(str::to_owned);
        let messages = messages(&mut fields)?;
        let mut question = Question::new(Prompt::Chat { messages, tools: None });
        sampling(&mut fields, &mut question)?;
        if let Some(most) = fields.count("max_completion_tokens", 1, TOKENS_MAX)? {
            question.max_tokens = Some(most as usize);
        }
        let telling = telling(&mut fields)?;
        fields.ignore(&NO_EFFECT);
        fields.ignore(&["parallel_tool_calls"]);
        fields.only_neutral(&[
            ("presence_penalty", &[json!(0)]),
            ("frequency_penalty", &[json!(0)]),
            ("logit_bias", &[json!({})]),
            ("logprobs", &[json!(false)]),
            ("top_logprobs", &[json!(0)]),
            ("response_format", &[json!({"type": "text"})]),
            ("modalities", &[json!(["text"])]),
            ("tools", &[json!([])]),
            ("tool_choice", &[json!("none"), json!("auto")]),
            ("functions", &[json!([])]),
            ("function_call", &[json!("none"), json!("auto")]),
        ])?;
        fields.finish()?;
        Ok(ChatRequest { model, question, telling })
    }
}

fn messages(fields: &mut Fields<'_>) -> Result<Vec<Message>, Fault> {
    let list = match fields.list("messages", MESSAGES_MAX)? {
        Some(list) if !list.is_empty() => list,
        _ => return Err(fields.fault("messages", "give at least one message")),
    };
    let message = |(index, value): (usize, &Value)| message(value, &format!("messages[{index}]"));
    list.iter().enumerate().map(message).collect()
}

fn message(value: &Value, path: &str) -> Result<Message, Fault> {
    let mut fields = Fields::of(value, path)?;
    let role = match fields.text("role")? {
        Some("developer" | "system") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        _ => return Err(fields.fault("role", "use system, developer, user or assistant")),
    };
    let content = content(&mut fields)?;
    let name = fields.text("name")?.map(str::to_owned);
    fields.only_neutral(&[
        ("refusal", &[]),
        ("audio", &[]),
        ("function_call", &[]),
        ("tool_calls", &[json!([])]),
    ])?;
    fields.ignore(&["annotations"]);
    fields.finish()?;
    Ok(Message { name, ..Message::new(role, &content) })
}

/// A text, or parts of type `text`, one line each.
fn content(fields: &mut Fields<'_>) -> Result<String, Fault> {
    match fields.value("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) if parts.len() <= BLOCKS_MAX => {
            let mut texts = vec![];
            for (index, part) in parts.iter().enumerate() {
                let mut part = Fields::of(part, &fields.place(&format!("content[{index}]")))?;
                if part.text("type")? != Some("text") {
                    return Err(part.fault("type", "only text is supported"));
                }
                let text = part.text("text")?;
                texts.push(text.ok_or_else(|| part.fault("text", "use a string"))?);
                part.finish()?;
            }
            Ok(texts.join("\n"))
        }
        _ => Err(fields.fault(
            "content",
            format!("use a string or a list of at most {BLOCKS_MAX} text parts"),
        )),
    }
}

/// How chat is told.
#[derive(Debug)]
pub struct ChatShape {
    /// `chatcmpl-...`
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name, as the caller said it.
    pub model: String,
    /// The stream ends with the usage.
    pub include_usage: bool,
    /// Tokens of the prompt and of the answers so far, of a stream.
    tokens: (usize, usize),
}

impl ChatShape {
    /// A shape for one response.
    pub fn new(id: String, created: u64, model: String, include_usage: bool) -> ChatShape {
        ChatShape { id, created, model, include_usage, tokens: (0, 0) }
    }

    fn chunk(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(),
            "choices": choices,
        });
        if self.include_usage {
            chunk["usage"] = usage.unwrap_or(Value::Null);
        }
        chunk
    }

    fn delta(&self, choice: u32, delta: Value, finish_reason: Option<&str>, out: &mut Events) {
        let choice = json!({
            "index": choice, "delta": delta, "logprobs": null, "finish_reason": finish_reason,
        });
        out.data(&self.chunk(json!([choice]), None));
    }
}

impl Shape for ChatShape {
    fn whole(&self, prompt_tokens: usize, answers: &[Told]) -> Value {
        let choice = |(index, told): (usize, &Told)| {
            json!({
                "index": index,
                "message": {
                    "role": "assistant", "content": told.text, "refusal": null, "annotations": [],
                },
                "logprobs": null,
                "finish_reason": finish_reason(&told.ending),
            })
        };
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(),
            "choices": answers.iter().enumerate().map(choice).collect::<Vec<_>>(),
            "usage": usage(prompt_tokens, answers.iter().map(|told| told.ending.tokens).sum()),
        })
    }

    fn begin(&mut self, prompt_tokens: usize, count: usize, out: &mut Events) {
        self.tokens.0 = prompt_tokens;
        for choice in 0..count as u32 {
            self.delta(
                choice,
                json!({"role": "assistant", "content": "", "refusal": null}),
                None,
                out,
            );
        }
    }

    fn news(&mut self, choice: u32, news: &News, out: &mut Events) {
        match news {
            News::Text(text) => self.delta(choice, json!({"content": text}), None, out),
            News::End(ending) => {
                self.tokens.1 += ending.tokens;
                self.delta(choice, json!({}), Some(finish_reason(ending)), out);
            }
            News::Failed(fault) => self.failed(fault, out),
        }
    }

    fn finish(&mut self, out: &mut Events) {
        if self.include_usage {
            out.data(&self.chunk(json!([]), Some(usage(self.tokens.0, self.tokens.1))));
        }
        out.done();
    }

    fn failed(&mut self, fault: &Fault, out: &mut Events) {
        failed(fault, out);
    }

    fn ping(&self, out: &mut Events) {
        out.comment("alive");
    }
}
