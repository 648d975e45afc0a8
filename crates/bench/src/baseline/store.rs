//! The folder of baselines.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use telemetry::json_lines;

use super::BaselineError;
use crate::probe::now_utc;
use crate::report::Run;

/// Name and version of the lines.
const SCHEMA: &str = "baseline/1";
/// Ending of the files.
const ENDING: &str = ".jsonl";
/// Longest name.
const NAME_BYTES: usize = 64;

/// One saved run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Form of the line.
    pub schema: String,
    /// When it was saved, in UTC.
    pub saved_at: String,
    /// What ran: the server's configuration as far as it is known, `null` if not.
    pub configuration: Value,
    /// What was measured.
    pub run: Run,
}

/// A baseline in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Saved runs.
    pub n_entries: usize,
    /// When the last one was saved.
    pub saved_at: String,
    /// The workload of the last one.
    pub workload: String,
    /// Lines that cannot be read, for example after a full disk.
    pub n_unreadable: usize,
}

/// The folder of baselines.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// A store in `folder`, which is made when the first baseline is saved.
    #[must_use]
    pub fn new(folder: &Path) -> Store {
        Store { folder: folder.to_owned() }
    }

    /// Appends a run.
    ///
    /// # Errors
    /// When the name is not one or the file cannot be written.
    pub fn save(&self, name: &str, run: &Run, configuration: Value) -> Result<(), BaselineError> {
        let path = self.path(name)?;
        let entry = Entry {
            schema: SCHEMA.to_owned(),
            saved_at: now_utc(),
            configuration,
            run: run.clone(),
        };
        let append = || {
            std::fs::create_dir_all(&self.folder)?;
            let mut file = OpenOptions::new().create(true).read(true).append(true).open(&path)?;
            let mut line = serde_json::to_vec(&entry)?;
            line.push(b'\n');
            json_lines::append(&mut file, &line)?;
            file.sync_data()
        };
        append().map_err(|source| io(&path, source))
    }

    /// Every saved run of a baseline, oldest first, and the number of unreadable lines.
    ///
    /// # Errors
    /// When there is no such baseline or its file cannot be read.
    pub fn entries(&self, name: &str) -> Result<(Vec<Entry>, usize), BaselineError> {
        let path = self.path(name)?;
        let bytes = std::fs::read(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => BaselineError::Missing(name.to_owned()),
            _ => io(&path, source),
        })?;
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let (mut entries, mut n_unreadable) = (Vec::new(), 0);
        for line in lines {
            match serde_json::from_str::<Entry>(line) {
                Ok(entry) if entry.schema == SCHEMA => entries.push(entry),
                _ => n_unreadable += 1,
            }
        }
        Ok((entries, n_unreadable))
    }

    /// Every baseline by name.
    ///
    /// # Errors
    /// When the folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, BaselineError> {
        let files = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.map_err(|source| io(&self.folder, source))?,
        };
        let mut listed = Vec::new();
        for file in files {
            let file = file.map_err(|source| io(&self.folder, source))?;
            let file_name = file.file_name();
            let Some(name) = file_name.to_str().and_then(|name| name.strip_suffix(ENDING)) else {
                continue;
            };
            if !is_name(name) {
                continue;
            }
            let (entries, n_unreadable) = self.entries(name)?;
            let last = entries.last();
            listed.push(Listed {
                name: name.to_owned(),
                n_entries: entries.len(),
                saved_at: last.map_or(String::new(), |entry| entry.saved_at.clone()),
                workload: last.map_or(String::new(), |entry| entry.run.workload.id.clone()),
                n_unreadable,
            });
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    fn path(&self, name: &str) -> Result<PathBuf, BaselineError> {
        if !is_name(name) {
            return Err(BaselineError::Name(name.to_owned()));
        }
        Ok(self.folder.join(format!("{name}{ENDING}")))
    }
}

/// Whether a name is one: nothing that could leave the folder or look like an option.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= NAME_BYTES
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

fn io(path: &Path, source: std::io::Error) -> BaselineError {
    BaselineError::Io { path: path.display().to_string(), source }
}
