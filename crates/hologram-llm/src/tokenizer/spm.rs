//! SentencePiece BPE, the tokenizer of Llama 2 and Mistral (`tokenizer.ggml.model` = `llama`).
//!
//! A space is written "▁" (U+2581). Characters are joined into the piece with the best score while the result is a
//! piece. A character without a piece becomes its UTF-8 bytes, each of which has a token.

use super::TokenType;
use super::index::StringIndex;
use super::merge::Merger;
use std::collections::HashMap;

/// How a space is written.
pub(super) const SPACE: &str = "\u{2581}";

pub(super) struct Spm {
    pub add_space_prefix: bool,
    /// Each token's merge rank: falling scores as rising numbers.
    ranks: Vec<u32>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

impl Spm {
    /// # Errors
    /// When the vocabulary has no unknown token and lacks some byte's token, so that some texts have no tokens.
    pub fn new(
        add_space_prefix: bool,
        scores: impl Iterator<Item = f32>,
        bytes: [Option<u32>; 256],
        unknown: Option<u32>,
    ) -> Result<Spm, String> {
        if unknown.is_none() && bytes.contains(&None) {
            return Err("the vocabulary has neither an unknown token nor a token for every byte".into());
        }
        let rank = |score: f32| {
            let bits = (score + 0.0).to_bits();
            !(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 })
        };
        Ok(Spm { add_space_prefix, ranks: scores.map(rank).collect(), bytes, unknown })
    }

    /// `prefix`: the text is at the start or after a control token, so the vocabulary's leading space applies.
    pub fn encode(&self, tokens: &StringIndex, types: &[TokenType], text: &str, prefix: bool, out: &mut Vec<u32>) {
        let mut escaped = String::with_capacity(text.len() + text.len() / 2 + 3);
        if prefix && self.add_space_prefix {
            escaped.push_str(SPACE);
        }
        for c in text.chars() {
            if c == ' ' { escaped.push_str(SPACE) } else { escaped.push(c) }
        }
        let bytes = escaped.as_bytes();
        let unused = |id: u32| types.get(id as usize) == Some(&TokenType::Unused);
        // Unused pieces may occur while merging, but not in the result. Remembers where each was joined, to split it
        // again.
        let mut cuts: HashMap<&[u8], usize> = HashMap::new();
        let mut pieces = Vec::new();
        let rank = |start: usize, middle: usize, end: usize| {
            let piece = &bytes[start..end];
            let id = tokens.get(piece)?;
            if unused(id) {
                cuts.insert(piece, middle - start);
            }
            self.ranks.get(id as usize).copied()
        };
        let ends = escaped.char_indices().map(|(i, c)| i + c.len_utf8());
        Merger::default().run(ends, rank, |start, end| pieces.push((start, end)));
        pieces.reverse();
        while let Some((start, end)) = pieces.pop() {
            let piece = &bytes[start..end];
            match tokens.get(piece) {
                Some(id) if unused(id) && cuts.contains_key(piece) => {
                    let middle = start + cuts[piece];
                    pieces.extend([(middle, end), (start, middle)]);
                }
                Some(id) => out.push(id),
                None => self.fall_back(piece, out),
            }
        }
    }

    /// The tokens of a character without one: its bytes, or the unknown token.
    fn fall_back(&self, piece: &[u8], out: &mut Vec<u32>) {
        let before = out.len();
        for &b in piece {
            match self.bytes[usize::from(b)] {
                Some(id) => out.push(id),
                None => {
                    out.truncate(before);
                    out.extend(self.unknown);
                    return;
                }
            }
        }
    }
}

/// The bytes that a token's text stands for.
pub(super) fn decode(token: &[u8], out: &mut Vec<u8>) {
    let mut rest = token;
    while let Some((first, tail)) = rest.split_first() {
        match rest.strip_prefix(SPACE.as_bytes()) {
            Some(tail) => {
                out.push(b' ');
                rest = tail;
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
}

/// The byte of a token like `<0x0A>`.
pub(super) fn token_byte(token: &[u8]) -> Option<u8> {
    let hex = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if hex.len() != 2 {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}
