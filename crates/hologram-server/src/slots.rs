//! `POST /slots/{id}?action=save|restore|erase`, in llama.cpp's form: the last text that ended in a place, with what is
//! computed of it, goes to a file in the server's folder and comes back.

use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use hologram_llm::{LlmError, Snapshot};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::body::{self, Body};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::routes::{Call, beside, tenant_name};
use crate::served::Served;

/// A conversation's cache may be as large as the device's memory: one at a time is held on the host.
static TURN: Semaphore = Semaphore::const_new(1);

/// Maximum bytes of a file's name.
const MAX_NAME: usize = 200;

/// Runs the action.
///
/// # Errors
/// 501 without a folder for files, 400 when the request is at fault or a file does not fit the model.
pub async fn run(call: Call, id: &str) -> Result<Response<Body>> {
    let actions = ["save", "restore", "erase"];
    let action = call.query_value("action").and_then(|action| actions.into_iter().find(|known| *known == action));
    let action = action.ok_or_else(|| ApiError::none_of("action", &actions))?;
    let mut fields = match call.body.is_empty() {
        true => Fields::new(serde_json::Map::new()),
        false => Fields::new(crate::json::object(&call.body)?).known_as(call.accepts),
    };
    let name = fields.text("filename")?;
    let model = fields.text("model")?.or(call.query_value("model"));
    fields.finish()?;
    let file = match (action, name) {
        ("erase", _) => None,
        (_, None) => return Err(ApiError::invalid("filename", "filename is required")),
        (_, Some(name)) => Some(File::new(call.shared.options.slot_folder.as_deref(), name)?),
    };
    let model = call.shared.models()?.lease(model.as_deref()).await?;
    let slots = model.engine.options().max_sequences;
    let slot = id.parse::<usize>().ok().filter(|slot| *slot < slots).ok_or_else(|| {
        ApiError::invalid("id_slot", format!("id_slot must be a number below {slots}, the number of slots"))
    })?;
    let _turn = TURN.acquire().await.map_err(|_| ApiError::internal("nobody closes this semaphore"))?;
    let tenant = tenant_name(call.tenant, None);
    let answer = beside(move || {
        let slot = Slot { served: &model, slot, tenant: tenant.as_deref() };
        match (action, file) {
            ("save", Some(file)) => slot.save(&file),
            ("restore", Some(file)) => slot.restore(&file),
            _ => slot.erase(),
        }
    });
    Ok(body::json(StatusCode::OK, &answer.await?))
}

/// A file in the server's folder.
struct File {
    name: String,
    path: PathBuf,
}

impl File {
    /// # Errors
    /// 501 without a folder, 400 for a name that could lead out of it.
    fn new(folder: Option<&Path>, name: String) -> Result<File> {
        let Some(folder) = folder else {
            return Err(ApiError::not_implemented(
                "this server keeps no conversations: start it with --slot-save-path",
            ));
        };
        let mut parts = Path::new(&name).components();
        let is_plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == &*name);
        let odd = |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
        if !is_plain || name.starts_with('.') || name.len() > MAX_NAME || name.contains(odd) {
            let message = format!(
                "filename must be the plain name of a file, of at most {MAX_NAME} bytes and without a leading dot"
            );
            return Err(ApiError::invalid("filename", message));
        }
        Ok(File { path: folder.join(&name), name })
    }

    /// What is wrong with a file, without the folder's path.
    fn failed(&self, error: LlmError) -> ApiError {
        let reason = match error {
            LlmError::BadFile { reason, .. } => reason,
            LlmError::Io { reason, .. } if reason.kind() == std::io::ErrorKind::NotFound => {
                "there is no such file".into()
            }
            LlmError::Io { reason, .. } => return ApiError::internal(format!("cannot read {:?}: {reason}", self.name)),
            LlmError::Write { reason, .. } => {
                return ApiError::internal(format!("cannot write {:?}: {reason}", self.name));
            }
            other => return ApiError::internal(other.to_string()),
        };
        ApiError::invalid("filename", format!("{:?}: {reason}", self.name))
    }
}

/// A place for texts, as a key sees it.
struct Slot<'a> {
    served: &'a Served,
    slot: usize,
    tenant: Option<&'a str>,
}

impl Slot<'_> {
    fn tokens(&self) -> Result<Option<Vec<u32>>> {
        self.served.engine.last_tokens(self.slot, self.tenant).map_err(internal)
    }

    fn save(&self, file: &File) -> Result<Value> {
        let started = Instant::now();
        let Some(tokens) = self.tokens()? else {
            let message = format!("slot {} holds no text of this key: generate one first", self.slot);
            return Err(ApiError::invalid("id_slot", message));
        };
        let snapshot = self.served.engine.snapshot(&tokens, self.tenant).map_err(internal)?;
        let bytes = snapshot.write(&file.path).map_err(|e| file.failed(e))?;
        Ok(json!({
            "id_slot": self.slot, "filename": file.name, "n_saved": snapshot.computed(), "n_written": bytes,
            "timings": { "save_ms": milliseconds(started) },
        }))
    }

    fn restore(&self, file: &File) -> Result<Value> {
        let started = Instant::now();
        let snapshot = Snapshot::read(&file.path).map_err(|e| file.failed(e))?;
        let bytes = std::fs::metadata(&file.path).map_or(0, |data| data.len());
        let (engine, tokens) = (&self.served.engine, snapshot.tokens().to_vec());
        let restored = engine.restore(snapshot, self.tenant).map_err(|e| file.failed(e))?;
        engine.set_last_tokens(self.slot, Some(tokens), self.tenant).map_err(internal)?;
        Ok(json!({
            "id_slot": self.slot, "filename": file.name, "n_restored": restored, "n_read": bytes,
            "timings": { "restore_ms": milliseconds(started) },
        }))
    }

    fn erase(&self) -> Result<Value> {
        let engine = &self.served.engine;
        let erased = match self.tokens()? {
            Some(tokens) => {
                engine.set_last_tokens(self.slot, None, self.tenant).map_err(internal)?;
                engine.forget(&tokens, self.tenant).map_err(internal)?
            }
            None => 0,
        };
        Ok(json!({ "id_slot": self.slot, "n_erased": erased }))
    }
}

fn internal(error: LlmError) -> ApiError {
    ApiError::internal(error.to_string())
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::File;

    #[test]
    fn names_stay_in_the_folder() {
        let folder = Some("/slots".as_ref());
        let path = |name: &str| File::new(folder, name.into()).ok().map(|file| file.path.display().to_string());
        assert_eq!(path("talk 1.bin"), Some("/slots/talk 1.bin".into()));
        let long = "a".repeat(201);
        for name in
            ["", ".", "..", "../x", "/etc/x", "a/b", "a/", "./a", ".hidden", "a\\b", "c:x", "a\0b", "a\n", &long]
        {
            assert_eq!(path(name), None, "{name:?}");
        }
        assert_eq!(File::new(None, "a".into()).err().map(|e| e.status.as_u16()), Some(501));
    }
}
