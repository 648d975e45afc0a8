//! Where the hub and its cache are, from the environment variables that its own library reads.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How to reach the hub and where to keep what it sends.
#[derive(Clone)]
pub struct HubOptions {
    /// Base URL, without a slash at the end (`HF_ENDPOINT`).
    pub endpoint: String,
    /// The cache's folder (`HF_HUB_CACHE`, or `hub` in `HF_HOME`).
    pub cache: PathBuf,
    /// Sent to the endpoint's host and to no other (`HF_TOKEN`, or the file that a login wrote).
    pub token: Option<String>,
    /// Use the cache only (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// Branch, tag or commit.
    pub revision: String,
    /// How long a connection may be silent (`HF_HUB_DOWNLOAD_TIMEOUT`, in seconds).
    pub timeout: Duration,
    /// Wait before the second attempt; doubles with each further one.
    pub retry_wait: Duration,
}

impl HubOptions {
    /// The options of this process's environment; revision `main`.
    pub fn from_env() -> Self {
        Self::from_vars(&|name| std::env::var(name).ok())
    }

    /// The options of an environment given as a lookup; an empty variable counts as unset.
    pub fn from_vars(lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let var = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let path = |name: &str| var(name).map(PathBuf::from);
        let flag = |name: &str| {
            let on = |value: String| {
                matches!(value.to_lowercase().as_str(), "1" | "on" | "yes" | "true")
            };
            var(name).is_some_and(on)
        };
        let home = path("HF_HOME").unwrap_or_else(|| {
            let base = path("XDG_CACHE_HOME")
                .unwrap_or_else(|| path("HOME").unwrap_or_default().join(".cache"));
            base.join("huggingface")
        });
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = var("HF_TOKEN")
            .or_else(|| var("HUGGING_FACE_HUB_TOKEN"))
            .or_else(|| std::fs::read_to_string(token_file).ok())
            .map(|token| token.trim().to_string())
            .filter(|token| !token.is_empty());
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_string());
        let timeout = var("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|s| s.parse().ok()).unwrap_or(30);
        Self {
            endpoint: endpoint.trim_end_matches('/').to_string(),
            cache: path("HF_HUB_CACHE")
                .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
                .unwrap_or_else(|| home.join("hub")),
            token,
            offline: flag("HF_HUB_OFFLINE") || flag("TRANSFORMERS_OFFLINE"),
            revision: "main".to_string(),
            timeout: Duration::from_secs(timeout),
            retry_wait: Duration::from_secs(1),
        }
    }
}

/// Without the token: options end up in logs.
impl fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubOptions")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("token", &self.token.as_ref().map(|_| "(set)"))
            .field("offline", &self.offline)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}
