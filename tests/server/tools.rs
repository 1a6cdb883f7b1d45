//! Tools: definitions reach the model through its template, or are refused where it knows none.

use crate::client::post;
use crate::setup::{common, options, tiny_model};
use millstream::server::Server;
use millstream::text::ChatTemplate;
use serde_json::{Value, json};

/// A template that writes tools, calls and results as Hermes' does, cut down.
const TEMPLATE: &str = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}\
    {% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls %}\
    {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}{% endfor %}";

fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "weather", "description": "Says the weather", "parameters": {"type": "object"},
    }}])
}

fn prompt_tokens(server: &Server, tools: Value, choice: Value) -> u64 {
    let body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0,
        "tools": tools, "tool_choice": choice,
    });
    let response = post(server.address(), "/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["usage"]["prompt_tokens"].as_u64().expect("a count")
}

#[test]
fn definitions_reach_the_template_unless_none_may_be_called() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("chat_template.jinja"), TEMPLATE).expect("written");
    let mut served = tiny_model("glm-dsa");
    served.template = ChatTemplate::open(directory.path()).expect("good");
    let server = Server::start(served, &options()).expect("it starts");
    let without = prompt_tokens(&server, json!([]), json!("auto"));
    assert_eq!(prompt_tokens(&server, tools(), json!("none")), without);
    let with = prompt_tokens(&server, tools(), json!("auto"));
    assert!(with > without + 10, "{with} and {without}");
    // The same definition by the other API.
    let body = json!({
        "model": "alias", "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{
            "name": "weather", "description": "Says the weather", "input_schema": {"type": "object"},
        }],
    });
    let counted = post(server.address(), "/v1/messages/count_tokens", &body).json();
    assert_eq!(counted["input_tokens"], with, "{counted}");
}

#[test]
fn model_whose_template_knows_no_tools_refuses_them() {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools()});
    let response = post(common(), "/v1/chat/completions", &body);
    assert_eq!((response.status, response.json()["error"]["param"].as_str()), (400, Some("tools")));
}

#[test]
fn definitions_are_checked_and_named() {
    for (tools, place) in [
        (json!("weather"), "tools"),
        (json!([{"type": "search"}]), "tools[0].type"),
        (json!([{"type": "function"}]), "tools[0].function"),
        (json!([{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
        (
            json!([{"type": "function", "function": {"name": "f", "parameters": "all"}}]),
            "tools[0].function.parameters",
        ),
    ] {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools});
        let error = &post(common(), "/v1/chat/completions", &body).json()["error"];
        assert_eq!(error["param"].as_str(), Some(place), "{error}");
    }
}
