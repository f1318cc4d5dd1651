//! What is printed of a reasoning model's reply: `--think show|hide|off`.

use std::io::IsTerminal;

use hologram_llm::{ChatTemplate, Part, Thoughts};

use crate::args::Think;
use crate::status::status;

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
        Reply { think, thoughts, text: String::new(), answer: String::new(), thought: String::new(), announced: false }
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
            return piece.into();
        }
        if !answer.is_empty() {
            self.clear();
        }
        answer
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
    }
}
