//! What is printed of a reasoning model's reply: `--think show|hide|off`.

use std::io::IsTerminal;

use hologram_llm::{ChatTemplate, Finish, Part, Thoughts};

use crate::args::Think;
use crate::status::status;
use crate::text::counted;

/// Applies `--think` to a template. Returns a note if the template cannot turn thinking off.
pub fn apply(think: Think, template: &mut ChatTemplate) -> Option<&'static str> {
    let has_switch = template.set_thinking(think != Think::Off);
    (think == Think::Off && !has_switch)
        .then_some("the chat template cannot turn thinking off; if the model thinks, its thoughts are hidden")
}

/// A reply that is being printed.
pub struct Reply {
    think: Think,
    thoughts: Thoughts,
    /// The tag that the template wrote, which is still to be printed.
    opened: Option<&'static str>,
    /// All of it.
    pub text: String,
    /// Without thoughts.
    pub answer: String,
    /// The thoughts alone.
    pub thought: String,
    /// Whether the terminal says that the model thinks.
    announced: bool,
}

impl Reply {
    /// A reply to a prompt that a template wrote.
    pub fn new(think: Think, prompt: &str) -> Reply {
        let thoughts = Thoughts::after(prompt);
        let opened = thoughts.opened().filter(|_| think == Think::Show);
        let (text, answer, thought) = Default::default();
        Reply { think, thoughts, opened, text, answer, thought, announced: false }
    }

    /// What is printed of a piece.
    pub fn push(&mut self, piece: &str) -> String {
        self.text += piece;
        let parts = self.thoughts.push(piece);
        self.printed(parts, piece)
    }

    /// What is still to be printed at the end.
    pub fn finish(&mut self) -> String {
        let parts = self.thoughts.finish().into_iter().collect();
        let rest = self.printed(parts, "");
        self.clear();
        rest
    }

    fn printed(&mut self, parts: Vec<Part>, piece: &str) -> String {
        let mut answer = String::new();
        for part in parts {
            match part {
                Part::Thought(text) => {
                    self.thought += &text;
                    if self.think != Think::Show && !self.announced && std::io::stderr().is_terminal() {
                        self.announced = true;
                        status!("thinking …");
                    }
                }
                Part::Answer(text) => answer += &text,
            }
        }
        self.answer += &answer;
        if self.think == Think::Show {
            return match self.opened.take() {
                Some(tag) => format!("{tag}\n{piece}"),
                None => piece.into(),
            };
        }
        if !answer.is_empty() {
            self.clear();
        }
        answer
    }

    /// Why nothing was printed, if a limit ended the text within thoughts that are hidden.
    pub fn note(&self, finish: Option<Finish>, generated: usize) -> Option<String> {
        let cut = matches!(finish, Some(Finish::MaxTokens | Finish::ContextFull));
        let hidden = self.think != Think::Show && !self.thought.trim().is_empty() && self.answer.trim().is_empty();
        (cut && hidden).then(|| {
            let (what, are) = (counted(generated, "token"), if generated == 1 { "is a" } else { "are" });
            let thoughts = if generated == 1 { "thought" } else { "thoughts" };
            format!("the {what} {are} {thoughts}, which --think hides: a greater -n leaves room for an answer")
        })
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.announced) {
            status!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_shown_or_hidden() {
        let pieces = ["<th", "ink>Hm", ".</think>\n\nYe", "s", "<"];
        let printed = |think| {
            let mut reply = Reply::new(think, "");
            let mut text: String = pieces.iter().map(|piece| reply.push(piece)).collect();
            text += &reply.finish();
            (text, reply.answer, reply.thought)
        };
        assert_eq!(printed(Think::Show).0, "<think>Hm.</think>\n\nYes<");
        assert_eq!(printed(Think::Hide), ("Yes<".into(), "Yes<".into(), "Hm.".into()));
        // A template that opens the thoughts itself.
        for (think, want) in [(Think::Show, "<think>\nHm.</think>\n\nYes"), (Think::Hide, "Yes")] {
            let mut reply = Reply::new(think, "assistant\n<think>\n");
            let printed = reply.push("Hm.</think>\n\n") + &reply.push("Yes") + &reply.finish();
            assert_eq!(printed, want);
            assert_eq!((reply.answer.as_str(), reply.thought.as_str()), ("Yes", "Hm."));
        }
    }

    #[test]
    fn hidden_thoughts_that_are_all_are_said() {
        let note = |think, text: &str, finish| {
            let mut reply = Reply::new(think, "<think>\n");
            reply.push(text);
            reply.finish();
            reply.note(Some(finish), 5)
        };
        let said = note(Think::Hide, "Hm, so", Finish::MaxTokens).unwrap();
        assert!(said.contains("the 5 tokens are thoughts, which --think hides"), "{said}");
        assert!(note(Think::Show, "Hm, so", Finish::MaxTokens).is_none());
        assert!(note(Think::Hide, "Hm</think>Yes", Finish::MaxTokens).is_none());
        assert!(note(Think::Hide, "Hm, so", Finish::EndOfText).is_none());
    }
}
