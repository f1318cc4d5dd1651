//! Control tokens that a user's text spells out are marked in it, so that they stay text while the template's own are
//! recognised.

use std::borrow::Cow;

use super::special::Fragment;
use super::{TokenType, Tokenizer};
use crate::error::Result;

impl Tokenizer {
    /// Writes `mark`, a character that does not occur in the text, before each character of the control tokens that it
    /// spells out.
    pub(crate) fn mark_control<'t>(&self, text: &'t str, mark: char) -> Cow<'t, str> {
        let (mut marked, mut any) = (String::new(), false);
        let mut at = 0;
        self.specials.split(text, true, |fragment| {
            let len = match &fragment {
                Fragment::Text(text) => text.len(),
                Fragment::Token(id) => self.tokens.get(*id as usize).map_or(0, <[u8]>::len),
            };
            let piece = text.get(at..at + len).unwrap_or_default();
            at += len;
            match fragment {
                Fragment::Token(id) if self.token_type(id) != Some(TokenType::UserDefined) => {
                    any = true;
                    piece.chars().for_each(|c| marked.extend([mark, c]));
                }
                _ => marked += piece,
            }
        });
        if any { marked.into() } else { text.into() }
    }

    /// Encodes `text` with its control tokens, like [`Tokenizer::encode_with`]; marked ones are encoded as plain text.
    /// Marks are removed.
    pub(crate) fn encode_marked(&self, text: &str, add_special: bool, mark: char) -> Result<Vec<u32>> {
        if !text.contains(mark) {
            return self.encode_with(text, add_special, true);
        }
        let (mut ids, mut plain, mut fresh, mut failed) = (Vec::new(), String::new(), true, None);
        let mut flush = |plain: &mut String, fresh: &mut bool, ids: &mut Vec<u32>| {
            if !plain.is_empty() {
                failed = self.encode_plain(plain, *fresh, ids).err().or(failed.take());
                *fresh = false;
                plain.clear();
            }
        };
        self.specials.split_marked(text, mark, |fragment| match fragment {
            Fragment::Text(text) => plain += text,
            Fragment::Token(id) => {
                flush(&mut plain, &mut fresh, &mut ids);
                ids.push(id);
                fresh = true;
            }
        });
        flush(&mut plain, &mut fresh, &mut ids);
        match failed {
            Some(e) => Err(e),
            None => {
                if add_special {
                    self.add_ends(&mut ids);
                }
                Ok(ids)
            }
        }
    }
}
