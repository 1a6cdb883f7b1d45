//! What was said so far, the ids that it becomes, and the file that it can be kept in.
//!
//! Owned by `chat`. A model with a chat template gets the messages through it; another one continues the
//! text of all of them. A file holds the messages as JSON; a file that holds anything else is never written over.

use super::Failure;
use crate::text::{ChatTemplate, Message, Tokenizer};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;

/// Longest file of a conversation.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The key by which its files are known, and their version.
const MARK: (&str, u64) = ("millstream_chat", 1);

/// What was said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// In order; those of the user and of the model take turns after what the template is told.
    pub messages: Vec<Message>,
}

impl Conversation {
    /// Nothing said but what the model is told before.
    pub fn new(system: Option<&str>) -> Conversation {
        Conversation { messages: system.iter().map(|text| Message::new("system", text)).collect() }
    }

    /// The ids that an answer follows.
    ///
    /// # Errors
    /// When the template refuses the messages or the tokenizer the text.
    pub fn ids(
        &self,
        tokenizer: &Tokenizer,
        template: Option<&ChatTemplate>,
    ) -> Result<Vec<u32>, Failure> {
        match template {
            // The template writes the model's first tokens itself.
            Some(template) => Ok(tokenizer.encode(&template.render(&self.messages, true)?, false)?),
            None => {
                let mut text = String::new();
                for message in &self.messages {
                    let begins = message.role == "user" && !text.is_empty();
                    text.push_str(if begins { "\n" } else { "" });
                    text.push_str(&message.content);
                }
                Ok(tokenizer.encode(&text, true)?)
            }
        }
    }

    /// Writes the messages to a file that is new or holds a conversation.
    ///
    /// # Errors
    /// When it holds something else or can't be written.
    pub fn save(&self, file: &Path) -> Result<(), Failure> {
        if file.exists() {
            Conversation::load(file)?;
        }
        let object = json!({ MARK.0: MARK.1, "messages": self.messages });
        let mut fresh = file.as_os_str().to_owned();
        fresh.push(format!(".{}.tmp", std::process::id()));
        // Beside it first, so that a full drive doesn't cost what was there.
        std::fs::write(&fresh, format!("{object:#}\n"))?;
        Ok(std::fs::rename(fresh, file)?)
    }

    /// Reads messages.
    ///
    /// # Errors
    /// When the file can't be read or isn't a conversation.
    pub fn load(file: &Path) -> Result<Conversation, Failure> {
        let fault = |reason: String| Failure::Failed(format!("{}: {reason}", file.display()));
        let mut text = String::new();
        let opened = std::fs::File::open(file).map_err(|error| fault(error.to_string()))?;
        let read = opened.take(FILE_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| fault(error.to_string()))?;
        let foreign = || fault("isn't a conversation that `:save` wrote; name another file".into());
        let object: Value = serde_json::from_str(&text).map_err(|_| foreign())?;
        if object[MARK.0] != MARK.1 {
            return Err(foreign());
        }
        let message = |value: &Value| {
            let text = |key: &str| value[key].as_str().ok_or_else(foreign);
            Ok(Message::new(text("role")?, text("content")?))
        };
        let messages = object["messages"].as_array().ok_or_else(foreign)?.iter().map(message);
        Ok(Conversation { messages: messages.collect::<Result<_, Failure>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_comes_back_and_other_files_are_left_alone() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("a.json");
        let mut said = Conversation::new(Some("be brief"));
        said.messages.push(Message::new("user", "a \"mill\"\nand a race"));
        said.save(&file).expect("saved");
        assert_eq!(Conversation::load(&file).expect("loaded"), said);
        said.messages.push(Message::new("assistant", "yes"));
        said.save(&file).expect("saved again");
        assert_eq!(Conversation::load(&file).expect("loaded"), said);
        for other in ["{\"messages\": []}", "[1, 2]", "no JSON", "{\"millstream_chat\": 1}"] {
            std::fs::write(&file, other).expect("written");
            assert!(said.save(&file).is_err() && Conversation::load(&file).is_err(), "{other}");
            assert_eq!(std::fs::read_to_string(&file).expect("read"), other);
        }
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 1);
    }
}
