//! Plain PTX as a short one, which `src/short_ptx.rs` describes and reads.

use super::short_ptx::{LABEL, Place, class, number, until};

/// PTX without comments and with as little white space as it can have.
pub fn plain(ptx: &str) -> String {
    let mut out = String::with_capacity(ptx.len());
    for line in ptx.lines() {
        // A quoted text may have two slashes.
        let code = if line.contains('"') { line } else { line.split("//").next().unwrap_or_default() };
        let mut words = code.split_whitespace();
        let Some(first) = words.next() else { continue };
        out += first;
        for word in words {
            if !out.ends_with(',') {
                out.push(' ');
            }
            out += word;
        }
        out.push('\n');
    }
    out
}

/// The short form of a plain text.
pub fn short(plain: &str) -> String {
    let (mut out, mut place) = (String::with_capacity(plain.len()), Place::default());
    for line in plain.lines() {
        place.line(line);
        let parameter = format!("{}_param_", place.kernel);
        let (mut rest, defines) = (line, line.ends_with(':'));
        while let Some((before, mark, after)) = until(rest, b"%$") {
            parameters(&mut out, before, &parameter);
            rest = match mark {
                b'%' => register(&mut out, &mut place, after),
                _ => label(&mut out, &mut place, after, defines),
            };
        }
        parameters(&mut out, rest, &parameter);
        out.push('\n');
    }
    out
}

/// Appends a text in which parameters of the kernel are short.
fn parameters(out: &mut String, text: &str, parameter: &str) {
    match text.split_once(parameter) {
        Some((before, after)) if after.starts_with(|c: char| c.is_ascii_digit()) => {
            *out += before;
            out.push('^');
            *out += after;
        }
        _ => *out += text,
    }
}

/// Appends a register, of which `text` is what follows the `%`; returns what follows it.
fn register<'a>(out: &mut String, place: &mut Place<'a>, text: &'a str) -> &'a str {
    let (class, after) = class(text);
    *out += "%";
    *out += class;
    let Some((found, after)) = number(after) else { return after };
    let newest = place.newest(class);
    match found.checked_sub(*newest) {
        Some(0) | None => *out += &(*newest - found).to_string(),
        Some(step) => {
            out.push('+');
            if step > 1 {
                *out += &step.to_string();
            }
            *newest = found;
        }
    }
    after
}

/// Appends a label, of which `text` is what follows the `$`; returns what follows it.
fn label<'a>(out: &mut String, place: &mut Place<'a>, text: &'a str, defines: bool) -> &'a str {
    let found = text.strip_prefix(&LABEL[1..]).and_then(number).and_then(|(function, after)| {
        let (label, after) = number(after.strip_prefix('_')?)?;
        Some((function, label, after))
    });
    let Some((function, label, after)) = found else {
        out.push('$');
        return text;
    };
    let last = place.label.filter(|(own, _)| *own == function);
    match last {
        None => *out += &format!("{LABEL}{function}_{label}"),
        Some((_, last)) => *out += &format!("${}", i64::from(label) - i64::from(last)),
    }
    if defines || last.is_none() {
        place.label = Some((function, label));
    }
    after
}
