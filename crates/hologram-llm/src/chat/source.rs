//! Prepares a template's source: limits its nesting and inserts the filters of [`bounds`](super::bounds) that count
//! bytes.
//!
//! The engine's fuel counts steps, not bytes: `x = x ~ x` thirty times makes a gigabyte. Counting filters go around the
//! values of `set`, `with` and macro defaults, after the left operand of every operator that copies or walks its
//! operands, and into long raw text. Line numbers stay the same. The scanner splits tokens exactly as the engine's
//! lexer does; otherwise a template could hide an operator behind a string or a comment that ends elsewhere for the
//! engine.

use super::bounds::{KEPT, RAW};

/// Maximum operators in one tag, and maximum `elif` in a template. Each may be a level of the engine's recursion, which
/// the engine itself limits only for bracketed expressions and nested blocks.
const MAX_CHAIN: usize = 500;

/// Maximum nested brackets. The engine allows fewer around expressions, but any number around assignment targets.
const MAX_BRACKETS: isize = 100;

/// Raw text up to this many bytes is not counted.
const MAX_RAW: usize = 256;

/// Returns the source to compile.
///
/// # Errors
/// The end of a sentence if the source is nested too deeply.
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
                self.copy(2);
                self.copy(usize::from(self.rest.starts_with(['-', '+'])));
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

    /// Copies raw text. Long text gets a filter that counts its bytes, after its first character, because the
    /// neighbouring tags may trim white space at the ends. `end` and `begin` surround the filter.
    fn text(&mut self, text: &str, end: &str, begin: &str) {
        let first = text.char_indices().find(|(_, c)| !c.is_whitespace());
        let inside = first.filter(|_| text.len() > MAX_RAW).map_or(0, |(at, c)| at + c.len_utf8());
        self.out.push_str(&text[..inside]);
        if inside > 0 {
            self.out.push_str(&format!("{end}{{{{{}|{RAW}}}}}{begin}", text.len()));
        }
        self.out.push_str(&text[inside..]);
    }

    /// Copies a tag from its first brace to its last. A damaged tag is copied unchanged; the engine reports what is
    /// wrong.
    fn tag(&mut self) -> Result<(), String> {
        let (block, end) = if self.rest.starts_with("{%") { (true, "%}") } else { (false, "}}") };
        self.copy(2);
        self.copy(usize::from(self.rest.starts_with(['-', '+'])));
        if let Some(len) = basic_tag(self.rest, "raw").filter(|_| block) {
            self.copy(len);
            self.raw();
            return Ok(());
        }
        self.copy(self.rest.len() - self.rest.trim_ascii_start().len());
        let word = if block { word(self.rest) } else { "" };
        match word {
            // Only training uses these tags around the assistant's text. They become blocks without effect.
            "generation" | "endgeneration" => {
                self.take(word.len());
                self.out.push_str(if word == "generation" { "if true" } else { "endif" });
            }
            word => self.copy(word.len()),
        }
        self.elifs += usize::from(word == "elif");
        if self.elifs > MAX_CHAIN {
            return Err(format!("more than {MAX_CHAIN} elif"));
        }
        let mut tag = Tag::new(word);
        // Where the last counted value begins in the output.
        let mut value = 0;
        loop {
            self.copy(self.rest.len() - self.rest.trim_ascii_start().len());
            let trims = usize::from(self.rest.starts_with(['-', '+']) && self.rest[1..].starts_with(end));
            let ends = self.rest.is_empty() || (tag.depth == 0 && self.rest[trims..].starts_with(end));
            let token = if ends { "" } else { token(self.rest) };
            if tag.ends_value(token) {
                // A missing value remains a syntax error.
                match self.out[value..].trim_ascii() {
                    "(" => self.out.truncate(value),
                    _ => self.out.push_str(&format!(")|{KEPT}")),
                }
            }
            if ends {
                self.copy((trims + 2).min(self.rest.len()));
                return Ok(());
            }
            if tag.copies(token) {
                self.out.push_str(&format!("|{KEPT} "));
            }
            self.copy(token.len());
            if tag.next(token) {
                value = self.out.len();
                self.out.push('(');
            }
            if tag.chain > MAX_CHAIN {
                return Err(format!("more than {MAX_CHAIN} operators in one tag"));
            }
            if tag.depth > MAX_BRACKETS {
                return Err(format!("more than {MAX_BRACKETS} open brackets"));
            }
        }
    }

    /// Copies the text after `{% raw %}`, including `{% endraw %}`.
    fn raw(&mut self) {
        let end = |tag: &str| {
            let inside = tag.strip_prefix(['-', '+']).unwrap_or(tag);
            basic_tag(inside, "endraw").map(|len| tag.len() - inside.len() + len + 2)
        };
        let found = self.rest.match_indices("{%").find_map(|(at, _)| Some((at, end(&self.rest[at + 2..])?)));
        let (text, end) = found.unwrap_or((self.rest.len(), 0));
        let text = self.take(text);
        self.text(text, "{%endraw%}", "{%raw+%}");
        self.copy(end);
    }
}

/// The state of the scanner within a tag.
struct Tag<'s> {
    /// The statement.
    word: &'s str,
    /// Open brackets, and the number of open brackets at which `=` begins a counted value.
    depth: isize,
    values: Option<isize>,
    /// Whether such a value has begun and not ended.
    assigns: bool,
    /// Whether the last token ends an operand, and whether it is a dot: every word after a dot is a name.
    operand: bool,
    dot: bool,
    /// Whether the last token is the `not` of `not in`.
    not_in: bool,
    /// Whether the `in` of a `for` was seen.
    iterates: bool,
    chain: usize,
}

impl Tag<'_> {
    fn new(word: &str) -> Tag<'_> {
        let values = match word {
            "set" | "with" => Some(0),
            "macro" | "call" => Some(1),
            _ => None,
        };
        let iterates = word != "for";
        Tag { word, depth: 0, values, assigns: false, operand: false, dot: false, not_in: false, iterates, chain: 0 }
    }

    /// Whether this token, empty at the tag's end, ends a counted value.
    fn ends_value(&mut self, token: &str) -> bool {
        let separates = match token {
            "" => true,
            "," => self.word != "set",
            ")" | "]" | "}" => true,
            _ => false,
        };
        let ends = self.assigns && (token.is_empty() || self.values == Some(self.depth)) && separates;
        self.assigns &= !ends;
        ends
    }

    /// Whether this token is an operator that copies or walks its left operand.
    fn copies(&self, token: &str) -> bool {
        match token {
            "+" | "~" | "==" | "!=" | "<" | "<=" | ">" | ">=" => self.operand,
            "in" | "not" => self.operand && self.iterates,
            _ => false,
        }
    }

    /// Advances past a token. Returns whether it begins a counted value.
    fn next(&mut self, token: &str) -> bool {
        let first = token.as_bytes().first().copied().unwrap_or_default();
        // In the place of an operand every word except `not` is a name.
        let keyword = match token {
            "not" => !self.dot,
            "in" => self.operand || self.not_in,
            "and" | "or" | "is" | "if" | "else" => self.operand,
            _ => false,
        };
        let opens = matches!(first, b'(' | b'[' | b'{');
        let closes = matches!(first, b')' | b']' | b'}');
        let name = first == b'_' || first.is_ascii_alphanumeric() || !first.is_ascii();
        let operand = closes || (name && !keyword) || matches!(first, b'"' | b'\'');
        // Nested brackets have their own limit; a call of a call has not.
        let separates = matches!(first, b',' | b':') || closes || (opens && !self.operand);
        self.chain += usize::from(!operand && !separates);
        self.depth += isize::from(opens) - isize::from(closes);
        self.iterates |= keyword && token == "in";
        self.not_in = token == "not" && self.operand;
        (self.operand, self.dot) = (operand, token == ".");
        let assigns = token == "=" && self.values == Some(self.depth) && !self.assigns;
        self.assigns |= assigns;
        assigns
    }
}

/// The length of the rest of a tag, after its first braces, if the tag consists only of this name.
fn basic_tag(text: &str, name: &str) -> Option<usize> {
    let rest = text.trim_ascii_start().strip_prefix(name)?.trim_ascii_start();
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(text.len() - rest.len())
}

/// The letters, digits and underscores that a text begins with.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !(c == '_' || c.is_ascii_alphanumeric() || !c.is_ascii()));
    &text[..end.unwrap_or(text.len())]
}

/// How many bytes at the start are digits or underscores.
fn run(bytes: &[u8], digit: fn(&u8) -> bool) -> usize {
    bytes.iter().take_while(|b| **b == b'_' || digit(b)).count()
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
        [b'0', b'x' | b'X', rest @ ..] => 2 + run(rest, u8::is_ascii_hexdigit),
        [b'0', b'o' | b'O' | b'b' | b'B', rest @ ..] => 2 + run(rest, u8::is_ascii_digit),
        [b'0'..=b'9', ..] => {
            let digits = run(bytes, u8::is_ascii_digit);
            match &bytes[digits..] {
                [b'e' | b'E', b'+' | b'-', rest @ ..] => digits + 2 + run(rest, u8::is_ascii_digit),
                [b'e' | b'E', rest @ ..] => digits + 1 + run(rest, u8::is_ascii_digit),
                _ => digits,
            }
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
            ("{% with a = [b], c = (d, e) %}", "{% with a =( [b])|KEPT, c =( (d, e) )|KEPT%}"),
            ("{% macro f(a, b=[a], c=1) -%}", "{% macro f(a, b=([a])|KEPT, c=(1)|KEPT) -%}"),
            // Keywords in places where they are names.
            ("{{ and ~ is.in ~ a.not + (if) }}", "{{ and |KEPT ~ is.in |KEPT ~ a.not |KEPT + (if) }}"),
            ("{{ 1or and ~ 0b1and in ~ 0xfand_ }}", "{{ 1or and |KEPT ~ 0b1and in |KEPT ~ 0xfand_ }}"),
            // Comments and raw blocks that look as if they ended earlier.
            ("{#} a + b #}{{ a + b }}", "{#} a + b #}{{ a |KEPT + b }}"),
            (
                "{% raw %}{% endrawx %}{{ ' {%+ endraw +%}{{ a + b }}",
                "{% raw %}{% endrawx %}{{ ' {%+ endraw +%}{{ a |KEPT + b }}",
            ),
            ("{% rawx %}{{ a + b }}", "{% rawx %}{{ a |KEPT + b }}"),
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
        let error = prepare(&format!("{{% set {}a = 1 %}}", "(".repeat(101))).unwrap_err();
        assert_eq!(error, "has an error in line 1: more than 100 open brackets");
        // A long list is not nested.
        prepare(&format!("{{{{ [{}] }}}}", "{'a': [1, (b)]},".repeat(2000))).unwrap();
    }
    /// Random templates, most of them invalid, give the same results with and without the filters.
    #[test]
    fn templates_mean_the_same() {
        let parts = concat!(
            "{{ | }} | {% | %} | {# | #} | -%} | {%- | {{- | -}} | +%} | \n | a | b | set | if | else | endif | for | in | elif | not | is | and | or | ",
            "+ | ~ | * | - | / | == | != | < | >= | = | upper | defined | ( | ) | [ | ] | { | } | , | : | . | 'x' | \"y\" | ' | \\ | 1 | 0x1f | 2e+1 | ",
            "raw | endraw | with | macro | f | none | é | {%raw%} | {%endraw%} | {%set a= | {{ a | {%endif%} | {%for a in b | {%endfor%}"
        );
        let mut parts: Vec<&str> = parts.split(" | ").collect();
        parts.push("|");
        let mut state = 7u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let render = |source: &str, bounds: bool| {
            let mut environment = minijinja::Environment::new();
            environment.set_fuel(Some(5000));
            if bounds {
                super::super::bounds::install(&mut environment);
            } else {
                environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
            }
            environment.render_str(source, minijinja::context!(a => "A&", b => ["p", "q"], f => 3)).ok()
        };
        let (mut texts, mut counted) = (0, 0);
        for _ in 0..60_000 {
            let mut source = String::new();
            for _ in 0..=next(3) {
                let (begin, end) =
                    [("{{ ", "}}"), ("{% set a = ", "%}"), ("{% if ", "%}q{% endif %}"), ("", "")][next(4)];
                let inside: Vec<&str> = (0..next(7)).map(|_| parts[next(parts.len())]).collect();
                source += &format!("{begin}{}{end}", inside.join(["", " "][next(2)]));
            }
            let prepared = prepare(&source).unwrap();
            let want = render(&source, false);
            assert_eq!(render(&prepared, true), want, "{source:?} becomes {prepared:?}");
            texts += usize::from(want.is_some());
            counted += usize::from(want.is_some() && prepared.contains(KEPT));
        }
        assert!(texts > 3000 && counted > 300, "{texts} texts, {counted} of them counted");
    }
}
