//! Ids to text as they arrive: whole characters only, and together exactly what decoding all ids
//! at once gives.
//!
//! A token may hold a part of a character, and some decoders look at the tokens before it (a space
//! that is dropped at the start). So a short window of ids is decoded anew with every token: the
//! ids of the last piece given, for context, and those that came since. Two things are held
//! back, as later tokens can change them: a trailing U+FFFD (a character cut in its middle), and a
//! run of byte tokens like `<0xE2>`, which decodes as a whole or not at all.

use super::files::TextError;
use super::tokenizer::{Piece, Tokenizer};

/// Turns one answer's ids into text.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Ids that were given as text, for context, then those that weren't, or not in full.
    window: Vec<u32>,
    /// How many of them are context.
    context: usize,
    /// Bytes of the window's text that were given.
    given: usize,
    /// The last token that adds anything is a byte.
    in_bytes: bool,
}

impl<'a> TextStream<'a> {
    /// A stream at the start of an answer. `skip_special` leaves special tokens out.
    pub fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> TextStream<'a> {
        TextStream {
            tokenizer,
            skip_special,
            window: vec![],
            context: 0,
            given: 0,
            in_bytes: false,
        }
    }

    /// Takes a token, gives the text that is now certain (often one word, perhaps none).
    ///
    /// # Errors
    /// When the tokenizer refuses the ids.
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.window.push(id);
        match self.tokenizer.piece(id, self.skip_special) {
            Piece::Byte => self.in_bytes = true,
            Piece::Text => self.in_bytes = false,
            Piece::Nothing => {}
        }
        if self.in_bytes {
            return Ok(String::new());
        }
        let text = self.decode()?;
        let certain = text.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(&text).len();
        let piece = text.get(self.given..certain).unwrap_or_default().to_owned();
        self.given += piece.len();
        if certain == text.len() && self.given == certain {
            self.shift()?;
        }
        Ok(piece)
    }

    /// Ends the answer: gives what was held back.
    ///
    /// # Errors
    /// When the tokenizer refuses the ids.
    pub fn finish(&mut self) -> Result<String, TextError> {
        let text = self.decode()?;
        let piece = text.get(self.given..).unwrap_or_default().to_owned();
        *self = TextStream::new(self.tokenizer, self.skip_special);
        Ok(piece)
    }

    /// All text is given: the newest ids become the context, and the old context goes, unless
    /// nothing would be left that has text.
    fn shift(&mut self) -> Result<(), TextError> {
        let text = self.tokenizer.decode(&self.window[self.context..], self.skip_special)?;
        if !text.is_empty() {
            self.window.drain(..self.context);
            self.context = self.window.len();
            self.given = text.len();
        }
        Ok(())
    }

    fn decode(&self) -> Result<String, TextError> {
        self.tokenizer.decode(&self.window, self.skip_special)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::LazyLock;

    static REAL: LazyLock<Tokenizer> = LazyLock::new(|| {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/smollm2-tokenizer");
        Tokenizer::open(&data).unwrap().expect("it is there")
    });

    /// A vocabulary as SentencePiece models have it: byte tokens, a leading space that is dropped
    /// at the start, one special token.
    static BYTES: LazyLock<Tokenizer> = LazyLock::new(|| {
        let mut vocabulary: serde_json::Map<String, serde_json::Value> =
            (0..256).map(|byte| (format!("<0x{byte:02X}>"), byte.into())).collect();
        for (id, piece) in ["▁", "▁Hello", "a", "▁b", "é", "!"].iter().enumerate() {
            vocabulary.insert((*piece).to_owned(), (256 + id).into());
        }
        let file = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{"id": 262, "content": "<s>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}],
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "byte_fallback": true, "vocab": vocabulary, "merges": []},
        });
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("tokenizer.json"), file.to_string()).unwrap();
        Tokenizer::open(directory.path()).unwrap().expect("it is there")
    });

    /// The pieces one by one, with what `finish` gave at the end.
    fn pieces(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
        let mut stream = TextStream::new(tokenizer, skip_special);
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        pieces.push(stream.finish().unwrap());
        pieces
    }

    fn assert_equal(tokenizer: &Tokenizer, ids: &[u32]) {
        for skip_special in [false, true] {
            let all = tokenizer.decode(ids, skip_special).unwrap();
            assert_eq!(pieces(tokenizer, ids, skip_special).concat(), all, "{ids:?}");
        }
    }

    #[test]
    fn character_over_several_tokens_comes_whole() {
        let ids = REAL.encode("🙃 語", false).unwrap();
        assert!(ids.len() > 3, "the characters have no tokens of their own");
        let pieces = pieces(&REAL, &ids, false);
        assert_eq!(pieces.concat(), "🙃 語");
        assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
        assert_eq!(pieces[0], "", "nothing is certain after the first token");
    }

    #[test]
    fn character_cut_off_at_the_end_is_one_replacement() {
        let ids = REAL.encode("a🙃", false).unwrap();
        let cut = &ids[..ids.len() - 1];
        assert_eq!(pieces(&REAL, cut, false).concat(), "a\u{fffd}");
    }

    #[test]
    fn byte_tokens_come_as_one_character() {
        let ids = [257, 0xE2, 0x82, 0xAC, 258];
        assert_eq!(pieces(&BYTES, &ids, true), ["Hello", "", "", "", "€a", ""]);
    }

    #[test]
    fn token_that_is_left_out_does_not_end_a_run_of_bytes() {
        assert_equal(&BYTES, &[0, 262, 128]);
        assert_equal(&BYTES, &[0xE2, 262, 0x82, 999, 0xAC, 258]);
    }

    #[test]
    fn space_is_dropped_at_the_start_only() {
        assert_eq!(pieces(&BYTES, &[262, 259, 259, 262, 259], true).concat(), "b b b");
        assert_equal(&BYTES, &[262, 256, 259, 259, 262, 256, 259]);
    }

    #[test]
    fn words_come_as_soon_as_they_are_there() {
        let ids = REAL.encode("Hello world", false).unwrap();
        assert_eq!(pieces(&REAL, &ids, true), ["Hello", " world", ""]);
    }

    proptest! {
        #[test]
        fn stream_equals_decoding_all_at_once_for_any_ids(
            ids in prop::collection::vec(0u32..49_152, 0..24),
            low in prop::collection::vec(0u32..400, 0..24),
            bytes in prop::collection::vec(prop_oneof![0u32..263, 128u32..256, 256u32..263], 0..24),
            text in "\\PC{0,12}",
        ) {
            assert_equal(&REAL, &ids);
            assert_equal(&REAL, &low);
            assert_equal(&REAL, &REAL.encode(&text, false).unwrap());
            assert_equal(&BYTES, &bytes);
        }
    }
}
