//! Reads replies in the format of gpt-oss: messages on channels. Thoughts are on `analysis`, the answer on `final`,
//! calls on `commentary` to `functions.name`.

use hologram_llm::ChatTemplate;

use super::calls::Report;
use super::scan::Scan;
use super::{Format, Tools, held};
use crate::reply::Delta;

/// Begins the name of a channel.
pub const CHANNEL: &str = "<|channel|>";
/// Ends the header of a message.
pub const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
/// What may follow a message.
const ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", START, CHANNEL];
const FUNCTIONS: &str = "to=functions.";
/// Bytes of a header, at most.
const MAX_HEADER: usize = 512;

/// A reply that is taken apart as it is generated.
#[derive(Clone, Debug)]
pub struct Harmony {
    names: Vec<String>,
    state: State,
    pending: String,
    report: Report,
}

#[derive(Clone, Debug)]
enum State {
    /// Before the text of a message.
    Header,
    Thought,
    Answer,
    /// In a call's arguments; whether it is reported.
    Call(Box<Scan>, bool),
}

impl Harmony {
    /// For a template of this format; `None` for others.
    pub fn of(template: &ChatTemplate, tools: &Tools) -> Option<Harmony> {
        let source = template.source();
        if !(source.contains(CHANNEL) && source.contains(MESSAGE)) {
            return None;
        }
        let names = tools.offered().iter().map(|tool| tool.name.clone()).collect();
        let report = Report::new(Format::Harmony, tools.parallel);
        Some(Harmony { names, state: State::Header, pending: String::new(), report })
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

    /// What is left at the reply's end.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let text = std::mem::take(&mut self.pending);
        // The rest of a header is none of the reply's texts.
        let is_text = !matches!(self.state, State::Header) || !text.trim_start().starts_with("<|");
        if is_text {
            self.text(text, &mut deltas);
        }
        deltas
    }

    /// Moves on with the pending text. Returns whether there may be more to do.
    fn step(&mut self, deltas: &mut Vec<Delta>) -> bool {
        if matches!(self.state, State::Header) {
            return self.header();
        }
        let end = ENDS.iter().filter_map(|end| Some((self.pending.find(end)?, end))).min();
        let Some((at, end)) = end else {
            let rest = self.pending.split_off(self.pending.len() - held(&self.pending, &ENDS));
            let text = std::mem::replace(&mut self.pending, rest);
            self.text(text, deltas);
            return false;
        };
        let text: String = self.pending.drain(..at).collect();
        self.text(text, deltas);
        let bytes = if [START, CHANNEL].contains(end) { 0 } else { end.len() };
        self.pending.drain(..bytes);
        self.state = State::Header;
        true
    }

    fn header(&mut self) -> bool {
        let Some(at) = self.pending.find(MESSAGE) else {
            // A model that does not keep to the format writes an answer.
            let text = self.pending.trim_start();
            let may_begin = |mark: &str| text.starts_with(mark) || mark.starts_with(text);
            let is_header = [START, CHANNEL, "assistant", "to="].into_iter().any(may_begin);
            if is_header && self.pending.len() < MAX_HEADER {
                return false;
            }
            self.state = State::Answer;
            return true;
        };
        let header: String = self.pending.drain(..at + MESSAGE.len()).collect();
        let word = |after: &str| {
            let rest = &header[header.find(after)? + after.len()..];
            let end = rest.find(|c: char| c.is_whitespace() || c == '<');
            Some(rest[..end.unwrap_or(rest.len())].to_string())
        };
        let name = word(FUNCTIONS).filter(|name| self.names.contains(name));
        self.state = match (name, word(CHANNEL).as_deref()) {
            (Some(name), _) => State::Call(Box::new(Scan::of_arguments(name)), false),
            // Also calls of functions that the request does not have.
            (None, Some("analysis")) => State::Thought,
            (None, _) if header.contains("to=") => State::Thought,
            (None, _) => State::Answer,
        };
        true
    }

    fn text(&mut self, text: String, deltas: &mut Vec<Delta>) {
        match &mut self.state {
            _ if text.is_empty() => {}
            State::Thought => deltas.push(Delta::Thought(text)),
            State::Header | State::Answer => deltas.push(Delta::Answer(text)),
            State::Call(scan, reported) => {
                *reported = self.report.add(scan.push(&text), *reported, |_| true, deltas);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Choice, Tool};
    use super::*;

    #[test]
    fn channels_are_taken_apart() {
        let cases = [
            ("<|channel|>final<|message|>Yes.<|return|>", "", "Yes.", ""),
            (
                "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
                "Hm <b>.",
                "Yes.",
                "",
            ),
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"<|end\"}<|call|>",
                "Hm.",
                "",
                "f{\"a\": \"<|end\"}",
            ),
            (
                " to=functions.f<|channel|>commentary json<|message|>{}<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{\"b\":1}",
                "",
                "",
                "f{}f{\"b\":1}",
            ),
            ("<|channel|>commentary<|message|>Let me see.<|end|>", "", "Let me see.", ""),
            ("<|channel|>commentary to=functions.g<|message|>{}<|call|>", "{}", "", ""),
            ("<|channel|>commentary to=functions.f<|message|>{\"a\"", "", "", "f{\"a\""),
            ("Plain <|chan", "", "Plain <|chan", ""),
            ("<|channel|>fin", "", "", ""),
        ];
        let tool = Tool::new("f".into(), None, Some(json!({"type": "object"})), "t").unwrap();
        let tools = Tools::new(vec![tool], Choice::Auto, true).unwrap();
        let template =
            ChatTemplate::new("t".as_ref(), "{{ '<|channel|><|message|>functions' }}", Default::default()).unwrap();
        for (reply, thought, answer, calls) in cases {
            for n in 1..30 {
                let mut harmony = Harmony::of(&template, &tools).unwrap();
                let characters: Vec<char> = reply.chars().collect();
                let pieces = characters.chunks(n).map(|piece| piece.iter().collect::<String>());
                let mut deltas: Vec<Delta> = pieces.flat_map(|piece| harmony.push(&piece)).collect();
                deltas.extend(harmony.finish());
                let mut got = (String::new(), String::new(), String::new());
                for delta in deltas {
                    match delta {
                        Delta::Thought(text) => got.0 += &text,
                        Delta::Answer(text) => got.1 += &text,
                        Delta::Call { name: text, .. } | Delta::Arguments { text, .. } => got.2 += &text,
                    }
                }
                assert_eq!(got, (thought.into(), answer.into(), calls.into()), "{reply} in pieces of {n}");
            }
        }
    }
}
