//! From a name to a folder: a local path, or a model of the hub in the shared cache.
//!
//! The cache has the layout of the `huggingface_hub` library and shares its locks and partial
//! files, so what one program has downloaded, or begun to, the other uses.
//!
//! Downloads block: one thread, one connection, no async runtime. The client is `ureq`, which is
//! small and does exactly that; a redirect to another host is followed without the token.

mod cache;
mod download;
mod error;
mod http;
mod options;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::files::{INDEX, SINGLE, shard_names};
use cache::Repo;
pub use error::HubError;
use http::Http;
pub use options::HubOptions;

/// Where a model's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The folder to open.
    pub folder: PathBuf,
    /// Commit of the hub's repository; `None` for a local path.
    pub commit: Option<String>,
    /// Something that a person should know: the hub was not reachable and the cache was used.
    pub notice: Option<String>,
}

/// How far the download of one file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubProgress<'a> {
    /// File name in the repository.
    pub file: &'a str,
    /// Bytes on disk, those of an earlier attempt included.
    pub done_bytes: u64,
    /// Bytes of the whole file, where the hub says so.
    pub total_bytes: Option<u64>,
}

/// Finds the folder of a model: an existing local path wins, else `org/name` is looked up on the
/// hub and what is needed of it is downloaded into the cache.
///
/// `progress` is called about once per megabyte while a file downloads.
///
/// # Errors
/// See [`HubError`]; every one says what to do.
pub fn resolve(
    name_or_path: &str,
    options: &HubOptions,
    progress: &mut dyn FnMut(HubProgress<'_>),
) -> Result<Resolved, HubError> {
    let path = Path::new(name_or_path);
    if path.exists() {
        return Ok(Resolved { folder: path.to_path_buf(), commit: None, notice: None });
    }
    if !is_repo_name(name_or_path) {
        return Err(HubError::NoSuchModel { name: name_or_path.to_string() });
    }
    let repo = Repo::new(options, name_or_path);
    if options.offline {
        return repo.cached().ok_or_else(|| HubError::Offline {
            repo: name_or_path.to_string(),
            cache: options.cache.clone(),
        });
    }
    let hub = Hub { http: Http::new(options), repo: &repo, options };
    match hub.download(progress) {
        Err(error) if error.is_transient() => match repo.cached() {
            Some(cached) => {
                let notice = format!("the hub is not reachable ({error}); using the cached copy");
                Ok(Resolved { notice: Some(notice), ..cached })
            }
            None => Err(error),
        },
        other => other,
    }
}

/// `org/name` in the characters that the hub allows.
fn is_repo_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.contains("..")
            && !part.contains("--")
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    name.split_once('/').is_some_and(|(org, name)| is_part(org) && is_part(name))
}

/// One repository on the hub, and its place in the cache.
struct Hub<'a> {
    http: Http,
    repo: &'a Repo,
    options: &'a HubOptions,
}

impl Hub<'_> {
    /// Makes the snapshot of the wanted revision complete.
    fn download(&self, progress: &mut dyn FnMut(HubProgress<'_>)) -> Result<Resolved, HubError> {
        let info = self.info()?;
        let snapshot = self.repo.snapshot(&info.commit);
        for file in info.files.iter().filter(|file| is_needed_text(file)) {
            self.fetch(&info.commit, file, progress)?;
        }
        let weights = if info.has(SINGLE) {
            vec![SINGLE.to_string()]
        } else if info.has(INDEX) {
            let path = snapshot.join(INDEX);
            let index = std::fs::read(&path).map_err(|e| HubError::io("read", &path, e))?;
            let shards = shard_names(&index).map_err(|e| self.bad_answer(INDEX, e.to_string()))?;
            shards.into_keys().collect()
        } else {
            return Err(HubError::NoWeights { repo: self.repo.name.clone() });
        };
        for file in &weights {
            self.fetch(&info.commit, file, progress)?;
        }
        self.repo.write_ref(&self.options.revision, &info.commit)?;
        Ok(Resolved { folder: snapshot, commit: Some(info.commit), notice: None })
    }

    /// The commit behind the revision, and the files at the top of the repository.
    fn info(&self) -> Result<Info, HubError> {
        let revision = http::encode(&self.options.revision);
        let path = format!("/api/models/{}/revision/{revision}", self.repo.name);
        // Where there is a copy to fall back on, nobody should wait for a network that is down.
        let body = match self.repo.cached() {
            Some(_) => self.http.json(&path)?,
            None => self.http.retrying(|| self.http.json(&path))?,
        };
        let commit = body["sha"].as_str().filter(|sha| cache::is_commit(sha));
        let files = body["siblings"].as_array();
        let (Some(commit), Some(files)) = (commit, files) else {
            return Err(self.bad_answer(&path, "no commit or no list of files in it".to_string()));
        };
        let name = |file: &Value| file["rfilename"].as_str().map(str::to_string);
        Ok(Info {
            commit: commit.to_string(),
            files: files.iter().filter_map(name).filter(|name| !name.contains('/')).collect(),
        })
    }

    fn fetch(
        &self,
        commit: &str,
        file: &str,
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<(), HubError> {
        if self.repo.snapshot(commit).join(file).exists() {
            return Ok(());
        }
        let source = http::RemoteFile::new(&self.repo.name, commit, file);
        let head = self.http.retrying(|| self.http.head(&source))?;
        // Another program may be at it; afterwards there is nothing left to do but the link.
        let _lock = self.repo.lock(&head.etag)?;
        if !self.repo.blob(&head.etag).exists() {
            download::blob(&self.http, self.repo, &source, &head, progress)?;
        }
        self.repo.link(commit, file, &head.etag)
    }

    fn bad_answer(&self, what: &str, problem: String) -> HubError {
        HubError::BadAnswer { url: format!("{}: {what}", self.repo.name), problem }
    }
}

struct Info {
    commit: String,
    files: Vec<String>,
}

impl Info {
    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file == name)
    }
}

/// Files beside the weights that a checkpoint is read from.
fn is_needed_text(file: &str) -> bool {
    matches!(file, "config.json" | "generation_config.json" | INDEX)
        || file.starts_with("tokenizer")
        || file.starts_with("chat_template")
}
