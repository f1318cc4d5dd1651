//! A chat reply, taken apart as it is generated: thoughts, answer, calls of functions.

use hologram_llm::{Finish, Part, Tags, Thoughts};
use serde::de::IgnoredAny;

use crate::tools::calls::Calls;
use crate::tools::harmony::Harmony;

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

/// Whether a reply was cut off: by a limit, or by a text that ends it.
fn was_cut(reason: Option<Finish>) -> bool {
    reason != Some(Finish::EndOfText)
}

/// Drops the last call if the reply was cut off within its arguments: half of a call must not be made.
pub fn drop_cut<T>(calls: &mut Vec<T>, reason: Option<Finish>, arguments: impl Fn(&T) -> &str) {
    let is_whole = |call| serde_json::from_str::<IgnoredAny>(arguments(call)).is_ok();
    if was_cut(reason) && calls.last().is_some_and(|call| !is_whole(call)) {
        calls.pop();
    }
}

/// The arguments of a stream's last call, which tell at the end whether it is whole.
#[derive(Default)]
pub struct LastCall(Option<String>);

impl LastCall {
    /// Notes what a piece of the reply adds.
    pub fn note(&mut self, delta: &Delta) {
        match (delta, &mut self.0) {
            (Delta::Call { .. }, arguments) => *arguments = Some(String::new()),
            (Delta::Arguments { text, .. }, Some(arguments)) => arguments.push_str(text),
            _ => {}
        }
    }

    /// Whether the reply, which ended for this reason, was cut off within the call.
    pub fn is_cut(&self, reason: Finish) -> bool {
        let is_whole = |arguments: &String| serde_json::from_str::<IgnoredAny>(arguments).is_ok();
        was_cut(Some(reason)) && self.0.as_ref().is_some_and(|arguments| !is_whole(arguments))
    }
}

/// Takes a reply apart.
#[derive(Clone)]
pub enum Splitter {
    /// Thoughts between tags, and calls in the text.
    Text {
        /// `None`: the model does not think.
        thoughts: Option<Thoughts>,
        /// `None`: the request has no tools.
        calls: Option<Calls>,
    },
    /// Messages on channels.
    Harmony(Harmony),
}

impl Splitter {
    /// For a reply to a prompt. `tags`: those around the model's thoughts, if it has any.
    pub fn new(prompt: &str, tags: Option<Tags>, calls: Option<Calls>) -> Splitter {
        Splitter::Text { thoughts: tags.map(|tags| Thoughts::between(tags, prompt)), calls }
    }

    /// Whether the reply's control tokens must be spelled out.
    pub fn needs_control(&self) -> bool {
        match self {
            Splitter::Text { thoughts, .. } => thoughts.as_ref().is_some_and(|t| t.tags().are_control()),
            Splitter::Harmony(_) => true,
        }
    }

    /// Whether functions were called so far.
    pub fn has_calls(&self) -> bool {
        match self {
            Splitter::Text { calls, .. } => calls.as_ref().is_some_and(Calls::any),
            Splitter::Harmony(harmony) => harmony.any(),
        }
    }

    /// What the next piece of the reply adds.
    pub fn push(&mut self, piece: &str) -> Vec<Delta> {
        match self {
            Splitter::Harmony(harmony) => harmony.push(piece),
            Splitter::Text { thoughts, calls } => {
                let parts = match thoughts {
                    Some(thoughts) => thoughts.push(piece),
                    None if piece.is_empty() => Vec::new(),
                    None => vec![Part::Answer(piece.into())],
                };
                parts.into_iter().flat_map(|part| deltas(part, calls)).collect()
            }
        }
    }

    /// What is left at the reply's end, which has this reason.
    pub fn finish(&mut self, reason: Option<Finish>) -> Vec<Delta> {
        match self {
            Splitter::Harmony(harmony) => harmony.finish(),
            Splitter::Text { thoughts, calls } => {
                let rest = thoughts.as_mut().and_then(Thoughts::finish);
                let mut deltas: Vec<Delta> = rest.into_iter().flat_map(|part| deltas(part, calls)).collect();
                deltas.extend(calls.iter_mut().flat_map(|calls| calls.finish(was_cut(reason))));
                deltas
            }
        }
    }
}

fn deltas(part: Part, calls: &mut Option<Calls>) -> Vec<Delta> {
    match (part, calls) {
        (Part::Thought(text), _) => vec![Delta::Thought(text)],
        (Part::Answer(text), Some(calls)) => calls.push(&text),
        (Part::Answer(text), None) => vec![Delta::Answer(text)],
    }
}
