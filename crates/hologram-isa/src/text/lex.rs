//! Splits text into tokens.

use super::is_name_byte;
use crate::IsaError;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name, keyword or mnemonic.
    Word,
    /// `%name`.
    Register,
    /// `@name`.
    Label,
    /// A number with its sign.
    Number,
    /// One of `( ) { } [ ] < > , : =`.
    Punct,
    /// The end of a line.
    Newline,
    /// The end of the text.
    End,
}

/// A token with its 1-based line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub kind: Kind,
    /// The token; registers and labels without the sigil.
    pub text: &'a str,
    pub line: u32,
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Kind::Newline => f.write_str("the end of the line"),
            Kind::End => f.write_str("the end of the file"),
            Kind::Register => write!(f, "`%{}`", self.text),
            Kind::Label => write!(f, "`@{}`", self.text),
            _ => write!(f, "`{}`", self.text),
        }
    }
}

/// The tokens of a text.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0, line: 1 }
    }

    /// The next token; at the end, always [`Kind::End`].
    pub(super) fn next(&mut self) -> Result<Token<'a>, IsaError> {
        self.skip(|b| matches!(b, b' ' | b'\t' | b'\r'));
        if self.rest().starts_with(b"//") {
            self.skip(|b| b != b'\n');
        }
        let start = self.at;
        let line = self.line;
        let Some(&first) = self.rest().first() else {
            return Ok(Token { kind: Kind::End, text: "", line });
        };
        self.at += 1;
        let kind = match first {
            b'\n' => {
                self.line += 1;
                Kind::Newline
            }
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b',' | b':' | b'=' => Kind::Punct,
            b'%' | b'@' => {
                self.skip(is_name_byte);
                let text = &self.text[start + 1..self.at];
                if text.is_empty() {
                    let message = format!("expected a name after `{}`", first as char);
                    return Err(IsaError::Parse { line, message });
                }
                let kind = if first == b'%' { Kind::Register } else { Kind::Label };
                return Ok(Token { kind, text, line });
            }
            b'-' | b'0'..=b'9' => {
                self.number();
                Kind::Number
            }
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                self.skip(is_name_byte);
                Kind::Word
            }
            _ => {
                let c = self.text[start..].chars().next().unwrap_or_default();
                return Err(IsaError::Parse { line, message: format!("unexpected character {c:?}") });
            }
        };
        Ok(Token { kind, text: &self.text[start..self.at], line })
    }

    /// Reads the rest of a number, including the sign of a decimal exponent.
    fn number(&mut self) {
        let start = self.at - 1;
        self.skip(is_name_byte);
        let token = &self.text.as_bytes()[start..self.at];
        if matches!(token.last(), Some(b'e' | b'E'))
            && !token.starts_with(b"0x")
            && matches!(self.rest().first(), Some(b'+' | b'-'))
        {
            self.at += 1;
            self.skip(is_name_byte);
        }
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn skip(&mut self, want: impl Fn(u8) -> bool) {
        self.at += self.rest().iter().take_while(|b| want(**b)).count();
    }
}
