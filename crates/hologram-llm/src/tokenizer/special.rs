//! Finds tokens that are matched before the text is split or merged.

use super::TokenType;
use crate::gguf::Strings;

/// One such token.
struct Special {
    text: Box<str>,
    id: u32,
    /// Matched in any text, not only if control tokens are requested.
    always: bool,
}

/// The control, user-defined and unknown tokens of a vocabulary.
pub(super) struct Specials {
    /// Sorted by first byte, then longest first.
    list: Vec<Special>,
    /// For each first byte the start of its tokens in `list`, then the end.
    begin: [usize; 257],
}

/// A part of a text.
pub(super) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

impl Specials {
    pub fn new(tokens: &Strings, types: &[TokenType]) -> Specials {
        let special = |((text, &ty), id): ((&[u8], &TokenType), u32)| {
            let always = ty == TokenType::UserDefined;
            let wanted = always || matches!(ty, TokenType::Control | TokenType::Unknown);
            let text = std::str::from_utf8(text).ok().filter(|t| wanted && !t.is_empty())?;
            Some(Special { text: text.into(), id, always })
        };
        let mut list: Vec<Special> = tokens.iter().zip(types).zip(0..).filter_map(special).collect();
        list.sort_by_key(|s| (s.text.as_bytes().first().copied(), std::cmp::Reverse(s.text.len()), s.id));
        let begin = std::array::from_fn(|b| list.partition_point(|s| s.text.bytes().next().map_or(0, usize::from) < b));
        Specials { list, begin }
    }

    /// The token with this text.
    pub fn get(&self, text: &str) -> Option<u32> {
        self.list.iter().find(|s| &*s.text == text).map(|s| s.id)
    }

    /// Splits a text at these tokens: the leftmost first, the longest of those that begin there. Control and unknown
    /// tokens count only if `control` is set.
    pub fn split<'t>(&self, text: &'t str, control: bool, mut each: impl FnMut(Fragment<'t>)) {
        let bytes = text.as_bytes();
        let (mut from, mut at) = (0, 0);
        while let Some(&first) = bytes.get(at) {
            let range = self.begin[usize::from(first)]..self.begin[usize::from(first) + 1];
            let candidates = self.list.get(range).unwrap_or_default();
            let found = candidates.iter().find(|s| (control || s.always) && bytes[at..].starts_with(s.text.as_bytes()));
            match found {
                None => at += 1,
                Some(special) => {
                    // Tokens consist of whole characters, so these are character boundaries.
                    if from < at {
                        each(Fragment::Text(&text[from..at]));
                    }
                    each(Fragment::Token(special.id));
                    at += special.text.len();
                    from = at;
                }
            }
        }
        if from < text.len() {
            each(Fragment::Text(&text[from..]));
        }
    }

    /// As [`Specials::split`] with control tokens, but none has a part that `mark` precedes. Pieces of text may follow
    /// each other.
    pub fn split_marked<'t>(&self, text: &'t str, mark: char, mut each: impl FnMut(Fragment<'t>)) {
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(mark) {
            self.split(before, true, &mut each);
            // A mark that lost its character marks nothing.
            let end = after.chars().next().filter(|c| *c != mark).map_or(0, char::len_utf8);
            let (protected, after) = after.split_at(end);
            each(Fragment::Text(protected));
            rest = after;
        }
        self.split(rest, true, each);
    }
}
