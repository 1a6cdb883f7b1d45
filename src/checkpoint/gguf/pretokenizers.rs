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
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}",
    r"\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}",
    r"\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}",
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}",
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}",
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}",
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}",
    r"\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}",
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}",
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}",
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}",
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}",
    r"\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}",
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+"
);
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
