//! Rules of the repository that no other tool checks, each in a file of its own.
//!
//! Every rule turns text into problems, so that its test is text in, problems out.

mod architecture;
mod edges;
mod length;
mod rust;
mod text;
mod tree;

use std::fmt;
use std::path::Path;

use self::tree::{File, Tree};

/// One broken rule, printed as `path:line: what`; line 0 stands for the whole file.
#[derive(Debug, PartialEq)]
pub(crate) struct Problem {
    path: String,
    line: usize,
    what: String,
}

impl Problem {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Problem {
        Problem { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Everything that is untidy in the repository at `root`.
///
/// # Errors
/// When a file cannot be read or `cargo metadata` fails.
pub(crate) fn problems(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let tree = Tree::read(root)?;
    let mut problems = edges::check(&edges::workspace_dependencies(root)?);
    for file in &tree.files {
        problems.extend(text::check(file));
        if file.is("rs") {
            problems.extend(rust::check(file));
        }
        if file.is("md") {
            problems.extend(text::check_title(file));
        }
    }
    problems.extend(rust::check_unsafe_is_contained(&tree.files));
    problems.extend(length::check(&tree.files));
    problems.extend(architecture::check(&tree));
    Ok(problems)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_is_tidy() {
        let problems = super::problems(crate::repository_root().unwrap()).unwrap();
        let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(list.is_empty(), "untidy:\n{}", list.join("\n"));
    }
}
