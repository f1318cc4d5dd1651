//! A chat reply, taken apart as it is generated: thoughts, answer, calls of functions.

use hologram_llm::{Part, Thoughts};

use crate::tools::calls::Calls;

/// What a piece of a reply adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// To the thoughts.
    Thought(String),
    /// To the answer.
    Answer(String),
    /// A call of a function begins.
    Call {
        /// The call's number in the reply.
        index: usize,
        /// The call's id.
        id: String,
        /// The function's name.
        name: String,
    },
    /// To a call's arguments, a JSON text.
    Arguments {
        /// The call's number in the reply.
        index: usize,
        /// The piece.
        text: String,
    },
}

/// Takes a reply apart.
#[derive(Clone)]
pub struct Splitter {
    /// `None`: the model does not think.
    thoughts: Option<Thoughts>,
    /// `None`: the request has no tools.
    calls: Option<Calls>,
}

impl Splitter {
    /// For a reply to a prompt. `thinks`: whether the template knows of thoughts.
    pub fn new(prompt: &str, thinks: bool, calls: Option<Calls>) -> Splitter {
        Splitter { thoughts: thinks.then(|| Thoughts::after(prompt)), calls }
    }

    /// Whether functions were called so far.
    pub fn has_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::any)
    }

    /// What the next piece of the reply adds.
    pub fn push(&mut self, piece: &str) -> Vec<Delta> {
        let parts = match &mut self.thoughts {
            Some(thoughts) => thoughts.push(piece),
            None if piece.is_empty() => Vec::new(),
            None => vec![Part::Answer(piece.into())],
        };
        parts.into_iter().flat_map(|part| self.part(part)).collect()
    }

    /// What is left at the reply's end.
    pub fn finish(&mut self) -> Vec<Delta> {
        let rest = self.thoughts.as_mut().and_then(Thoughts::finish);
        let mut deltas: Vec<Delta> = rest.into_iter().flat_map(|part| self.part(part)).collect();
        deltas.extend(self.calls.iter_mut().flat_map(Calls::finish));
        deltas
    }

    fn part(&mut self, part: Part) -> Vec<Delta> {
        match (part, &mut self.calls) {
            (Part::Thought(text), _) => vec![Delta::Thought(text)],
            (Part::Answer(text), Some(calls)) => calls.push(&text),
            (Part::Answer(text), None) => vec![Delta::Answer(text)],
        }
    }
}
