//! Why a model could not be found or fetched, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model could not be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a path nor a name that the hub could know.
    #[error("`{name}` is neither an existing folder nor a model name of the form org/name")]
    NoSuchModel {
        /// As given.
        name: String,
    },
    /// The hub knows no such repository or revision.
    #[error("the hub has no {what} (404); check the spelling")]
    NotFound {
        /// Repository, revision or file.
        what: String,
    },
    /// The hub wants to know who asks, or does not let this one in.
    #[error(
        "the hub refuses {what} ({status}): {}",
        if *.has_token {
            "the token in use has no access; accept the model's terms on its page, or use another \
             token (HF_TOKEN)"
        } else {
            "no such model, or a private or gated one; for those, accept the terms on its page and \
             set HF_TOKEN to a token of yours"
        }
    )]
    Refused {
        /// Repository, revision or file.
        what: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Offline, and the cache does not have it.
    #[error(
        "{repo} is not in the cache {} and HF_HUB_OFFLINE is set; unset it or give a folder",
        cache.display()
    )]
    Offline {
        /// The repository.
        repo: String,
        /// The cache's folder.
        cache: PathBuf,
    },
    /// The repository holds no weights in a form that is read here.
    #[error(
        "{repo} holds no model.safetensors and no index of shards; a GGUF file of it can be downloaded and named by its path"
    )]
    NoWeights {
        /// The repository.
        repo: String,
    },
    /// The connection could not be made or broke.
    #[error("{url}: {reason}")]
    Network {
        /// Without its query, which may hold a signature.
        url: String,
        /// What the connection said.
        reason: String,
    },
    /// The server answered with an error.
    #[error("{url}: the server answered {status}")]
    Status {
        /// Without its query.
        url: String,
        /// Status of the answer.
        status: u16,
        /// Seconds that the server asks to wait.
        retry_after: Option<u64>,
    },
    /// The answer is not what this kind of server sends.
    #[error("{url}: unexpected answer: {problem}")]
    BadAnswer {
        /// Without its query.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The bytes are not the ones that the hub announced. The partial file has been removed.
    #[error(
        "{file} of {repo} arrived damaged: {kind} is {found}, the hub says {expected}; \
         the partial file was removed, start again"
    )]
    Checksum {
        /// The repository.
        repo: String,
        /// The file.
        file: String,
        /// What was compared: sha256, or size in bytes.
        kind: &'static str,
        /// As announced.
        expected: String,
        /// As received.
        found: String,
    },
    /// No room for the file.
    #[error(
        "no space left for {} ({} more to come); free some, or set HF_HUB_CACHE to another disk",
        path.display(),
        missing_bytes.map_or("an unknown amount".to_string(), |n| format!("{n} bytes"))
    )]
    DiskFull {
        /// The partial file, which is kept.
        path: PathBuf,
        /// Bytes still to be written, where the hub gave a size.
        missing_bytes: Option<u64>,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl HubError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_path_buf(), source }
    }

    /// Another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            _ => false,
        }
    }
}
