//! Requests that are wrong, huge, slow or malicious: each has its answer, none is a 500, none hangs.

use crate::client::{connect, post, read_response, request_bytes, send};
use crate::openai::chat;
use crate::setup::{common, options, start, start_short, wait_until_idle};
use millstream::server::{ServerLimits, ServerOptions};
use serde_json::{Value, json};
use std::io::{BufReader, Write};
use std::time::Duration;

const POSTS: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"];

#[test]
fn bodies_that_are_no_request_are_told_so() {
    let deep = "[".repeat(100_000);
    let deep_messages = format!("{{\"messages\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    let long_name = format!("{{\"{}\": 1}}", "x".repeat(10_000));
    for path in POSTS {
        for body in [
            "",
            "null",
            "[]",
            "7",
            "\"text\"",
            "{",
            "{}",
            "{\"messages\": [{}]}",
            "{\"messages\": [null]}",
            "{\"messages\": {\"role\": \"user\"}}",
            "{\"prompt\": {}}",
            "{\"prompt\": [[]]}",
            "{\"prompt\": [1, \"a\"]}",
            "{\"prompt\": [-1]}",
            "{\"prompt\": [4294967296]}",
            "{\"prompt\": [99999999]}",
            "{\"prompt\": \"\"}",
            "{\"prompt\": \"a\", \"n\": 1e400}",
            "\u{0}\u{1}",
            deep.as_str(),
            deep_messages.as_str(),
            long_name.as_str(),
        ] {
            let response = send(common(), "POST", path, &[], body.as_bytes());
            let shown: String = body.chars().take(60).collect();
            assert_eq!(response.status, 400, "{path} {shown}: {}", response.text());
            let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(!message.is_empty() && message.len() < 1000, "{path} {shown}: {message}");
        }
        let not_utf8 = send(common(), "POST", path, &[], b"{\"model\": \"\xff\xfe\"}");
        assert_eq!(not_utf8.status, 400);
    }
}

/// Every field that one of the endpoints knows.
const FIELDS: [&str; 29] = [
    "model",
    "messages",
    "prompt",
    "system",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stop_sequences",
    "n",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "response_format",
    "metadata",
    "user",
    "presence_penalty",
    "frequency_penalty",
    "thinking",
    "echo",
    "suffix",
    "best_of",
];

/// Every field with values of every type: whatever comes of it, it is no 500.
#[test]
fn wrong_types_in_every_field_never_fail_the_server() {
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(18_446_744_073_709_551_615u64),
        json!(""),
        json!("\u{0}\u{fffd}\u{202e}"),
        json!([]),
        json!([[[]]]),
        json!({}),
        json!({"type": "text", "text": 1}),
    ];
    let bases = [
        (POSTS[0], chat("The", 1)),
        (POSTS[1], json!({"prompt": "The", "max_tokens": 1})),
        (
            POSTS[2],
            json!({"model": "alias", "max_tokens": 1, "messages": [{"role": "user", "content": "The"}]}),
        ),
        (POSTS[3], json!({"model": "alias", "messages": [{"role": "user", "content": "The"}]})),
    ];
    let mut refused = 0;
    for (path, base) in &bases {
        for field in FIELDS {
            for value in &values {
                let mut body = base.clone();
                body[field] = value.clone();
                let response = post(common(), path, &body);
                let known = [200, 400, 404].contains(&response.status);
                assert!(known, "{path} {field} {value}: {}", response.text());
                refused += usize::from(response.status == 400);
            }
        }
    }
    assert!(refused > 500, "only {refused} were refused");
}

#[test]
fn parts_of_messages_are_checked_and_named() {
    for (message, place) in [
        (json!({"role": "wizard", "content": "x"}), "messages[0].role"),
        (json!({"content": "x"}), "messages[0].role"),
        (json!({"role": "user"}), "messages[0].content"),
        (json!({"role": "user", "content": 5}), "messages[0].content"),
        (json!({"role": "user", "content": "x", "spell": 1}), "messages[0].spell"),
        (
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}),
            "messages[0].content[0].type",
        ),
        (json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
    ] {
        let response = post(common(), POSTS[0], &json!({"messages": [message]}));
        let error = &response.json()["error"];
        assert_eq!((response.status, error["param"].as_str()), (400, Some(place)), "{error}");
    }
}

#[test]
fn addresses_and_methods_that_are_not_there_are_told_in_json() {
    for (method, path, status) in [
        ("GET", "/v2/anything", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("BREW", "/v1/messages", 405),
    ] {
        let response = send(common(), method, path, &[], b"");
        assert_eq!(response.status, status, "{method} {path}: {}", response.text());
        assert!(response.json()["error"]["message"].is_string(), "{method} {path}");
    }
}

/// What is wrong on the level of HTTP ends the connection, with a status or without a word.
#[test]
fn broken_http_ends_the_connection_and_nothing_else() {
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n";
    let many: String = (0..1000).map(|number| format!("x-{number}: 1\r\n")).collect();
    for bytes in [
        "\r\n\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "rubbish\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}".to_owned() + "tls hello\r\n\r\n",
        format!("{head}content-length: x\r\n\r\n"),
        format!("{head}content-length: 5\r\ncontent-length: 6\r\n\r\nhello!"),
        format!("{head}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /x"),
        format!("{head}transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        format!("{head}transfer-encoding: chunked\r\n\r\nZZ\r\n\r\n"),
        format!("{head}transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n\r\n"),
        format!("{head}{many}\r\n"),
        format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000)),
        format!("{head}x: {}\r\n\r\n", "a".repeat(200_000)),
        format!("{head}bad header: 1\r\n\r\n"),
    ] {
        let mut stream = connect(common());
        let _ = stream.write_all(bytes.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let response = read_response(&mut BufReader::new(stream));
        let shown: String = bytes.chars().take(120).collect();
        let status = response.as_ref().map(|response| response.status);
        assert!(
            status.is_none_or(|status| (400..500).contains(&status)),
            "{shown:?}: {response:?}"
        );
    }
    assert_eq!(post(common(), POSTS[0], &chat("The", 2)).status, 200);
}

fn bounded() -> ServerOptions {
    let limits = ServerLimits {
        body_bytes_max: 10_000,
        head_time: Duration::from_millis(300),
        body_time: Duration::from_millis(300),
        ..ServerLimits::default()
    };
    ServerOptions { limits, ..options() }
}

#[test]
fn body_over_its_bound_is_refused_with_and_without_its_length() {
    let server = start(1, &bounded());
    let long = chat(&"a".repeat(20_000), 2).to_string();
    let refused = send(server.address(), "POST", POSTS[0], &[], long.as_bytes());
    assert_eq!(refused.status, 413);
    let mut stream = connect(server.address());
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
        POSTS[2]
    );
    let chunk = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    let _ = stream.write_all((head + &chunk).as_bytes());
    let refused = read_response(&mut BufReader::new(stream)).expect("a response");
    let error: Value = refused.json();
    assert_eq!((refused.status, error["error"]["type"].as_str()), (413, Some("request_too_large")));
}

#[test]
fn slow_heads_and_bodies_are_given_up() {
    let server = start(1, &bounded());
    let mut head = connect(server.address());
    head.write_all(b"POST /v1/messages HT").expect("sent");
    let given_up = read_response(&mut BufReader::new(head));
    assert!(given_up.is_none_or(|response| response.status == 408));
    let mut body = connect(server.address());
    let bytes = request_bytes("POST", POSTS[0], &[], &[b'{'; 100]);
    body.write_all(&bytes[..bytes.len() - 50]).expect("sent");
    let given_up = read_response(&mut BufReader::new(body)).expect("a response");
    assert_eq!(given_up.status, 408, "{}", given_up.text());
    let mut idle = BufReader::new(connect(server.address()));
    assert!(read_response(&mut idle).is_none(), "an idle connection is closed");
}

/// Numbers by chance (splitmix64), the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) % bound as u64) as usize
    }
}

/// Changes one place of a value: another value, a missing or a new field, an entry twice.
fn mutate(value: &mut Value, chance: &mut Chance, depth: usize) {
    let pool = [
        json!(null),
        json!(0),
        json!(-1),
        json!(0.5),
        json!(1e300),
        json!(4_294_967_296u64),
        json!(true),
        json!(""),
        json!("text"),
        json!("\u{0}\u{10ffff}<tool_call>{"),
        json!([]),
        json!({}),
        json!([null]),
        json!({"role": "user", "content": "x"}),
        json!({"type": "text", "text": "x"}),
        json!("assistant"),
        json!({"type": "function", "function": {"name": "f"}}),
    ];
    let replace = depth == 0 || chance.below(4) == 0;
    match value {
        Value::Object(object) if !replace && !object.is_empty() => {
            let name = object.keys().nth(chance.below(object.len())).expect("counted").clone();
            match chance.below(6) {
                0 => drop(object.remove(&name)),
                1 => {
                    drop(object.insert(format!("{name}x"), pool[chance.below(pool.len())].clone()))
                }
                _ => mutate(&mut object[&name], chance, depth - 1),
            }
        }
        Value::Array(list) if !replace && !list.is_empty() => {
            let at = chance.below(list.len());
            match chance.below(5) {
                0 => drop(list.remove(at)),
                1 => list.insert(at, list[at].clone()),
                _ => mutate(&mut list[at], chance, depth - 1),
            }
        }
        value => *value = pool[chance.below(pool.len())].clone(),
    }
}

#[test]
fn two_thousand_mutilated_requests_never_fail_the_server() {
    let server = start_short(4, &options());
    let bases = [
        (
            POSTS[0],
            json!({
                "model": "alias", "max_tokens": 2, "temperature": 1, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
                "stop": ["a", "bc"], "n": 2, "seed": 3, "stream": true, "stream_options": {"include_usage": true},
                "logprobs": true, "top_logprobs": 2, "presence_penalty": 1, "frequency_penalty": -1,
                "messages": [
                    {"role": "system", "content": "Be"},
                    {"role": "user", "content": [{"type": "text", "text": "The"}]},
                    {"role": "assistant", "content": null, "tool_calls": [
                        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    ]},
                    {"role": "tool", "tool_call_id": "1", "content": "x"},
                ],
            }),
        ),
        (
            POSTS[1],
            json!({
                "prompt": ["The", [5, 17]], "max_tokens": 2, "logprobs": 1, "stop": "x", "echo": false, "n": 1,
            }),
        ),
        (
            POSTS[2],
            json!({
                "model": "alias", "max_tokens": 2, "system": [{"type": "text", "text": "Be"}], "stream": false,
                "stop_sequences": ["a"], "temperature": 0.5, "top_k": 3,
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "The"}]},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]},
                ],
            }),
        ),
        (POSTS[3], json!({"model": "alias", "messages": [{"role": "user", "content": "The"}]})),
    ];
    let mut chance = Chance(1);
    let mut answered = 0;
    for number in 0..2000 {
        let (path, base) = &bases[number % bases.len()];
        let mut body = base.clone();
        for _ in 0..=chance.below(3) {
            mutate(&mut body, &mut chance, 6);
        }
        let mut bytes = body.to_string().into_bytes();
        if chance.below(8) == 0 {
            let at = chance.below(bytes.len());
            bytes[at] = chance.below(256) as u8;
        }
        let response = send(server.address(), "POST", path, &[], &bytes);
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        let expected = [200, 400, 404].contains(&response.status);
        assert!(expected, "{path} {shown}: {} {}", response.status, response.text());
        let failed =
            response.text().contains("\"server_error\"") || response.text().contains("api_error");
        assert!(!failed, "{path} {shown}: {}", response.text());
        answered += usize::from(response.status == 200);
    }
    assert!((100..1900).contains(&answered), "{answered} of 2000 were answered");
    wait_until_idle(&server, Duration::from_secs(2));
}
