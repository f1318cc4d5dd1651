//! GBNF, llama.cpp's grammars, as Lark's, which the engine's constraints are written in.
//!
//! A grammar is a list of rules `name ::= alternatives`. An alternative is a sequence of items: literals `"text"`,
//! classes of characters `[a-z]` and `[^a-z]`, any character `.`, names, and groups in parentheses, each with `*`, `+`,
//! `?`, `{n}`, `{n,}` or `{n,m}` after it. Comments begin with `#`. A rule ends with its line, but not within
//! parentheses or after `|`. The text begins with the rule `root`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

/// The deepest nesting of groups.
const MAX_DEPTH: usize = 64;
/// The highest number of repetitions, as in llama.cpp.
const MAX_REPEAT: u32 = 2000;

type Result<T> = std::result::Result<T, String>;

/// Whether a grammar is in GBNF: a line of it defines a rule.
pub(super) fn looks_like(grammar: &str) -> bool {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    grammar.lines().filter_map(|line| line.split_once("::=")).any(|(name, _)| is_name(name.trim()))
}

/// A grammar in Lark's format. One that begins with `%llguidance` is that already.
///
/// # Errors
/// What is wrong.
pub(super) fn to_lark(grammar: &str) -> Result<String> {
    if grammar.trim_start().starts_with("%llguidance") {
        return Ok(grammar.into());
    }
    let mut parser = Parser { chars: grammar.chars().peekable(), line: 1, used: BTreeSet::new() };
    let mut rules: BTreeMap<String, String> = BTreeMap::new();
    parser.skip(true);
    while parser.peek().is_some() {
        let name = parser.name()?;
        parser.skip(true);
        for wanted in "::=".chars() {
            if parser.next() != Some(wanted) {
                return Err(parser.wrong("expected ::= after a rule's name"));
            }
        }
        parser.skip(true);
        let body = parser.alternatives(0)?;
        parser.skip(false);
        match parser.peek() {
            None | Some('\n' | '\r') => {}
            Some(c) => return Err(parser.wrong(&format!("unexpected {c:?}"))),
        }
        parser.skip(true);
        if rules.insert(name.clone(), body).is_some() {
            return Err(format!("the grammar has the rule {name:?} twice"));
        }
    }
    if !rules.contains_key("root") {
        return Err("the grammar has no rule \"root\"".into());
    }
    if let Some(missing) = parser.used.iter().find(|name| !rules.contains_key(*name)) {
        return Err(format!("the grammar has no rule {missing:?}"));
    }
    let mut lark = String::from("start: ");
    let _ = writeln!(lark, "{}", rule_name("root"));
    for (name, body) in &rules {
        let _ = writeln!(lark, "{}: {body}", rule_name(name));
    }
    Ok(lark)
}

/// A name in Lark, where rules have small letters: what it does not allow becomes its number.
fn rule_name(name: &str) -> String {
    let mut out = String::from("r_");
    for c in name.chars() {
        match c {
            'a'..='z' | '0'..='9' => out.push(c),
            c => _ = write!(out, "_{:x}_", c as u32),
        }
    }
    out
}

struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
    /// Names in bodies of rules.
    used: BTreeSet<String>,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        self.chars.peek().copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.chars.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn wrong(&self, what: &str) -> String {
        format!("the grammar is not valid in line {}: {what}", self.line)
    }

    /// Skips blanks and comments, and line ends if the rule goes on after them.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => {}
                '\n' | '\r' if lines => {}
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n' && c != '\r') {
                        self.next();
                    }
                    continue;
                }
                _ => return,
            }
            self.next();
        }
    }

    fn name(&mut self) -> Result<String> {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
            name.push(c);
            self.next();
        }
        if name.is_empty() { Err(self.wrong("expected a rule's name")) } else { Ok(name) }
    }

    /// Alternatives, until something that is none.
    fn alternatives(&mut self, depth: usize) -> Result<String> {
        if depth > MAX_DEPTH {
            return Err(self.wrong(&format!("groups are nested deeper than {MAX_DEPTH}")));
        }
        let mut out = self.sequence(depth)?;
        loop {
            self.skip(depth > 0);
            if self.peek() != Some('|') {
                return Ok(out);
            }
            self.next();
            self.skip(true);
            out += " | ";
            out += &self.sequence(depth)?;
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<String> {
        let mut items = Vec::new();
        loop {
            self.skip(depth > 0);
            let Some(item) = self.item(depth)? else { break };
            items.push(format!("{item}{}", self.repetition()?));
        }
        Ok(if items.is_empty() { "\"\"".into() } else { items.join(" ") })
    }

    fn item(&mut self, depth: usize) -> Result<Option<String>> {
        Ok(Some(match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.next();
                // Any character, a line end too.
                "/(?s:.)/".into()
            }
            Some('(') => {
                self.next();
                self.skip(true);
                let group = self.alternatives(depth + 1)?;
                self.skip(true);
                if self.next() != Some(')') {
                    return Err(self.wrong("expected )"));
                }
                format!("({group})")
            }
            Some(c) if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => {
                let name = self.name()?;
                let out = rule_name(&name);
                self.used.insert(name);
                out
            }
            _ => return Ok(None),
        }))
    }

    fn repetition(&mut self) -> Result<String> {
        self.skip(false);
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.next();
                Ok(c.into())
            }
            Some('{') => {
                self.next();
                let least = self.number()?.ok_or_else(|| self.wrong("expected a number of repetitions"))?;
                let mut most = Some(least);
                self.skip(true);
                if self.peek() == Some(',') {
                    self.next();
                    self.skip(true);
                    most = self.number()?;
                    self.skip(true);
                }
                if self.next() != Some('}') {
                    return Err(self.wrong("expected }"));
                }
                match most {
                    Some(most) if most < least => Err(self.wrong("a repetition has its limits in the wrong order")),
                    Some(most) => Ok(format!("{{{least},{most}}}")),
                    None => Ok(format!("{{{least},}}")),
                }
            }
            _ => Ok(String::new()),
        }
    }

    fn number(&mut self) -> Result<Option<u32>> {
        let mut number = None;
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            self.next();
            number = Some(number.unwrap_or(0u32).saturating_mul(10).saturating_add(digit));
        }
        match number {
            Some(n) if n > MAX_REPEAT => Err(self.wrong(&format!("more than {MAX_REPEAT} repetitions"))),
            number => Ok(number),
        }
    }

    fn literal(&mut self) -> Result<String> {
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                None => return Err(self.wrong("a text has no end")),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.next();
        // Lark reads texts as JSON's.
        serde_json::to_string(&text).map_err(|e| e.to_string())
    }

    fn class(&mut self) -> Result<String> {
        self.next();
        let mut out = String::from("/[");
        if self.peek() == Some('^') {
            self.next();
            out.push('^');
        }
        let start = out.len();
        loop {
            match self.peek() {
                None => return Err(self.wrong("a class has no end")),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            let mut last = first;
            if self.peek() == Some('-') {
                self.next();
                match self.peek() {
                    // At its end a hyphen is one.
                    Some(']') => {
                        out += &escaped(first);
                        out += &escaped('-');
                        continue;
                    }
                    _ => last = self.character()?,
                }
            }
            if last < first {
                return Err(self.wrong("a class has a range in the wrong order"));
            }
            out += &escaped(first);
            if last != first {
                out.push('-');
                out += &escaped(last);
            }
        }
        self.next();
        if out.len() == start {
            return Err(self.wrong("a class is empty"));
        }
        Ok(out + "]/")
    }

    /// A character, with its escapes resolved.
    fn character(&mut self) -> Result<char> {
        let c = self.next();
        if c != Some('\\') {
            return c.ok_or_else(|| self.wrong("unexpected end"));
        }
        let escape = self.next();
        let digits = match escape {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']')) => return Ok(c),
            _ => return Err(self.wrong("unknown escape")),
        };
        let mut code = 0u32;
        for _ in 0..digits {
            let digit = self.next().and_then(|c| c.to_digit(16));
            let digit = digit.ok_or_else(|| self.wrong(&format!("expected {digits} digits of base 16")))?;
            code = code << 4 | digit;
        }
        char::from_u32(code).ok_or_else(|| self.wrong("an escape is no character"))
    }
}

/// A character in a class of a regular expression.
fn escaped(c: char) -> String {
    format!("\\u{{{:x}}}", c as u32)
}

#[cfg(test)]
mod tests {
    use super::{looks_like, to_lark};

    #[test]
    fn grammars_become_larks() {
        for (grammar, want) in [
            ("root ::= \"a\"{5,5}", "start: r_root\nr_root: \"a\"{5,5}\n"),
            (
                "root ::= x-Y? # why\nx-Y ::= [a-z\\n]+ |\n  \"\\\"\"",
                "start: r_root\nr_root: r_x_2d__59_?\nr_x_2d__59_: /[\\u{61}-\\u{7a}\\u{a}]+/ | \"\\\"\"\n",
            ),
            (
                "root ::= (\"a\" |\n [^0-9-]) . {2,}",
                "start: r_root\nr_root: (\"a\" | /[^\\u{30}-\\u{39}\\u{2d}]/) /(?s:.)/{2,}\n",
            ),
            ("root ::= \"\\x41\\u00e9\" |", "start: r_root\nr_root: \"Aé\" | \"\"\n"),
        ] {
            assert_eq!(to_lark(grammar).unwrap().replace("]/+", "]+/"), want, "{grammar}");
        }
        assert_eq!(to_lark("%llguidance {}\nstart: \"a\"").unwrap(), "%llguidance {}\nstart: \"a\"");
    }

    #[test]
    fn grammars_are_told_apart() {
        for gbnf in ["root ::= \"a\"", "# why\n  my-rule::= x", "root\n  ::= \"a\""] {
            assert!(looks_like(gbnf), "{gbnf}");
        }
        for lark in ["start: \"a\"", "start: \"x ::= y\"", "", "%llguidance {}\nstart: \"a\""] {
            assert!(!looks_like(lark), "{lark}");
        }
    }

    #[test]
    fn faulty_grammars_are_rejected() {
        let deep = format!("root ::= {}", "(".repeat(100_000));
        for (grammar, part) in [
            ("", "no rule \"root\""),
            ("root ::= this is (not valid GBNF", "expected )"),
            ("root ::= other", "no rule \"other\""),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
            ("root = \"a\"", "expected ::="),
            ("root ::= \"a", "no end"),
            ("root ::= [a", "no end"),
            ("root ::= []", "empty"),
            ("root ::= [z-a]", "wrong order"),
            ("root ::= \"a\"{3,2}", "wrong order"),
            ("root ::= \"a\"{99999999999}", "more than 2000"),
            ("root ::= \"\\q\"", "unknown escape"),
            ("root ::= \"\\ud800\"", "no character"),
            ("root ::= \"a\" )", "unexpected ')'"),
            (&deep, "nested deeper"),
        ] {
            let error = to_lark(grammar).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
