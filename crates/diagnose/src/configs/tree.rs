//! A folder laid out like a host: its files, read on demand, with limits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::evidence::Side;

/// The most files that are listed.
const MOST_FILES: usize = 20_000;
/// The deepest folder.
const MOST_DEPTH: u32 = 10;
/// The largest file that is read as a whole; logs are streamed and have no limit.
pub(crate) const MOST_BYTES: u64 = 4 << 20;

/// One file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path below the root, with forward slashes.
    pub path: String,
    /// Which side its top folder names.
    pub side: Side,
    /// Size in bytes.
    pub len: u64,
    /// When it was last changed, in seconds since 1970.
    modified: Option<f64>,
}

impl Entry {
    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The path without the folder that names the side.
    pub fn host_path(&self) -> &str {
        match self.side {
            Side::Open => &self.path,
            _ => self.path.split_once('/').map_or(&self.path, |(_, rest)| rest),
        }
    }
}

/// A folder laid out like a host, or a host.
pub struct Tree {
    root: PathBuf,
    /// Its files in order of their paths.
    pub entries: Vec<Entry>,
    /// Whether it is a live host, whose file times mean something.
    pub live: bool,
    /// Files that came from elsewhere and are on no disk of this host.
    contents: BTreeMap<String, Vec<u8>>,
    gaps: RefCell<Vec<String>>,
}

/// Places of a live host where configurations are looked for.
const HOST_PLACES: &[(&str, u32)] = &[
    ("etc/systemd/system", 3),
    ("etc/default", 1),
    ("etc/sysconfig", 1),
    ("usr/local/lib/systemd/system", 2),
    ("root", 2),
    ("home", 3),
    ("srv", 4),
    ("opt", 3),
];

impl Tree {
    /// Lists a folder.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn open(root: &Path) -> std::io::Result<Tree> {
        let mut tree = Tree {
            root: root.to_owned(),
            entries: Vec::new(),
            live: false,
            contents: BTreeMap::new(),
            gaps: RefCell::default(),
        };
        fs::read_dir(root)?;
        tree.walk("", 0, MOST_DEPTH);
        tree.entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// Lists the places of the running host where configurations are kept. What may not be read becomes a gap.
    pub fn host() -> Tree {
        let mut tree = Tree {
            root: PathBuf::from("/"),
            entries: Vec::new(),
            live: true,
            contents: BTreeMap::new(),
            gaps: RefCell::default(),
        };
        for (place, depth) in HOST_PLACES {
            tree.walk(place, 0, *depth);
        }
        // The units of the user who asks, wherever that home is.
        let set =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
        if let Some(units) = config.map(|config| config.join("systemd/user"))
            && let Some(below_root) = units.to_str().and_then(|path| path.strip_prefix('/'))
        {
            tree.walk(below_root, 0, 2);
        }
        tree.processes();
        tree.entries.sort_by(|a, b| a.path.cmp(&b.path));
        tree.entries.dedup_by(|a, b| a.path == b.path);
        tree
    }

    /// Files that were read on another host.
    pub fn of_files(files: BTreeMap<String, Vec<u8>>) -> Tree {
        let entries = files
            .iter()
            .map(|(path, bytes)| Entry {
                path: path.clone(),
                side: Side::Open,
                len: bytes.len() as u64,
                modified: None,
            })
            .collect();
        Tree {
            root: PathBuf::new(),
            entries,
            live: false,
            contents: files,
            gaps: RefCell::default(),
        }
    }

    fn walk(&mut self, folder: &str, depth: u32, deepest: u32) {
        let listed = match fs::read_dir(self.root.join(folder)) {
            Ok(listed) => listed,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                self.gaps.borrow_mut().push(format!("{folder}: {}", error.kind()));
                return;
            }
        };
        for item in listed.flatten() {
            // A name that a terminal would act on is no name of ours.
            let Ok(name) = item.file_name().into_string() else { continue };
            if name.contains(char::is_control) {
                continue;
            }
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            // Links are not followed: they could lead out of the folder, or around in it.
            let Ok(kind) = item.file_type() else { continue };
            if kind.is_dir() {
                let skipped = matches!(
                    name.as_str(),
                    ".git"
                        | "node_modules"
                        | ".cache"
                        | ".venv"
                        | "venv"
                        | "site-packages"
                        | "target"
                );
                if depth < deepest && !skipped {
                    self.walk(&path, depth + 1, deepest);
                }
            } else if kind.is_file() && self.entries.len() < MOST_FILES {
                self.push(path, item.metadata().ok().as_ref());
            }
        }
    }

    fn push(&mut self, path: String, metadata: Option<&fs::Metadata>) {
        let modified = metadata
            .and_then(|m| m.modified().ok())
            .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
            .map(|d| d.as_secs_f64());
        let side = if self.live { Side::Open } else { side_of(&path) };
        self.entries.push(Entry {
            path,
            side,
            len: metadata.map_or(0, fs::Metadata::len),
            modified,
        });
    }

    fn processes(&mut self) {
        let Ok(listed) = fs::read_dir("/proc") else { return };
        for item in listed.flatten() {
            let Ok(pid) = item.file_name().into_string() else { continue };
            if pid.bytes().all(|b| b.is_ascii_digit()) {
                self.push(format!("proc/{pid}/cmdline"), None);
            }
        }
    }

    /// The whole path of a file.
    pub fn full_path(&self, entry: &Entry) -> PathBuf {
        self.root.join(&entry.path)
    }

    /// The bytes of a file, up to a limit.
    pub fn bytes(&self, entry: &Entry) -> Option<Vec<u8>> {
        self.head(entry, MOST_BYTES)
    }

    /// The first bytes of a file.
    pub fn head(&self, entry: &Entry, most: u64) -> Option<Vec<u8>> {
        if let Some(bytes) = self.contents.get(&entry.path) {
            return Some(bytes[..bytes.len().min(most as usize)].to_vec());
        }
        let read = || -> std::io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            fs::File::open(self.full_path(entry))?.take(most).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                // Other users' processes are out of reach by design; that is not worth a line each.
                if !entry.path.starts_with("proc/") {
                    self.gaps.borrow_mut().push(format!("{}: {}", entry.path, error.kind()));
                }
                None
            }
        }
    }

    /// The text of a file; bytes that are not text are replaced.
    pub fn text(&self, entry: &Entry) -> Option<String> {
        self.bytes(entry).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Finds a file by the path that it has on its host, on the same side first.
    pub fn find(&self, host_path: &str, side: Side) -> Option<&Entry> {
        let wanted = host_path.trim_start_matches('/');
        let matches = |entry: &&Entry| entry.host_path() == wanted;
        self.entries
            .iter()
            .filter(matches)
            .find(|entry| entry.side == side)
            .or_else(|| self.entries.iter().find(matches))
    }

    /// When a file was changed; unknown for copies, whose times say when they were copied.
    pub fn modified(&self, path: &str) -> Option<f64> {
        if !self.live {
            return None;
        }
        self.entries.iter().find(|entry| entry.path == path)?.modified
    }

    /// What could not be read.
    pub fn gaps(&self) -> Vec<String> {
        self.gaps.borrow().clone()
    }
}

/// The side that the top folder of a path names.
fn side_of(path: &str) -> Side {
    let Some((top, _)) = path.split_once('/') else { return Side::Open };
    match top {
        "now" | "current" | "today" => Side::Now,
        "before" | "baseline" | "old" | "earlier" => Side::Before,
        "after-fix" | "after" => Side::After,
        _ => Side::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_follow_the_top_folder() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["now/proc/7/cmdline", "before/server.log", "etc/x.service"] {
            let full = folder.path().join(path);
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            fs::write(full, "x").unwrap();
        }
        let tree = Tree::open(folder.path()).unwrap();
        let sides: Vec<(&str, Side)> =
            tree.entries.iter().map(|e| (e.host_path(), e.side)).collect();
        assert_eq!(
            sides,
            [
                ("server.log", Side::Before),
                ("etc/x.service", Side::Open),
                ("proc/7/cmdline", Side::Now)
            ]
        );
        assert!(tree.find("/etc/x.service", Side::Now).is_some());
        assert!(Tree::open(&folder.path().join("none")).is_err());
    }
}
