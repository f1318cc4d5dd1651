//! Where models come from and where they are kept.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{HubError, Result};

/// The hub's address, the cache's folder and limits. [`Settings::from_env`] reads them as Hugging Face's own tools do.
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// Access token, sent to the endpoint's host alone.
    pub token: Option<String>,
    /// Folder of the cache, which has a folder `models--OWNER--NAME` per repository.
    pub cache: PathBuf,
    /// No network is used.
    pub offline: bool,
    /// Certificates in PEM form that replace the built-in roots.
    pub certificates: Option<PathBuf>,
    /// Whether `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` are obeyed.
    pub proxies: bool,
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a piece that one connection downloads.
    pub piece: u64,
    /// How long a connection may be silent.
    pub patience: Duration,
    /// Failures in a row after which a download is given up, and the wait after the first, which doubles.
    pub attempts: u32,
    /// The wait after the first failure.
    pub pause: Duration,
}

impl Settings {
    /// Settings for a hub at `endpoint` and a cache in `cache`.
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Settings {
        Settings {
            endpoint: endpoint.into().trim_end_matches('/').into(),
            token: None,
            cache: cache.into(),
            offline: false,
            certificates: None,
            proxies: true,
            connections: 8,
            piece: 16 << 20,
            patience: Duration::from_secs(30),
            attempts: 6,
            pause: Duration::from_millis(500),
        }
    }

    /// Reads `HF_ENDPOINT`, `HF_TOKEN` (or the file that `HF_TOKEN_PATH` names, or `token` in `HF_HOME`),
    /// `HF_HUB_CACHE`, `HF_HOME`, `HF_HUB_OFFLINE` and `SSL_CERT_FILE`. The cache is `~/.cache/huggingface/hub` unless
    /// one of them says otherwise.
    ///
    /// # Errors
    /// When no home folder is known, or `HF_ENDPOINT` is not an address.
    pub fn from_env() -> Result<Settings> {
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        if !(endpoint.starts_with("https://") || endpoint.starts_with("http://")) {
            let reason = format!("{endpoint} is not an address: it must begin with https:// or http://");
            return Err(HubError::BadSetting { name: "HF_ENDPOINT", reason });
        }
        let home = hugging_face_home();
        let cache = path("HF_HUB_CACHE").or_else(|| home.as_ref().map(|home| home.join("hub")));
        let Some(cache) = cache else {
            let reason = "it is not set, and there is no home folder: it must name the folder for models".into();
            return Err(HubError::BadSetting { name: "HF_HOME", reason });
        };
        let file = path("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")));
        let token = text("HF_TOKEN").or_else(|| std::fs::read_to_string(file?).ok());
        let token = token.map(|token| token.trim().to_string()).filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.chars().all(|c| c.is_ascii_graphic())) {
            let reason = "a token has letters, digits and _ only".into();
            return Err(HubError::BadSetting { name: "HF_TOKEN", reason });
        }
        let offline =
            text("HF_HUB_OFFLINE").is_some_and(|v| ["1", "on", "yes", "true"].contains(&v.to_lowercase().as_str()));
        let certificates = path("SSL_CERT_FILE");
        Ok(Settings { token, offline, certificates, ..Settings::new(endpoint, cache) })
    }
}

/// The folder of Hugging Face's tools.
fn hugging_face_home() -> Option<PathBuf> {
    path("HF_HOME").or_else(|| {
        let cache = path("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")))?;
        Some(cache.join("huggingface"))
    })
}

/// The user's home folder.
pub fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute())
}

/// A path from the environment, with `~/` expanded.
pub fn path(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    let path = PathBuf::from(value);
    match path.strip_prefix("~") {
        Ok(rest) => Some(home()?.join(rest)),
        Err(_) => Some(path),
    }
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
}
