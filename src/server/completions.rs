//! `POST /v1/completions`: OpenAI's plain completion of texts or token ids.

use super::answers::News;
use super::errors::Fault;
use super::events::Events;
use super::fields::Fields;
use super::limits::CHOICES_MAX;
use super::openai::{
    NO_EFFECT, Telling, failed, fingerprint, finish_reason, sampling, telling, usage, whole_usage,
};
use super::question::{Prompt, Question};
use super::scores::of_completion;
use super::shape::{Shape, Told};
use crate::sampler::TOP_LOG_PROBABILITIES_MAX;
use serde_json::{Value, json};

/// Tokens of an answer where the caller names no number, as in the public API.
const TOKENS_DEFAULT: usize = 16;

/// A completion request.
#[derive(Debug)]
pub struct CompletionRequest {
    /// The model that is meant.
    pub model: Option<String>,
    /// What is asked.
    pub question: Question,
    /// How it is told.
    pub telling: Telling,
}

impl CompletionRequest {
    /// Reads a request's body.
    ///
    /// # Errors
    /// When a field is wrong, unknown or not supported; names it.
    pub fn read(body: &Value) -> Result<CompletionRequest, Fault> {
        let mut fields = Fields::of(body, "")?;
        let model = fields.text("model")?.map(str::to_owned);
        let prompts = prompts(&mut fields)?;
        let mut question = Question::new(Prompt::Text(String::new()));
        question.prompts = prompts;
        sampling(&mut fields, &mut question)?;
        question.max_tokens.get_or_insert(TOKENS_DEFAULT);
        if question.prompts.len() as u64 * u64::from(question.choices) > CHOICES_MAX {
            return Err(fields.fault("n", format!("at most {CHOICES_MAX} answers in all")));
        }
        let most = TOP_LOG_PROBABILITIES_MAX as u64;
        question.log_probabilities = fields.count("logprobs", 0, most)?.map(|top| top as usize);
        let telling = telling(&mut fields)?;
        fields.ignore(&NO_EFFECT);
        fields.only_neutral(&[
            ("logit_bias", &[json!({})]),
            ("echo", &[json!(false)]),
            ("suffix", &[json!("")]),
            ("best_of", &[json!(1), json!(question.choices)]),
        ])?;
        fields.finish()?;
        Ok(CompletionRequest { model, question, telling })
    }
}

/// One text, one list of ids, or a list of either.
fn prompts(fields: &mut Fields<'_>) -> Result<Vec<Prompt>, Fault> {
    let how =
        format!("use a string, a list of token ids, or a list of 1 to {CHOICES_MAX} of these");
    let value = fields.value("prompt");
    let fault = || fields.fault("prompt", how.clone());
    let ids = |list: &[Value]| -> Option<Vec<u32>> {
        list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let one = |value: &Value| match value {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        Value::Array(list) if !list.is_empty() => ids(list).map(Prompt::Ids),
        _ => None,
    };
    match value {
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            Ok(vec![Prompt::Ids(ids(list).ok_or_else(fault)?)])
        }
        Some(Value::Array(list)) if (1..=CHOICES_MAX as usize).contains(&list.len()) => {
            list.iter().map(one).collect::<Option<_>>().ok_or_else(fault)
        }
        Some(text @ Value::String(_)) => Ok(one(text).into_iter().collect()),
        _ => Err(fault()),
    }
}

/// How completions are told.
#[derive(Debug)]
pub struct CompletionShape {
    /// `cmpl-...`
    id: String,
    created: u64,
    model: String,
    include_usage: bool,
    /// Tokens of the prompts and of the answers so far, of a stream.
    tokens: (usize, usize),
    /// Tokens of prompts that were known, of a stream.
    cached_tokens: usize,
    /// Characters so far, of a stream, by choice.
    offsets: Vec<usize>,
}

impl CompletionShape {
    /// A shape for one response.
    pub fn new(id: String, created: u64, model: String, include_usage: bool) -> CompletionShape {
        CompletionShape {
            id,
            created,
            model,
            include_usage,
            tokens: (0, 0),
            cached_tokens: 0,
            offsets: vec![],
        }
    }

    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(),
            "choices": choices,
        })
    }

    fn chunk(&self, choices: Value, usage: Option<Value>, out: &mut Events) {
        let mut chunk = self.object(choices);
        if self.include_usage {
            chunk["usage"] = usage.unwrap_or(Value::Null);
        }
        out.data(&chunk);
    }

    fn choice(index: usize, text: &str, scores: Value, finish_reason: Option<&str>) -> Value {
        json!({
            "index": index, "text": text, "logprobs": scores, "finish_reason": finish_reason,
        })
    }
}

impl Shape for CompletionShape {
    fn whole(&self, prompt_tokens: usize, answers: &[Told]) -> Value {
        let choice = |(index, told): (usize, &Told)| {
            let scores = of_completion(&told.scores, 0);
            Self::choice(index, &told.text, scores, Some(finish_reason(&told.ending)))
        };
        let choices = answers.iter().enumerate().map(choice).collect();
        let mut object = self.object(choices);
        object["usage"] = whole_usage(prompt_tokens, answers);
        object
    }

    fn begin(&mut self, prompt_tokens: usize, count: usize, _out: &mut Events) {
        self.tokens.0 = prompt_tokens;
        self.offsets = vec![0; count];
    }

    fn news(&mut self, choice: u32, news: &News, out: &mut Events) {
        let choice = choice as usize;
        match news {
            News::Text { text, scores } => {
                let scores = of_completion(scores, self.offsets[choice]);
                self.offsets[choice] += text.chars().count();
                self.chunk(json!([Self::choice(choice, text, scores, None)]), None, out);
            }
            News::Call(_) => {}
            News::End(ending) => {
                self.tokens.1 += ending.tokens;
                self.cached_tokens += ending.cached_tokens;
                let reason = Some(finish_reason(ending));
                let choice = Self::choice(choice, "", Value::Null, reason);
                self.chunk(json!([choice]), None, out);
            }
            News::Failed(fault) => self.failed(fault, out),
        }
    }

    fn finish(&mut self, out: &mut Events) {
        if self.include_usage {
            self.chunk(
                json!([]),
                Some(usage(self.tokens.0, self.tokens.1, self.cached_tokens)),
                out,
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
