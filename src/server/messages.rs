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
use super::tools::{self, ToolCall};
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
        let tools = tools::of_anthropic(&mut fields)?;
        let mut question = Question::new(Prompt::Chat { messages: said, tools });
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
            question.top_k = fields.count("top_k", 0, u64::from(u32::MAX))?.map(|k| k as u32);
        }
        fields.ignore(&["cache_control", "user_profile_id", "workspace_id", "diagnostics"]);
        fields.only_neutral(&[("thinking", &[json!({"type": "disabled"})])])?;
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
        say(role, content, &place, said)?;
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

/// One message: its texts, the tools that an assistant called, and the results that a user brings,
/// which are messages of their own for a template.
fn say(role: &str, content: &Value, place: &str, said: &mut Vec<Message>) -> Result<(), Fault> {
    let blocks = match content.as_array() {
        Some(blocks) if blocks.len() <= BLOCKS_MAX => blocks,
        _ => {
            said.push(Message::new(role, &text_blocks(content, place)?));
            return Ok(());
        }
    };
    let mut message = Message::new(role, "");
    let mut texts = vec![];
    for (index, value) in blocks.iter().enumerate() {
        let place = format!("{place}[{index}]");
        match (role, value["type"].as_str()) {
            ("assistant", Some("tool_use")) => message.tool_calls.push(tool_use(value, &place)?),
            ("user", Some("tool_result")) => said.push(tool_result(value, &place)?),
            _ => texts.push(text_block(value, &place)?),
        }
    }
    let results_only = texts.is_empty() && blocks.iter().any(|b| b["type"] == "tool_result");
    if !results_only {
        message.content = texts.join("\n");
        said.push(message);
    }
    Ok(())
}

/// A call of an earlier answer, in the shape that templates expect.
fn tool_use(value: &Value, place: &str) -> Result<Value, Fault> {
    let mut block = Fields::of(value, place)?;
    block.ignore(&["type", "cache_control"]);
    let id = block.text("id")?;
    let name = block.text("name")?;
    let name = name.ok_or_else(|| block.fault("name", "name the tool"))?;
    let input = block.value("input").filter(|input| input.is_object());
    let input = input.ok_or_else(|| block.fault("input", "use an object"))?;
    block.finish()?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}))
}

fn tool_result(value: &Value, place: &str) -> Result<Message, Fault> {
    let mut block = Fields::of(value, place)?;
    block.ignore(&["type", "cache_control"]);
    let id = block.text("tool_use_id")?;
    let id = id.ok_or_else(|| block.fault("tool_use_id", "name the call it answers"))?;
    block.flag("is_error")?;
    let content = match block.value("content") {
        None => String::new(),
        Some(content) => text_blocks(content, &block.place("content"))?,
    };
    block.finish()?;
    Ok(Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", &content) })
}

fn text_block<'a>(value: &'a Value, place: &str) -> Result<&'a str, Fault> {
    let mut block = Fields::of(value, place)?;
    if block.text("type")? != Some("text") {
        return Err(block.fault("type", "only text, tool_use and tool_result are supported"));
    }
    let text = block.text("text")?;
    let text = text.ok_or_else(|| block.fault("text", "use a string"))?;
    block.ignore(&["cache_control"]);
    block.only_neutral(&[("citations", &[json!([])])])?;
    block.finish()?;
    Ok(text)
}

/// A text, or blocks of type `text`, one line each.
fn text_blocks(value: &Value, place: &str) -> Result<String, Fault> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) if blocks.len() <= BLOCKS_MAX => {
            let blocks = blocks.iter().enumerate();
            let texts =
                blocks.map(|(index, block)| text_block(block, &format!("{place}[{index}]")));
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
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
    /// Of a stream: blocks begun so far, and whether the last one is a text that isn't ended.
    blocks: usize,
    in_text: bool,
}

impl MessageShape {
    /// A shape for one response.
    pub fn new(id: String, model: String) -> MessageShape {
        MessageShape { id, model, ending: None, prompt_tokens: 0, blocks: 0, in_text: false }
    }

    fn begin_block(&mut self, block: Value, out: &mut Events) {
        let index = self.blocks;
        out.named(&json!({"type": "content_block_start", "index": index, "content_block": block}));
        self.blocks += 1;
    }

    /// More of the block that was begun last.
    fn delta(&self, delta: Value, out: &mut Events) {
        let index = self.blocks - 1;
        out.named(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }

    fn end_block(&self, out: &mut Events) {
        out.named(&json!({"type": "content_block_stop", "index": self.blocks - 1}));
    }

    fn end_text(&mut self, out: &mut Events) {
        if std::mem::take(&mut self.in_text) {
            self.end_block(out);
        }
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

/// A call, its input still empty.
fn use_block(call: &ToolCall) -> Value {
    let id = format!("toolu_{}", call.id);
    json!({"type": "tool_use", "id": id, "name": call.name, "input": {}})
}

/// `stop_reason` and `stop_sequence`.
fn stop_reason(ending: &Ending) -> (Option<&'static str>, Option<&str>) {
    match &ending.reason {
        EndReason::Stop => (Some("end_turn"), None),
        EndReason::StopString(stop) => (Some("stop_sequence"), Some(stop)),
        EndReason::Calls => (Some("tool_use"), None),
        EndReason::Length => (Some("max_tokens"), None),
    }
}

impl Shape for MessageShape {
    fn whole(&self, prompt_tokens: usize, answers: &[Told]) -> Value {
        let told = &answers[0];
        let mut content = vec![];
        if !told.text.is_empty() || told.calls.is_empty() {
            content.push(json!({"type": "text", "text": told.text}));
        }
        content.extend(told.calls.iter().map(|call| {
            // Arguments that were found are an object.
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            let mut block = use_block(call);
            block["input"] = input;
            block
        }));
        self.message(content.into(), Some(&told.ending), prompt_tokens)
    }

    fn begin(&mut self, prompt_tokens: usize, _count: usize, out: &mut Events) {
        self.prompt_tokens = prompt_tokens;
        let message = self.message(json!([]), None, prompt_tokens);
        out.named(&json!({"type": "message_start", "message": message}));
        self.ping(out);
    }

    fn news(&mut self, _choice: u32, news: &News, out: &mut Events) {
        match news {
            News::Text { text, .. } => {
                if !self.in_text {
                    self.begin_block(json!({"type": "text", "text": ""}), out);
                    self.in_text = true;
                }
                self.delta(json!({"type": "text_delta", "text": text}), out);
            }
            News::Call(call) => {
                self.end_text(out);
                self.begin_block(use_block(call), out);
                let arguments = &call.arguments;
                self.delta(json!({"type": "input_json_delta", "partial_json": arguments}), out);
                self.end_block(out);
            }
            News::End(ending) => self.ending = Some(ending.clone()),
            News::Failed(fault) => self.failed(fault, out),
        }
    }

    fn finish(&mut self, out: &mut Events) {
        self.end_text(out);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> ToolCall {
        ToolCall { id: "1".into(), name: "f".into(), arguments: "{\"a\":1}".into() }
    }

    fn ending() -> Ending {
        Ending { reason: EndReason::Calls, tokens: 5, cached_tokens: 0 }
    }

    #[test]
    fn calls_are_blocks_of_their_own_whole_and_streamed() {
        let mut shape = MessageShape::new("msg_1".into(), "m".into());
        let told =
            Told { text: "So".into(), scores: vec![], calls: vec![call()], ending: ending() };
        let whole = shape.whole(3, &[told]);
        assert_eq!(whole["stop_reason"], "tool_use");
        let block = json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}});
        assert_eq!(whole["content"][1], block);
        let mut out = Events::default();
        shape.begin(3, 1, &mut out);
        let text = |text: &str| News::Text { text: text.into(), scores: vec![] };
        let news = [text("So"), News::Call(call()), text("on")];
        news.iter().for_each(|news| shape.news(0, news, &mut out));
        shape.news(0, &News::End(ending()), &mut out);
        shape.finish(&mut out);
        let begun = |line: &str| {
            let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
            let index = event["index"].as_u64()?;
            Some((event["type"].as_str()?["content_block_".len()..].to_owned(), index))
        };
        let blocks: Vec<_> = out.text().lines().filter_map(begun).collect();
        let expected: Vec<_> = (0..3)
            .flat_map(|index| ["start", "delta", "stop"].map(|name| (name.to_owned(), index)))
            .collect();
        assert_eq!(blocks, expected);
        assert!(out.text().contains("input_json_delta"), "{}", out.text());
    }

    #[test]
    fn calls_and_results_of_a_conversation_are_read_for_the_template() {
        let body = json!({
            "model": "m", "max_tokens": 5,
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": [
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"},
                ]},
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        });
        let asked = MessageRequest::read(&body, false).unwrap();
        let Prompt::Chat { messages, tools } = &asked.question.prompts[0] else { panic!() };
        let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool"]);
        assert_eq!(messages[1].tool_calls[0]["function"]["arguments"], json!({"a": 1}));
        let tool = &tools.as_ref().unwrap()[0]["function"];
        assert_eq!((&tool["name"], &tool["parameters"]), (&json!("f"), &json!({"type": "object"})));
    }
}
