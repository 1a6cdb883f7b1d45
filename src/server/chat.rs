//! `POST /v1/chat/completions`: OpenAI's chat, its request, its answer and its stream.

use super::answers::News;
use super::errors::Fault;
use super::events::Events;
use super::fields::Fields;
use super::limits::{BLOCKS_MAX, MESSAGES_MAX, TOKENS_MAX};
use super::openai::{
    NO_EFFECT, Telling, failed, fingerprint, finish_reason, sampling, telling, usage, whole_usage,
};
use super::question::{Prompt, Question};
use super::scores::of_chat;
use super::shape::{Shape, Told};
use super::tools::{self, ToolCall};
use crate::sampler::TOP_LOG_PROBABILITIES_MAX;
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
        let tools = tools::of_openai(&mut fields)?;
        let mut question = Question::new(Prompt::Chat { messages, tools });
        sampling(&mut fields, &mut question)?;
        if let Some(most) = fields.count("max_completion_tokens", 1, TOKENS_MAX)? {
            question.max_tokens = Some(most as usize);
        }
        question.log_probabilities = log_probabilities(&mut fields)?;
        let telling = telling(&mut fields)?;
        fields.ignore(&NO_EFFECT);
        fields.ignore(&["parallel_tool_calls"]);
        fields.only_neutral(&[
            ("logit_bias", &[json!({})]),
            ("response_format", &[json!({"type": "text"})]),
            ("modalities", &[json!(["text"])]),
            ("functions", &[json!([])]),
            ("function_call", &[json!("none"), json!("auto")]),
        ])?;
        fields.finish()?;
        Ok(ChatRequest { model, question, telling })
    }
}

/// `logprobs` and, with it, `top_logprobs`.
fn log_probabilities(fields: &mut Fields<'_>) -> Result<Option<usize>, Fault> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let most = TOP_LOG_PROBABILITIES_MAX as u64;
    match (wanted, fields.count("top_logprobs", 0, most)?) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(fields.fault("top_logprobs", "it needs logprobs: true")),
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
        Some("tool") => "tool",
        _ => return Err(fields.fault("role", "use system, developer, user, assistant or tool")),
    };
    let mut said = Message::new(role, "");
    match role {
        "assistant" => said.tool_calls = calls(&mut fields)?,
        "tool" => {
            let id = fields.text("tool_call_id")?;
            let id = id.ok_or_else(|| fields.fault("tool_call_id", "name the call it answers"))?;
            said.tool_call_id = Some(id.to_owned());
        }
        _ => {}
    }
    // Who calls tools may say nothing beside.
    said.content = match fields.value("content") {
        None if !said.tool_calls.is_empty() => String::new(),
        _ => content(&mut fields)?,
    };
    said.name = fields.text("name")?.map(str::to_owned);
    fields.only_neutral(&[("refusal", &[]), ("audio", &[]), ("function_call", &[])])?;
    fields.ignore(&["annotations"]);
    fields.finish()?;
    Ok(said)
}

/// Calls of an earlier answer, their arguments as objects, which is what templates expect.
fn calls(fields: &mut Fields<'_>) -> Result<Vec<Value>, Fault> {
    let list = fields.list("tool_calls", BLOCKS_MAX)?.unwrap_or(&[]);
    let mut calls = vec![];
    for (index, call) in list.iter().enumerate() {
        let mut call = Fields::of(call, &fields.place(&format!("tool_calls[{index}]")))?;
        let id = call.text("id")?;
        call.only_neutral(&[("type", &[json!("function")])])?;
        call.ignore(&["index"]);
        let place = call.place("function");
        let mut function = Fields::of(call.value("function").unwrap_or(&Value::Null), &place)?;
        let name = function.text("name")?;
        let name = name.ok_or_else(|| function.fault("name", "name the tool"))?;
        let arguments = function.text("arguments")?.unwrap_or("{}");
        let arguments: Value = serde_json::from_str(arguments)
            .ok()
            .filter(Value::is_object)
            .ok_or_else(|| function.fault("arguments", "use a JSON object as a string"))?;
        function.finish()?;
        call.finish()?;
        calls.push(json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": arguments},
        }));
    }
    Ok(calls)
}

/// A call in the public shape; in a stream it has its place among the answer's calls.
fn told_call(call: &ToolCall, index: Option<usize>) -> Value {
    let mut told = json!({
        "id": format!("call_{}", call.id),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    });
    if let Some(index) = index {
        told["index"] = json!(index);
    }
    told
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
    /// Tokens of prompts that were known, of a stream.
    cached_tokens: usize,
    /// Calls so far, of a stream, by choice.
    calls: Vec<usize>,
}

impl ChatShape {
    /// A shape for one response.
    pub fn new(id: String, created: u64, model: String, include_usage: bool) -> ChatShape {
        ChatShape {
            id,
            created,
            model,
            include_usage,
            tokens: (0, 0),
            cached_tokens: 0,
            calls: vec![],
        }
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
        self.scored(choice, delta, Value::Null, finish_reason, out);
    }

    /// A delta with log-probabilities.
    fn scored(
        &self,
        choice: u32,
        delta: Value,
        scores: Value,
        finish_reason: Option<&str>,
        out: &mut Events,
    ) {
        let choice = json!({
            "index": choice, "delta": delta, "logprobs": scores, "finish_reason": finish_reason,
        });
        out.data(&self.chunk(json!([choice]), None));
    }
}

impl Shape for ChatShape {
    fn whole(&self, prompt_tokens: usize, answers: &[Told]) -> Value {
        let choice = |(index, told): (usize, &Told)| {
            let mut message = json!({
                "role": "assistant", "content": told.text, "refusal": null, "annotations": [],
            });
            if !told.calls.is_empty() {
                let calls = told.calls.iter().map(|call| told_call(call, None));
                message["tool_calls"] = calls.collect();
                if told.text.is_empty() {
                    message["content"] = Value::Null;
                }
            }
            json!({
                "index": index,
                "message": message,
                "logprobs": of_chat(&told.scores),
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
            "usage": whole_usage(prompt_tokens, answers),
        })
    }

    fn begin(&mut self, prompt_tokens: usize, count: usize, out: &mut Events) {
        self.tokens.0 = prompt_tokens;
        self.calls = vec![0; count];
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
            News::Text { text, scores } => {
                self.scored(choice, json!({"content": text}), of_chat(scores), None, out);
            }
            News::Call(call) => {
                let index = self.calls[choice as usize];
                self.calls[choice as usize] += 1;
                let call = told_call(call, Some(index));
                self.delta(choice, json!({"tool_calls": [call]}), None, out);
            }
            News::End(ending) => {
                self.tokens.1 += ending.tokens;
                self.cached_tokens += ending.cached_tokens;
                self.delta(choice, json!({}), Some(finish_reason(ending)), out);
            }
            News::Failed(fault) => self.failed(fault, out),
        }
    }

    fn finish(&mut self, out: &mut Events) {
        if self.include_usage {
            out.data(
                &self.chunk(
                    json!([]),
                    Some(usage(self.tokens.0, self.tokens.1, self.cached_tokens)),
                ),
            );
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

#[cfg(test)]
mod tests {
    use super::super::answers::{EndReason, Ending};
    use super::*;

    fn shape() -> ChatShape {
        ChatShape::new("chatcmpl-1".into(), 1, "m".into(), false)
    }

    fn call() -> ToolCall {
        ToolCall { id: "1".into(), name: "f".into(), arguments: "{\"a\":1}".into() }
    }

    fn ending() -> Ending {
        Ending { reason: EndReason::Calls, tokens: 5, cached_tokens: 0 }
    }

    #[test]
    fn calls_are_told_whole_in_the_public_shape() {
        let told =
            Told { text: String::new(), scores: vec![], calls: vec![call()], ending: ending() };
        let choice = &shape().whole(3, &[told])["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls");
        assert_eq!(choice["message"]["content"], Value::Null);
        let expected = json!([{
            "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"},
        }]);
        assert_eq!(choice["message"]["tool_calls"], expected);
    }

    #[test]
    fn calls_of_a_stream_are_counted_by_choice() {
        let mut shape = shape();
        let mut out = Events::default();
        shape.begin(3, 2, &mut out);
        for choice in [0, 1, 0] {
            shape.news(choice, &News::Call(call()), &mut out);
        }
        let text = out.text();
        let chunks = text.split("\n\n").filter_map(|line| line.strip_prefix("data: "));
        let chunks: Vec<Value> = chunks.map(|data| serde_json::from_str(data).unwrap()).collect();
        let places: Vec<(u64, u64)> = chunks[2..]
            .iter()
            .map(|chunk| {
                let choice = &chunk["choices"][0];
                let call = &choice["delta"]["tool_calls"][0];
                (choice["index"].as_u64().unwrap(), call["index"].as_u64().unwrap())
            })
            .collect();
        assert_eq!(places, [(0, 0), (1, 0), (0, 1)]);
    }

    #[test]
    fn calls_and_results_of_a_conversation_are_read_for_the_template() {
        let body = json!({
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
                ]},
                {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        });
        let asked = ChatRequest::read(&body).unwrap();
        let Prompt::Chat { messages, tools } = &asked.question.prompts[0] else { panic!() };
        assert_eq!(tools.as_ref().map(Vec::len), Some(1));
        assert_eq!(messages[1].tool_calls[0]["function"]["arguments"], json!({"a": 1}));
        assert_eq!(messages[2].tool_call_id.as_deref(), Some("call_1"));
        let mut none = body.clone();
        none["tool_choice"] = json!("none");
        let asked = ChatRequest::read(&none).unwrap();
        assert!(matches!(&asked.question.prompts[0], Prompt::Chat { tools: None, .. }));
        let mut forced = body;
        forced["tool_choice"] = json!("required");
        assert_eq!(ChatRequest::read(&forced).unwrap_err().field.as_deref(), Some("tool_choice"));
    }
}
