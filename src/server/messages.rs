//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, its request, its answer and
//! its stream of events.

use super::answers::{EndReason, Ending, News};
use super::dialect::Dialect;
use super::errors::Fault;
use super::events::Events;
use super::fields::Fields;
use super::limits::{BLOCKS_MAX, MESSAGES_MAX, TOKENS_MAX};
use super::openai::stops;
use super::question::{Prompt, Question};
use super::shape::{Shape, Told};
use crate::text::Message;
use serde_json::{Value, json};

/// A request for a message.
#[derive(Debug)]
pub struct MessageRequest {
    /// The model that is meant.
    pub model: String,
    /// What is asked.
    pub question: Question,
    /// As a stream.
    pub stream: bool,
}

impl MessageRequest {
    /// Reads a request's body; `count_only` for one that only counts the prompt's tokens.
    ///
    /// # Errors
    /// When a field is wrong, unknown or not supported; names it.
    pub fn read(body: &Value, count_only: bool) -> Result<MessageRequest, Fault> {
        let mut fields = Fields::of(body, "")?;
        let model = fields.text("model")?.map(str::to_owned);
        let model = model.ok_or_else(|| fields.fault("model", "name the model"))?;
        let mut said = vec![];
        if let Some(system) = fields.value("system") {
            said.push(Message::new("system", &text_blocks(system, "system")?));
        }
        messages(&mut fields, &mut said)?;
        let mut question = Question::new(Prompt::Chat { messages: said, tools: None });
        let mut stream = false;
        if !count_only {
            let most = fields.count("max_tokens", 1, TOKENS_MAX)?;
            let most = most.ok_or_else(|| fields.fault("max_tokens", "name a number of tokens"))?;
            question.max_tokens = Some(most as usize);
            question.temperature = fields.number("temperature", 0.0, 1.0)?;
            question.top_p = fields.number("top_p", 0.0, 1.0)?;
            question.stops = stops(&mut fields, "stop_sequences")?;
            stream = fields.flag("stream")?.unwrap_or(false);
            fields.ignore(&["metadata", "service_tier"]);
            fields.only_neutral(&[("top_k", &[])])?;
        }
        fields.ignore(&["cache_control"]);
        fields.only_neutral(&[
            ("thinking", &[json!({"type": "disabled"})]),
            ("tools", &[json!([])]),
            ("tool_choice", &[json!({"type": "auto"}), json!({"type": "none"})]),
        ])?;
        fields.finish()?;
        Ok(MessageRequest { model, question, stream })
    }
}

fn messages(fields: &mut Fields<'_>, said: &mut Vec<Message>) -> Result<(), Fault> {
    let list = match fields.list("messages", MESSAGES_MAX)? {
        Some(list) if !list.is_empty() => list,
        _ => return Err(fields.fault("messages", "give at least one message")),
    };
    for (index, value) in list.iter().enumerate() {
        let mut message = Fields::of(value, &format!("messages[{index}]"))?;
        let role = match message.text("role")? {
            Some(role @ ("user" | "assistant")) => role,
            _ => return Err(message.fault("role", "use user or assistant")),
        };
        let place = message.place("content");
        let content = message.value("content");
        let content = content.ok_or_else(|| Fault::field(place.clone(), "say something"))?;
        said.push(Message::new(role, &text_blocks(content, &place)?));
        message.finish()?;
    }
    match said.last() {
        Some(last) if last.role == "assistant" => Err(fields.fault(
            "messages",
            "the last one must be the user's: beginning the answer for the model isn't supported",
        )),
        _ => Ok(()),
    }
}

/// A text, or blocks of type `text`, one line each.
fn text_blocks(value: &Value, place: &str) -> Result<String, Fault> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) if blocks.len() <= BLOCKS_MAX => {
            let mut texts = vec![];
            for (index, block) in blocks.iter().enumerate() {
                let mut block = Fields::of(block, &format!("{place}[{index}]"))?;
                if block.text("type")? != Some("text") {
                    return Err(block.fault("type", "only text is supported"));
                }
                let text = block.text("text")?;
                texts.push(text.ok_or_else(|| block.fault("text", "use a string"))?);
                block.ignore(&["cache_control"]);
                block.only_neutral(&[("citations", &[json!([])])])?;
                block.finish()?;
            }
            Ok(texts.join("\n"))
        }
        _ => Err(Fault::field(
            place,
            format!("use a string or a list of at most {BLOCKS_MAX} text blocks"),
        )),
    }
}

/// How messages are told.
#[derive(Debug)]
pub struct MessageShape {
    /// `msg_...`
    id: String,
    model: String,
    /// Set when the answer has ended, for the last events.
    ending: Option<Ending>,
    prompt_tokens: usize,
}

impl MessageShape {
    /// A shape for one response.
    pub fn new(id: String, model: String) -> MessageShape {
        MessageShape { id, model, ending: None, prompt_tokens: 0 }
    }

    fn message(&self, content: Value, ending: Option<&Ending>, prompt_tokens: usize) -> Value {
        let (reason, sequence) = ending.map_or((None, None), stop_reason);
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": {
                "input_tokens": prompt_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": ending.map_or(0, |ending| ending.tokens),
            },
        })
    }
}

/// `stop_reason` and `stop_sequence`.
fn stop_reason(ending: &Ending) -> (Option<&'static str>, Option<&str>) {
    match &ending.reason {
        EndReason::Stop => (Some("end_turn"), None),
        EndReason::StopString(stop) => (Some("stop_sequence"), Some(stop)),
        EndReason::Length => (Some("max_tokens"), None),
    }
}

impl Shape for MessageShape {
    fn whole(&self, prompt_tokens: usize, answers: &[Told]) -> Value {
        let told = &answers[0];
        let content = json!([{"type": "text", "text": told.text}]);
        self.message(content, Some(&told.ending), prompt_tokens)
    }

    fn begin(&mut self, prompt_tokens: usize, _count: usize, out: &mut Events) {
        self.prompt_tokens = prompt_tokens;
        let message = self.message(json!([]), None, prompt_tokens);
        out.named(&json!({"type": "message_start", "message": message}));
        out.named(&json!({
            "type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""},
        }));
        self.ping(out);
    }

    fn news(&mut self, _choice: u32, news: &News, out: &mut Events) {
        match news {
            News::Text(text) => out.named(&json!({
                "type": "content_block_delta", "index": 0,
                "delta": {"type": "text_delta", "text": text},
            })),
            News::End(ending) => self.ending = Some(ending.clone()),
            News::Failed(fault) => self.failed(fault, out),
        }
    }

    fn finish(&mut self, out: &mut Events) {
        out.named(&json!({"type": "content_block_stop", "index": 0}));
        if let Some(ending) = &self.ending {
            let (reason, sequence) = stop_reason(ending);
            out.named(&json!({
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": {
                    "input_tokens": self.prompt_tokens,
                    "output_tokens": ending.tokens,
                },
            }));
        }
        out.named(&json!({"type": "message_stop"}));
    }

    fn failed(&mut self, fault: &Fault, out: &mut Events) {
        out.named(&fault.body(Dialect::Anthropic));
    }

    fn ping(&self, out: &mut Events) {
        out.named(&json!({"type": "ping"}));
    }
}
