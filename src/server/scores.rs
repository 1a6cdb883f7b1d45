//! Log-probabilities of tokens, with the tokens in words.
//!
//! Made by an answer's thread from what the engine says of a token, shown by the shapes of OpenAI's
//! two endpoints.

use crate::sampler::LogProbabilities;
use crate::text::{TextError, Tokenizer};
use serde_json::{Map, Value, json};

/// A token and what the model thought of it and of others in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// The token's text; a part of a character is U+FFFD.
    pub token: String,
    /// Its log-probability.
    pub log_probability: f32,
    /// The likeliest tokens, by falling probability.
    pub top: Vec<(String, f32)>,
}

/// The least that is shown, as in the public API: JSON has no infinity.
const LEAST: f32 = -9999.0;

impl TokenScore {
    /// The score of a token.
    ///
    /// # Errors
    /// When the tokenizer refuses an id.
    pub fn new(
        tokenizer: &Tokenizer,
        id: u32,
        found: &LogProbabilities,
    ) -> Result<TokenScore, TextError> {
        let top = found.top.iter().map(|&(id, value)| Ok((tokenizer.token_text(id)?, value)));
        Ok(TokenScore {
            token: tokenizer.token_text(id)?,
            log_probability: found.token,
            top: top.collect::<Result<_, TextError>>()?,
        })
    }
}

/// One token of chat's `logprobs.content`.
fn entry(token: &str, log_probability: f32) -> Map<String, Value> {
    // A part of a character has bytes that its text doesn't tell.
    let bytes = (!token.contains(char::REPLACEMENT_CHARACTER)).then_some(token.as_bytes());
    let mut entry = Map::new();
    entry.insert("token".into(), json!(token));
    entry.insert("logprob".into(), json!(log_probability.max(LEAST)));
    entry.insert("bytes".into(), json!(bytes));
    entry
}

/// `logprobs` of a chat choice; null if there are none.
pub fn of_chat(scores: &[TokenScore]) -> Value {
    if scores.is_empty() {
        return Value::Null;
    }
    let content = scores.iter().map(|score| {
        let mut object = entry(&score.token, score.log_probability);
        let top = score.top.iter().map(|(token, value)| Value::from(entry(token, *value)));
        object.insert("top_logprobs".into(), top.collect());
        Value::from(object)
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// `logprobs` of a completion's choice; `offset` is where its text begins, in characters.
pub fn of_completion(scores: &[TokenScore], offset: usize) -> Value {
    if scores.is_empty() {
        return Value::Null;
    }
    let mut offsets = vec![];
    let mut at = offset;
    for score in scores {
        offsets.push(at);
        at += score.token.chars().count();
    }
    let top = |score: &TokenScore| -> Value {
        let top = score.top.iter().map(|(token, value)| (token.clone(), json!(value.max(LEAST))));
        top.collect::<Map<_, _>>().into()
    };
    json!({
        "tokens": scores.iter().map(|score| &score.token).collect::<Vec<_>>(),
        "token_logprobs": scores.iter().map(|s| s.log_probability.max(LEAST)).collect::<Vec<_>>(),
        "top_logprobs": scores.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores() -> Vec<TokenScore> {
        let score = |token: &str, log_probability| TokenScore {
            token: token.into(),
            log_probability,
            top: vec![(token.into(), log_probability)],
        };
        vec![score(" é", -0.5), score("\u{fffd}", f32::NEG_INFINITY)]
    }

    #[test]
    fn both_endpoints_show_tokens_in_their_shapes() {
        let chat = of_chat(&scores());
        let first = &chat["content"][0];
        assert_eq!(first["bytes"], json!([32, 195, 169]));
        assert_eq!(first["logprob"], -0.5);
        assert_eq!(first["top_logprobs"][0]["token"], " é");
        assert_eq!(chat["content"][1]["bytes"], Value::Null, "a part of a character");
        assert_eq!(chat["content"][1]["logprob"], -9999.0);
        let completion = of_completion(&scores(), 5);
        assert_eq!(completion["text_offset"], json!([5, 7]));
        assert_eq!(completion["tokens"][0], " é");
        assert_eq!(completion["top_logprobs"][0][" é"], -0.5);
        assert_eq!(of_chat(&[]), Value::Null);
    }
}
