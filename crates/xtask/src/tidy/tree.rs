//! The files of the repository: those that people write, and the names of all.

use std::path::Path;

use anyhow::Context;

/// Folders that hold data or build output: their files are named but not checked.
const DATA: [&str; 4] = ["cases/", "golden/", "models/", "fuzz/corpus/"];
/// Folders that are not looked into at all.
const SKIPPED: [&str; 4] = [".git", "target", "__pycache__", ".venv"];
/// Endings of the files that people write.
const WRITTEN: [&str; 8] = ["rs", "md", "toml", "py", "sh", "html", "css", "js"];

/// One file that people write.
#[derive(Debug)]
pub(super) struct File {
    /// Path below the root, with forward slashes.
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    /// Whether the file name ends in `.extension`.
    pub(super) fn is(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, end)| end == extension)
    }
}

/// The repository.
pub(super) struct Tree {
    /// Files that people write, with their text.
    pub(super) files: Vec<File>,
    /// Every file and folder below the root, folders with a slash at the end.
    pub(super) names: Vec<String>,
}

impl Tree {
    pub(super) fn read(root: &Path) -> anyhow::Result<Tree> {
        let mut tree = Tree { files: Vec::new(), names: Vec::new() };
        tree.walk(root, "")?;
        Ok(tree)
    }

    fn walk(&mut self, root: &Path, folder: &str) -> anyhow::Result<()> {
        let at = root.join(folder);
        let mut entries = std::fs::read_dir(&at)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .with_context(|| format!("cannot list {}", at.display()))?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}{name}");
            let kind = entry.file_type().with_context(|| path.clone())?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                let path = format!("{path}/");
                self.walk(root, &path)?;
                self.names.push(path);
            } else if kind.is_file() {
                if is_written(&path) {
                    let text = std::fs::read_to_string(entry.path())
                        .with_context(|| format!("cannot read {path}"))?;
                    self.files.push(File { path: path.clone(), text });
                }
                self.names.push(path);
            }
        }
        Ok(())
    }
}

fn is_written(path: &str) -> bool {
    let data = DATA.iter().any(|folder| path.starts_with(folder)) || path.contains("/fixtures/");
    let ending = path.rsplit_once('.').is_some_and(|(_, end)| WRITTEN.contains(&end));
    !data && (ending || path.starts_with(".ci/"))
}

#[cfg(test)]
mod tests {
    use super::is_written;

    #[test]
    fn data_is_not_checked() {
        assert!(is_written("crates/xtask/src/main.rs"));
        assert!(is_written(".ci/run"));
        assert!(!is_written("golden/README.md"));
        assert!(!is_written("crates/bench/src/fixtures/scipy.py"));
        assert!(!is_written("Cargo.lock"));
    }
}
