//! One blob: resumed where an earlier attempt stopped, checked, and then given its name.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use ureq::Body;
use ureq::http::{Response, StatusCode, header};

use super::cache::{Repo, create_parent};
use super::http::{Head, Http, RemoteFile, network};
use super::{HubError, HubProgress};

const BUFFER_BYTES: usize = 1 << 20;

/// Downloads a blob; the caller holds its lock.
pub(super) fn blob(
    http: &Http,
    repo: &Repo,
    source: &RemoteFile,
    head: &Head,
    progress: &mut dyn FnMut(HubProgress<'_>),
) -> Result<(), HubError> {
    let mut download =
        Download { source, head, partial: Partial::open(repo.partial(&head.etag))?, progress };
    let resumed = download.partial.bytes > 0;
    download.run(http)?;
    let mut checked = download.check();
    if resumed && checked.is_err() {
        // What an earlier attempt left may have been damaged: once more from the start.
        download.partial.restart()?;
        download.run(http)?;
        checked = download.check();
    }
    let partial = download.partial;
    if let Err(error) = checked {
        let _ = fs::remove_file(&partial.path);
        return Err(error);
    }
    partial.file.sync_all().map_err(|e| HubError::io("write", &partial.path, e))?;
    let blob = repo.blob(&head.etag);
    fs::rename(&partial.path, &blob).map_err(|e| HubError::io("name", &blob, e))
}

struct Download<'a> {
    source: &'a RemoteFile,
    head: &'a Head,
    partial: Partial,
    progress: &'a mut dyn FnMut(HubProgress<'_>),
}

impl Download<'_> {
    /// Fetches until the file is whole; attempts that bring it forward do not count as failed.
    fn run(&mut self, http: &Http) -> Result<(), HubError> {
        let mut attempt = 1;
        loop {
            let before = self.partial.bytes;
            match self.attempt(http) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    if self.partial.bytes > before {
                        attempt = 1;
                    }
                    if !http.may_retry(attempt, &error) {
                        return Err(error);
                    }
                    attempt += 1;
                }
            }
        }
    }

    fn attempt(&mut self, http: &Http) -> Result<(), HubError> {
        self.report();
        if self.head.bytes == Some(self.partial.bytes) {
            return Ok(());
        }
        let response = http.get(self.source, self.partial.bytes)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, self.partial.bytes) => {}
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PARTIAL_CONTENT => {
                // The partial file is longer than the real one, or the server counts otherwise.
                self.partial.restart()?;
                return Err(network(&self.source.file, &"the server cannot resume; starting over"));
            }
            _ => self.partial.restart()?,
        }
        self.copy(response)?;
        match self.head.bytes {
            Some(bytes) if self.partial.bytes < bytes => {
                let reason = format!("the connection closed at {} of {bytes}", self.partial.bytes);
                Err(network(&self.source.file, &reason))
            }
            _ => Ok(()),
        }
    }

    fn copy(&mut self, response: Response<Body>) -> Result<(), HubError> {
        let mut reader = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            // Fill the buffer: the socket gives a few kilobytes at a time.
            let mut filled = 0;
            let end = loop {
                match reader.read(&mut buffer[filled..]) {
                    Ok(0) => break Ok(true),
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => break Err(network(&self.source.file, &e)),
                }
                if filled == buffer.len() {
                    break Ok(false);
                }
            };
            self.partial.append(&buffer[..filled]).map_err(|e| self.write_error(e))?;
            self.report();
            if end? {
                return Ok(());
            }
        }
    }

    fn report(&mut self) {
        (self.progress)(HubProgress {
            file: &self.source.file,
            done_bytes: self.partial.bytes,
            total_bytes: self.head.bytes,
        });
    }

    fn write_error(&self, error: std::io::Error) -> HubError {
        let path = &self.partial.path;
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => HubError::DiskFull {
                path: path.clone(),
                missing_bytes: self.head.bytes.map(|n| n.saturating_sub(self.partial.bytes)),
            },
            _ => HubError::io("write", path, error),
        }
    }

    /// Size of every file; sha256 of large ones, whose etag it is.
    fn check(&self) -> Result<(), HubError> {
        let damaged = |kind, expected: String, found: String| HubError::Checksum {
            repo: self.source.repo.clone(),
            file: self.source.file.clone(),
            kind,
            expected,
            found,
        };
        match self.head.bytes {
            Some(bytes) if bytes != self.partial.bytes => {
                return Err(damaged("size", bytes.to_string(), self.partial.bytes.to_string()));
            }
            _ => {}
        }
        let etag = &self.head.etag;
        if etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit()) {
            let digest = self.partial.hash.clone().finalize();
            let found: String = digest.iter().map(|b| format!("{b:02x}")).collect();
            if !found.eq_ignore_ascii_case(etag) {
                return Err(damaged("sha256", etag.clone(), found));
            }
        }
        Ok(())
    }
}

fn starts_at(response: &Response<Body>, from: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|v| v.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {from}-")))
}

/// The file that grows, and the hash of what is in it.
struct Partial {
    path: PathBuf,
    file: File,
    bytes: u64,
    hash: Sha256,
}

impl Partial {
    fn open(path: PathBuf) -> Result<Self, HubError> {
        create_parent(&path)?;
        let options = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let mut file = options.map_err(|e| HubError::io("open", &path, e))?;
        let mut hash = Sha256::new();
        let bytes = std::io::copy(&mut file, &mut HashWriter(&mut hash))
            .map_err(|e| HubError::io("read", &path, e))?;
        Ok(Self { path, file, bytes, hash })
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), HubError> {
        if self.bytes > 0 {
            self.file
                .set_len(0)
                .and_then(|()| self.file.seek(SeekFrom::Start(0)))
                .map_err(|e| HubError::io("empty", &self.path, e))?;
            self.hash = Sha256::new();
            self.bytes = 0;
        }
        Ok(())
    }
}

struct HashWriter<'a>(&'a mut Sha256);

impl Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_apart_and_says_how_much_is_missing() {
        let source = RemoteFile::new("org/name", "main", "model.safetensors");
        let head = Head { etag: "e".to_string(), bytes: Some(100) };
        // A device that is always full.
        let path = PathBuf::from("/dev/full");
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let partial = Partial { path, file, bytes: 40, hash: Sha256::new() };
        let mut download =
            Download { source: &source, head: &head, partial, progress: &mut |_| {} };
        let error = download.partial.append(b"more").unwrap_err();
        let error = download.write_error(error);
        assert!(matches!(error, HubError::DiskFull { missing_bytes: Some(60), .. }), "{error}");
        assert!(error.to_string().contains("60 bytes"), "{error}");
        assert!(!error.is_transient());
    }
}
