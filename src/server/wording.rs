//! From an answer's raw text to what is told of it: calls of tools are taken out, stop strings cut
//! what is left.
//!
//! One for each answer, fed piece by piece; the outcome doesn't depend on how the text was cut.

use super::stops::Stops;
use super::tools::{CallFinder, Found};
use serde_json::Value;

/// What is certain of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text to be told; not empty.
    Text(String),
    /// A call: the tool's name and its arguments.
    Call(String, Value),
    /// A stop string came: nothing more is told.
    Stop(String),
}

/// Takes an answer's text apart.
pub struct Wording {
    calls: CallFinder,
    stops: Stops,
    called: bool,
}

impl Wording {
    /// At the start of an answer; `tools` are those that the model was told of.
    pub fn new(stops: &[String], tools: Option<&[Value]>) -> Wording {
        Wording { calls: CallFinder::new(tools), stops: Stops::new(stops), called: false }
    }

    /// The model has called a tool.
    pub fn called(&self) -> bool {
        self.called
    }

    /// Takes text, gives what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = vec![];
        for found in self.calls.push(text) {
            match found {
                Found::Text(text) => {
                    if self.cut(&text, &mut pieces) {
                        break;
                    }
                }
                // No stop string lies across a call.
                Found::Call(name, arguments) => {
                    say(self.stops.finish(), &mut pieces);
                    self.called = true;
                    pieces.push(Piece::Call(name, arguments));
                }
            }
        }
        pieces
    }

    /// The answer has ended: gives what was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = vec![];
        let rest = self.calls.finish();
        if !self.cut(&rest, &mut pieces) {
            say(self.stops.finish(), &mut pieces);
        }
        pieces
    }

    /// Text that is no part of a call; true if a stop string ended it.
    fn cut(&mut self, text: &str, pieces: &mut Vec<Piece>) -> bool {
        let (certain, stop) = self.stops.push(text);
        say(certain, pieces);
        let stopped = stop.is_some();
        pieces.extend(stop.map(Piece::Stop));
        stopped
    }
}

fn say(text: String, pieces: &mut Vec<Piece>) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(stops: &[&str], tools: bool, texts: &[&str]) -> (Vec<Piece>, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut wording = Wording::new(&stops, tools.then_some(&[]));
        let mut pieces = vec![];
        for text in texts {
            pieces.extend(wording.push(text));
            if let Some(Piece::Stop(_)) = pieces.last() {
                return (pieces, wording.called());
            }
        }
        pieces.extend(wording.finish());
        (pieces, wording.called())
    }

    #[test]
    fn stop_string_inside_a_call_does_not_stop() {
        let call = "<tool_call>{\"name\": \"say\", \"arguments\": {\"text\": \"END\"}}</tool_call>";
        let (pieces, called) = words(&["END"], true, &["Well", call, "More EN", "D of it"]);
        let expected = [
            Piece::Text("Well".into()),
            Piece::Call("say".into(), json!({"text": "END"})),
            Piece::Text("More ".into()),
            Piece::Stop("END".into()),
        ];
        assert_eq!(pieces, expected);
        assert!(called);
    }

    #[test]
    fn beginning_of_a_stop_string_before_a_call_is_told() {
        let (pieces, _) = words(&["END"], true, &["the EN", "<tool_call>a</tool_call>"]);
        let told = [Piece::Text("the ".into()), Piece::Text("EN".into())];
        assert_eq!(pieces[..2], told);
        assert_eq!(pieces[2], Piece::Call("a".into(), json!({})));
    }

    #[test]
    fn without_tools_a_call_is_text_and_stops_cut_it() {
        let (pieces, called) = words(&["name"], false, &["<tool_call>{\"na", "me\": 1}"]);
        let told = [Piece::Text("<tool_call>{\"".into()), Piece::Stop("name".into())];
        assert_eq!(pieces, told);
        assert!(!called);
    }
}
