//! Pre-tokenizers: how a text is cut into words before BPE merges within each word.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: a run of white space is a word, but its last character goes to the word that
//! follows. The patterns here leave the look-ahead out, and [`PreTokenizer::split`] gives the last character back, so that matching
//! takes linear time on any text.

use fancy_regex::Regex;

/// What the name in `tokenizer.ggml.pre` stands for.
struct Kind {
    /// The names that files use.
    names: &'static [&'static str],
    /// Applied one after the other, each to the pieces that the last one left.
    patterns: &'static [&'static str],
    /// A run of white space that ends in a line break is matched by an alternative of its own, and kept whole.
    keeps_line_breaks: bool,
    /// A word that is in the vocabulary is taken whole, even where no merges lead to it.
    whole_words: bool,
    /// The text starts with the BOS token when the file does not say.
    add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);

static KINDS: [Kind; 4] = [
    Kind {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        patterns: &[LLAMA3],
        keeps_line_breaks: true,
        whole_words: true,
        add_bos: true,
    },
    Kind {
        names: &["gpt-2", "default", "phi-2", "mpt", "olmo", "jais"],
        patterns: &[GPT2],
        keeps_line_breaks: false,
        whole_words: false,
        add_bos: false,
    },
    Kind {
        names: &["qwen2", "deepseek-r1-qwen", "stablelm2"],
        patterns: &[QWEN2],
        keeps_line_breaks: true,
        whole_words: false,
        add_bos: false,
    },
    Kind {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        patterns: &[r"\p{N}", GPT2],
        keeps_line_breaks: false,
        whole_words: false,
        add_bos: false,
    },
];

/// A pre-tokenizer with its patterns compiled.
pub(super) struct PreTokenizer {
    kind: &'static Kind,
    patterns: Vec<Regex>,
}

impl PreTokenizer {
    /// The pre-tokenizer with this name.
    ///
    /// # Errors
    /// The name is unknown; the message lists those that are known.
    pub fn new(name: &str) -> Result<PreTokenizer, String> {
        let kind = KINDS.iter().find(|k| k.names.contains(&name)).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().flat_map(|k| k.names).copied().collect();
            format!("unknown pre-tokenizer {name}, supported are {}", names.join(", "))
        })?;
        let compiled = kind.patterns.iter().map(|p| Regex::new(p));
        let patterns = compiled.collect::<Result<_, _>>().map_err(|e| format!("the pattern of {name}: {e}"))?;
        Ok(PreTokenizer { kind, patterns })
    }

    /// Whether a word that is in the vocabulary is taken whole.
    pub fn whole_words(&self) -> bool {
        self.kind.whole_words
    }

    /// Whether a text starts with the BOS token when the file does not say.
    pub fn add_bos(&self) -> bool {
        self.kind.add_bos
    }

    /// Calls `word` for each word, in order; together they are the text.
    pub fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        self.split_by(&self.patterns, text, word);
    }

    fn split_by<'t>(&self, patterns: &[Regex], text: &'t str, word: &mut dyn FnMut(&'t str)) {
        let Some((pattern, finer)) = patterns.split_first() else {
            if !text.is_empty() {
                word(text);
            }
            return;
        };
        let mut at = 0;
        while at < text.len() {
            // An error or an empty match is impossible with these patterns; the rest would stay one piece.
            let Some(found) = pattern.find_from_pos(text, at).ok().flatten().filter(|m| m.end() > m.start()) else {
                break;
            };
            let (start, mut end) = (found.start(), found.end());
            self.split_by(finer, &text[at..start], word);
            let run = found.as_str();
            if end < text.len()
                && let Some(last) = run.chars().next_back().filter(|c| c.is_whitespace())
                && !(self.kind.keeps_line_breaks && matches!(last, '\r' | '\n'))
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
