//! `--session FILE`: a conversation goes on where it ended, with what was computed of it.

use std::path::Path;

use hologram_llm::{Engine, Message, Snapshot};
use serde_json::json;

use super::{Chat, conversation};
use crate::output::Output;
use crate::status::status;
use crate::text::counted;

/// The conversation as JSON.
pub fn as_json(messages: &[Message]) -> serde_json::Value {
    messages.iter().map(|m| json!({"role": m.role, "content": m.content})).collect()
}

/// Reads a file before the model is loaded; `None` if there is none yet.
///
/// # Errors
/// When it is damaged or no session, or could not be written at the end.
pub fn open(path: Option<&Path>) -> anyhow::Result<Option<Snapshot>> {
    let Some(path) = path else { return Ok(None) };
    Output::create(path)?;
    if !path.exists() {
        return Ok(None);
    }
    let snapshot = Snapshot::read(path)?;
    conversation(snapshot.note().as_bytes(), path)?;
    Ok(Some(snapshot))
}

impl Chat {
    /// Goes on with the conversation of a file. Returns what the user should know.
    pub fn resume(&mut self, snapshot: Snapshot, path: &Path) -> anyhow::Result<String> {
        let (system, turns) = conversation(snapshot.note().as_bytes(), path)?;
        let tokens = snapshot.tokens().to_vec();
        let cached = self.engine.restore(snapshot, None)?;
        let count = tokens.len();
        self.engine.set_last_tokens(0, Some(tokens), None)?;
        // `--system` sets another one.
        self.system = self.system.take().or(system);
        self.turns = turns;
        let (turns, count) = (counted(self.turns.len(), "turn"), counted(count, "token"));
        Ok(format!("resumed {turns}, {cached} of {count} computed"))
    }

    /// Saves the conversation.
    pub fn keep(&self, path: &Path) -> anyhow::Result<()> {
        // A file of nothing would only be in the way, but an old conversation that was cleared must go.
        if self.turns.is_empty() && !path.exists() {
            return Ok(());
        }
        let tokens = self.engine.last_tokens(0, None)?.unwrap_or_default();
        let snapshot = self.engine.snapshot(&tokens, None)?;
        let bytes = snapshot.with_note(as_json(&self.messages(None)).to_string()).write(path)?;
        let turns = counted(self.turns.len(), "turn");
        status!("saved {} ({turns}, {:.1} MB)\n", path.display(), bytes as f64 / 1e6);
        Ok(())
    }
}

/// Lets an engine forget the text of a conversation that is over.
pub fn forget(engine: &Engine) -> anyhow::Result<()> {
    Ok(engine.set_last_tokens(0, None, None)?)
}
