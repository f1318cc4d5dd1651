//! Byte-level BPE, the tokenizer of GPT-2 and its descendants (`tokenizer.ggml.model` = `gpt2`).
//!
//! Tokens and merges are written in GPT-2's alphabet, where every byte is one printable character ("Ġ" is a space).
//! Words are written in this alphabet too and then looked up directly.

use super::index::StringIndex;
use super::merge::Merger;
use super::pre::PreTokenizer;

/// GPT-2's alphabet, in which byte-level BPE spells tokens: the character of each byte. Printable Latin-1 characters
/// stand for themselves, the others are U+0100 and up.
pub const BYTE_TO_CHAR: [char; 256] = {
    let mut table = ['\0'; 256];
    let (mut byte, mut extra) = (0, 0x100);
    while byte < 256 {
        table[byte] = match byte {
            33..=126 | 161..=172 | 174..=255 => byte as u8 as char,
            _ => {
                extra += 1;
                match char::from_u32(extra - 1) {
                    Some(c) => c,
                    None => panic!("not a character"),
                }
            }
        };
        byte += 1;
    }
    table
};

/// The byte that a character of the alphabet stands for.
fn char_to_byte(c: char) -> Option<u8> {
    match c as u32 {
        n @ (33..=126 | 161..=172 | 174..=255) => u8::try_from(n).ok(),
        n @ 0x100..0x144 => BYTE_TO_CHAR.iter().position(|&b| b as u32 == n).and_then(|b| u8::try_from(b).ok()),
        _ => None,
    }
}

pub(super) struct Bpe {
    pub pre: PreTokenizer,
    merges: StringIndex,
    /// The tokens of single bytes, for text that no merge covers.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

impl Bpe {
    pub fn new(pre: PreTokenizer, merges: StringIndex, tokens: &StringIndex, unknown: Option<u32>) -> Bpe {
        let bytes = BYTE_TO_CHAR.map(|c| tokens.get(c.encode_utf8(&mut [0; 4]).as_bytes()));
        Bpe { pre, merges, bytes, unknown }
    }

    /// The number of bytes without a token or a substitute: a text loses them.
    pub fn lost_bytes(&self) -> usize {
        if self.unknown.is_some() { 0 } else { self.bytes.iter().filter(|b| b.is_none()).count() }
    }

    pub fn encode(&self, tokens: &StringIndex, text: &str, out: &mut Vec<u32>) {
        let mut merger = Merger::default();
        let (mut letters, mut ends, mut pair) = (String::new(), Vec::new(), Vec::new());
        self.pre.split(text, &mut |word| {
            letters.clear();
            ends.clear();
            for byte in word.bytes() {
                letters.push(BYTE_TO_CHAR[usize::from(byte)]);
                ends.push(letters.len());
            }
            let letters = letters.as_bytes();
            if self.pre.whole_words()
                && let Some(id) = tokens.get(letters)
            {
                out.push(id);
                return;
            }
            let rank = |start: usize, middle: usize, end: usize| {
                pair.clear();
                pair.extend_from_slice(&letters[start..middle]);
                pair.push(b' ');
                pair.extend_from_slice(&letters[middle..end]);
                self.merges.get(&pair)
            };
            merger.run(ends.iter().copied(), rank, |start, end| match tokens.get(&letters[start..end]) {
                Some(id) => out.push(id),
                // A merge whose result is not a token: use its bytes.
                None => {
                    let first = ends.partition_point(|&e| e <= start);
                    let past = ends.partition_point(|&e| e <= end);
                    let bytes = word.as_bytes().get(first..past).unwrap_or_default();
                    out.extend(bytes.iter().filter_map(|&b| self.bytes[usize::from(b)].or(self.unknown)));
                }
            });
        });
    }
}

/// Appends the bytes of a token. A token with a character outside the alphabet is copied unchanged.
pub(super) fn decode(token: &[u8], out: &mut Vec<u8>) {
    let before = out.len();
    let letters = std::str::from_utf8(token).ok();
    for c in letters.unwrap_or("\u{0}").chars() {
        match char_to_byte(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(before);
                out.extend_from_slice(token);
                return;
            }
        }
    }
}
