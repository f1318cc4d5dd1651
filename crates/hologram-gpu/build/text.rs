//! Parses kernel texts as far as their declarations require: words, conditionals, included headers, macros.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// An error in a text, with its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Error {
    pub file: String,
    pub line: u32,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// A word, number, string or sign.
#[derive(Clone, Debug)]
pub struct Token {
    pub text: Rc<str>,
    pub file: Rc<str>,
    pub line: u32,
    /// The macro whose body it was written in.
    pub within: Option<Rc<str>>,
    /// Whether it is the first of its line, and whether it directly follows the token before it.
    first: bool,
    glued: bool,
}

impl Token {
    pub fn is(&self, text: &str) -> bool {
        &*self.text == text
    }

    pub fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    }

    /// The same place with another word.
    pub fn called(&self, text: &str) -> Token {
        Token { text: text.into(), ..self.clone() }
    }

    pub fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error { file: self.file.to_string(), line: self.line, message: message.into() })
    }
}

/// `#define`.
#[derive(Clone, Debug)]
pub struct Macro {
    /// The names of its parameters, `...` among them; `None` for a macro without parentheses.
    pub parameters: Option<Vec<Rc<str>>>,
    pub body: Vec<Token>,
    pub file: Rc<str>,
}

/// The language that a text is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Cuda,
    Metal,
}

/// A text with all that it includes.
#[derive(Default)]
pub struct Text {
    pub macros: BTreeMap<Rc<str>, Macro>,
    /// Macros with different definitions.
    ambiguous: BTreeSet<Rc<str>>,
    /// The tokens outside directives.
    pub tokens: Vec<Token>,
    seen: BTreeSet<String>,
}

/// The depth of expansion above which a macro is taken to expand to itself.
const DEEPEST: usize = 32;

fn tokens_of(file: &str, text: &str) -> Result<Vec<Token>> {
    let file: Rc<str> = file.into();
    let bytes = text.as_bytes();
    let (mut out, mut at, mut line, mut first, mut glued) = (Vec::new(), 0, 1, true, false);
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(b"\\\n") {
            (at, line, glued) = (at + 2, line + 1, false);
            continue;
        }
        if rest.starts_with(b"//") {
            at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            continue;
        }
        if rest.starts_with(b"/*") {
            let length = text[at..].find("*/").map_or(rest.len(), |n| n + 2);
            line += rest[..length].iter().filter(|b| **b == b'\n').count() as u32;
            (at, glued) = (at + length, false);
            continue;
        }
        if rest[0] == b'\n' {
            (at, line, first, glued) = (at + 1, line + 1, true, false);
            continue;
        }
        if rest[0].is_ascii_whitespace() {
            (at, glued) = (at + 1, false);
            continue;
        }
        let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
        let length = if rest[0] == b'"' || rest[0] == b'\'' {
            let mut n = 1;
            while n < rest.len() && rest[n] != rest[0] && rest[n] != b'\n' {
                n += if rest[n] == b'\\' { 2 } else { 1 };
            }
            if n >= rest.len() || rest[n] != rest[0] {
                return Err(Error { file: file.to_string(), line, message: "a string does not end".into() });
            }
            n + 1
        } else if rest[0].is_ascii_digit() {
            rest.iter().position(|b| !word(b) && *b != b'.').unwrap_or(rest.len())
        } else if word(&rest[0]) {
            rest.iter().position(|b| !word(b)).unwrap_or(rest.len())
        } else if rest.starts_with(b"##") || rest.starts_with(b"==") {
            2
        } else if rest.starts_with(b"...") {
            3
        } else {
            text[at..].chars().next().map_or(1, char::len_utf8)
        };
        let text = text[at..at + length].into();
        out.push(Token { text, file: file.clone(), line, within: None, first, glued });
        (at, first, glued) = (at + length, false, true);
    }
    Ok(out)
}

impl Text {
    /// Parses a text; `header` returns the path and the text of an included header.
    pub fn read(
        file: &str,
        text: &str,
        language: Language,
        header: &dyn Fn(&str) -> Option<(String, String)>,
    ) -> Result<Text> {
        let mut out = Text::default();
        out.include(file, text, language, header)?;
        Ok(out)
    }

    fn include(
        &mut self,
        file: &str,
        text: &str,
        language: Language,
        header: &dyn Fn(&str) -> Option<(String, String)>,
    ) -> Result<()> {
        let tokens = tokens_of(file, text)?;
        // Per open conditional: whether its text counts, and whether one of its branches did.
        let mut open: Vec<(bool, bool)> = Vec::new();
        let mut rest = &tokens[..];
        while let Some(start) = rest.first() {
            let length = 1 + rest[1..].iter().position(|t| t.first).unwrap_or(rest.len() - 1);
            let (line, after) = rest.split_at(length);
            rest = after;
            let counts = open.iter().all(|(counts, _)| *counts);
            if !start.is("#") {
                if counts {
                    self.tokens.extend_from_slice(line);
                }
                continue;
            }
            let defined = |name: Option<&Token>| match name {
                Some(name) if name.is("__CUDACC_RTC__") => Ok(language == Language::Cuda),
                Some(name) => Ok(self.macros.contains_key(&name.text)),
                None => start.error("a condition names nothing"),
            };
            match line.get(1).map(|t| &*t.text) {
                Some("ifdef") => open.push((defined(line.get(2))?, false)),
                Some("ifndef") => open.push((!defined(line.get(2))?, false)),
                // Architectures and the like: kernels do not depend on them.
                Some("if") => open.push((true, false)),
                Some("else" | "elif") => match open.last_mut() {
                    Some((counts, before)) => (*counts, *before) = (!*counts && !*before, *before || *counts),
                    None => return start.error("there is no condition that this belongs to"),
                },
                Some("endif") if open.pop().is_none() => {
                    return start.error("there is no condition that this belongs to");
                }
                Some("define") if counts => self.define(start, &line[2..])?,
                Some("include") if counts => {
                    let Some(name) = line.get(2).and_then(|t| t.text.strip_prefix('"')?.strip_suffix('"')) else {
                        continue;
                    };
                    let Some((path, text)) = header(name) else { return start.error(format!("there is no {name}")) };
                    if self.seen.insert(path.clone()) {
                        self.include(&path, &text, language, header)?;
                    }
                }
                _ => {}
            }
        }
        match (open.is_empty(), tokens.last()) {
            (false, Some(last)) => last.error("a condition does not end"),
            _ => Ok(()),
        }
    }

    fn define(&mut self, start: &Token, line: &[Token]) -> Result<()> {
        let Some((name, mut body)) = line.split_first() else { return start.error("a macro has no name") };
        let mut parameters = None;
        if let Some((open, rest)) = body.split_first()
            && open.is("(")
            && open.glued
        {
            let Some(end) = rest.iter().position(|t| t.is(")")) else { return name.error("its parameters do not end") };
            parameters = Some(rest[..end].iter().filter(|t| !t.is(",")).map(|t| t.text.clone()).collect());
            body = &rest[end + 1..];
        }
        let within = |t: &Token| Token { within: Some(name.text.clone()), ..t.clone() };
        let new = Macro { parameters, body: body.iter().map(within).collect(), file: name.file.clone() };
        let words = |m: &Macro| m.body.iter().map(|t| t.text.clone()).collect::<Vec<_>>();
        if let Some(old) = self.macros.insert(name.text.clone(), new.clone())
            && (old.parameters != new.parameters || words(&old) != words(&new))
        {
            self.ambiguous.insert(name.text.clone());
        }
        Ok(())
    }

    /// Expands a macro with parentheses.
    pub fn expand(&self, at: &Token, arguments: &[&[Token]], depth: usize) -> Result<Vec<Token>> {
        let Some(Macro { parameters: Some(parameters), body, .. }) = self.macros.get(&at.text) else {
            return at.error(format!("there is no macro {}", at.text));
        };
        if self.ambiguous.contains(&at.text) {
            return at.error(format!("{} is defined twice", at.text));
        }
        if depth > DEEPEST {
            return at.error(format!("{} expands to itself", at.text));
        }
        let variadic = parameters.last().is_some_and(|p| &**p == "...");
        let given = if arguments.iter().all(|a| a.is_empty()) { 0 } else { arguments.len() };
        if given != parameters.len() && !(variadic && given + 1 >= parameters.len()) {
            return at.error(format!("{} takes {} arguments, not {given}", at.text, parameters.len()));
        }
        let mut out: Vec<Token> = Vec::new();
        let mut paste = false;
        for token in body {
            if token.is("##") {
                paste = true;
                continue;
            }
            let argument = parameters.iter().position(|p| *p == token.text).and_then(|i| arguments.get(i));
            let own = [token.clone()];
            let replaced: &[Token] = argument.copied().unwrap_or(&own);
            for (i, token) in replaced.iter().enumerate() {
                match out.last_mut() {
                    Some(last) if paste && i == 0 => last.text = format!("{}{}", last.text, token.text).into(),
                    _ => out.push(token.clone()),
                }
            }
            paste = false;
        }
        Ok(out)
    }
}

/// The arguments of a macro or form. `tokens` begin with its parenthesis; returns the tokens between its commas, and
/// the total number of tokens.
pub fn arguments(tokens: &[Token]) -> Option<(Vec<&[Token]>, usize)> {
    if !tokens.first()?.is("(") {
        return None;
    }
    let (mut out, mut depth, mut start) = (Vec::new(), 0, 1);
    for (i, token) in tokens.iter().enumerate() {
        match &*token.text {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => {
                depth -= 1;
                if depth == 0 {
                    out.push(&tokens[start..i]);
                    return Some((out, i + 1));
                }
            }
            "," if depth == 1 => {
                out.push(&tokens[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    None
}
