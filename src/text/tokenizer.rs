//! The tokenizer: text to token ids and back, from a model's `tokenizer.json`.
//!
//! The work is done by the `tokenizers` crate; this file bounds what it reads and undoes settings
//! that belong to training. Owned by whoever talks to a model in words; plain data behind `&self`.

use super::files::{TextError, read};
use std::path::Path;

/// Longest `tokenizer.json` that is read; the largest vocabularies need some 40 MB.
const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    file: String,
    largest: u32,
    longest: usize,
}

/// What a token adds to a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// One byte of a character that has no token of its own: a token like `<0xE2>`.
    Byte,
    /// Nothing: a special token that is left out, or an id without a token.
    Nothing,
    /// Anything else.
    Text,
}

impl Tokenizer {
    /// Opens `tokenizer.json` of a model directory; none if the model has no such file, and then
    /// it is spoken to by ids.
    ///
    /// # Errors
    /// When the file is too long or no tokenizer.
    pub fn open(directory: &Path) -> Result<Option<Tokenizer>, TextError> {
        let path = directory.join("tokenizer.json");
        let Some(bytes) = read(&path, TOKENIZER_BYTES_MAX)? else {
            return Ok(None);
        };
        let file = path.display().to_string();
        let content = |reason: String| TextError::Content { file: file.clone(), reason };
        let mut inner = tokenizers::Tokenizer::from_bytes(&bytes)
            .map_err(|error| content(format!("no tokenizer ({error})")))?;
        // Cutting and filling up serve training batches; here they would change a prompt.
        inner.with_truncation(None).map_err(|error| content(error.to_string()))?;
        inner.with_padding(None);
        let vocabulary = inner.get_vocab(true);
        let longest = vocabulary.keys().map(String::len).max().unwrap_or(0);
        let largest = vocabulary.into_values().max();
        let largest = largest.ok_or_else(|| content("it has no tokens".to_owned()))?;
        Ok(Some(Tokenizer { inner, file, largest, longest }))
    }

    /// Checks that every id of the tokenizer is one of the model's `vocabulary` tokens. The model
    /// may have more (padding): those have no text.
    ///
    /// # Errors
    /// When the tokenizer belongs to another model.
    pub fn check_vocabulary(&self, vocabulary: usize) -> Result<(), TextError> {
        if (self.largest as usize) < vocabulary {
            return Ok(());
        }
        let file = self.file.clone();
        Err(TextError::Vocabulary { file, largest: self.largest, vocabulary })
    }

    /// Bytes of the longest token: no text has fewer tokens than its bytes divided by this.
    pub fn token_bytes_max(&self) -> usize {
        self.longest
    }

    /// Text to ids. `add_special` puts the tokens in front or behind that the tokenizer's
    /// post-processor names; false for a text that a chat template has made, which has its own.
    /// Special tokens spelt out in the text become their ids either way.
    ///
    /// # Errors
    /// When the tokenizer refuses the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self.inner.encode_fast(text, add_special);
        let encoding = encoding.map_err(|error| self.refused(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids to text. Bytes that are no UTF-8 become U+FFFD; ids without text are passed over.
    /// `skip_special` leaves special tokens out.
    ///
    /// # Errors
    /// When the tokenizer refuses the ids.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        self.inner.decode(ids, skip_special).map_err(|error| self.refused(error.to_string()))
    }

    /// A token's text as it stands behind others: with the blank that some decoders drop at the start
    /// of a text. A part of a character is U+FFFD.
    ///
    /// # Errors
    /// When the tokenizer refuses the id.
    pub fn token_text(&self, id: u32) -> Result<String, TextError> {
        let once = self.decode(&[id], false)?;
        let twice = self.decode(&[id, id], false)?;
        Ok(twice.strip_prefix(once.as_str()).unwrap_or(&once).to_owned())
    }

    /// The id of a token that is spelt so in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// What a token adds to a text.
    pub(super) fn piece(&self, id: u32, skip_special: bool) -> Piece {
        let Some(token) = self.inner.id_to_token(id) else {
            return Piece::Nothing;
        };
        if skip_special && self.inner.get_added_vocabulary().is_special_token(&token) {
            return Piece::Nothing;
        }
        let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        match hex.map(|hex| (hex.len(), u8::from_str_radix(hex, 16))) {
            Some((2, Ok(_))) => Piece::Byte,
            _ => Piece::Text,
        }
    }

    fn refused(&self, reason: String) -> TextError {
        TextError::Refused { file: self.file.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    #[derive(serde::Deserialize)]
    struct Cases {
        cases: Vec<Case>,
    }

    #[derive(serde::Deserialize)]
    struct Case {
        text: String,
        ids: Vec<u32>,
        round_trip: bool,
    }

    /// The vectors were made by Python's tokenizers and agreed with llama.cpp.
    #[test]
    fn real_vocabulary_gives_the_reference_ids_and_text() {
        let directory = data("smollm2-tokenizer");
        let tokenizer = Tokenizer::open(&directory).unwrap().expect("it is there");
        let cases = std::fs::read(directory.join("tokenizer_cases.json")).unwrap();
        let cases: Cases = serde_json::from_slice(&cases).unwrap();
        assert!(cases.cases.len() > 50);
        for case in cases.cases {
            assert_eq!(tokenizer.encode(&case.text, false).unwrap(), case.ids, "{:?}", case.text);
            let back = tokenizer.decode(&case.ids, false).unwrap();
            assert_eq!(back == case.text, case.round_trip, "{:?} came back {back:?}", case.text);
        }
    }

    #[test]
    fn model_without_tokenizer_is_none_and_a_broken_one_an_error() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        assert!(Tokenizer::open(directory.path()).unwrap().is_none());
        for content in ["", "{}", "[]", r#"{"model": {"type": "BPE"}}"#] {
            std::fs::write(directory.path().join("tokenizer.json"), content).unwrap();
            let error = Tokenizer::open(directory.path()).err().expect("refused").to_string();
            assert!(error.contains("tokenizer.json"), "{error}");
        }
    }

    #[test]
    fn tokenizer_of_another_model_is_refused() {
        let tokenizer = Tokenizer::open(&data("tiny/glm-dsa")).unwrap().unwrap();
        assert_eq!(tokenizer.largest, 599);
        assert!(tokenizer.check_vocabulary(640).is_ok());
        assert!(tokenizer.check_vocabulary(600).is_ok());
        let error = tokenizer.check_vocabulary(599).unwrap_err().to_string();
        assert!(error.contains("599") && error.contains("tokenizer.json"), "{error}");
    }

    #[test]
    fn token_has_its_text_with_its_blank() {
        let tokenizer = Tokenizer::open(&data("smollm2-tokenizer")).unwrap().unwrap();
        let ids = tokenizer.encode("Hello world", false).unwrap();
        let texts: Vec<String> = ids.iter().map(|&id| tokenizer.token_text(id).unwrap()).collect();
        assert_eq!(texts, ["Hello", " world"]);
    }

    #[test]
    fn special_tokens_are_known_by_name_and_can_be_left_out() {
        let tokenizer = Tokenizer::open(&data("smollm2-tokenizer")).unwrap().unwrap();
        let end = tokenizer.id("<|im_end|>").expect("known");
        let ids = tokenizer.encode("Hello<|im_end|>", false).unwrap();
        assert_eq!(ids.last(), Some(&end));
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "Hello");
        assert_eq!(tokenizer.id("<|no such token|>"), None);
    }
}
