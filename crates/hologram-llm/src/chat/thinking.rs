//! Reasoning models write their thoughts between two tags before they answer.

/// The tags around thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tags {
    /// `<think>` and `</think>`.
    #[default]
    Think,
    /// `<|channel>thought` in a line and `<channel|>`: Gemma 4.
    Channel,
}

impl Tags {
    /// The tags that a template's text names.
    pub fn of(source: &str) -> Option<Tags> {
        match source {
            s if s.contains("<|channel>") => Some(Tags::Channel),
            s if s.contains("think>") => Some(Tags::Think),
            _ => None,
        }
    }

    /// Whether they are control tokens, which a reply must spell out.
    pub fn are_control(self) -> bool {
        self == Tags::Channel
    }

    fn open(self) -> &'static str {
        if self == Tags::Channel { "<|channel>thought\n" } else { "<think>" }
    }

    fn close(self) -> &'static str {
        if self == Tags::Channel { "<channel|>" } else { "</think>" }
    }
}

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Between the tags, which belong to neither.
    Thought(String),
    /// Anything else.
    Answer(String),
}

/// Splits a reply into thoughts and answer as it is generated.
#[derive(Clone, Debug, Default)]
pub struct Thoughts {
    tags: Tags,
    inside: bool,
    /// White space after the thoughts is not part of the answer.
    ended: bool,
    /// What may be the beginning of a tag.
    pending: String,
}

impl Thoughts {
    /// For a reply to this prompt. A template may open the thoughts itself, so that the reply begins with them.
    pub fn after(prompt: &str) -> Thoughts {
        Thoughts::between(Tags::Think, prompt)
    }

    /// As [`Thoughts::after`], with other tags.
    pub fn between(tags: Tags, prompt: &str) -> Thoughts {
        Thoughts { tags, inside: prompt.trim_end().ends_with(tags.open().trim_end()), ..Thoughts::default() }
    }

    /// The tag that the prompt ends with, which the reply therefore lacks. For a reply that has not begun.
    pub fn opened(&self) -> Option<&'static str> {
        self.inside.then(|| self.tags.open())
    }

    /// The tags.
    pub fn tags(&self) -> Tags {
        self.tags
    }

    /// The parts that a reply's next piece completes.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        self.pending += piece;
        let mut parts = Vec::new();
        loop {
            let tag = if self.inside { self.tags.close() } else { self.tags.open() };
            let Some(at) = self.pending.find(tag) else {
                // A tag may come in several pieces.
                let held = (1..tag.len()).rev().find(|n| self.pending.ends_with(&tag[..*n])).unwrap_or(0);
                let rest = self.pending.split_off(self.pending.len() - held);
                let text = std::mem::replace(&mut self.pending, rest);
                parts.extend(self.part(text));
                return parts;
            };
            let after = self.pending.split_off(at + tag.len());
            let mut text = std::mem::replace(&mut self.pending, after);
            text.truncate(at);
            parts.extend(self.part(text));
            self.ended = self.inside;
            self.inside = !self.inside;
        }
    }

    /// The rest, when the reply has ended.
    pub fn finish(&mut self) -> Option<Part> {
        let text = std::mem::take(&mut self.pending);
        self.part(text)
    }

    fn part(&mut self, text: String) -> Option<Part> {
        if self.inside {
            return (!text.is_empty()).then_some(Part::Thought(text));
        }
        let text = if self.ended { text.trim_start().to_string() } else { text };
        self.ended &= text.is_empty();
        (!text.is_empty()).then_some(Part::Answer(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thoughts and answer of a reply in pieces of `n` characters.
    fn split(tags: Tags, prompt: &str, reply: &str, n: usize) -> (String, String) {
        let mut thoughts = Thoughts::between(tags, prompt);
        let characters: Vec<char> = reply.chars().collect();
        let pieces = characters.chunks(n).map(|piece| piece.iter().collect::<String>());
        let mut parts: Vec<Part> = pieces.flat_map(|piece| thoughts.push(&piece)).collect();
        parts.extend(thoughts.finish());
        let mut texts = (String::new(), String::new());
        for part in parts {
            match part {
                Part::Thought(text) => texts.0 += &text,
                Part::Answer(text) => texts.1 += &text,
            }
        }
        texts
    }

    #[test]
    fn thoughts_and_answers_are_split() {
        for (prompt, reply, thought, answer) in [
            ("", "Hello <b>", "", "Hello <b>"),
            ("", "<think>\nHm, é.\n</think>\n\nYes.\n", "\nHm, é.\n", "Yes.\n"),
            ("assistant\n<think>\n", "Hm.</think>Yes", "Hm.", "Yes"),
            ("", "<think>cut off", "cut off", ""),
            ("", "a<think>b</think> c<think>d</think>e", "bd", "ace"),
            ("", "1 < 2 <thi", "", "1 < 2 <thi"),
            ("<think>", "x </thin", "x </thin", ""),
            ("", "<|channel>thought\n1 < 2<channel|>Yes <think>", "1 < 2", "Yes <think>"),
        ] {
            for n in 1..12 {
                let tags = if reply.contains("channel") { Tags::Channel } else { Tags::Think };
                assert_eq!(
                    split(tags, prompt, reply, n),
                    (thought.into(), answer.into()),
                    "{reply:?} in pieces of {n}"
                );
            }
        }
    }
}
