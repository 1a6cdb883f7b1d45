//! Tests of the chat templates: what real ones make, and that hostile ones end.

use super::*;
use crate::text::Tokenizer;
use std::path::PathBuf;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn template(source: &str) -> Result<ChatTemplate, TextError> {
    ChatTemplate::compile(source, "test.jinja".to_owned(), vec![("bos_token", "<s>".to_owned())])
}

fn hello() -> Vec<Message> {
    vec![Message::new("user", "Hello")]
}

fn rendered(source: &str) -> String {
    template(source).unwrap().render(&hello(), true).unwrap()
}

#[test]
fn conversation_becomes_the_text_of_the_model() {
    let template = ChatTemplate::open(&data("smollm2-tokenizer")).unwrap().expect("it has one");
    let messages = [Message::new("system", "Be brief."), Message::new("user", "Hi")];
    assert_eq!(
        template.render(&messages, true).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let alone = template.render(&messages[1..], false).unwrap();
    assert!(alone.starts_with("<|im_start|>system\nYou are a helpful AI assistant named SmolLM"));
    assert!(alone.ends_with("<|im_start|>user\nHi<|im_end|>\n"));
}

#[test]
fn prompt_begins_with_the_two_specials_once() {
    let directory = data("tiny/glm-dsa");
    let template = ChatTemplate::open(&directory).unwrap().expect("it has one");
    let tokenizer = Tokenizer::open(&directory).unwrap().expect("it has one");
    let text = template.render(&hello(), true).unwrap();
    let ids = tokenizer.encode(&text, false).unwrap();
    let special = |name| tokenizer.id(name).expect("known");
    let (mask, sop) = (special("[gMASK]"), special("<sop>"));
    assert_eq!(ids[..3], [mask, sop, special("<|user|>")]);
    assert_eq!(ids.iter().filter(|&&id| id == mask || id == sop).count(), 2);
}

#[test]
fn template_comes_from_the_file_then_the_text_then_the_list() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let settings = |text: &str| {
        std::fs::write(directory.path().join("tokenizer_config.json"), text).unwrap();
    };
    let open = || ChatTemplate::open(directory.path());
    let text = |template: ChatTemplate| template.render(&[], false).unwrap();
    assert!(open().unwrap().is_none());
    settings("{}");
    assert!(open().unwrap().is_none());
    settings(
        r#"{"chat_template": [{"name": "tool", "template": "T"},
        {"name": "default", "template": "D{{ eos_token }}"}], "eos_token": {"content": "</s>"}}"#,
    );
    assert_eq!(text(open().unwrap().unwrap()), "D</s>");
    settings(r#"{"chat_template": [{"name": "a", "template": ""}, {"name": "b"}]}"#);
    assert!(open().err().expect("refused").to_string().contains("tokenizer_config.json"));
    settings(r#"{"chat_template": 7}"#);
    assert!(open().is_err());
    std::fs::write(directory.path().join("chat_template.jinja"), "F").unwrap();
    assert_eq!(text(open().unwrap().unwrap()), "F");
}

#[test]
fn blocks_are_trimmed_as_transformers_does() {
    assert_eq!(rendered("A\n  {% if true %}\nB\n  {% endif %}\nC\n"), "A\nB\nC");
    assert_eq!(rendered("{{ bos_token }}{{ messages[0].content.strip().upper() }}"), "<s>HELLO");
    assert_eq!(rendered("{% for m in messages %}{% break %}{% endfor %}x"), "x");
    assert_eq!(rendered("{{ 'T' if tools else 'none' }}"), "none");
}

#[test]
fn generation_marks_leave_no_trace() {
    let marked = "a {%- generation -%} b {%- endgeneration %} c\n{% generation %}\nd\
                  {% endgeneration %}";
    assert_eq!(rendered(marked), "ab c\nd");
    assert_eq!(rendered("{{ 'generation' }}{% if 1 %}%}{% endif %}"), "generation%}");
}

#[test]
fn json_is_written_as_python_does() {
    assert_eq!(rendered("{{ messages | tojson }}"), r#"[{"role": "user", "content": "Hello"}]"#);
    assert_eq!(
        rendered("{{ {'b': '<é>', 'a': [1, 2.5, none]} | tojson }}"),
        r#"{"b": "<é>", "a": [1, 2.5, null]}"#
    );
    assert_eq!(rendered("{{ {'a': [1]} | tojson(indent=2) }}"), "{\n  \"a\": [\n    1\n  ]\n}");
}

#[test]
fn refusal_of_the_template_is_passed_on_in_its_words() {
    let strict = template("{{ raise_exception('roles must alternate') }}").unwrap();
    let error = strict.render(&hello(), true).unwrap_err().to_string();
    assert!(error.contains("roles must alternate") && error.contains("test.jinja"), "{error}");
}

#[test]
fn hostile_templates_end_with_an_error() {
    let long = "x".repeat(TEMPLATE_BYTES_MAX + 1);
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    let loops = "{% for a in range(9999) %}".repeat(8) + "x" + &"{% endfor %}".repeat(8);
    for (name, source) in [
        ("too long", long.as_str()),
        ("deep", &deep),
        ("steps", &loops),
        ("no end", "{% if"),
        ("unknown tag", "{% import_os %}"),
        ("endless macro", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        ("memory", "{% for a in range(5000) %}{{ 'x' * 10000000 }}{% endfor %}"),
        (
            "doubling",
            "{% set n = namespace(s='x') %}{% for a in range(60) %}\
                      {% set n.s = n.s + n.s %}{% endfor %}",
        ),
        ("unknown name", "{{ nothing.at.all }}"),
        ("files", "{% include '/etc/passwd' %}"),
    ] {
        let outcome = template(source).and_then(|template| template.render(&hello(), true));
        assert!(outcome.is_err(), "{name} gave {outcome:?}");
    }
}

/// What the templates of published families are made of, each construct with what it must give.
#[test]
fn constructs_of_published_templates_give_what_jinja_gives() {
    let thinking = vec![
        Message::new("system", "Be brief."),
        Message::new("user", "One"),
        Message::new("assistant", "<think>\nhm\n</think>\n\nTwo"),
        Message::new("user", "Three /nothink"),
    ];
    let of = |source: &str| template(source).unwrap().render(&thinking, true).unwrap();
    for (source, expected) in [
        // Macros over texts and lists of parts; methods of Python's strings.
        (
            "{%- macro text(c) -%}{%- if c is string -%}{{ c }}{%- elif c is iterable and c is \
             not mapping -%}{%- for i in c -%}{%- if i is mapping and i.type == 'text' -%}{{- \
             i.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}\
             {{ text([{'type': 'text', 'text': 'a'}, {'type': 'image'}]) }}{{ text('b') }}",
            "ab",
        ),
        (
            "{% set c = messages[2].content %}{{ c.split('</think>')[0].rstrip('\\n')\
             .split('<think>')[-1].lstrip('\\n') }}|{{ c.split('</think>')[-1].strip('\\n') }}",
            "hm|Two",
        ),
        ("{{ messages[2]['content'].split('</think>', 1)[1] | trim }}", "Two"),
        ("{{ (messages[2].content.split('<think>') | last)[1:3] }}", "hm"),
        ("{{ messages[-1].content.endswith('/nothink') }}", "True"),
        // State across a loop, slices, positions, neighbours.
        (
            "{% set ns = namespace(last=-1) %}{% for m in messages[1:] %}{% if m.role == 'user' \
             %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}",
            "2",
        ),
        (
            "{% for m in messages %}{% if loop.first or messages[loop.index0 - 1].role != 'user' \
             %}[{% endif %}{{ m.role[0] }}{% if loop.last %}.{% endif %}{% endfor %}",
            "[s[ua[u.",
        ),
        ("{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}", "uaus"),
        // Absent and empty values, conditions in expressions, joins of texts.
        ("{{ 'no' if tools else 'none' }}{{ '' if m is defined else '!' }}", "none!"),
        (
            "{% if messages[0].tool_calls is not defined or messages[0].tool_calls is none \
             %}plain{% endif %}",
            "plain",
        ),
        ("{{ '<' ~ (messages | length) ~ '>' }}{{- 'a' + 'b' }}", "<4>ab"),
        ("{% if messages[1].reasoning_content is string %}x{% else %}y{% endif %}", "y"),
        (
            "{% set a = {'k': 'v', 'n': [1]} %}{% for k, v in a | items %}{{ k }}={{ v | tojson \
             if v is not string else v }};{% endfor %}{% for k, v in a.items() %}{{ k }}{% endfor %}",
            "k=v;n=[1];kn",
        ),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "2"),
        ("{{ messages | map(attribute='role') | join(',') }}", "system,user,assistant,user"),
    ] {
        assert_eq!(of(source), expected, "{source}");
    }
}
