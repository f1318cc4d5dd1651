//! `--session FILE`: a conversation goes on where it ended, with what was computed of it.
//!
//! Its text is saved after each turn, so that nothing ends it without a trace, and what is computed at the end.

use std::path::Path;
use std::time::SystemTime;

use anyhow::ensure;

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
    if !path.exists() {
        Output::create(path)?;
        return Ok(None);
    }
    let snapshot = Snapshot::read(path)?;
    let name = path.display();
    ensure!(!snapshot.note().is_empty(), "{name} has the text of a server's slot, but no turns of a chat");
    conversation(snapshot.note().as_bytes(), path)?;
    Output::create(path)?;
    Ok(Some(snapshot))
}

/// What tells a file's state from a later one; `None` if there is none.
fn state(path: &Path) -> Option<(SystemTime, u64)> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
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
        self.saved = state(path);
        if self.turns.is_empty() {
            return Ok("the saved conversation is empty".into());
        }
        let (turns, count) = (counted(self.turns.len(), "turn"), counted(count, "token"));
        Ok(match cached {
            0 => format!("resumed {turns}, to be computed again"),
            _ => format!("resumed {turns}, {cached} of {count} computed"),
        })
    }

    /// Saves the conversation's text, which takes no time.
    pub fn keep_text(&mut self, path: &Path) -> anyhow::Result<()> {
        self.write(path, &[]).map(drop)
    }

    /// Saves the conversation with what is computed.
    pub fn keep(&mut self, path: &Path) -> anyhow::Result<()> {
        // A file of nothing would only be in the way, but an old conversation that was cleared must go.
        if self.turns.is_empty() && !path.exists() {
            return Ok(());
        }
        let tokens = self.engine.last_tokens(0, None)?.unwrap_or_default();
        let bytes = self.write(path, &tokens)?;
        let turns = counted(self.turns.len(), "turn");
        status!("saved {} ({turns}, {:.1} MB)\n", path.display(), bytes as f64 / 1e6);
        Ok(())
    }

    fn write(&mut self, path: &Path, tokens: &[u32]) -> anyhow::Result<u64> {
        let name = path.display();
        ensure!(state(path) == self.saved, "another program changed {name}; /save keeps this conversation elsewhere");
        let snapshot = self.engine.snapshot(tokens, None)?;
        let bytes = snapshot.with_note(as_json(&self.all_messages()).to_string()).write(path)?;
        self.saved = state(path);
        Ok(bytes)
    }
}

/// Lets an engine forget the text of a conversation that is over.
pub fn forget(engine: &Engine) -> anyhow::Result<()> {
    Ok(engine.set_last_tokens(0, None, None)?)
}
