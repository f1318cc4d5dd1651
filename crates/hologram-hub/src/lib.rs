//! Models: found on this machine, downloaded from Hugging Face.
//!
//! A model is named `hf:OWNER/NAME`, with `:FILE` or `:TYPE` where a repository has several files. [`Hub::cached`]
//! looks for it in the Hugging Face cache, without the network. [`Hub::plan`] asks the Hub which files the repository
//! has and chooses; [`Hub::fetch`] downloads what is missing, into the same cache, so that other programs find it there
//! too:
//!
//! ```no_run
//! use hologram_hub::{Hub, Request};
//! let request: Request = "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M".parse()?;
//! let hub = Hub::from_env()?;
//! let path = match hub.cached(&request)? {
//!     Some(cached) => cached.path,
//!     None => hub.fetch(&hub.plan(&request)?, &mut |p| println!("{} of {} bytes", p.done, p.total))?,
//! };
//! # Ok::<(), hologram_hub::HubError>(())
//! ```
//!
//! A file is downloaded in pieces, several at a time, under a name of its own. It becomes part of a model only after
//! its size and its checksum (SHA-256, or Git's SHA-1 for small files) agree with what the Hub lists. A download that
//! was cut goes on where it stopped.
//!
//! [`found`] lists the models in the Hugging Face cache and in the folders of Ollama and LM Studio.

mod cache;
mod checksum;
mod choose;
mod client;
mod error;
mod fetch;
mod found;
mod listing;
mod partial;
mod remove;
mod request;
mod settings;

pub use cache::Cached;
pub use choose::Choice;
pub use error::{HubError, Result, size};
pub use fetch::{Plan, Progress, Step};
pub use found::{Found, Source, found};
pub use listing::RemoteFile;
pub use remove::Removed;
pub use request::{Repo, Request, Wanted};
pub use settings::Settings;

/// A model hub and the cache of its files on this machine.
pub struct Hub {
    settings: Settings,
    client: client::Client,
}

impl Hub {
    /// The hub that the environment names: see [`Settings::from_env`].
    ///
    /// # Errors
    /// When a setting has no meaning.
    pub fn from_env() -> Result<Hub> {
        Hub::new(Settings::from_env()?)
    }

    /// A hub with these settings.
    ///
    /// # Errors
    /// When the certificates cannot be read.
    pub fn new(settings: Settings) -> Result<Hub> {
        let client = client::Client::new(&settings)?;
        Ok(Hub { settings, client })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
