//! Anthropic's endpoint: shapes of answers, of streams and of errors.

use crate::client::post;
use crate::setup::common;
use serde_json::{Value, json};

const BEGINNING: &str = "It is a truth universally acknowledged, that";

fn message(max_tokens: u32) -> Value {
    json!({
        "model": "nano-glm-dsa", "max_tokens": max_tokens, "temperature": 0,
        "messages": [{"role": "user", "content": BEGINNING}],
    })
}

#[test]
fn message_has_the_public_shape() {
    let body = post(common(), "/v1/messages", &message(14)).json();
    assert!(body["id"].as_str().unwrap().starts_with("msg_"), "{body}");
    assert_eq!((&body["type"], &body["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(body["content"][0]["type"], "text");
    assert!(body["content"][0]["text"].as_str().unwrap().starts_with(" it is not"), "{body}");
    assert_eq!(
        (&body["stop_reason"], &body["stop_sequence"]),
        (&json!("max_tokens"), &Value::Null)
    );
    assert_eq!(body["usage"]["output_tokens"], 14);
    let mut request = message(14);
    request["stop_sequences"] = json!(["t to b"]);
    let body = post(common(), "/v1/messages", &request).json();
    assert_eq!(body["content"][0]["text"], " it is no");
    assert_eq!(body["stop_reason"], "stop_sequence");
    assert_eq!(body["stop_sequence"], "t to b");
}

#[test]
fn stream_is_the_public_sequence_of_events() {
    let whole = post(common(), "/v1/messages", &message(10)).json();
    let mut request = message(10);
    request["stream"] = json!(true);
    let response = post(common(), "/v1/messages", &request);
    let events = response.events();
    let data = |index: usize| -> Value { serde_json::from_str(&events[index].1).expect("JSON") };
    let names: Vec<&str> = events.iter().map(|event| event.0.as_str()).collect();
    let last = names.len();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[last - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert!(names[3..last - 3].iter().all(|name| *name == "content_block_delta"), "{names:?}");
    assert!((0..last).all(|index| data(index)["type"] == names[index]));
    let start = &data(0)["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(start["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    let text: String =
        (3..last - 3).map(|at| data(at)["delta"]["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(whole["content"][0]["text"], text);
    assert_eq!(data(last - 2)["delta"]["stop_reason"], "max_tokens");
    assert_eq!(data(last - 2)["usage"]["output_tokens"], 10);
}

#[test]
fn system_and_blocks_are_said_and_counted() {
    let count = |body: &Value| {
        let response = post(common(), "/v1/messages/count_tokens", body);
        response.json()["input_tokens"].as_u64().unwrap_or_else(|| panic!("{response:?}"))
    };
    let plain = json!({"model": "alias", "messages": [{"role": "user", "content": BEGINNING}]});
    let mut blocks = plain.clone();
    blocks["messages"][0]["content"] =
        json!([{"type": "text", "text": BEGINNING, "cache_control": {"type": "ephemeral"}}]);
    assert_eq!(count(&plain), count(&blocks));
    let mut system = plain.clone();
    system["system"] = json!([{"type": "text", "text": "Chapter one"}]);
    assert!(count(&system) > count(&plain));
    let mut request = message(2);
    request["system"] = json!([{"type": "text", "text": "Chapter one"}]);
    let answer = post(common(), "/v1/messages", &request).json();
    assert_eq!(answer["usage"]["input_tokens"], count(&system), "{answer}");
}

#[test]
fn errors_have_the_public_shape_and_name_the_field() {
    let mut no_tokens = message(1);
    no_tokens.as_object_mut().unwrap().remove("max_tokens");
    let with = |field: &str, value: Value| {
        let mut request = message(1);
        request[field] = value;
        request
    };
    for (body, status, kind, word) in [
        (no_tokens, 400, "invalid_request_error", "max_tokens"),
        (with("temperature", json!(1.5)), 400, "invalid_request_error", "temperature"),
        (with("top_k", json!(-5)), 400, "invalid_request_error", "top_k"),
        (with("thinking", json!({"type": "enabled"})), 400, "invalid_request_error", "thinking"),
        (with("model", json!("claude-9")), 404, "not_found_error", "claude-9"),
        (
            with("messages", json!([{"role": "user", "content": [{"type": "image"}]}])),
            400,
            "invalid_request_error",
            "messages[0].content[0].type",
        ),
        (
            with("messages", json!([{"role": "assistant", "content": "So"}])),
            400,
            "invalid_request_error",
            "last",
        ),
    ] {
        let response = post(common(), "/v1/messages", &body);
        let body = response.json();
        assert_eq!((response.status, &body["type"]), (status, &json!("error")), "{body}");
        assert_eq!(body["error"]["type"], kind);
        assert!(body["error"]["message"].as_str().unwrap().contains(word), "{word}: {body}");
        assert!(response.header("request-id").is_some());
    }
}
