//! PTX as the binary carries it: a compiler numbers registers and labels upwards, so their distances from the newest
//! repeat where the numbers themselves do not. It compresses to 78 % of what plain PTX does.
//!
//! - `%f+` is the register after the newest of its class in this function, `%f+3` the third after it, and both become
//!   the newest; `%f2` is the one two before it.
//! - `$4` is the label four after the one defined last, `$-4` four before it. A function's first one is written in full.
//! - `^2` is the kernel's parameter 2.

/// What stands before the number of a function in its labels.
pub const LABEL: &str = "$L__BB";

/// Where a line of text is: what the distances are counted from.
#[derive(Default)]
pub struct Place<'a> {
    /// The newest number of each class of registers.
    newest: Vec<(&'a str, u32)>,
    /// What the labels of the newest function have in front of their numbers, and that of the one defined last.
    pub label: Option<(u32, u32)>,
    /// The kernel's name.
    pub kernel: &'a str,
}

impl<'a> Place<'a> {
    /// Notes a line that begins a function.
    pub fn line(&mut self, line: &'a str) {
        if let Some((_, name)) = line.split_once(".entry ") {
            self.kernel = name.trim_end_matches(['(', ')', ' ']);
            self.newest.clear();
        }
    }

    /// The newest number of a class of registers.
    pub fn newest(&mut self, class: &'a str) -> &mut u32 {
        let at = self.newest.iter().position(|(known, _)| *known == class).unwrap_or_else(|| {
            self.newest.push((class, 0));
            self.newest.len() - 1
        });
        &mut self.newest[at].1
    }
}

/// A number at the start of a text, and what follows.
pub fn number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

/// A class of registers at the start of a text, such as `f`, and what follows.
pub fn class(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_lowercase).count())
}

/// The text before the first of some marks, the mark, and what follows.
pub fn until<'a>(text: &'a str, marks: &[u8]) -> Option<(&'a str, u8, &'a str)> {
    let at = text.bytes().position(|byte| marks.contains(&byte))?;
    Some((&text[..at], text.as_bytes()[at], &text[at + 1..]))
}

/// The plain PTX of a short one; `None` if it is none.
pub fn long(short: &str) -> Option<String> {
    let (mut out, mut place) = (String::with_capacity(2 * short.len()), Place::default());
    for line in short.lines() {
        place.line(line);
        let (mut rest, defines) = (line, line.ends_with(':'));
        while let Some((before, mark, after)) = until(rest, b"%$^") {
            out += before;
            rest = match mark {
                b'%' => register(&mut out, &mut place, after)?,
                b'$' => label(&mut out, &mut place, after, defines)?,
                _ => {
                    let (parameter, after) = number(after)?;
                    out += &format!("{}_param_{parameter}", place.kernel);
                    after
                }
            };
        }
        out += rest;
        out.push('\n');
    }
    Some(out)
}

/// Appends a register, of which `text` is what follows the `%`; returns what follows it.
fn register<'a>(out: &mut String, place: &mut Place<'a>, text: &'a str) -> Option<&'a str> {
    let (class, text) = class(text);
    let newest = place.newest(class);
    let (found, text) = if let Some(text) = text.strip_prefix('+') {
        let (step, text) = number(text).unwrap_or((1, text));
        *newest = newest.checked_add(step)?;
        (*newest, text)
    } else if let Some((back, text)) = number(text) {
        (newest.checked_sub(back)?, text)
    } else {
        // A name such as `%tid`, or the count in a declaration.
        *out += "%";
        *out += class;
        return Some(text);
    };
    *out += &format!("%{class}{found}");
    Some(text)
}

/// Appends a label, of which `text` is what follows the `$`; returns what follows it.
fn label<'a>(out: &mut String, place: &mut Place<'a>, text: &'a str, defines: bool) -> Option<&'a str> {
    let (function, found, text) = if let Some(full) = text.strip_prefix(&LABEL[1..]) {
        let (function, text) = number(full)?;
        let (found, text) = number(text.strip_prefix('_')?)?;
        place.label = Some((function, found));
        (function, found, text)
    } else if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        // A name such as `found_$_0`.
        out.push('$');
        return Some(text);
    } else {
        let (function, last) = place.label?;
        let (before, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
        let (step, text) = number(text)?;
        let found = if before { last.checked_sub(step)? } else { last.checked_add(step)? };
        if defines {
            place.label = Some((function, found));
        }
        (function, found, text)
    };
    *out += &format!("{LABEL}{function}_{found}");
    Some(text)
}
