//! A template's source before it is compiled: bounded in its depth, and with the checks that [`bounds`](super::bounds) needs.
//!
//! The engine counts steps, not bytes: `x = x ~ x`, thirty times, is a gigabyte. So filters that count bytes are put into the source:
//! around the value of every `set`, after the left operand of every operator that copies or walks its operands, and into long stretches of
//! text. Lines stay where they are.

use super::bounds::{KEPT, RAW};

/// Operators of one tag, and `elif` of a template: each may be a level of the engine's recursion, which limits only brackets and blocks.
const MAX_CHAIN: usize = 500;

/// Bytes of text that are written without being counted.
const MAX_RAW: usize = 256;

/// The source as it is compiled.
///
/// # Errors
/// A sentence's end when it is nested too deeply.
pub(super) fn prepare(source: &str) -> Result<String, String> {
    let mut scanner = Scanner { rest: source, out: String::with_capacity(source.len() * 2), elifs: 0 };
    scanner.template().map_err(|what| {
        let line = source.len() - scanner.rest.len();
        let line = source.as_bytes()[..line].iter().filter(|b| **b == b'\n').count() + 1;
        format!("has an error in line {line}: {what}")
    })?;
    Ok(scanner.out)
}

struct Scanner<'s> {
    rest: &'s str,
    out: String,
    elifs: usize,
}

impl<'s> Scanner<'s> {
    fn template(&mut self) -> Result<(), String> {
        while !self.rest.is_empty() {
            let marker = |w: &[u8]| matches!(w, b"{{" | b"{%" | b"{#");
            let text = self.rest.as_bytes().windows(2).position(marker).unwrap_or(self.rest.len());
            let text = self.take(text);
            self.text(text, "", "");
            if self.rest.starts_with("{#") {
                self.copy(self.rest.find("#}").map_or(self.rest.len(), |n| n + 2));
            } else if !self.rest.is_empty() {
                self.tag()?;
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn copy(&mut self, bytes: usize) {
        let taken = self.take(bytes);
        self.out.push_str(taken);
    }

    /// Text, with its length counted inside it where it is long: white space at its ends may belong to the tags around. `end` and `begin`
    /// interrupt it.
    fn text(&mut self, text: &str, end: &str, begin: &str) {
        let first = text.char_indices().find(|(_, c)| !c.is_whitespace());
        let inside = first.filter(|_| text.len() > MAX_RAW).map_or(0, |(at, c)| at + c.len_utf8());
        self.out.push_str(&text[..inside]);
        if inside > 0 {
            self.out.push_str(&format!("{end}{{{{{}|{RAW}}}}}{begin}", text.len()));
        }
        self.out.push_str(&text[inside..]);
    }

    /// A tag from its first brace to its last. Damaged ones are copied as they are: the engine says what is wrong with them.
    fn tag(&mut self) -> Result<(), String> {
        let (block, end) = if self.rest.starts_with("{%") { (true, "%}") } else { (false, "}}") };
        self.copy(2);
        self.copy(usize::from(self.rest.starts_with(['-', '+'])));
        self.copy(self.rest.len() - self.rest.trim_ascii_start().len());
        let word = if block { word(self.rest) } else { "" };
        match word {
            // The marks around what an assistant wrote, which only training needs, become blocks that do nothing.
            "generation" | "endgeneration" => {
                self.take(word.len());
                self.out.push_str(if word == "generation" { "if true" } else { "endif" });
            }
            "elif" => self.elifs += 1,
            _ => {}
        }
        if self.elifs > MAX_CHAIN {
            return Err(format!("more than {MAX_CHAIN} elif"));
        }
        self.copy(word.len().min(self.rest.len()) * usize::from(self.rest.starts_with(word)));
        let mut tag = Tag { word, ..Tag::default() };
        loop {
            let blank = self.rest.len() - self.rest.trim_ascii_start().len();
            self.copy(blank);
            let trims = usize::from(self.rest.starts_with(['-', '+']) && self.rest[1..].starts_with(end));
            if self.rest.is_empty() || (tag.depth == 0 && self.rest[trims..].starts_with(end)) {
                if tag.assigns {
                    self.out.push_str(&format!(")|{KEPT}"));
                }
                self.copy((trims + 2).min(self.rest.len()));
                break;
            }
            let token = token(self.rest);
            if tag.copies(token) {
                self.out.push_str(&format!("|{KEPT} "));
            }
            self.copy(token.len());
            if tag.next(token) {
                self.out.push('(');
            }
            if tag.chain > MAX_CHAIN {
                return Err(format!("more than {MAX_CHAIN} operators in one tag"));
            }
        }
        if word == "raw" && !tag.operand {
            self.raw();
        }
        Ok(())
    }

    /// What follows `{% raw %}`, up to `{% endraw`.
    fn raw(&mut self) {
        let is_end = |tag: &str| tag.trim_start_matches(['-', '+']).trim_ascii_start().starts_with("endraw");
        let ends = self.rest.match_indices("{%").find(|(at, _)| is_end(&self.rest[at + 2..]));
        let text = self.take(ends.map_or(self.rest.len(), |(at, _)| at));
        self.text(text, "{%endraw%}", "{%raw+%}");
        self.copy(2.min(self.rest.len()));
        // The rest is a tag like any other, and text.
        self.copy(self.rest.find("%}").map_or(self.rest.len(), |n| n + 2));
    }
}

/// Where a tag's tokens have come to.
#[derive(Default)]
struct Tag<'s> {
    /// The statement.
    word: &'s str,
    /// Open brackets.
    depth: isize,
    /// Whether the last token ends an operand.
    operand: bool,
    /// The last token is `is`: a test's name follows.
    tests: bool,
    /// Whether the value of a `set` has begun.
    assigns: bool,
    /// Whether the `in` of a `for` has come.
    iterates: bool,
    chain: usize,
}

impl Tag<'_> {
    /// Whether this token is an operator that copies or walks the operand before it.
    fn copies(&self, token: &str) -> bool {
        match token {
            "+" | "~" | "==" | "!=" | "<" | "<=" | ">" | ">=" => self.operand,
            "in" | "not" => self.operand && !self.tests && (self.word != "for" || self.iterates),
            _ => false,
        }
    }

    /// Goes past a token. Returns whether it begins the value of a `set`.
    fn next(&mut self, token: &str) -> bool {
        let first = token.as_bytes().first().copied().unwrap_or_default();
        let keyword = matches!(token, "and" | "or" | "not" | "in" | "is" | "if" | "else");
        let opens = matches!(first, b'(' | b'[' | b'{');
        let closes = matches!(first, b')' | b']' | b'}');
        let operand = !keyword && (closes || first == b'_' || first.is_ascii_alphanumeric() || !first.is_ascii())
            || matches!(first, b'"' | b'\'');
        // Brackets in brackets are limited by the engine, but not calls of calls.
        let separates = matches!(first, b',' | b':') || closes || (opens && !self.operand);
        self.chain += usize::from(!operand && !separates);
        self.depth += isize::from(opens) - isize::from(closes);
        self.iterates |= token == "in";
        self.tests = token == "is" || (self.tests && token == "not");
        self.operand = operand;
        let assigns = token == "=" && self.word == "set" && self.depth == 0 && !self.assigns;
        self.assigns |= assigns;
        assigns
    }
}

/// The letters, digits and underscores that a text begins with.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !(c == '_' || c.is_ascii_alphanumeric() || !c.is_ascii()));
    &text[..end.unwrap_or(text.len())]
}

/// The token that a text begins with, which is not empty: a string, a number, a word or an operator.
fn token(text: &str) -> &str {
    let bytes = text.as_bytes();
    let len = match bytes {
        [quote @ (b'"' | b'\''), ..] => {
            let mut escaped = true;
            let ends = |b: &u8| {
                let end = b == quote && !escaped;
                escaped = b == &b'\\' && !escaped;
                end
            };
            bytes.iter().position(ends).map_or(text.len(), |n| n + 1)
        }
        [b'0'..=b'9', ..] => {
            // The sign of an exponent is part of the number.
            let exponent = |i: usize| matches!(bytes[i], b'+' | b'-') && matches!(bytes[i - 1], b'e' | b'E');
            let part = |i: usize| bytes[i] == b'_' || bytes[i].is_ascii_alphanumeric() || (i > 1 && exponent(i));
            (1..bytes.len()).find(|i| !part(*i)).unwrap_or(text.len())
        }
        [b'=' | b'!' | b'<' | b'>', b'=', ..] | [b'*', b'*', ..] | [b'/', b'/', ..] => 2,
        _ => word(text).len().max(text.chars().next().map_or(1, char::len_utf8)),
    };
    &text[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_where_they_may_grow() {
        let cases = [
            ("a{{ b + c ~ 'x + y' }}", "a{{ b |KEPT + c |KEPT ~ 'x + y' }}"),
            ("{%- set n.x = [a, b][1:] -%}", "{%- set n.x =( [a, b][1:] )|KEPT-%}"),
            ("{% set a %}b{% endset %}", "{% set a %}b{% endset %}"),
            ("{% for a in b if a in c not in d %}", "{% for a in b if a |KEPT in c |KEPT not in d %}"),
            ("{{ a is not in(b) and -1e+5 <= f(*g, x=1) }}", "{{ a is not in(b) and -1e+5 |KEPT <= f(*g, x=1) }}"),
            ("{# a + b #}{{ {'}}': {1: 2}} +}}", "{# a + b #}{{ {'}}': {1: 2}} +}}"),
            ("{%+ generation +%}{%-endgeneration-%}", "{%+ if true +%}{%-endif-%}"),
            ("{% raw %}{{ a + b }}{% endraw %}{{ a + b }}", "{% raw %}{{ a + b }}{% endraw %}{{ a |KEPT + b }}"),
            ("{{ 'it''s \\' + ' + a", "{{ 'it''s \\' + ' |KEPT + a"),
            ("{{ 'open + a", "{{ 'open + a"),
            ("{", "{"),
            ("{%", "{%"),
            ("{{ é + ü", "{{ é |KEPT + ü"),
        ];
        for (source, want) in cases {
            assert_eq!(prepare(source).unwrap(), want.replace("KEPT", KEPT), "{source}");
        }
        let (long, rest) = (" \n".to_string() + &"é".repeat(200), "é".repeat(199));
        let want = format!(
            "{{%- if a %}} \né{{{{402|{RAW}}}}}{rest}{{%raw%}} \né{{%endraw%}}{{{{402|{RAW}}}}}{{%raw+%}}{rest}{{%endraw%}}"
        );
        assert_eq!(prepare(&format!("{{%- if a %}}{long}{{%raw%}}{long}{{%endraw%}}")).unwrap(), want);
        let error = prepare(&format!("\n{{{{ {}1 }}}}", "1+".repeat(600))).unwrap_err();
        assert_eq!(error, "has an error in line 2: more than 500 operators in one tag");
        let error = prepare(&"{%elif a%}\n".repeat(600)).unwrap_err();
        assert_eq!(error, "has an error in line 501: more than 500 elif");
        // A list of many things is no chain.
        prepare(&format!("{{{{ [{}] }}}}", "{'a': [1, (b)]},".repeat(2000))).unwrap();
    }
}
