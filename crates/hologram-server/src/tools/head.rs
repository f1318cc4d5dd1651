//! The head of a call: what stands before its arguments.

use super::Tool;
use super::braces::Braces;
use super::format::{Format, deepseek};
use super::pairs::{Pairs, Tags};
use super::scan::{Found, Scan};

/// Bytes of a name and an id, at most.
const MAX_HEAD: usize = 256;

/// Reads what follows the head of a call.
#[derive(Clone, Debug)]
pub enum Reader {
    /// A JSON object.
    Json(Scan),
    /// Keys and values in tags.
    Pairs(Pairs),
    /// Gemma's notation.
    Braces(Braces),
}

impl Reader {
    /// What the next piece adds.
    pub fn push(&mut self, piece: &str) -> Vec<Found> {
        match self {
            Reader::Json(scan) => scan.push(piece),
            Reader::Pairs(pairs) => pairs.push(piece),
            Reader::Braces(braces) => braces.push(piece),
        }
    }

    /// Whether the arguments have ended.
    pub fn is_done(&self) -> bool {
        match self {
            Reader::Json(scan) => scan.is_done(),
            Reader::Pairs(pairs) => pairs.is_done(),
            Reader::Braces(braces) => braces.is_done(),
        }
    }

    /// Whether this is no call, or one of an unknown function.
    pub fn is_rejected(&self) -> bool {
        match self {
            Reader::Json(scan) => scan.has_failed() || scan.is_named(),
            Reader::Pairs(_) | Reader::Braces(_) => true,
        }
    }

    /// The text after the end.
    pub fn rest(&self) -> &str {
        match self {
            Reader::Json(scan) => scan.rest(),
            Reader::Pairs(pairs) => pairs.rest(),
            Reader::Braces(braces) => braces.rest(),
        }
    }

    /// All text so far of a call that is none. Those that are not JSON were known to be one from the start.
    pub fn text(&self) -> &str {
        match self {
            Reader::Json(scan) => scan.text(),
            Reader::Pairs(pairs) => pairs.rest(),
            Reader::Braces(braces) => braces.rest(),
        }
    }
}

/// The head of a call.
pub enum Head {
    /// The rest may still come.
    More,
    /// It is none.
    No,
    /// Ends after these bytes.
    Call(usize, Reader),
}

/// Reads the head at the beginning of a text, which begins with one of the format's marks.
pub fn head(format: Format, text: &str, tools: &[Tool]) -> Head {
    let Some(mark) = format.marks().iter().find(|mark| text.starts_with(*mark)) else { return Head::No };
    let after = &text[mark.len()..];
    let at = |rest: &str| text.len() - rest.len();
    let tool = |name: &str| tools.iter().find(|tool| tool.name == name.trim());
    match format {
        Format::Hermes | Format::Mistral => {
            let allowed = |c: char| c.is_whitespace() || (c == '[' && format == Format::Mistral);
            object(after.trim_start_matches(allowed), |rest| Head::Call(at(rest), Reader::Json(Scan::default())))
        }
        Format::MistralArgs => match after.split_once("[ARGS]") {
            Some((name, rest)) => {
                let name = name.split("[CALL_ID]").next().unwrap_or(name).trim();
                object(rest.trim_start(), |rest| named_json(at(rest), name))
            }
            None => more(after),
        },
        Format::DeepSeek | Format::DeepSeekFenced => {
            let inner = after.trim_start();
            let inner = match inner.strip_prefix(deepseek::CALL) {
                _ if *mark == deepseek::CALL => after,
                Some(inner) => inner,
                None if deepseek::CALL.starts_with(inner) => return Head::More,
                None => return Head::No,
            };
            let Some((before, rest)) = inner.split_once(deepseek::SEPARATOR) else { return more(inner) };
            let Some(brace) = rest.find('{') else { return more(rest) };
            let between = rest[..brace].trim().trim_end_matches(deepseek::FENCE).trim();
            let name = if between.is_empty() { before.trim() } else { between };
            named_json(at(&rest[brace..]), name)
        }
        Format::Coder => {
            const FUNCTION: &str = "<function=";
            let inner = match after.trim_start().strip_prefix(FUNCTION) {
                _ if *mark == FUNCTION => after,
                Some(inner) => inner,
                None if FUNCTION.starts_with(after.trim_start()) => return Head::More,
                None => return Head::No,
            };
            let Some((name, rest)) = inner.split_once('>') else { return more(inner) };
            tool(name).map_or(Head::No, |tool| Head::Call(at(rest), Reader::Pairs(Pairs::new(tool, Tags::Coder))))
        }
        Format::Glm => {
            let end = [after.find('\n'), after.find('<')].into_iter().flatten().min();
            let Some(end) = end else { return more(after) };
            let call = |tool| Head::Call(at(&after[end..]), Reader::Pairs(Pairs::new(tool, Tags::Glm)));
            // The name may stand in a line of its own.
            match after[..end].trim().is_empty() && after[end..].trim().is_empty() {
                true => Head::More,
                false => tool(&after[..end]).map_or(Head::No, call),
            }
        }
        Format::Gemma | Format::FunctionGemma => {
            const CALL: &str = "call:";
            match after.strip_prefix(CALL) {
                Some(rest) => match rest.find('{') {
                    Some(brace) => tool(&rest[..brace]).map_or(Head::No, |tool| {
                        Head::Call(at(&rest[brace..]), Reader::Braces(Braces::new(&tool.name, format.quote())))
                    }),
                    None => more(rest),
                },
                None if CALL.starts_with(after) => Head::More,
                None => Head::No,
            }
        }
        Format::Llama | Format::Harmony => Head::No,
    }
}

fn named_json(at: usize, name: &str) -> Head {
    Head::Call(at, Reader::Json(Scan::of_arguments(name.into())))
}

/// A head that has no end yet.
fn more(text: &str) -> Head {
    if text.len() < MAX_HEAD { Head::More } else { Head::No }
}

/// An object should follow.
fn object(rest: &str, call: impl FnOnce(&str) -> Head) -> Head {
    match rest {
        "" => Head::More,
        rest if rest.starts_with('{') => call(rest),
        _ => Head::No,
    }
}
