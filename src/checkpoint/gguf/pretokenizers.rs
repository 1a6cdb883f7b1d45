//! How texts are cut into words before their bytes are merged: the `pre` of byte-level tokenizers.
//!
//! A GGUF file only names the way; the rules are those of the models' own `tokenizer.json`. To add
//! one: a line in [`PRE_TOKENIZERS`].

/// One way of cutting texts.
#[derive(Clone, Copy, Debug)]
pub struct PreTokenizer {
    /// Its names in `tokenizer.ggml.pre`.
    pub names: &'static [&'static str],
    /// Texts are cut around what these find, one after the other.
    pub splits: &'static [&'static str],
    /// Then they are cut as GPT-2 does.
    pub like_gpt2: bool,
    /// Characters are composed first (NFC).
    pub composed: bool,
    /// A word that is a token as a whole is taken as that.
    pub whole_words: bool,
    /// A text begins with the token for that, unless the file says otherwise.
    pub begins: bool,
}

/// What most of them are.
const PLAIN: PreTokenizer = PreTokenizer {
    names: &[],
    splits: &[],
    like_gpt2: false,
    composed: false,
    whole_words: false,
    begins: false,
};

/// English endings, words, up to three digits, signs, line ends, blanks.
const THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with every digit by itself.
const ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words are also cut where small letters are followed by capitals.
const CASED: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same without endings and with every digit by itself.
const CASED_ONE_DIGIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Letters of scripts with capitals, by DeepSeek's list.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
/// Words with marks, signs with letters behind them, line ends, blanks.
const DEEPSEEK_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// All ways that this build knows.
pub const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer { names: &["gpt-2", "phi-2", "exaone4"], like_gpt2: true, ..PLAIN },
    PreTokenizer { names: &["olmo"], like_gpt2: true, composed: true, ..PLAIN },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r"],
        splits: &[r"\p{N}"],
        like_gpt2: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        splits: &[THREE_DIGITS],
        whole_words: true,
        begins: true,
        ..PLAIN
    },
    PreTokenizer { names: &["glm4", "chatglm-bpe", "dbrx"], splits: &[THREE_DIGITS], ..PLAIN },
    PreTokenizer {
        names: &["qwen2", "deepseek-r1-qwen"],
        splits: &[ONE_DIGIT],
        composed: true,
        ..PLAIN
    },
    PreTokenizer { names: &["gpt-4o", "minimax-m2"], splits: &[CASED], ..PLAIN },
    PreTokenizer {
        names: &["tekken"],
        splits: &[CASED_ONE_DIGIT],
        whole_words: true,
        begins: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-v3"],
        splits: &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_WORDS],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        splits: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}",
        ],
        ..PLAIN
    },
    PreTokenizer {
        names: &["default"],
        splits: &[
            r"[\p{P}\$\+<=>\^~\|]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
            r"\p{N}+",
            r"[0-9][0-9][0-9]",
        ],
        ..PLAIN
    },
];

/// The way of a name, if it is known.
pub fn pre_tokenizer(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|way| way.names.contains(&name))
}

/// All names, for a message.
pub fn known_names() -> String {
    let names = PRE_TOKENIZERS.iter().flat_map(|way| way.names);
    names.copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_means_two_ways() {
        let mut names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|way| way.names).collect();
        let total = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), total);
    }
}
