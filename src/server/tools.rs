//! Tools: definitions from callers, and calls found in a model's words.
//!
//! Definitions go to the model's chat template in OpenAI's shape. Calls come back between
//! `<tool_call>` and `</tool_call>`, in one of two syntaxes: a JSON object (Hermes, Qwen) or a name with
//! `<arg_key>` and `<arg_value>` pairs (GLM). The text of a call is never told, and never looked at for stop
//! strings; what turns out to be no call is told as the text that it is.

use super::errors::Fault;
use super::fields::Fields;
use super::limits::TOOLS_MAX;
use serde_json::{Map, Value, json};

const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// A call that a model made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its identity, without an API's prefix.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments, a JSON object as text.
    pub arguments: String,
}

/// Text or a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// Text that is no part of a call.
    Text(String),
    /// A tool's name and its arguments.
    Call(String, Value),
}

/// Reads OpenAI's `tools` and `tool_choice`; none if the model isn't to be told of any.
///
/// # Errors
/// When a definition is wrong or a choice isn't supported.
pub fn of_openai(fields: &mut Fields<'_>) -> Result<Option<Vec<Value>>, Fault> {
    let list = fields.list("tools", TOOLS_MAX)?.unwrap_or(&[]);
    for (index, tool) in list.iter().enumerate() {
        let mut tool = Fields::of(tool, &format!("tools[{index}]"))?;
        if tool.text("type")? != Some("function") {
            return Err(tool.fault("type", "only function is supported"));
        }
        let place = tool.place("function");
        let function = tool.value("function").unwrap_or(&Value::Null);
        check_function(Fields::of(function, &place)?, "parameters")?;
        tool.finish()?;
    }
    let none = match fields.value("tool_choice") {
        None => false,
        Some(Value::String(choice)) if choice == "auto" => false,
        Some(Value::String(choice)) if choice == "none" => true,
        Some(_) => return Err(fields.fault("tool_choice", "only auto and none are supported")),
    };
    Ok((!none && !list.is_empty()).then(|| list.to_vec()))
}

/// Reads Anthropic's `tools` and `tool_choice`, and gives them in OpenAI's shape.
///
/// # Errors
/// As [`of_openai`].
pub fn of_anthropic(fields: &mut Fields<'_>) -> Result<Option<Vec<Value>>, Fault> {
    let list = fields.list("tools", TOOLS_MAX)?.unwrap_or(&[]);
    let mut tools = vec![];
    for (index, value) in list.iter().enumerate() {
        let mut tool = Fields::of(value, &format!("tools[{index}]"))?;
        if !matches!(tool.text("type")?, None | Some("custom")) {
            return Err(tool.fault("type", "only custom tools are supported"));
        }
        tool.ignore(&["cache_control"]);
        check_function(tool, "input_schema")?;
        tools.push(json!({"type": "function", "function": {
            "name": value["name"],
            "description": value["description"],
            "parameters": value["input_schema"],
        }}));
    }
    let mut none = false;
    if let Some(choice) = fields.value("tool_choice") {
        let mut choice = Fields::of(choice, "tool_choice")?;
        none = match choice.text("type")? {
            Some("auto") => false,
            Some("none") => true,
            _ => return Err(fields.fault("tool_choice", "only auto and none are supported")),
        };
        choice.ignore(&["disable_parallel_tool_use"]);
        choice.finish()?;
    }
    Ok((!none && !tools.is_empty()).then_some(tools))
}

fn check_function(mut function: Fields<'_>, schema: &'static str) -> Result<(), Fault> {
    let named = |name: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        (1..=128).contains(&name.len()) && name.bytes().all(known)
    };
    if !function.text("name")?.is_some_and(named) {
        return Err(function.fault("name", "use 1 to 128 letters, digits, _, - and ."));
    }
    function.text("description")?;
    if function.value(schema).is_some_and(|schema| !schema.is_object()) {
        return Err(function.fault(schema, "use a JSON schema, an object"));
    }
    function.only_neutral(&[("strict", &[json!(false)])])?;
    function.finish()
}

/// Finds calls in text that comes piece by piece.
#[derive(Debug)]
pub struct CallFinder {
    /// The definitions, for the types of arguments; none looks for no calls.
    tools: Option<Vec<Value>>,
    held: String,
    /// The held text is behind [`BEGIN`].
    inside: bool,
}

impl CallFinder {
    /// A finder at the start of an answer.
    pub fn new(tools: Option<&[Value]>) -> CallFinder {
        CallFinder { tools: tools.map(<[Value]>::to_vec), held: String::new(), inside: false }
    }

    /// Takes text, gives what is certain.
    pub fn push(&mut self, text: &str) -> Vec<Found> {
        if self.tools.is_none() {
            return vec![Found::Text(text.to_owned())];
        }
        self.held.push_str(text);
        let mut found = vec![];
        loop {
            let mark = if self.inside { END } else { BEGIN };
            let Some(at) = self.held.find(mark) else { break };
            let before = self.held[..at].to_owned();
            self.held.drain(..at + mark.len());
            found.push(match self.inside {
                true => self.call(&before),
                // Blanks between the words and a call belong to neither.
                false => Found::Text(before.trim_end().to_owned()),
            });
            self.inside = !self.inside;
        }
        if !self.inside {
            let certain = self.certain();
            found.push(Found::Text(self.held.drain(..certain).collect()));
        }
        found.retain(|found| *found != Found::Text(String::new()));
        found
    }

    /// The answer ended: what was held back is text, also a call that isn't complete.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        match std::mem::take(&mut self.inside) {
            true => format!("{BEGIN}{held}"),
            false => held,
        }
    }

    /// Bytes of the held text that can be no part of a call: neither its mark nor blanks before it.
    fn certain(&self) -> usize {
        let begins = |&length: &usize| self.held.ends_with(&BEGIN[..length]);
        let mark = (1..BEGIN.len()).rev().find(begins).unwrap_or(0);
        self.held[..self.held.len() - mark].trim_end().len()
    }

    fn call(&self, inside: &str) -> Found {
        let inside = inside.trim();
        let call = match inside.starts_with('{') {
            true => json_call(inside),
            false => self.pairs_call(inside),
        };
        match call {
            Some((name, arguments)) => Found::Call(name, arguments),
            None => Found::Text(format!("{BEGIN}{inside}{END}")),
        }
    }

    /// `name<arg_key>k</arg_key><arg_value>v</arg_value>..`: strings are bare, all else is JSON.
    fn pairs_call(&self, inside: &str) -> Option<(String, Value)> {
        let (name, mut rest) = match inside.find("<arg_key>") {
            Some(at) => inside.split_at(at),
            None => (inside, ""),
        };
        let name = name.trim();
        if name.is_empty() || name.contains(['<', '>', '\n', ' ']) {
            return None;
        }
        let mut arguments = Map::new();
        while !rest.trim().is_empty() {
            let (key, behind) = between(rest, "<arg_key>", "</arg_key>")?;
            let (value, behind) = between(behind, "<arg_value>", "</arg_value>")?;
            let parsed = match self.is_text(name, key.trim()) {
                true => None,
                false => serde_json::from_str(value.trim()).ok(),
            };
            let value = parsed.unwrap_or_else(|| Value::String(value.to_owned()));
            arguments.insert(key.trim().to_owned(), value);
            rest = behind;
        }
        Some((name.to_owned(), Value::Object(arguments)))
    }

    /// The definition says that the argument is a string.
    fn is_text(&self, tool: &str, argument: &str) -> bool {
        let mut tools = self.tools.iter().flatten().map(|tool| &tool["function"]);
        let function = tools.find(|function| function["name"] == tool);
        let kind = |function: &Value| {
            function["parameters"]["properties"][argument]["type"].as_str() == Some("string")
        };
        function.is_some_and(kind)
    }
}

/// `{"name": .., "arguments": {..}}`; arguments may be missing or a text of JSON.
fn json_call(inside: &str) -> Option<(String, Value)> {
    let call: Value = serde_json::from_str(inside).ok()?;
    let name = call["name"].as_str().filter(|name| !name.is_empty())?;
    let arguments = match &call["arguments"] {
        Value::Null => json!({}),
        Value::String(text) => serde_json::from_str(text).ok()?,
        other => other.clone(),
    };
    arguments.is_object().then(|| (name.to_owned(), arguments))
}

/// What stands between two marks at the start of a text, and what follows.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<(&'a str, &'a str)> {
    text.trim_start().strip_prefix(begin)?.split_once(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tools() -> Vec<Value> {
        vec![json!({"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        }}})]
    }

    /// What is found, texts that follow each other as one.
    fn find(pieces: &[&str]) -> Vec<Found> {
        let mut finder = CallFinder::new(Some(&tools()));
        let mut all: Vec<Found> = pieces.iter().flat_map(|piece| finder.push(piece)).collect();
        all.push(Found::Text(finder.finish()));
        let mut joined: Vec<Found> = vec![];
        for found in all {
            match (joined.last_mut(), found) {
                (Some(Found::Text(last)), Found::Text(text)) => last.push_str(&text),
                (_, Found::Text(text)) if text.is_empty() => {}
                (_, found) => joined.push(found),
            }
        }
        joined
    }

    fn weather(arguments: Value) -> Found {
        Found::Call("weather".to_owned(), arguments)
    }

    #[test]
    fn both_syntaxes_give_the_same_call() {
        let expected =
            [Found::Text("Let me see.".to_owned()), weather(json!({"city": "12", "days": 3}))];
        let json = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": \
                    {\"city\": \"12\", \"days\": 3}}\n</tool_call>";
        assert_eq!(find(&[json]), expected);
        let pairs = "Let me see.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12\
                     </arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>";
        assert_eq!(find(&[pairs]), expected, "a string stays a string, a number is one");
    }

    #[test]
    fn several_calls_and_calls_without_arguments_are_found() {
        let text = "<tool_call>{\"name\": \"a\"}</tool_call>\n<tool_call>b</tool_call>";
        let none = |name: &str| Found::Call(name.to_owned(), json!({}));
        assert_eq!(find(&[text]), [none("a"), none("b")]);
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "a < b and <tool_box>",
            "<tool_call>{\"name\": 5}</tool_call>",
            "<tool_call>not a name</tool_call>",
            "<tool_call>{\"name\": \"weather\", \"arg",
            "<tool_call>weather<arg_key>city</arg_key></tool_call>",
            "ends with blanks \n ",
        ] {
            assert_eq!(find(&[text]), [Found::Text(text.to_owned())], "{text}");
        }
    }

    #[test]
    fn without_tools_nothing_is_looked_for() {
        let mut finder = CallFinder::new(None);
        let text = "<tool_call>{\"name\": \"a\"}</tool_call> ";
        assert_eq!(finder.push(text), [Found::Text(text.to_owned())]);
    }

    proptest! {
        #[test]
        fn outcome_does_not_depend_on_how_text_is_cut(cuts in prop::collection::vec(1usize..9, 60)) {
            let text = "So: <tool\n <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \
                        \"Köln\"}}</tool_call> \n <tool_call>weather<arg_key>days</arg_key>\
                        <arg_value>2</arg_value></tool_call> end <tool_call>";
            let mut rest = text;
            let mut pieces = vec![];
            for cut in cuts {
                let at = (cut..=rest.len()).find(|&at| rest.is_char_boundary(at));
                let (piece, behind) = rest.split_at(at.unwrap_or(rest.len()));
                pieces.push(piece);
                rest = behind;
            }
            pieces.push(rest);
            prop_assert_eq!(find(&pieces), find(&[text]));
        }
    }
}
