//! Chat templates: a conversation in, the text that the model was trained on out.
//!
//! A template is a program from a stranger, written in Jinja. It runs in `minijinja` with Python's
//! string methods, within bounds on its length, its steps and its output: a hostile one ends with
//! an error. The text that it makes begins with the model's own special tokens, so it is encoded
//! with `add_special` off.

use super::date::strftime;
use super::files::{TextError, read, read_settings};
use super::specials::token_text;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

/// Longest template; the longest known are some 20 kB.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;
/// Longest text that a template may make.
const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// Steps of a template, where a step is an instruction or 64 bytes of data.
const FUEL: u64 = 2_000_000;
/// Nesting of blocks, macros and includes.
const RECURSION_MAX: usize = 64;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What was said.
    pub content: String,
    /// The assistant's calls of tools, in OpenAI's shape, their arguments as objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<serde_json::Value>,
    /// The call that a `tool` message answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The name of who speaks, or of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message.
    pub fn new(role: &str, content: &str) -> Message {
        Message {
            role: role.to_owned(),
            content: content.to_owned(),
            tool_calls: vec![],
            tool_call_id: None,
            name: None,
        }
    }
}

/// A model's chat template, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    file: String,
    /// `bos_token`, `eos_token` and the others that a template may name.
    tokens: Vec<(&'static str, String)>,
    knows_tools: bool,
}

impl ChatTemplate {
    /// Opens the template of a model directory: `chat_template.jinja` if there is one, else
    /// `chat_template` of `tokenizer_config.json` (a text, or a list from which `default` is
    /// taken). None if the model has no template.
    ///
    /// # Errors
    /// When a file is too long or damaged, or the template doesn't compile.
    pub fn open(directory: &Path) -> Result<Option<ChatTemplate>, TextError> {
        let settings_path = directory.join("tokenizer_config.json");
        let settings = read_settings(&settings_path)?.unwrap_or_default();
        let own_path = directory.join("chat_template.jinja");
        let (path, source) = match read(&own_path, TEMPLATE_BYTES_MAX as u64)? {
            Some(bytes) => {
                let content = |_| TextError::Content {
                    file: own_path.display().to_string(),
                    reason: "not UTF-8".to_owned(),
                };
                (&own_path, String::from_utf8(bytes).map_err(content)?)
            }
            None => match listed(&settings["chat_template"]) {
                Ok(Some(source)) => (&settings_path, source),
                Ok(None) => return Ok(None),
                Err(reason) => {
                    let file = settings_path.display().to_string();
                    return Err(TextError::Content { file, reason });
                }
            },
        };
        let names = ["bos_token", "eos_token", "unk_token", "pad_token"];
        let text = |name| token_text(&settings, name).map(|text| (name, text.to_owned()));
        let tokens = names.into_iter().filter_map(text).collect();
        ChatTemplate::compile(&source, path.display().to_string(), tokens).map(Some)
    }

    /// What a model without a template of its own is given: the messages' texts, one paragraph
    /// each, to be continued.
    ///
    /// # Panics
    /// Never: the template is known to be good.
    pub fn paragraphs() -> ChatTemplate {
        let source = "{% for m in messages %}{{ m.content }}{% if not loop.last %}\n\n{% endif %}\
                      {% endfor %}";
        ChatTemplate::compile(source, "paragraphs".to_owned(), vec![]).expect("a good template")
    }

    /// The template itself names tools: without that, tools would never reach the model.
    pub fn knows_tools(&self) -> bool {
        self.knows_tools
    }

    fn compile(
        source: &str,
        file: String,
        tokens: Vec<(&'static str, String)>,
    ) -> Result<ChatTemplate, TextError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(TextError::TooLong { file, bytes_max: TEMPLATE_BYTES_MAX as u64 });
        }
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        // As Hugging Face transformers sets Jinja up.
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build().expect("the standard delimiters"));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        let template = without_generation(source);
        let knows_tools = template.contains("tools");
        match environment.add_template_owned("chat", template) {
            Ok(()) => Ok(ChatTemplate { environment, file, tokens, knows_tools }),
            Err(error) => Err(TextError::Template { file, reason: reason(&error) }),
        }
    }

    /// The conversation as text; with `add_generation_prompt` it ends where the assistant begins.
    ///
    /// # Errors
    /// When the template refuses the conversation (with its own words), fails, or needs more than
    /// its share of steps or output.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        self.render_with(messages, None, add_generation_prompt)
    }

    /// The same with tools that the model may call, in OpenAI's shape.
    ///
    /// # Errors
    /// As [`Self::render`].
    pub fn render_with(
        &self,
        messages: &[Message],
        tools: Option<&[serde_json::Value]>,
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let tokens: BTreeMap<_, _> =
            self.tokens.iter().map(|(name, text)| (*name, Value::from(text.as_str()))).collect();
        let conversation = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt,
            tools => tools.map_or(Value::from(()), |tools| Value::from(Serde(tools))),
            documents => Value::from(()),
            ..Value::from(tokens)
        };
        let failed =
            |error: Error| TextError::Template { file: self.file.clone(), reason: reason(&error) };
        let template = self.environment.get_template("chat").map_err(failed)?;
        let mut out = Bounded { bytes: vec![] };
        template.render_captured_to(conversation, &mut out).map_err(failed)?;
        String::from_utf8(out.bytes).map_err(|error| TextError::Template {
            file: self.file.clone(),
            reason: error.to_string(),
        })
    }
}

/// The template of the settings: a text, or the `default` (or only) one of a list.
fn listed(value: &serde_json::Value) -> Result<Option<String>, String> {
    match value {
        serde_json::Value::Null => Ok(None),
        serde_json::Value::String(text) => Ok(Some(text.clone())),
        serde_json::Value::Array(list) => {
            let default = list.iter().find(|entry| entry["name"] == "default");
            let chosen = match (default, list.as_slice()) {
                (Some(default), _) => default,
                (None, [only]) => only,
                (None, _) => return Err("chat_template lists none named default".to_owned()),
            };
            match chosen["template"].as_str() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err("chat_template has an entry without a template".to_owned()),
            }
        }
        _ => Err("chat_template is neither a text nor a list".to_owned()),
    }
}

/// `{% generation %}` and `{% endgeneration %}` mark the assistant's words for training and are
/// no Jinja. They become a condition that always holds, so that the whitespace around them is
/// treated as before.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(begin) = rest.find("{%") {
        let Some(length) = rest[begin..].find("%}") else { break };
        let inner = &rest[begin + 2..begin + length];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let plain = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => word,
        };
        out += &rest[..begin + 2];
        out += &inner.replacen(word, plain, usize::from(word != plain));
        rest = &rest[begin + length..];
    }
    out + rest
}

/// A complaint with its line and what caused it.
fn reason(error: &Error) -> String {
    let mut text = match error.kind() {
        ErrorKind::OutOfFuel => "it needs more steps than a chat template should".to_owned(),
        _ => error.to_string(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    text
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: String) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    strftime(&format, since.map_or(0, |since| since.as_secs()))
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False, indent=indent)` writes it, which is
/// what models saw; nothing is escaped for HTML.
fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    for accepted in ["ensure_ascii", "separators", "sort_keys"] {
        if kwargs.has(accepted) && kwargs.get::<Value>(accepted)?.is_true() {
            let message = format!("tojson({accepted}=...) isn't supported");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    kwargs.assert_all_used()?;
    let mut out = Bounded { bytes: vec![] };
    let outcome = match indent {
        Some(spaces) => {
            let spaces = " ".repeat(spaces.min(16));
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, PythonFormatter)),
    };
    let failed = |error: String| Error::new(ErrorKind::InvalidOperation, error);
    outcome.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(out.bytes).map(Value::from).map_err(|error| failed(error.to_string()))
}

/// A blank after every comma and colon.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// Takes [`OUTPUT_BYTES_MAX`] bytes and no more.
struct Bounded {
    bytes: Vec<u8>,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES_MAX {
            let message = format!("its output is longer than {OUTPUT_BYTES_MAX} bytes");
            return Err(io::Error::other(message));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
