//! Errors of finding and downloading models.

use std::path::{Path, PathBuf};

/// An error of this crate. Its message is one sentence: what failed, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// A name that is not `hf:OWNER/NAME[:FILE or TYPE]`.
    #[error("{name} does not name a model on Hugging Face: {reason}")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A setting of the environment has no meaning.
    #[error("{name}: {reason}")]
    BadSetting {
        /// The environment variable.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Downloads are turned off.
    #[error("{repo} is not in the cache, and HF_HUB_OFFLINE is set")]
    Offline {
        /// The repository.
        repo: String,
    },
    /// There is no such repository, or it is private.
    #[error("there is no model {repo} at {endpoint}{}", no_model(*with_token))]
    NoModel {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The repository is shown to users who accepted its terms only.
    #[error(
        "{repo} is gated: accept its terms on {endpoint}/{repo}{}",
        if *with_token { ", with the account of your token" } else { ", make a token under Settings, Access Tokens, and set HF_TOKEN to it" }
    )]
    Gated {
        /// The repository.
        repo: String,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The hub rejects the token.
    #[error("{endpoint} rejects the token of HF_TOKEN: {reason}")]
    Token {
        /// The hub.
        endpoint: String,
        /// Its words.
        reason: String,
    },
    /// No file of the repository is what was asked for.
    #[error("{repo} {reason}")]
    NoFile {
        /// The repository.
        repo: String,
        /// For instance "has no file of type Q9; it has: Q4_K_M, Q8_0".
        reason: String,
    },
    /// The hub's answer contradicts itself or is not what a hub answers.
    #[error("{url}: {reason}")]
    BadReply {
        /// The address.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// The hub cannot be reached, or breaks off again and again.
    #[error("{url}: {reason}")]
    Network {
        /// The address.
        url: String,
        /// What happened.
        reason: String,
    },
    /// A complete file is not the one that the hub lists.
    #[error("{file} arrived damaged: its checksum is {got}, the hub lists {listed}; it was deleted: try again")]
    Checksum {
        /// The file.
        file: String,
        /// The checksum of what arrived.
        got: String,
        /// The checksum in the list.
        listed: String,
    },
    /// The disk has no room.
    #[error(
        "{} has {} of room, but {} are missing of the model and {} must stay free; \
         `hologram models` lists what could go, HF_HOME names another place",
        path.display(), size(*free), size(*needed), size(crate::fetch::RESERVE)
    )]
    NoRoom {
        /// The cache.
        path: PathBuf,
        /// Bytes free.
        free: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The processor lacks what encryption and checksums use here.
    #[error(
        "downloads need a processor with AES and, on x86-64, AVX2 and BMI2 instructions; fetch the file with another program and give its path"
    )]
    Processor,
    /// A folder of the cache cannot be made.
    #[error("cannot create {}: {reason}; HF_HOME names another place", path.display())]
    NoFolder {
        /// The folder.
        path: PathBuf,
        /// The operating system's error.
        reason: std::io::Error,
    },
    /// A file or folder cannot be read or written.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        reason: std::io::Error,
    },
}

/// A number of bytes for people.
pub fn size(bytes: u64) -> String {
    let n = bytes as f64;
    match bytes {
        0 => "0 bytes".into(),
        1..100_000 => format!("{:.1} KB", n / 1e3),
        100_000..100_000_000 => format!("{:.1} MB", n / 1e6),
        100_000_000..1_000_000_000 => format!("{:.0} MB", n / 1e6),
        1_000_000_000..1_000_000_000_000 => format!("{:.1} GB", n / 1e9),
        _ => format!("{:.1} TB", n / 1e12),
    }
}

fn no_model(with_token: bool) -> &'static str {
    if with_token {
        ", or your token does not see it"
    } else {
        "; if it is private, set HF_TOKEN to a token that sees it"
    }
}

/// A result of this crate.
pub type Result<T, E = HubError> = std::result::Result<T, E>;

/// Makes a folder of the cache, and those that it is in.
pub(crate) fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|reason| HubError::NoFolder { path: path.into(), reason })
}

/// Names the file of an operating system's error.
pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> HubError {
    let path = path.to_path_buf();
    move |reason| HubError::Io { path, reason }
}
