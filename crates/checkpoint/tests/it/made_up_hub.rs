//! A hub on loopback with one made-up repository, and a cache to download into.

use std::path::PathBuf;
use std::time::Duration;

use checkpoint::hub::{HubError, HubOptions, Resolved, resolve};
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::made_up::{hybrid_config, safetensors, tensors};
use crate::server::{Reply, Request, Server};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const REPO: &str = "some-org/some-model";
pub(crate) const WEIGHTS: &str = "model.safetensors";

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// A repository as the hub serves it: large files behind a redirect to a store on another host.
#[derive(Clone)]
pub(crate) struct Repository {
    pub(crate) files: Vec<(String, Vec<u8>)>,
    pub(crate) store: Option<String>,
}

impl Repository {
    pub(crate) fn new() -> Self {
        let config = hybrid_config();
        let file = |name: &str, bytes: &[u8]| (name.to_string(), bytes.to_vec());
        let files = vec![
            file("README.md", b"# A model"),
            file("config.json", config.to_string().as_bytes()),
            file("tokenizer.json", b"{}"),
            file("original/consolidated.safetensors", b"not needed"),
            file("consolidated.safetensors", b"not needed"),
            file(WEIGHTS, &safetensors(&tensors(&config))),
        ];
        Self { files, store: None }
    }

    pub(crate) fn weights(&self) -> &[u8] {
        &self.files.last().unwrap().1
    }

    pub(crate) fn answer(&self, request: &Request) -> Reply {
        if request.path == format!("/api/models/{REPO}/revision/main") {
            let siblings: Vec<_> =
                self.files.iter().map(|(name, _)| json!({ "rfilename": name })).collect();
            return Reply::new(200, json!({ "sha": COMMIT, "siblings": siblings }).to_string());
        }
        let prefix = format!("/{REPO}/resolve/{COMMIT}/");
        let name = request.path.strip_prefix(&prefix).unwrap_or_default();
        let Some((name, bytes)) = self.files.iter().find(|(file, _)| file == name) else {
            return Reply::new(404, "");
        };
        let large = name.ends_with(".safetensors");
        match &self.store {
            Some(store) if large => Reply::new(302, "")
                .header("location", format!("{store}/blob?signature=secret"))
                .header("x-linked-etag", format!("\"{}\"", sha256(bytes)))
                .header("x-linked-size", bytes.len()),
            _ if large => ranged(request, bytes).header("etag", format!("\"{}\"", sha256(bytes))),
            _ => Reply::new(200, bytes.clone()).header("etag", format!("W/\"{name}-etag\"")),
        }
    }
}

/// The body from where the request asks for it.
pub(crate) fn ranged(request: &Request, bytes: &[u8]) -> Reply {
    match request.headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')) {
        None => Reply::new(200, bytes),
        Some(from) => {
            let from: usize = from.parse().unwrap();
            match bytes.get(from..).filter(|rest| !rest.is_empty()) {
                Some(rest) => Reply::new(206, rest).header(
                    "content-range",
                    format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len()),
                ),
                None => Reply::new(416, ""),
            }
        }
    }
}

pub(crate) struct Cache(TempDir);

impl Cache {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn options(&self, server: &Server) -> HubOptions {
        HubOptions {
            endpoint: server.url.clone(),
            cache: self.0.path().to_path_buf(),
            token: None,
            offline: false,
            revision: "main".to_string(),
            timeout: Duration::from_secs(5),
            retry_wait: Duration::from_millis(1),
        }
    }

    pub(crate) fn repo(&self, path: &str) -> PathBuf {
        self.0.path().join("models--some-org--some-model").join(path)
    }
}

pub(crate) fn get(options: &HubOptions) -> Result<Resolved, HubError> {
    resolve(REPO, options, &mut |_| {})
}

pub(crate) fn serve(repository: &Repository) -> Server {
    let repository = repository.clone();
    Server::start(move |request| repository.answer(request))
}
