//! From what the user gave to the ids of the prompt.
//!
//! A prompt is text or ids. Text goes through the model's chat template if it has one; `--raw` and
//! the embedded model, which has read books and no conversations, take it as it is.

use super::Failure;
use crate::embedded;
use crate::text::{ChatTemplate, Message, Tokenizer, chat_ids, text_ids};
use clap::Args;
use clap::builder::FalseyValueParser;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest file of ids.
const IDS_BYTES_MAX: u64 = 64 << 20;

/// What to say to the model.
#[derive(Args, Debug)]
pub struct PromptFlags {
    /// Text to answer or to continue. Left out with the embedded model: the beginning of a novel
    #[arg(value_name = "PROMPT")]
    pub prompt: Option<String>,
    /// Token ids instead of text: 5,17,9
    #[arg(
        long,
        env = "MILLSTREAM_PROMPT_IDS",
        value_delimiter = ',',
        value_name = "IDS",
        conflicts_with = "prompt"
    )]
    pub prompt_ids: Option<Vec<u32>>,
    /// Continue the text as it is, without the model's chat template. The embedded model always
    /// does
    #[arg(long, env = "MILLSTREAM_RAW", value_parser = FalseyValueParser::new())]
    pub raw: bool,
    /// What the chat template says to the model before the prompt
    #[arg(long, env = "MILLSTREAM_SYSTEM", value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
}

/// The prompt.
#[derive(Debug)]
pub struct Prompt {
    /// Its ids.
    pub ids: Vec<u32>,
    /// The text to show before the answer, where the user didn't write it.
    pub shown: Option<String>,
}

impl Prompt {
    /// Makes the prompt's ids.
    ///
    /// # Errors
    /// When there is no prompt, or text and no tokenizer, or a system text and no template.
    pub fn new(
        flags: &PromptFlags,
        directory: &Path,
        tokenizer: Option<&Tokenizer>,
        embedded: bool,
    ) -> Result<Prompt, Failure> {
        let usage = |message: String| Err(Failure::Usage(message));
        if let Some(ids) = &flags.prompt_ids {
            return Ok(Prompt { ids: ids.clone(), shown: None });
        }
        let (text, shown) = match &flags.prompt {
            Some(text) => (text.as_str(), None),
            None if embedded => (embedded::PROMPT, Some(embedded::PROMPT.to_owned())),
            None => return usage("give a PROMPT, or --prompt-ids 5,17,9".to_owned()),
        };
        let Some(tokenizer) = tokenizer else {
            return usage(format!(
                "{} has no tokenizer.json, so it can't read text; give --prompt-ids 5,17,9, or \
                 copy the tokenizer.json that belongs to these weights",
                directory.display()
            ));
        };
        let chat = flags.system.is_some() || !(flags.raw || embedded);
        let template = if chat { ChatTemplate::open(directory)? } else { None };
        let ids = match (template, &flags.system) {
            (Some(template), system) => {
                let system = system.iter().map(|text| Message::new("system", text));
                let messages: Vec<_> = system.chain([Message::new("user", text)]).collect();
                chat_ids(tokenizer, &template, &messages, None)?
            }
            (None, Some(_)) => {
                return usage(format!(
                    "--system: {} has no chat template to put it in; leave it out",
                    directory.display()
                ));
            }
            (None, None) => text_ids(tokenizer, text)?,
        };
        Ok(Prompt { ids, shown })
    }
}

/// Reads ids: a JSON list, or numbers with commas or blanks between them.
///
/// # Errors
/// When the file can't be read, is too long, is empty or holds something else.
pub fn read_ids(path: &Path) -> Result<Vec<u32>, Failure> {
    let wrong = |reason: &dyn std::fmt::Display| {
        Failure::Usage(format!("{}: {reason}; give token ids such as [5, 17, 9]", path.display()))
    };
    let mut text = String::new();
    // Looked at before it is opened: opening a pipe waits for a writer.
    if !std::fs::metadata(path).map_err(|error| wrong(&error))?.is_file() {
        return Err(wrong(&"not a regular file"));
    }
    let file = File::open(path).map_err(|error| wrong(&error))?;
    file.take(IDS_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
    if text.len() as u64 > IDS_BYTES_MAX {
        return Err(wrong(&format!("longer than {IDS_BYTES_MAX} bytes")));
    }
    let text = text.trim();
    let ids: Vec<u32> = if text.starts_with('[') {
        serde_json::from_str(text).map_err(|error| wrong(&error))?
    } else {
        let numbers = text.split(|c: char| c == ',' || c.is_whitespace());
        let ids = numbers
            .filter(|number| !number.is_empty())
            .map(|number| number.parse().map_err(|_| wrong(&format!("{number:?} is no token id"))));
        ids.collect::<Result<_, _>>()?
    };
    if ids.is_empty() { Err(wrong(&"no ids")) } else { Ok(ids) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> PromptFlags {
        PromptFlags { prompt: Some("Hello".into()), prompt_ids: None, raw: false, system: None }
    }

    fn tiny() -> (std::path::PathBuf, Tokenizer) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/glm-dsa");
        let tokenizer = Tokenizer::open(&directory).unwrap().expect("it has one");
        (directory, tokenizer)
    }

    #[test]
    fn text_goes_through_the_template_unless_raw_or_embedded() {
        let (directory, tokenizer) = tiny();
        let ids = |flags: &PromptFlags, embedded| {
            Prompt::new(flags, &directory, Some(&tokenizer), embedded).unwrap().ids
        };
        let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
        let chat = text(&ids(&flags(), false));
        assert_eq!(chat, "[gMASK]<sop><|user|>\nHello<|assistant|>\n");
        assert_eq!(text(&ids(&flags(), true)), "Hello");
        assert_eq!(text(&ids(&PromptFlags { raw: true, ..flags() }, false)), "Hello");
        let system = PromptFlags { system: Some("Brief".into()), ..flags() };
        assert!(text(&ids(&system, true)).starts_with("[gMASK]<sop><|system|>\nBrief<|user|>"));
    }

    #[test]
    fn missing_prompt_tokenizer_or_template_is_told_with_the_remedy() {
        let (directory, tokenizer) = tiny();
        let empty = tempfile::tempdir().expect("a temporary directory");
        let message = |flags: &PromptFlags, directory: &Path, tokenizer, embedded| match Prompt::new(
            flags, directory, tokenizer, embedded,
        ) {
            Err(Failure::Usage(message)) => message,
            other => panic!("{other:?}"),
        };
        let none = PromptFlags { prompt: None, ..flags() };
        assert!(message(&none, &directory, Some(&tokenizer), false).contains("--prompt-ids"));
        assert!(message(&flags(), empty.path(), None, false).contains("tokenizer.json"));
        let system = PromptFlags { system: Some("Brief".into()), ..flags() };
        assert!(message(&system, empty.path(), Some(&tokenizer), false).contains("--system"));
        let first = Prompt::new(&none, &directory, Some(&tokenizer), true).unwrap();
        assert_eq!(first.shown.as_deref(), Some(embedded::PROMPT));
    }

    #[test]
    fn ids_are_read_from_json_or_plain_numbers_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("ids");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_ids(&path)
        };
        for good in ["[5, 17, 9]", "5,17,9\n", " 5 17\n9 "] {
            assert_eq!(read(good).unwrap(), [5, 17, 9], "{good}");
        }
        for bad in ["", "[]", "[5, -1]", "5 x", "[5, 1.5]", "4294967296", "{\"ids\": [1]}"] {
            match read(bad) {
                Err(Failure::Usage(message)) => assert!(message.contains("ids"), "{message}"),
                other => panic!("{bad} gave {other:?}"),
            }
        }
    }
}
