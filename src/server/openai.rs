//! What OpenAI's two endpoints have in common: fields, usage, reasons of an end.

use super::answers::{EndReason, Ending};
use super::errors::Fault;
use super::events::Events;
use super::fields::Fields;
use super::limits::{CHOICES_MAX, STOP_BYTES_MAX, STOPS_MAX, TOKENS_MAX};
use super::question::Question;
use super::shape::Told;
use serde_json::{Value, json};

/// Fields of both endpoints that never change an answer.
pub const NO_EFFECT: [&str; 9] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    // A guess of the answer, to make it sooner.
    "prediction",
];

/// How a response is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telling {
    /// As a stream.
    pub stream: bool,
    /// The stream ends with the usage.
    pub include_usage: bool,
}

/// Reads `stream` and `stream_options`.
///
/// # Errors
/// When one has a wrong type, or there are options and no stream.
pub fn telling(fields: &mut Fields<'_>) -> Result<Telling, Fault> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let mut include_usage = false;
    if let Some(options) = fields.value("stream_options") {
        if !stream {
            return Err(fields.fault("stream_options", "it needs stream: true"));
        }
        let mut options = Fields::of(options, "stream_options")?;
        include_usage = options.flag("include_usage")?.unwrap_or(false);
        options.ignore(&["include_obfuscation"]);
        options.finish()?;
    }
    Ok(Telling { stream, include_usage })
}

/// Reads what both endpoints say about how to answer.
///
/// # Errors
/// When a field has a wrong type or is out of its range.
pub fn sampling(fields: &mut Fields<'_>, question: &mut Question) -> Result<(), Fault> {
    question.temperature = fields.number("temperature", 0.0, 2.0)?;
    question.top_p = fields.number("top_p", 0.0, 1.0)?;
    question.top_k = fields.count("top_k", 0, u64::from(u32::MAX))?.map(|k| k as u32);
    question.min_p = fields.number("min_p", 0.0, 1.0)?;
    question.repetition_penalty = fields.number("repetition_penalty", 0.01, 100.0)?;
    question.presence_penalty = fields.number("presence_penalty", -2.0, 2.0)?;
    question.frequency_penalty = fields.number("frequency_penalty", -2.0, 2.0)?;
    question.seed = fields.seed("seed")?;
    question.stops = stops(fields, "stop")?;
    if let Some(most) = fields.count("max_tokens", 1, TOKENS_MAX)? {
        question.max_tokens = Some(most as usize);
    }
    question.choices = fields.count("n", 1, CHOICES_MAX)?.unwrap_or(1) as u32;
    Ok(())
}

/// One stop string or a list of them.
///
/// # Errors
/// When it is something else, or there are too many or too long ones.
pub fn stops(fields: &mut Fields<'_>, name: &'static str) -> Result<Vec<String>, Fault> {
    let list = match fields.value(name) {
        None => return Ok(vec![]),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) if list.len() <= STOPS_MAX => {
            let text = |stop: &Value| stop.as_str().map(str::to_owned);
            let list: Option<Vec<String>> = list.iter().map(text).collect();
            list.ok_or_else(|| fields.fault(name, "use strings"))?
        }
        Some(_) => {
            let message = format!("use a string or a list of at most {STOPS_MAX} strings");
            return Err(fields.fault(name, message));
        }
    };
    match list.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len())) {
        true => Ok(list),
        false => Err(fields.fault(name, format!("use strings of 1 to {STOP_BYTES_MAX} bytes"))),
    }
}

/// The usage object.
pub fn usage(prompt_tokens: usize, answer_tokens: usize, cached_tokens: usize) -> Value {
    json!({
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answer_tokens,
        "total_tokens": prompt_tokens + answer_tokens,
    })
}

/// The usage of all answers to a question.
pub fn whole_usage(prompt_tokens: usize, answers: &[Told]) -> Value {
    let sum = |of: fn(&Ending) -> usize| answers.iter().map(|told| of(&told.ending)).sum();
    usage(prompt_tokens, sum(|ending| ending.tokens), sum(|ending| ending.cached_tokens))
}

/// `finish_reason`.
pub fn finish_reason(ending: &Ending) -> &'static str {
    match ending.reason {
        EndReason::Stop | EndReason::StopString(_) => "stop",
        EndReason::Calls => "tool_calls",
        EndReason::Length => "length",
    }
}

/// The program that answered, as `system_fingerprint`.
pub fn fingerprint() -> &'static str {
    concat!("millstream-", env!("CARGO_PKG_VERSION"))
}

/// A fault within a stream; the stream ends with it.
pub fn failed(fault: &Fault, out: &mut Events) {
    out.data(&fault.body(super::dialect::Dialect::OpenAi));
    out.done();
}
