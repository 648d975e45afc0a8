//! Names in `ARCHITECTURE.md` exist: a map that names what is gone is worse than none.

use super::text::has_word;
use super::tree::Tree;
use super::{File, Problem};

/// The document whose names are checked.
const DOCUMENT: &str = "ARCHITECTURE.md";
/// Endings that make a name a file.
const FILE_ENDINGS: [&str; 7] = [".rs", ".md", ".toml", ".json", ".jsonl", ".py", ".sh"];

/// Backticked paths, `crate::Item` names and type names that the tree does not have.
pub(super) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files.iter().filter(|file| file.path == DOCUMENT) {
        for (line, name) in backticked(&file.text) {
            if !exists(tree, name) {
                problems.push(Problem::new(DOCUMENT, line, format!("`{name}` does not exist")));
            }
        }
    }
    problems
}

/// Every `name` in backticks outside code fences, with its line.
fn backticked(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            found.extend(line.split('`').skip(1).step_by(2).map(|name| (i + 1, name)));
        }
    }
    found
}

/// Whether the tree has `name`, or `name` is not the name of a file, a crate's item or a type.
fn exists(tree: &Tree, name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:".contains(c);
    if !name.chars().all(plain) || name.starts_with(['/', '-']) || name.contains("://") {
        return true;
    }
    if name.contains('/') || FILE_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
        return has_path(tree, name);
    }
    match name.split_once("::") {
        Some((first, rest)) => {
            let source = format!("crates/{first}/");
            let in_crate = tree.names.contains(&source);
            let last = rest.rsplit("::").next().unwrap_or(rest);
            has_item(tree, last, if in_crate { &source } else { "crates/" })
        }
        None => !is_type_name(name) || has_item(tree, name, "crates/"),
    }
}

/// A path below the root, below `crates/`, or the end of one; folders with or without the slash.
fn has_path(tree: &Tree, name: &str) -> bool {
    let name = name.trim_end_matches('/');
    tree.names.iter().any(|path| {
        let path = path.trim_end_matches('/');
        path == name || path.strip_suffix(name).is_some_and(|front| front.ends_with('/'))
    })
}

fn has_item(tree: &Tree, item: &str, folder: &str) -> bool {
    let in_folder = |file: &&File| file.is("rs") && file.path.starts_with(folder);
    tree.files.iter().filter(in_folder).any(|file| has_word(&file.text, item))
}

/// `BlockPool`, but not `KV`, `Qwen3.5` or `snake_case`.
fn is_type_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric())
        && name.chars().skip(1).any(|c| c.is_ascii_uppercase())
        && name.chars().any(|c| c.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::{DOCUMENT, File, Tree, check};

    fn missing(document: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let pool = "crates/cache/src/pool.rs";
        let files = vec![file(pool, "//! d\npub struct BlockPool;"), file(DOCUMENT, document)];
        let names = ["crates/", "crates/cache/", "crates/cache/src/", pool, DOCUMENT];
        let tree = Tree { files, names: names.map(str::to_owned).to_vec() };
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_that_exist() {
        assert!(missing("`crates/cache`, `cache/src/pool.rs`, `pool.rs`, `BlockPool`").is_empty());
        assert!(missing("`cache::BlockPool` and `cache::pool::BlockPool`").is_empty());
    }

    #[test]
    fn names_that_do_not() {
        assert_eq!(missing("\n`gone.rs`"), ["ARCHITECTURE.md:2: `gone.rs` does not exist"]);
        assert_eq!(missing("`ool.rs` `cache/lib.rs` `SlotPool` `cache::Lease`").len(), 4);
    }

    #[test]
    fn what_is_not_a_name_passes() {
        let text = "`KV`, `--flag`, `/v1/models`, `a + b`, `http://x/y`, `n_rows`, `Qwen3.5`\n";
        assert!(missing(text).is_empty());
        assert!(missing("```text\n`gone.rs`\n```\n").is_empty());
    }
}
