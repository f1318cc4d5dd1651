//! A conversation as a template wrote it, in which control tokens come from the template alone.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::{ChatTemplate, Conversation};
use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Characters that Unicode assigns to nothing, for programs' own use. One that the conversation does not contain marks
/// what its authors wrote.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// The text of a conversation. Control tokens that its messages spell out are plain text in it: what a user writes
/// cannot end the user's turn.
#[derive(Clone, Debug)]
pub struct Written {
    marked: String,
    mark: Option<char>,
}

impl Written {
    /// The text.
    pub fn text(&self) -> String {
        match self.mark {
            Some(mark) => self.marked.replace(mark, ""),
            None => self.marked.clone(),
        }
    }

    /// Appends text whose control tokens are recognised.
    pub fn push(&mut self, text: &str) {
        self.marked += text;
    }

    /// Bytes of the text, at least.
    pub fn len(&self) -> usize {
        self.marked.len() - self.mark.map_or(0, |mark| self.marked.matches(mark).count() * mark.len_utf8())
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens. `add_special` adds BOS and EOS if the model expects them; templates write their own.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode(&self, tokenizer: &Tokenizer, add_special: bool) -> Result<Vec<u32>> {
        match self.mark {
            Some(mark) => tokenizer.encode_marked(&self.marked, add_special, mark),
            None => tokenizer.encode_with(&self.marked, add_special, true),
        }
    }
}

impl ChatTemplate {
    /// As [`ChatTemplate::render_conversation`], for the tokens of the text.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn write(&self, conversation: &Conversation, reply: bool, tokenizer: &Tokenizer) -> Result<Written> {
        let mut conversation = conversation.clone();
        let Conversation { messages, tools, variables } = &mut conversation;
        let mut all: Vec<&mut Json> = messages.iter_mut().chain(tools).chain(variables.values_mut()).collect();
        let mark = MARKS.into_iter().find(|mark| all.iter().all(|value| !contains(value, *mark)));
        // Without a mark, nothing is: whoever writes all 32 of them does it on purpose.
        let mark = mark.unwrap_or_else(|| {
            let mut blank = |text: &mut String| text.retain(|c| !MARKS.contains(&c));
            all.iter_mut().for_each(|value| change(value, &mut blank));
            *MARKS.start()
        });
        let mut any = false;
        let mut protect = |text: &mut String| {
            if let Cow::Owned(marked) = tokenizer.mark_control(text, mark) {
                *text = marked;
                any = true;
            }
        };
        all.into_iter().for_each(|value| change(value, &mut protect));
        let marked = self.render_conversation(&conversation, reply)?;
        Ok(Written { marked, mark: any.then_some(mark) })
    }

    /// As [`ChatTemplate::write`], up to the end of the last message's content, so that a reply continues it. `None`:
    /// the template does not write that content, or there is none.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn write_open(&self, conversation: &Conversation, tokenizer: &Tokenizer) -> Result<Option<Written>> {
        let mut conversation = conversation.clone();
        let Conversation { messages, tools, variables } = &conversation;
        let all = || messages.iter().chain(tools).chain(variables.values());
        let end = MARKS.into_iter().find(|mark| all().all(|value| !contains(value, *mark)));
        let content = conversation.messages.last_mut().and_then(|message| message.get_mut("content"));
        let (Some(end), Some(Json::String(content))) = (end, content) else { return Ok(None) };
        content.push(end);
        let mut written = self.write(&conversation, false, tokenizer)?;
        let at = written.marked.rfind(end);
        written.marked.truncate(at.unwrap_or(0));
        Ok(at.map(|_| written))
    }
}

fn contains(value: &Json, mark: char) -> bool {
    match value {
        Json::String(text) => text.contains(mark),
        Json::Array(items) => items.iter().any(|item| contains(item, mark)),
        Json::Object(members) => members.iter().any(|(key, value)| key.contains(mark) || contains(value, mark)),
        _ => false,
    }
}

/// Changes all texts in a value, its keys included.
fn change(value: &mut Json, text: &mut impl FnMut(&mut String)) {
    match value {
        Json::String(own) => text(own),
        Json::Array(items) => items.iter_mut().for_each(|item| change(item, text)),
        Json::Object(members) => {
            *members = std::mem::take(members)
                .into_iter()
                .map(|(mut key, mut value)| {
                    text(&mut key);
                    change(&mut value, text);
                    (key, value)
                })
                .collect();
        }
        _ => {}
    }
}
