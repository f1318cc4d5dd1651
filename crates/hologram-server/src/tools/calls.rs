//! Finds the calls in a reply as it is generated.

use super::scan::{Found, Scan};
use super::{Format, Tools};
use crate::params::fresh_seed;
use crate::reply::Delta;

/// Bytes of a name and an id, at most.
const MAX_HEAD: usize = 256;

/// A reply in which calls are looked for.
#[derive(Clone, Debug)]
pub struct Calls {
    format: Format,
    names: Vec<String>,
    parallel: bool,
    state: State,
    /// Text that may be the beginning of a call.
    pending: String,
    /// Calls so far.
    count: usize,
}

#[derive(Clone, Debug)]
enum State {
    /// Before anything but white space.
    Begin,
    /// In a text; calls may follow.
    Text,
    /// In a call; the text before it that is not part of the object, and whether the name was accepted.
    Call { before: String, scan: Box<Scan>, accepted: bool },
    /// After a call.
    After,
}

impl Calls {
    /// Looks for calls of these tools.
    pub fn new(format: Format, tools: &Tools) -> Calls {
        let names = tools.offered().iter().map(|tool| tool.name.clone()).collect();
        Calls { format, names, parallel: tools.parallel, state: State::Begin, pending: String::new(), count: 0 }
    }

    /// Whether a call was found.
    pub fn any(&self) -> bool {
        self.count > 0
    }

    /// What the next piece adds.
    pub fn push(&mut self, piece: &str) -> Vec<Delta> {
        self.pending += piece;
        let mut deltas = Vec::new();
        while self.step(&mut deltas) {}
        deltas
    }

    /// What is left at the reply's end. A call that was cut off stays one.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        if let State::Call { before, scan, accepted: false } = &self.state {
            let text = format!("{before}{}", scan.text());
            answer(text, &mut deltas);
        }
        let pending = std::mem::take(&mut self.pending);
        // Between and after calls are only their marks.
        let marks =
            matches!(self.state, State::After) && pending.chars().all(|c| c.is_whitespace() || ",;]".contains(c));
        if !marks {
            answer(pending, &mut deltas);
        }
        self.state = State::After;
        deltas
    }

    /// Moves on with the pending text. Returns whether there may be more to do.
    fn step(&mut self, deltas: &mut Vec<Delta>) -> bool {
        match &mut self.state {
            State::Begin if self.format == Format::Llama => {
                let text = self.pending.trim_start();
                let text = text.strip_prefix("<|python_tag|>").unwrap_or(text);
                if text.is_empty() || "<|python_tag|>".starts_with(text) {
                    return false;
                }
                match text.starts_with('{') {
                    true => self.begin_call(0),
                    false => self.state = State::Text,
                }
                true
            }
            State::Begin => {
                self.state = State::Text;
                true
            }
            State::Text => self.text(deltas),
            State::Call { .. } => self.call(deltas),
            State::After => self.after(deltas),
        }
    }

    /// The call begins after these bytes of the pending text.
    fn begin_call(&mut self, bytes: usize) {
        let before: String = self.pending.drain(..bytes).collect();
        // What may stand between the mark and the object.
        let object = self.pending.find('{');
        let between: String = object.map(|at| self.pending.drain(..at).collect()).unwrap_or_default();
        let before = format!("{before}{between}");
        self.state = State::Call { before, scan: Box::default(), accepted: false };
    }

    fn text(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let mark = self.format.begin();
        if mark.is_empty() {
            answer(std::mem::take(&mut self.pending), deltas);
            return false;
        }
        match self.pending.find(mark) {
            Some(at) if self.format == Format::MistralArgs => {
                answer(self.pending.drain(..at).collect(), deltas);
                self.named_call(deltas)
            }
            Some(at) => {
                // The object's beginning must be there too.
                let after = &self.pending[at + mark.len()..];
                let allowed = |c: char| c.is_whitespace() || (c == '[' && self.format == Format::Mistral);
                let between = after.trim_start_matches(allowed);
                if between.is_empty() {
                    let text: String = self.pending.drain(..at).collect();
                    answer(text, deltas);
                    return false;
                }
                let is_call = between.starts_with('{');
                let text: String = self.pending.drain(..at).collect();
                answer(text, deltas);
                if is_call {
                    self.begin_call(mark.len());
                } else {
                    answer(self.pending.drain(..mark.len()).collect(), deltas);
                }
                true
            }
            None => {
                let held = (1..mark.len()).rev().find(|n| self.pending.ends_with(&mark[..*n])).unwrap_or(0);
                let rest = self.pending.split_off(self.pending.len() - held);
                answer(std::mem::replace(&mut self.pending, rest), deltas);
                false
            }
        }
    }

    /// At a mark that a name, `[ARGS]` and an object should follow.
    fn named_call(&mut self, deltas: &mut Vec<Delta>) -> bool {
        const ARGS: &str = "[ARGS]";
        let mark = self.format.begin();
        let after = &self.pending[mark.len()..];
        let head = after.find(ARGS).map(|at| (&after[..at], after[at + ARGS.len()..].trim_start()));
        match head {
            Some((head, object)) if object.starts_with('{') => {
                let name = head.split("[CALL_ID]").next().unwrap_or(head).trim().to_string();
                let before = self.pending.len() - object.len();
                let before: String = self.pending.drain(..before).collect();
                self.state = State::Call { before, scan: Box::new(Scan::of_arguments(name)), accepted: false };
                true
            }
            // The rest may still come.
            Some((_, "")) => false,
            None if after.len() < MAX_HEAD => false,
            _ => {
                answer(self.pending.drain(..mark.len()).collect(), deltas);
                true
            }
        }
    }

    fn call(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let State::Call { before, scan, accepted } = &mut self.state else { return false };
        let piece = std::mem::take(&mut self.pending);
        let found = scan.push(&piece);
        let kept = self.parallel || self.count == 0 || *accepted && self.count == 1;
        for found in found {
            match found {
                Found::Name(name) if self.names.contains(&name) => {
                    *accepted = true;
                    self.count += 1;
                    if kept {
                        let id = new_id(self.format);
                        deltas.push(Delta::Call { index: self.count - 1, id, name });
                    }
                }
                // A text that only looks like a call.
                Found::Name(_) => break,
                Found::Arguments(text) => {
                    if kept {
                        deltas.push(Delta::Arguments { index: self.count - 1, text });
                    }
                }
            }
        }
        if *accepted {
            if scan.is_done() {
                self.pending = scan.rest().into();
                self.state = State::After;
                return !self.pending.is_empty();
            }
            return false;
        }
        if scan.has_failed() || scan.is_named() {
            answer(format!("{before}{}", scan.text()), deltas);
            self.state = State::Text;
        }
        false
    }

    /// After a call: its end mark, another call, or text.
    fn after(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let text = self.pending.trim_start();
        let end = if self.format == Format::Hermes { "</tool_call>" } else { "" };
        if let Some(rest) = text.strip_prefix(end).filter(|_| !end.is_empty()) {
            self.pending = rest.into();
            return true;
        }
        let mark = self.format.begin();
        let skipped = match self.format {
            Format::Mistral => text.trim_start_matches(|c: char| c.is_whitespace() || ",]".contains(c)),
            Format::Llama => text.trim_start_matches(|c: char| c.is_whitespace() || ";,".contains(c)),
            Format::Hermes | Format::MistralArgs => text,
        };
        if skipped.is_empty()
            || (!end.is_empty() && end.starts_with(text))
            || (!mark.is_empty() && mark.starts_with(skipped))
        {
            return false;
        }
        if matches!(self.format, Format::Llama | Format::Mistral) && skipped.starts_with('{') {
            self.pending = skipped.into();
            self.begin_call(0);
            return true;
        }
        if !mark.is_empty() && skipped.starts_with(mark) {
            self.pending = skipped.into();
            self.state = State::Text;
            return true;
        }
        answer(std::mem::take(&mut self.pending), deltas);
        self.state = State::Text;
        false
    }
}

fn answer(text: String, deltas: &mut Vec<Delta>) {
    if !text.is_empty() {
        deltas.push(Delta::Answer(text));
    }
}

/// Mistral's templates accept only ids of nine letters and digits.
fn new_id(format: Format) -> String {
    const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut number = fresh_seed();
    let mut digits = || {
        let digit = DIGITS[(number % 62) as usize] as char;
        number /= 62;
        digit
    };
    let id: String = (0..9).map(|_| digits()).collect();
    if matches!(format, Format::Mistral | Format::MistralArgs) { id } else { format!("call_{id}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Choice, Tool};
    use super::*;

    /// The answer and the calls of a reply in pieces of `n` characters.
    fn read(format: Format, parallel: bool, text: &str, n: usize) -> (String, Vec<(String, String)>) {
        let tool = |name: &str| Tool::new(name.into(), None, Some(json!({"type": "object"})), "t").unwrap();
        let tools = Tools::new(vec![tool("f"), tool("g")], Choice::Auto, parallel).unwrap();
        let mut calls = Calls::new(format, &tools);
        let characters: Vec<char> = text.chars().collect();
        let mut deltas = Vec::new();
        for piece in characters.chunks(n) {
            deltas.extend(calls.push(&piece.iter().collect::<String>()));
        }
        deltas.extend(calls.finish());
        let (mut answer, mut found) = (String::new(), Vec::<(String, String)>::new());
        for delta in deltas {
            match delta {
                Delta::Answer(text) => answer += &text,
                Delta::Thought(_) => unreachable!(),
                Delta::Call { index, id, name } => {
                    assert_eq!(index, found.len());
                    assert_eq!(id.len(), if matches!(format, Format::Mistral | Format::MistralArgs) { 9 } else { 14 });
                    found.push((name, String::new()));
                }
                Delta::Arguments { index, text } => found[index].1 += &text,
            }
        }
        (answer, found)
    }

    #[test]
    fn calls_are_found_in_each_format() {
        use Format::{Hermes, Llama, Mistral, MistralArgs};
        let (f, g) = (("f", r#"{"a": 1}"#), ("g", "{}"));
        type Case<'a> = (Format, &'a str, &'a str, &'a [(&'a str, &'a str)]);
        let cases: &[Case<'_>] = &[
            (Hermes, "Just text <tool", "Just text <tool", &[]),
            (Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", &[f]),
            (
                Hermes,
                "Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>",
                "Well.\n",
                &[f, g],
            ),
            (
                Hermes,
                "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}",
                "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}",
                &[],
            ),
            (Hermes, "Write <tool_call> so", "Write <tool_call> so", &[]),
            (Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1", "", &[("f", "{\"a\": 1")]),
            (Llama, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "", &[f]),
            (
                Llama,
                "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
                "",
                &[f, g],
            ),
            (Llama, "Hi {\"name\": \"f\"}", "Hi {\"name\": \"f\"}", &[]),
            (Llama, "{\"answer\": 1}", "{\"answer\": 1}", &[]),
            (
                Mistral,
                "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
                "",
                &[f, g],
            ),
            (Mistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"x\"}]", "", &[f]),
            (Mistral, "[TOOL_CALLS][\t{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n \t\t]\t", "", &[f]),
            (Mistral, "[TOOL", "[TOOL", &[]),
            (MistralArgs, "[TOOL_CALLS]f[ARGS]{\"a\": 1}", "", &[f]),
            (
                MistralArgs,
                "Well. [TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS] {\"a\": 1}[TOOL_CALLS]g[ARGS]{}",
                "Well. ",
                &[f, g],
            ),
            (MistralArgs, "[TOOL_CALLS]f[ARGS]{\"a\": ", "", &[("f", "{\"a\": ")]),
            (MistralArgs, "[TOOL_CALLS]h[ARGS]{\"a\": 1}", "[TOOL_CALLS]h[ARGS]{\"a\": 1}", &[]),
            (MistralArgs, "[TOOL_CALLS]f[ARGS]no", "[TOOL_CALLS]f[ARGS]no", &[]),
            (MistralArgs, "[TOOL_CALLS] and [ARGS]", "[TOOL_CALLS] and [ARGS]", &[]),
        ];
        for (format, text, answer, calls) in cases {
            for n in 1..30 {
                let want: Vec<_> = calls.iter().map(|(n, a)| (n.to_string(), a.to_string())).collect();
                assert_eq!(read(*format, true, text, n), (answer.to_string(), want), "{text} in pieces of {n}");
            }
        }
        let two = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call><tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>";
        for n in 1..30 {
            assert_eq!(read(Hermes, false, two, n), (String::new(), vec![(f.0.into(), f.1.into())]));
        }
    }
}
