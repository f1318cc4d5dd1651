//! Pre-tokenizers: split a text into words, within which BPE merges.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space is a word, but its last character belongs to the
//! next word. The patterns here omit the look-ahead, and [`PreTokenizer::split`] gives the last character back, so that
//! matching takes linear time on any text.

use fancy_regex::Regex;

/// A pre-tokenizer, by its name in `tokenizer.ggml.pre`.
struct Kind {
    /// The names that files use.
    names: &'static [&'static str],
    /// Applied in order, each to the pieces of the previous one.
    stages: &'static [Stage],
    /// A word in the vocabulary becomes one token, even if no merges lead to it.
    whole_words: bool,
    /// Whether a text starts with BOS if the file does not specify it.
    add_bos: bool,
}

/// A pattern; each of its matches and each stretch between them is a piece.
struct Stage {
    pattern: &'static str,
    spaces: Spaces,
}

/// What happens to the last character of a run of white space before other text.
#[derive(Clone, Copy, PartialEq)]
enum Spaces {
    /// As the pattern matched.
    AsMatched,
    /// It belongs to the next word.
    GiveBack,
    /// As `GiveBack`, except that a run that ends in a line break (matched by another alternative) is kept whole.
    KeepLines,
}

const fn plain(pattern: &'static str) -> Stage {
    Stage { pattern, spaces: Spaces::AsMatched }
}

const fn lines(pattern: &'static str) -> Stage {
    Stage { pattern, spaces: Spaces::KeepLines }
}

const GPT2: Stage =
    Stage { pattern: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", spaces: Spaces::GiveBack };
const LLAMA3: Stage = lines(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
));
const QWEN2: Stage = lines(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
));
const QWEN35: Stage = lines(concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
));
const TEKKEN: Stage = lines(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
));
const GPT4O: Stage = lines(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
));
const DEEPSEEK3: Stage = lines(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"
));
const BLOOM: Stage = plain(r" ?[^(\s|.,!?…。，、।۔،)]+");
/// The cased letters that DeepSeek's first vocabulary treats as letters.
const CASED: &str = concat!(
    r"\s?[",
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}",
    "ℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃",
    "]+"
);

const fn kind(names: &'static [&'static str], stages: &'static [Stage]) -> Kind {
    Kind { names, stages, whole_words: false, add_bos: false }
}

static KINDS: &[Kind] = &[
    Kind {
        whole_words: true,
        add_bos: true,
        ..kind(&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"], &[LLAMA3])
    },
    Kind { whole_words: true, add_bos: true, ..kind(&["tekken"], &[TEKKEN]) },
    kind(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA3]),
    kind(
        &[
            "gpt-2",
            "modern-bert",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
        ],
        &[GPT2],
    ),
    kind(&["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2", "kormo", "solar-open"], &[QWEN2]),
    kind(&["qwen35"], &[QWEN35]),
    kind(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[plain(r"\p{N}"), GPT2],
    ),
    kind(&["gpt-4o", "llama4", "minimax-m2"], &[GPT4O]),
    kind(
        &["deepseek-llm"],
        &[
            plain(r"[\r\n]"),
            plain(CASED),
            plain(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            plain(r"\s+$"),
            plain("[一-龥ࠀ-一가-\u{d7ff}]+"),
            plain(r"\p{N}+"),
        ],
    ),
    kind(
        &["deepseek-coder"],
        &[
            plain(r"[\r\n]"),
            plain(r"\s?\p{L}+"),
            plain(r"\s?\p{P}+"),
            plain("[一-龥ࠀ-一가-\u{d7ff}]+"),
            plain(r"\p{N}"),
        ],
    ),
    kind(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[plain(r"\p{N}{1,3}"), plain("[一-龥\u{3040}-ゟ゠-ヿ]+"), DEEPSEEK3],
    ),
    kind(&["falcon"], &[plain(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, plain("[0-9][0-9][0-9]")]),
    kind(&["default"], &[plain(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, plain(r"\p{N}+"), plain("[0-9][0-9][0-9]")]),
    kind(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    kind(&["viking"], &[BLOOM, plain(r"\p{N}")]),
];

/// The pattern that the `tokenizers` library's byte level splits by.
pub(super) const GPT2_PATTERN: &str = GPT2.pattern;

/// The first name of the pre-tokenizer with these published patterns; `None` for unknown ones. `whole_words`: a word in
/// the vocabulary becomes one token.
pub(super) fn named(patterns: &[String], whole_words: bool) -> Option<&'static str> {
    let own = |pattern: &String| pattern.replace(r"\s+(?!\S)|", "");
    let same = |kind: &&Kind| {
        kind.stages.len() == patterns.len() && kind.stages.iter().zip(patterns).all(|(s, p)| s.pattern == own(p))
    };
    let mut found: Vec<&Kind> = KINDS.iter().filter(same).collect();
    found.sort_by_key(|kind| kind.whole_words != whole_words);
    found.first()?.names.first().copied()
}

/// A pre-tokenizer with its patterns compiled.
pub(super) struct PreTokenizer {
    kind: &'static Kind,
    patterns: Vec<(Regex, Spaces)>,
}

impl PreTokenizer {
    /// The pre-tokenizer with this name.
    ///
    /// # Errors
    /// The name is unknown; the message lists those that are known.
    pub fn new(name: &str) -> Result<PreTokenizer, String> {
        let kind = KINDS.iter().find(|k| k.names.contains(&name)).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().flat_map(|k| k.names).copied().collect();
            format!("unknown pre-tokenizer {name}; supported: {}", names.join(", "))
        })?;
        let compiled = kind.stages.iter().map(|s| Ok((Regex::new(s.pattern)?, s.spaces)));
        let patterns = compiled
            .collect::<Result<_, fancy_regex::Error>>()
            .map_err(|e| format!("the pattern of the pre-tokenizer {name}: {e}"))?;
        Ok(PreTokenizer { kind, patterns })
    }

    /// Whether a word in the vocabulary becomes one token.
    pub fn whole_words(&self) -> bool {
        self.kind.whole_words
    }

    /// Whether a text starts with BOS if the file does not specify it.
    pub fn add_bos(&self) -> bool {
        self.kind.add_bos
    }

    /// Calls `word` for each word, in order; together they are the text.
    pub fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        self.split_by(&self.patterns, text, word);
    }

    fn split_by<'t>(&self, patterns: &[(Regex, Spaces)], text: &'t str, word: &mut dyn FnMut(&'t str)) {
        let Some(((pattern, spaces), finer)) = patterns.split_first() else {
            if !text.is_empty() {
                word(text);
            }
            return;
        };
        let mut at = 0;
        while at < text.len() {
            // These patterns neither fail nor match empty text; if they did, the rest would stay one piece.
            let Some(found) = pattern.find_from_pos(text, at).ok().flatten().filter(|m| m.end() > m.start()) else {
                break;
            };
            let (start, mut end) = (found.start(), found.end());
            self.split_by(finer, &text[at..start], word);
            let run = found.as_str();
            if *spaces != Spaces::AsMatched
                && end < text.len()
                && let Some(last) = run.chars().next_back().filter(|c| c.is_whitespace())
                && !(*spaces == Spaces::KeepLines && matches!(last, '\r' | '\n'))
                && run.len() > last.len_utf8()
            {
                end -= last.len_utf8();
            }
            self.split_by(finer, &text[start..end], word);
            at = end;
        }
        self.split_by(finer, &text[at..], word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts and, per pre-tokenizer, the byte lengths of the words into which the Hugging Face library splits them by
    /// the published patterns.
    const TABLE: &str = include_str!("../../tests/fixtures/pre-tokenizers.json");

    #[test]
    fn words_are_those_of_the_published_patterns() {
        let table: serde_json::Value = serde_json::from_str(TABLE).unwrap();
        let families = table["words"].as_object().unwrap();
        let covered = |kind: &Kind| {
            let same = |name: &String| kind.names.contains(&name.as_str());
            let pattern = |k: &Kind| k.stages.iter().map(|s| s.pattern).collect::<Vec<_>>();
            let twin =
                |name: &String| KINDS.iter().any(|k| k.names.contains(&name.as_str()) && pattern(k) == pattern(kind));
            families.keys().any(|name| same(name) || twin(name))
        };
        assert!(KINDS.iter().all(covered), "every list of patterns has a row in the table");
        for (name, words) in families {
            let pre = PreTokenizer::new(name).unwrap();
            for (text, words) in table["texts"].as_array().unwrap().iter().zip(words.as_array().unwrap()) {
                let (text, mut got) = (text.as_str().unwrap(), Vec::new());
                pre.split(text, &mut |word| got.push(word.len() as u64));
                let want: Vec<u64> = words.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
                assert_eq!(got, want, "{name}: {text:?}");
            }
        }
    }
}
