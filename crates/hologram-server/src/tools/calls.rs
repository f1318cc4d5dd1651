//! Finds the calls in a reply as it is generated.

use super::head::{Head, Reader, head};
use super::scan::{Found, Scan};
use super::{Choice, Format, Tool, Tools, held};
use crate::params::fresh_seed;
use crate::reply::Delta;

/// A reply in which calls are looked for.
#[derive(Clone, Debug)]
pub struct Calls {
    format: Format,
    tools: Vec<Tool>,
    state: State,
    /// Text that may be the beginning of a call.
    pending: String,
    /// Whether the reply must have calls.
    required: bool,
    report: Report,
}

/// Reports the parts of calls: of all, or of the first only.
#[derive(Clone, Debug)]
pub(super) struct Report {
    format: Format,
    parallel: bool,
    /// Calls so far.
    count: usize,
}

impl Report {
    pub(super) fn new(format: Format, parallel: bool) -> Report {
        Report { format, parallel, count: 0 }
    }

    /// Whether a call was found.
    pub(super) fn any(&self) -> bool {
        self.count > 0
    }

    /// Adds parts of a call, whose name is accepted if it is `known`. Returns whether it is.
    pub(super) fn add(
        &mut self,
        found: Vec<Found>,
        mut accepted: bool,
        known: impl Fn(&str) -> bool,
        deltas: &mut Vec<Delta>,
    ) -> bool {
        let kept = self.parallel || self.count == 0 || accepted && self.count == 1;
        for found in found {
            match found {
                Found::Name(name) if known(&name) => {
                    accepted = true;
                    self.count += 1;
                    if kept {
                        deltas.push(Delta::Call { index: self.count - 1, id: new_id(self.format), name });
                    }
                }
                // A text that only looks like a call.
                Found::Name(_) => break,
                Found::Arguments(text) if kept => {
                    deltas.push(Delta::Arguments { index: self.count.saturating_sub(1), text });
                }
                Found::Arguments(_) => {}
            }
        }
        accepted
    }
}

#[derive(Clone, Debug)]
enum State {
    /// Before anything but white space.
    Begin,
    /// In a text; calls may follow.
    Text,
    /// In a call; the text before its arguments, and whether the name was accepted.
    Call { before: String, reader: Box<Reader>, accepted: bool },
    /// After a call.
    After,
}

impl Calls {
    /// Looks for calls of these tools.
    pub fn new(format: Format, tools: &Tools) -> Calls {
        let report = Report::new(format, tools.parallel);
        let required = matches!(tools.choice, Choice::Required | Choice::Named(_));
        let (state, pending) = (State::Begin, String::new());
        Calls { format, tools: tools.offered().to_vec(), state, pending, required, report }
    }

    /// Whether a call was found.
    pub fn any(&self) -> bool {
        self.report.any()
    }

    /// What the next piece adds.
    pub fn push(&mut self, piece: &str) -> Vec<Delta> {
        self.pending += piece;
        let mut deltas = Vec::new();
        while self.step(&mut deltas) {}
        deltas
    }

    /// What is left at the reply's end. Of a call that was cut off before its name was known, nothing; one whose name
    /// is known stays.
    pub fn finish(&mut self, cut: bool) -> Vec<Delta> {
        let mut deltas = Vec::new();
        // A text may be an object as well as a call of Llama's.
        let is_call = cut && (self.required || self.format != Format::Llama);
        if is_call && self.format.marks().iter().any(|mark| self.pending.starts_with(mark)) {
            self.pending.clear();
        }
        if let State::Call { before, reader, accepted: false } = &self.state
            && !is_call
        {
            let text = format!("{before}{}", reader.text());
            answer(text, &mut deltas);
        }
        let pending = std::mem::take(&mut self.pending);
        // Between and after calls are only their marks.
        let is_end = |text: &str| text.is_empty() || self.format.ends().iter().any(|end| end.starts_with(whole(text)));
        if !(matches!(self.state, State::After) && is_end(self.after_ends(&pending))) {
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
                    true => self.begin_object(),
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

    /// A call begins with the object that comes next.
    fn begin_object(&mut self) {
        let object = self.pending.find('{').unwrap_or_default();
        let before = self.pending.drain(..object).collect();
        self.state = State::Call { before, reader: Box::new(Reader::Json(Scan::default())), accepted: false };
    }

    fn text(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let marks = self.format.marks();
        let Some((at, mark)) = marks.iter().filter_map(|mark| Some((self.pending.find(mark)?, mark))).min() else {
            let rest = self.pending.split_off(self.pending.len() - held(&self.pending, marks));
            answer(std::mem::replace(&mut self.pending, rest), deltas);
            return false;
        };
        answer(self.pending.drain(..at).collect(), deltas);
        match head(self.format, &self.pending, &self.tools) {
            Head::More => false,
            Head::No => {
                answer(self.pending.drain(..mark.len()).collect(), deltas);
                true
            }
            Head::Call(bytes, reader) => {
                let before = self.pending.drain(..bytes).collect();
                self.state = State::Call { before, reader: Box::new(reader), accepted: false };
                true
            }
        }
    }

    fn call(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let State::Call { before, reader, accepted } = &mut self.state else { return false };
        let piece = std::mem::take(&mut self.pending);
        let found = reader.push(&piece);
        let known = |name: &str| self.tools.iter().any(|tool| tool.name == name);
        *accepted = self.report.add(found, *accepted, known, deltas);
        if *accepted {
            if reader.is_done() {
                self.pending = reader.rest().into();
                self.state = State::After;
                return !self.pending.is_empty();
            }
            return false;
        }
        if reader.is_rejected() {
            answer(format!("{before}{}", reader.text()), deltas);
            self.state = State::Text;
        }
        false
    }

    /// A text without the white space and the marks of ends that it begins with.
    fn after_ends<'t>(&self, text: &'t str) -> &'t str {
        let mut text = text.trim_start();
        while let Some(rest) = self.format.ends().iter().find_map(|end| text.strip_prefix(end)) {
            text = rest.trim_start();
        }
        text
    }

    /// After a call: its end mark, another call, or text.
    fn after(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let text = self.after_ends(&self.pending).to_string();
        let open = self.format.marks().iter().chain(self.format.ends());
        if open.clone().any(|mark| mark.starts_with(whole(&text))) || text.is_empty() {
            return false;
        }
        if matches!(self.format, Format::Llama | Format::Mistral) && text.starts_with('{') {
            self.pending = text;
            self.begin_object();
            return true;
        }
        self.state = State::Text;
        if self.format.marks().iter().any(|mark| text.starts_with(mark)) {
            self.pending = text;
            return true;
        }
        answer(std::mem::take(&mut self.pending), deltas);
        false
    }
}

/// A text without a last character of which not all bytes came.
fn whole(text: &str) -> &str {
    text.trim_end_matches(char::REPLACEMENT_CHARACTER)
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

    use super::*;

    /// The answer and the calls of a reply in pieces of `n` characters.
    fn read(format: Format, parallel: bool, text: &str, n: usize) -> (String, Vec<(String, String)>) {
        read_to(format, parallel, text, n, false)
    }

    /// As [`read`], of a reply that was perhaps cut off.
    fn read_to(format: Format, parallel: bool, text: &str, n: usize, cut: bool) -> (String, Vec<(String, String)>) {
        let schema = json!({"type": "object", "properties": {
            "s": {"type": "string"}, "d": {"type": "string", "format": "date"}, "a": {"type": "integer"}, "x": {},
        }});
        let tool = |name: &str| Tool::new(name.into(), None, Some(schema.clone()), "t").unwrap();
        let tools = Tools::new(vec![tool("f"), tool("g")], Choice::Auto, parallel).unwrap();
        let mut calls = Calls::new(format, &tools);
        let characters: Vec<char> = text.chars().collect();
        let mut deltas = Vec::new();
        for piece in characters.chunks(n) {
            deltas.extend(calls.push(&piece.iter().collect::<String>()));
        }
        deltas.extend(calls.finish(cut));
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
    fn heads_that_were_cut_off_are_no_text() {
        use Format::{Coder, DeepSeek, Gemma, Glm, Hermes, Llama, Mistral, MistralArgs};
        for (format, text, answer) in [
            (Hermes, "Well. <tool_call>", "Well. "),
            (Hermes, "<tool_call>\n{\"name\": \"f", ""),
            (Hermes, "Less <tool", "Less <tool"),
            (Llama, "{\"name\": \"f", "{\"name\": \"f"),
            (Mistral, "[TOOL_CALLS] [{\"na", ""),
            (MistralArgs, "Hm [TOOL_CALLS]f[AR", "Hm "),
            (Coder, "<tool_call>\n<function=f", ""),
            (Glm, "<tool_call>f", ""),
            (DeepSeek, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f", ""),
            (Gemma, "<|tool_call>call:f", ""),
        ] {
            for n in 1..30 {
                assert_eq!(read_to(format, true, text, n, true), (answer.into(), vec![]), "{text} in pieces of {n}");
                assert_eq!(read(format, true, text, n).0, text);
            }
        }
    }

    #[test]
    fn calls_are_found_in_each_format() {
        use Format::{Coder, DeepSeek, DeepSeekFenced, FunctionGemma, Gemma, Glm, Hermes, Llama, Mistral, MistralArgs};
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
            (
                Coder,
                "Well.\n<tool_call>\n<function=f>\n<parameter=s>\n12 <b>\n\"é\"\n</parameter>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
                "Well.\n",
                &[("f", "{\"s\": \"12 <b>\\n\\\"é\\\"\", \"a\": 1}"), g],
            ),
            (
                Coder,
                "<function=f>\n<parameter=x>\nTrue\n</parameter>\n<parameter=d>\n2024\n</parameter>\n</function>",
                "",
                &[("f", "{\"x\": true, \"d\": \"2024\"}")],
            ),
            (Coder, "<tool_call>\n<function=f>\n<parameter=s>\nab", "", &[("f", "{\"s\": \"ab")]),
            (Coder, "<tool_call>\n<function=h>\n</function>", "<tool_call>\n<function=h>\n</function>", &[]),
            (Coder, "A <tool_call> or <function> f", "A <tool_call> or <function> f", &[]),
            (
                Glm,
                "Yes\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1 < 2</arg_value>\n<arg_key>x</arg_key>\n<arg_value>[1, {\"b\": null}]</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
                "Yes\n",
                &[("f", "{\"s\": \"1 < 2\", \"x\": [1, {\"b\": null}]}"), g],
            ),
            (
                Glm,
                "<tool_call>f<arg_key>x</arg_key><arg_value>no JSON</arg_value><arg_key>d</arg_key><arg_value>\"7\"</arg_value></tool_call>",
                "",
                &[("f", "{\"x\": \"no JSON\", \"d\": \"7\"}")],
            ),
            (Glm, "<tool_call>h\n</tool_call>", "<tool_call>h\n</tool_call>", &[]),
            (
                DeepSeek,
                "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "Ok.",
                &[f, g],
            ),
            (
                DeepSeekFenced,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "",
                &[f, g],
            ),
            (DeepSeek, "<｜tool▁calls▁begin｜>none", "<｜tool▁calls▁begin｜>none", &[]),
            (
                Gemma,
                "Hm <|tool_call>call:f{s:<|\"|>a: {\"b\"}<|\"|>,x:{k:[1,-2.5e3,true,null],e:{}}}<tool_call|><|tool_call>call:g{}<tool_call|>",
                "Hm ",
                &[("f", "{\"s\": \"a: {\\\"b\\\"}\", \"x\": {\"k\": [1, -2.5e3, true, null], \"e\": {}}}"), g],
            ),
            (Gemma, "<|tool_call>call:h{}", "<|tool_call>call:h{}", &[]),
            (Gemma, "<|tool_call>call:f{s:<|\"|>cut", "", &[("f", "{\"s\": \"cut")]),
            (
                FunctionGemma,
                "<start_function_call>call:f{s:<escape>é<escape>,a:1}<end_function_call>",
                "",
                &[("f", "{\"s\": \"é\", \"a\": 1}")],
            ),
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
