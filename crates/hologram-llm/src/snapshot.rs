//! Sequences outside of a session: their tokens and what a KV cache holds of them, in memory or in a file.
//!
//! A file begins with [`MAGIC`] and a version. A header in JSON follows, then the tokens, the cache's blocks one after
//! another, and the states of recurrent layers; a checksum of all that ends it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use hologram_backends::DType;
use serde_json::{Value, json};

use crate::checksum::Checksum;
use crate::error::{LlmError, Result};
use crate::files::{ModelFiles, open_regular, without_links};
use crate::kv::CACHE_TYPES;

/// The first bytes of a file.
const MAGIC: &[u8; 16] = b"hologram tokens\n";
/// The version of the format.
const VERSION: u32 = 1;
/// Maximum bytes of the header.
const MAX_HEADER: usize = 256 << 20;

/// A sequence outside of a session: its tokens and what the cache holds of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// For messages: the file that it was read from.
    path: PathBuf,
    model: u64,
    /// The cache's element type.
    kv: String,
    tokens: Vec<u32>,
    /// How many of the tokens are computed.
    computed: usize,
    note: String,
    /// Blocks and states.
    bytes: Vec<u8>,
}

impl Snapshot {
    pub(crate) fn new(model: u64, kv: DType, tokens: &[u32], computed: usize, bytes: Vec<u8>) -> Snapshot {
        let (path, kv, note) = ("the snapshot".into(), kv.name().to_string(), String::new());
        Snapshot { path, model, kv, tokens: tokens.to_vec(), computed, note, bytes }
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of the tokens, from the first on, need not be computed again.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// A text that belongs to the tokens, such as the messages of a conversation; empty unless set.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Sets [`Snapshot::note`].
    #[must_use]
    pub fn with_note(self, note: impl Into<String>) -> Snapshot {
        Snapshot { note: note.into(), ..self }
    }

    /// Blocks and states, if they are of this model and this kind of cache.
    pub(crate) fn bytes_for(&self, model: u64, kv: DType, vocab: usize) -> Result<&[u8]> {
        if self.model != model {
            return Err(self.bad("it was saved with another model".into()));
        }
        if self.kv != kv.name() {
            let (own, this) = (option_of(&self.kv), option_of(&kv.name()));
            let reason = format!("it was saved with a KV cache of {own}, but this one is of {this}");
            return Err(self.bad(reason));
        }
        match self.tokens.iter().any(|token| *token as usize >= vocab) {
            true => Err(self.damaged()),
            false => Ok(&self.bytes),
        }
    }

    pub(crate) fn bad(&self, reason: String) -> LlmError {
        LlmError::BadFile { path: self.path.clone(), reason }
    }

    /// Its bytes contradict its header.
    pub(crate) fn damaged(&self) -> LlmError {
        self.bad("it is damaged: its parts do not fit together".into())
    }

    /// Writes a file. An old one is replaced when the new one is complete, at the end of links. Returns the number of
    /// bytes.
    ///
    /// # Errors
    /// When the file cannot be written, or is there and no saved conversation.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<u64> {
        let failed = |reason| LlmError::Write { path: path.as_ref().into(), reason };
        let path = &without_links(path.as_ref()).map_err(failed)?;
        check_replaceable(path)?;
        let beside = path.with_file_name(format!(
            ".{}.{}.part",
            path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default(),
            std::process::id()
        ));
        let written = self.write_to(&beside).and_then(|bytes| std::fs::rename(&beside, path).map(|()| bytes));
        written.map_err(|e| {
            // It may not exist, so the error is ignored.
            let _ = std::fs::remove_file(&beside);
            failed(e)
        })
    }

    fn write_to(&self, path: &Path) -> std::io::Result<u64> {
        let header = json!({
            "model": format!("{:016x}", self.model),
            "kv": self.kv,
            "tokens": self.tokens.len(),
            "computed": self.computed,
            "note": self.note,
        });
        let header = header.to_string();
        let length = (header.len() as u32).to_le_bytes();
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // What was said is nobody else's business.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let (mut sum, mut all) = (Checksum::new(), 0);
        for part in [&MAGIC[..], &VERSION.to_le_bytes(), &length, header.as_bytes(), &tokens, &self.bytes] {
            (sum, all) = (sum.add(part), all + part.len() as u64);
            file.write_all(part)?;
        }
        file.write_all(&sum.finish().to_le_bytes())?;
        file.sync_all()?;
        Ok(all + 8)
    }

    /// Reads a file that [`Snapshot::write`] wrote. Whether it fits a model is checked where it is restored.
    ///
    /// # Errors
    /// When the file cannot be read, is of another kind or version, or is damaged.
    pub fn read(path: impl AsRef<Path>) -> Result<Snapshot> {
        let path = path.as_ref();
        let io = |reason| LlmError::Io { path: path.into(), reason };
        let mut file: File = open_regular(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        parse(path, &bytes).map_err(|reason| LlmError::BadFile { path: path.into(), reason: reason.into() })
    }
}

/// A cache's element type as the option `--kv` calls it.
fn option_of(name: &str) -> String {
    let known = CACHE_TYPES.into_iter().find(|(_, format)| format.name() == name);
    known.map_or_else(|| name.to_lowercase(), |(option, _)| option.into())
}

/// Checks that a file which is replaced is a saved conversation or empty: its name may be a mistake.
fn check_replaceable(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let mut start = Vec::new();
    let read = open_regular(path)?.take(MAGIC.len() as u64).read_to_end(&mut start);
    read.map_err(|reason| LlmError::Io { path: path.into(), reason })?;
    if start.is_empty() || start == MAGIC {
        return Ok(());
    }
    let reason = "it is no saved conversation, so it is not replaced".into();
    Err(LlmError::BadFile { path: path.into(), reason })
}

fn parse(path: &Path, bytes: &[u8]) -> std::result::Result<Snapshot, &'static str> {
    const DAMAGED: &str = "it is damaged or incomplete";
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is no saved conversation")?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(DAMAGED)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err("its version is unknown: it was saved by a newer release");
    }
    let (content, sum) = bytes.split_last_chunk::<8>().ok_or(DAMAGED)?;
    if Checksum::new().add(content).finish() != u64::from_le_bytes(*sum) {
        return Err(DAMAGED);
    }
    let rest = &rest[..rest.len().checked_sub(8).ok_or(DAMAGED)?];
    let (length, rest) = rest.split_first_chunk::<4>().ok_or(DAMAGED)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (header, rest) = rest.split_at_checked(length).filter(|_| length <= MAX_HEADER).ok_or(DAMAGED)?;
    let header: Value = serde_json::from_slice(header).map_err(|_| DAMAGED)?;
    let number = |key: &str| header[key].as_u64().and_then(|n| usize::try_from(n).ok()).ok_or(DAMAGED);
    let text = |key: &str| header[key].as_str().map(String::from).ok_or(DAMAGED);
    let tokens = number("tokens")?.checked_mul(4).and_then(|n| rest.split_at_checked(n));
    let (tokens, rest) = tokens.ok_or(DAMAGED)?;
    let snapshot = Snapshot {
        path: path.into(),
        model: u64::from_str_radix(&text("model")?, 16).map_err(|_| DAMAGED)?,
        kv: text("kv")?,
        tokens: tokens.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
        computed: number("computed")?,
        note: text("note")?,
        bytes: rest.to_vec(),
    };
    if snapshot.computed > snapshot.tokens.len() { Err(DAMAGED) } else { Ok(snapshot) }
}

/// Tells models apart by what they compute, wherever their files lie.
pub(crate) struct Identity {
    files: Option<Arc<ModelFiles>>,
    /// The adapters, or the shape of random weights.
    rest: Checksum,
    value: OnceLock<u64>,
}

impl Identity {
    pub fn new(files: Option<Arc<ModelFiles>>, rest: Checksum) -> Identity {
        Identity { files, rest, value: OnceLock::new() }
    }

    /// A number that other models do not have. Reads a little of every file the first time.
    pub fn get(&self) -> u64 {
        *self.value.get_or_init(|| {
            let maps = self.files.iter().flat_map(|files| files.maps());
            maps.fold(self.rest, Checksum::add_sample).finish()
        })
    }
}
