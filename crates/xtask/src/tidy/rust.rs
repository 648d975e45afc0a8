//! Rules for Rust files: a module doc on each, and `unsafe` only where it is listed.

use super::text::has_word;
use super::{File, Problem};

/// The one crate whose purpose needs `unsafe`.
const UNSAFE_CRATE: &str = "crates/kernels/";
/// The crate that maps weight files into memory, in one file.
const MAPPING_CRATE: &str = "crates/checkpoint/";

/// A file without a module doc.
pub(super) fn check(file: &File) -> Vec<Problem> {
    match file.text.lines().find(|line| !line.trim().is_empty()) {
        Some(first) if first.starts_with("//!") => Vec::new(),
        _ => vec![Problem::new(&file.path, 1, "no `//!` doc at the top")],
    }
}

/// `unsafe` outside `kernels` and the one mapping file of `checkpoint`.
pub(super) fn check_unsafe_is_contained(files: &[File]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut mapping: Option<&str> = None;
    for file in files.iter().filter(|f| f.is("rs") && !f.path.starts_with(UNSAFE_CRATE)) {
        let code = code_only(&file.text);
        let Some(line) = code.lines().position(|line| has_word(line, "unsafe")) else { continue };
        if file.path.starts_with(MAPPING_CRATE) && mapping.is_none() {
            mapping = Some(&file.path);
            continue;
        }
        let what = match mapping {
            Some(first) if file.path.starts_with(MAPPING_CRATE) => {
                format!("`unsafe` in a second file of checkpoint, the first is {first}")
            }
            _ => "`unsafe` outside kernels".to_owned(),
        };
        problems.push(Problem::new(&file.path, line + 1, what));
    }
    problems
}

/// The text with comments and literals blanked out, line for line.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = at + opaque_len(&text[at..], out.last().copied()).unwrap_or(0);
        if end == at {
            // Step over one whole character, so that `at` stays on a boundary.
            let n = text[at..].chars().next().map_or(1, char::len_utf8);
            out.extend_from_slice(&bytes[at..at + n]);
            at += n;
        } else {
            out.extend(bytes[at..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Length of the comment or literal that `rest` starts with; `before` is the byte in front of it.
fn opaque_len(rest: &str, before: Option<u8>) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment_len(rest));
    }
    if rest.starts_with('"') {
        return Some(quoted_len(rest, b'"'));
    }
    let starts_word = !before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    if starts_word && let Some(after) = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')) {
        let n_hashes = after.len() - after.trim_start_matches('#').len();
        if after[n_hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(n_hashes));
            let body = rest.len() - after.len() + n_hashes + 1;
            return Some(rest[body..].find(&close).map_or(rest.len(), |n| body + n + close.len()));
        }
    }
    if let Some(after) = rest.strip_prefix('\'') {
        // A lifetime has no closing quote right behind its first character.
        let first = after.chars().next()?;
        let closes = after[first.len_utf8()..].starts_with('\'');
        return (first == '\\' || closes).then(|| quoted_len(rest, b'\''));
    }
    None
}

/// Length of a nested block comment at the start of `rest`.
fn block_comment_len(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        match bytes.get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Length of a literal at the start of `rest` that ends at the next unescaped `quote`.
fn quoted_len(rest: &str, quote: u8) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::{File, check, check_unsafe_is_contained, code_only};

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn every_file_has_a_module_doc() {
        assert!(check(&file("a.rs", "//! What it is for.\n")).is_empty());
        assert_eq!(check(&file("a.rs", "fn f() {}\n")).len(), 1);
        assert_eq!(check(&file("a.rs", "")).len(), 1);
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let text =
            "a // unsafe\nb /* x /* unsafe */ y */ c \"un\\\"safe\" r#\"q\"unsafe\"# d '\"' e";
        let code = code_only(text);
        assert!(!code.contains("unsafe") && !code.contains('q'));
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
        assert_eq!(code.lines().count(), 2);
    }

    #[test]
    fn lifetimes_and_odd_text_survive() {
        assert_eq!(code_only("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(code_only("x = '\\'' + 'é' + é"), "x =      +      + é");
        assert_eq!(code_only("\"open"), "     ");
        assert_eq!(code_only("/* open \\"), "         ");
        assert_eq!(code_only("\"open\\").len(), 6);
    }

    #[test]
    fn unsafe_lies_in_kernels_and_one_mapping_file() {
        let bad = "//! Doc.\nfn f() { unsafe { g() } }\n";
        let good = "//! No unsafe here.\n#![deny(unsafe_code)]\n";
        let check = |files: &[(&str, &str)]| {
            let files: Vec<File> = files.iter().map(|(path, text)| file(path, text)).collect();
            check_unsafe_is_contained(&files).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(
            check(&[("crates/kernels/src/a.rs", bad), ("crates/api/src/a.rs", good)]).is_empty()
        );
        assert_eq!(
            check(&[("crates/api/src/a.rs", bad)]),
            ["crates/api/src/a.rs:2: `unsafe` outside kernels"]
        );
        assert!(check(&[("crates/checkpoint/src/a.rs", bad)]).is_empty());
        let two = [("crates/checkpoint/src/a.rs", bad), ("crates/checkpoint/src/b.rs", bad)];
        assert_eq!(check(&two).len(), 1);
    }
}
