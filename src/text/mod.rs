//! Text: what stands between people's words and token ids.
//!
//! | file | what it does |
//! |---|---|
//! | `tokenizer.rs` | text to ids and back, from `tokenizer.json` |
//! | `stream.rs` | ids to text as they arrive, never half a character |
//! | `template.rs`, `date.rs` | a conversation to the text that the model was trained on |
//! | `prompt.rs` | a conversation or a text to the ids of a prompt |
//! | `advice.rs` | how the model's makers advise to sample |
//! | `specials.rs` | which tokens begin and end things |
//! | `files.rs` | reads a model's text files within bounds |
//!
//! The command line and the server use it; the engine and the stages know ids only.

mod advice;
mod date;
mod files;
mod prompt;
mod specials;
mod stream;
mod template;
mod tokenizer;

pub use advice::{SamplingAdvice, sampling_advice};
pub use date::utc_text;
pub use files::TextError;
pub use prompt::{chat_ids, text_ids};
pub use specials::stop_ids;
pub use stream::TextStream;
pub use template::{ChatTemplate, Message};
pub use tokenizer::Tokenizer;
