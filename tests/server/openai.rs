//! OpenAI's endpoints: shapes of answers and of streams, ends, usage, models.

use crate::client::{get, post, send};
use crate::setup::{common, options, tiny_model};
use millstream::server::Server;
use serde_json::{Value, json};

/// A greedy chat request of the embedded model.
pub fn chat(text: &str, max_tokens: u32) -> Value {
    json!({
        "model": "nano-glm-dsa", "temperature": 0, "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": text}],
    })
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

/// Greedy text of the embedded model after its usual beginning.
const BEGINNING: &str = "It is a truth universally acknowledged, that";
const ANSWER: &str = " it is not to be supposed that it is not";

#[test]
fn chat_answers_in_the_public_shape() {
    let response = post(common(), "/v1/chat/completions", &chat(BEGINNING, 14));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert!(response.header("x-request-id").is_some());
    let body = response.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(body["model"], "nano-glm-dsa");
    let choice = &body["choices"][0];
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"], Value::Null);
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["refusal"], Value::Null);
    assert!(choice["message"]["content"].as_str().unwrap().starts_with(ANSWER), "{body}");
    let usage = &body["usage"];
    assert_eq!(usage["completion_tokens"], 14);
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > 3, "{body}");
    assert_eq!(usage["total_tokens"], prompt + 14);
}

#[test]
fn stream_tells_what_the_whole_answer_tells() {
    let request = chat(BEGINNING, 14);
    let whole = post(common(), "/v1/chat/completions", &request).json();
    let request = with(request, "stream", json!(true));
    let plain = post(common(), "/v1/chat/completions", &request).chunks();
    assert!(plain.iter().all(|chunk| chunk.get("usage").is_none()));
    let request = with(request, "stream_options", json!({"include_usage": true}));
    let chunks = post(common(), "/v1/chat/completions", &request).chunks();
    let (last, told) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], whole["usage"]);
    assert!(told.iter().all(|chunk| chunk["usage"].is_null()));
    let same = |field: &str| chunks.iter().all(|chunk| chunk[field] == chunks[0][field]);
    assert!(["id", "object", "created", "model"].iter().all(|field| same(field)));
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let end = &told.last().unwrap()["choices"][0];
    assert_eq!((&end["delta"], &end["finish_reason"]), (&json!({}), &json!("length")));
    let text: String =
        told.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[test]
fn stop_strings_cut_across_tokens_also_in_streams() {
    // The answer is " it is not to be supposed ..."; "t to b" lies across three tokens.
    let request = with(chat(BEGINNING, 14), "stop", json!(["t to b", "zzz"]));
    let whole = post(common(), "/v1/chat/completions", &request).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], " it is no");
    assert_eq!(choice["finish_reason"], "stop");
    let request = with(request, "stream", json!(true));
    let chunks = post(common(), "/v1/chat/completions", &request).chunks();
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, " it is no");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[test]
fn completions_take_texts_and_ids_and_several_of_them() {
    let ask = |prompt: Value, more: Value| {
        let mut body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 6});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        post(common(), "/v1/completions", &body)
    };
    let one = ask(json!(BEGINNING), json!({})).json();
    assert!(one["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(one["object"], "text_completion");
    let text = one["choices"][0]["text"].as_str().unwrap();
    assert!(ANSWER.starts_with(text) && !text.is_empty(), "{one}");
    assert_eq!(one["choices"][0]["finish_reason"], "length");
    assert_eq!(one["usage"]["completion_tokens"], 6);
    let two = ask(json!([BEGINNING, [5, 17, 9]]), json!({})).json();
    assert_eq!(two["choices"][0]["text"], text);
    assert_eq!(two["choices"][1]["index"], 1);
    assert_eq!(two["usage"]["completion_tokens"], 12);
    let ids = ask(json!([5, 17, 9]), json!({})).json();
    assert_eq!(two["choices"][1]["text"], ids["choices"][0]["text"]);
    assert_eq!(ids["usage"]["prompt_tokens"], 3);
    let chunks = ask(json!(BEGINNING), json!({"stream": true})).chunks();
    let streamed: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, text);
    let long = post(common(), "/v1/completions", &json!({"prompt": "The", "temperature": 0}));
    assert_eq!(long.json()["usage"]["completion_tokens"], 16, "the public default");
}

#[test]
fn same_seed_draws_the_same_and_others_differ() {
    let draw = |seed: Option<i64>| {
        let mut body = chat(BEGINNING, 24);
        body["temperature"] = json!(1.2);
        body["seed"] = json!(seed);
        let body = post(common(), "/v1/chat/completions", &body).json();
        body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(draw(Some(7)), draw(Some(7)));
    assert_ne!(draw(Some(7)), draw(Some(-8)));
    assert_ne!(draw(None), draw(None), "without a seed every draw is new");
}

#[test]
fn several_choices_differ_and_come_back_in_their_places() {
    let mut body = chat(BEGINNING, 24);
    (body["temperature"], body["seed"], body["n"]) = (json!(1.2), json!(7), json!(3));
    let first = post(common(), "/v1/chat/completions", &body).json();
    let texts: Vec<&str> = first["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["message"]["content"].as_str().unwrap())
        .collect();
    assert!(texts.len() == 3 && texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(first["usage"]["completion_tokens"], 72);
    body["stream"] = json!(true);
    let mut streamed = vec![String::new(); 3];
    for chunk in post(common(), "/v1/chat/completions", &body).chunks() {
        let choice = &chunk["choices"][0];
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        streamed[choice["index"].as_u64().unwrap() as usize] += text;
    }
    assert_eq!(streamed, texts);
}

#[test]
fn log_probabilities_are_told_with_every_token() {
    let mut body = chat(BEGINNING, 8);
    (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(3));
    let whole = post(common(), "/v1/chat/completions", &body).json();
    let choice = &whole["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 8);
    let text: String = content.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
    assert_eq!(choice["message"]["content"], text);
    for entry in content {
        // Greedy: the token is the likeliest, and no probability is above one.
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(entry["top_logprobs"][0]["token"], entry["token"]);
        let values: Vec<f64> =
            (0..3).map(|at| entry["top_logprobs"][at]["logprob"].as_f64().unwrap()).collect();
        assert!(values[0] <= 0.0 && values[0] >= values[1] && values[1] >= values[2], "{entry}");
    }
    body["stream"] = json!(true);
    let streamed: Vec<Value> = post(common(), "/v1/chat/completions", &body)
        .chunks()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(&streamed, content);
    let body = json!({"prompt": BEGINNING, "temperature": 0, "max_tokens": 8, "logprobs": 2});
    let plain = post(common(), "/v1/completions", &body).json();
    let told = &plain["choices"][0]["logprobs"];
    let values: Vec<&Value> = content.iter().map(|entry| &entry["logprob"]).collect();
    assert_eq!(json!(values), told["token_logprobs"]);
    assert_eq!(told["text_offset"][0], 0);
    assert_eq!(told["top_logprobs"][0].as_object().unwrap().len(), 2);
}

#[test]
fn penalties_and_cuts_reach_the_sampler() {
    let say = |more: &[(&str, Value)]| {
        let mut body = chat(BEGINNING, 40);
        for (field, value) in more {
            body[*field] = value.clone();
        }
        let body = post(common(), "/v1/chat/completions", &body).json();
        body["choices"][0]["message"]["content"].as_str().expect("text").to_owned()
    };
    let plain = say(&[]);
    assert_ne!(say(&[("frequency_penalty", json!(2))]), plain);
    assert_ne!(say(&[("presence_penalty", json!(2))]), plain);
    assert_ne!(say(&[("repetition_penalty", json!(1.5))]), plain);
    // One token to choose from is greedy at any temperature.
    assert_eq!(say(&[("temperature", json!(2)), ("top_k", json!(1))]), plain);
    assert_eq!(say(&[("temperature", json!(2)), ("min_p", json!(1))]), plain);
}

#[test]
fn fields_that_would_change_the_answer_are_refused_by_name() {
    for (field, value) in [
        ("temperature", json!(3)),
        ("temperature", json!("hot")),
        ("top_p", json!(-0.1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1.5)),
        ("stop", json!([1])),
        ("stop", json!([""])),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("logit_bias", json!({"5": 10})),
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!("much")),
        ("repetition_penalty", json!(0)),
        ("top_k", json!(-1)),
        ("min_p", json!(1.5)),
        ("logprobs", json!(3)),
        ("top_logprobs", json!(5)),
        ("response_format", json!({"type": "json_object"})),
        ("functions", json!([{"name": "f"}])),
        ("modalities", json!(["audio"])),
        ("reasoning_effort", json!("high")),
        ("messages", json!([])),
        ("messages", json!("hello")),
        ("surprise", json!(1)),
        ("n", json!(1000)),
    ] {
        let response = post(common(), "/v1/chat/completions", &with(chat("x", 2), field, value));
        let error = &response.json()["error"];
        assert_eq!(response.status, 400, "{field}: {error}");
        assert_eq!(error["param"], field, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
        assert!(error.get("code").is_some());
    }
}

#[test]
fn fields_without_effect_are_taken() {
    let mut body = chat("It is", 2);
    for (field, value) in [
        ("user", json!("u")),
        ("metadata", json!({"a": "b"})),
        ("store", json!(false)),
        ("parallel_tool_calls", json!(true)),
        ("response_format", json!({"type": "text"})),
        ("logit_bias", json!({})),
        ("tools", json!([])),
        ("stop", Value::Null),
        ("surprise", Value::Null),
        ("presence_penalty", json!(0)),
    ] {
        body[field] = value;
    }
    let response = post(common(), "/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{}", response.text());
}

#[test]
fn another_model_and_a_prompt_that_is_too_long_are_refused_with_their_codes() {
    let other =
        post(common(), "/v1/chat/completions", &with(chat("x", 2), "model", json!("gpt-9")));
    assert_eq!(other.status, 404);
    assert_eq!(other.json()["error"]["code"], "model_not_found");
    for words in [2000, 200_000] {
        let long = post(common(), "/v1/chat/completions", &chat(&"word ".repeat(words), 2));
        assert_eq!(long.status, 400);
        assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
    }
}

#[test]
fn prompt_that_is_known_is_read_once_and_told_as_cached() {
    let long = format!("{} {BEGINNING}", "It was a dark and stormy night. ".repeat(30));
    let first = post(common(), "/v1/chat/completions", &chat(&long, 8)).json();
    let second = post(common(), "/v1/chat/completions", &chat(&long, 8)).json();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let prompt = second["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached >= 64 && cached < prompt, "{second}");
    assert_eq!(first["choices"][0]["message"], second["choices"][0]["message"]);
}

#[test]
fn models_are_listed_by_all_their_names() {
    let list = get(common(), "/v1/models").json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "nano-glm-dsa");
    assert_eq!(list["data"][0]["object"], "model");
    assert_eq!(list["data"][1]["id"], "alias");
    assert_eq!(get(common(), "/v1/models/alias").json()["id"], "alias");
    assert_eq!(get(common(), "/v1/models/other").status, 404);
    let anthropic = [("anthropic-version", "2023-06-01")];
    let list = send(common(), "GET", "/v1/models", &anthropic, b"").json();
    assert_eq!((&list["data"][0]["type"], &list["has_more"]), (&json!("model"), &json!(false)));
    assert!(list["data"][0]["created_at"].as_str().unwrap().ends_with('Z'), "{list}");
}

#[test]
fn health_says_what_runs() {
    let response = get(common(), "/health");
    let health = response.json();
    assert_eq!((response.status, &health["status"]), (200, &json!("ok")));
    assert!(health["engine"].as_str().unwrap().contains("thread"), "{health}");
    assert_eq!(health["answers_at_once_max"], 8);
}

#[test]
fn conversation_goes_through_the_models_own_template() {
    let server = Server::start(tiny_model("glm-dsa"), &options()).expect("it starts");
    let say = |messages: Value| {
        let body = json!({"messages": messages, "max_tokens": 4, "temperature": 0});
        post(server.address(), "/v1/chat/completions", &body).json()
    };
    let ids = |text: &str| {
        let tokenizer = &server.served().tokenizer;
        tokenizer.encode(text, false).expect("a text").len()
    };
    let answer = say(json!([
        {"role": "developer", "content": "Brief"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]));
    let expected = ids("[gMASK]<sop><|system|>\nBrief<|user|>\nHi<|assistant|>\n");
    assert_eq!(answer["usage"]["prompt_tokens"], expected, "{answer}");
}
