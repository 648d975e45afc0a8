//! The layout of the cache: `blobs` by etag, `snapshots` by commit, `refs` by revision.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::{HubError, HubOptions, Resolved};

/// One repository's folder in the cache.
pub(super) struct Repo {
    /// `org/name`.
    pub(super) name: String,
    revision: String,
    folder: PathBuf,
    locks: PathBuf,
}

impl Repo {
    pub(super) fn new(options: &HubOptions, name: &str) -> Self {
        let folder = format!("models--{}", name.replace('/', "--"));
        Self {
            name: name.to_string(),
            revision: options.revision.clone(),
            locks: options.cache.join(".locks").join(&folder),
            folder: options.cache.join(folder),
        }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// The snapshot that the cache has for the wanted revision.
    pub(super) fn cached(&self) -> Option<Resolved> {
        let commit = match is_commit(&self.revision) {
            true => self.revision.clone(),
            false => fs::read_to_string(self.reference(&self.revision)?).ok()?.trim().to_string(),
        };
        let folder = self.snapshot(&commit);
        (is_commit(&commit) && folder.join("config.json").exists()).then_some(Resolved {
            folder,
            commit: Some(commit),
            notice: None,
        })
    }

    /// Where the commit of a branch or tag is noted; names that would lead elsewhere have none.
    fn reference(&self, revision: &str) -> Option<PathBuf> {
        let fits = revision.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        fits.then(|| self.folder.join("refs").join(revision))
    }

    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        match self.reference(revision) {
            Some(path) if !is_commit(revision) => {
                create_parent(&path)?;
                fs::write(&path, commit).map_err(|e| HubError::io("write", &path, e))
            }
            _ => Ok(()),
        }
    }

    /// Makes `file` of a snapshot point at a blob.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(file);
        create_parent(&path)?;
        // Made beside and renamed, so that a link of another download in its place is no error.
        let fresh = path.with_file_name(format!(".{file}.{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        std::os::unix::fs::symlink(Path::new("../../blobs").join(etag), &fresh)
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|e| HubError::io("link", &path, e))
    }

    /// Waits for other downloads of the same blob, of this program or of `huggingface_hub`.
    /// The lock goes with the value.
    pub(super) fn lock(&self, etag: &str) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        create_parent(&path)?;
        let file = File::create(&path).map_err(|e| HubError::io("create", &path, e))?;
        file.lock().map_err(|e| HubError::io("lock", &path, e))?;
        Ok(file)
    }
}

/// A full commit hash.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn create_parent(path: &Path) -> Result<(), HubError> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(|e| HubError::io("create", parent, e)),
        None => Ok(()),
    }
}
