//! Conversations that leave an engine's cache and come back.

use std::sync::mpsc;

use super::Engine;
use super::worker::{Last, Worker};
use crate::error::{LlmError, Result};
use crate::snapshot::Snapshot;

impl Engine {
    /// Copies these tokens and what the cache holds of them for this tenant, between two steps.
    ///
    /// # Errors
    /// When the device fails or the engine has stopped.
    pub fn snapshot(&self, tokens: &[u32], tenant: Option<&str>) -> Result<Snapshot> {
        let (tokens, tenant) = (tokens.to_vec(), tenant.map(String::from));
        self.call(move |worker| worker.session.snapshot_prefix(&worker.hasher, tenant.as_deref(), &tokens))?
    }

    /// Puts a snapshot into the cache, where this tenant's prompts that begin with its tokens find it. Returns how many
    /// tokens they find: whole blocks, as many as there is room for.
    ///
    /// # Errors
    /// When the snapshot is of another model or kind of cache, or damaged; when the device fails or the engine has
    /// stopped.
    pub fn restore(&self, snapshot: Snapshot, tenant: Option<&str>) -> Result<usize> {
        let tenant = tenant.map(String::from);
        self.call(move |worker| match worker.options.prefix_cache {
            true => worker.session.restore_prefix(&worker.hasher, tenant.as_deref(), &snapshot),
            false => Ok(0),
        })?
    }

    /// Forgets what the cache holds of these tokens for this tenant, unless a text is using it. Returns the number of
    /// tokens.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn forget(&self, tokens: &[u32], tenant: Option<&str>) -> Result<usize> {
        let (tokens, tenant) = (tokens.to_vec(), tenant.map(String::from));
        self.call(move |worker| worker.session.forget_prefix(&worker.hasher, tenant.as_deref(), &tokens))
    }

    /// The tokens of this tenant's last text that ended in a slot, prompt and answer. Texts take the first free slots.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn last_tokens(&self, slot: usize, tenant: Option<&str>) -> Result<Option<Vec<u32>>> {
        let tenant = tenant.map(String::from);
        let of_tenant = move |last: &&Last| last.tenant == tenant;
        self.call(move |worker| Some(worker.last.get(slot)?.as_ref().filter(of_tenant)?.tokens.clone()))
    }

    /// Makes these tokens the last text of a slot. None: there is no last text.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub fn set_last_tokens(&self, slot: usize, tokens: Option<Vec<u32>>, tenant: Option<&str>) -> Result<()> {
        let tenant = tenant.map(String::from);
        self.call(move |worker| {
            if let Some(last) = worker.last.get_mut(slot) {
                *last = tokens.map(|tokens| Last { tenant, tokens });
            }
        })
    }

    /// Lets the engine's thread do something between two steps, and waits for it.
    fn call<T: Send + 'static>(&self, work: impl FnOnce(&mut Worker) -> T + Send + 'static) -> Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.inner.shared.queue.push_job(Box::new(move |worker| {
            // The caller waits below.
            let _ = sender.send(work(worker));
        }));
        let stopped = || LlmError::Option { option: "engine", reason: "has stopped".into() };
        receiver.recv().map_err(|_| stopped())
    }
}
