//! No Rust file grows past the limit; the few longer ones are named, bounded and may only shrink.

use super::{File, Problem};

/// Lines of one file: past this it is nearly always two subjects.
const LIMIT: usize = 500;

/// Longer files: path, most lines, and why the file is one subject.
const EXCEPTIONS: &[(&str, usize, &str)] = &[];

/// Files over the limit, and exceptions that are no longer needed.
pub(super) fn check(files: &[File]) -> Vec<Problem> {
    check_with(files, EXCEPTIONS)
}

fn check_with(files: &[File], exceptions: &[(&str, usize, &str)]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.is("rs")) {
        let n = file.text.lines().count();
        let exception = exceptions.iter().find(|(path, ..)| *path == file.path);
        let limit = exception.map_or(LIMIT, |(_, limit, _)| *limit);
        if n > limit {
            problems.push(Problem::new(&file.path, 0, format!("{n} lines, the limit is {limit}")));
        } else if exception.is_some() && n <= LIMIT {
            problems.push(Problem::new(&file.path, 0, "no longer needs its length exception"));
        }
    }
    for (path, ..) in exceptions {
        if !files.iter().any(|file| file.path == *path) {
            problems.push(Problem::new(path, 0, "has a length exception but does not exist"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::{File, check_with};

    fn check(n_lines: usize, exceptions: &[(&str, usize, &str)]) -> Vec<String> {
        let file = File { path: "a.rs".into(), text: "x\n".repeat(n_lines) };
        check_with(&[file], exceptions).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn files_stay_short() {
        assert!(check(500, &[]).is_empty());
        assert_eq!(check(501, &[]), ["a.rs: 501 lines, the limit is 500"]);
    }

    #[test]
    fn exceptions_are_bounded_and_only_for_files_that_need_them() {
        assert!(check(600, &[("a.rs", 600, "a table")]).is_empty());
        assert_eq!(check(601, &[("a.rs", 600, "a table")]).len(), 1);
        assert_eq!(check(400, &[("a.rs", 600, "a table")]).len(), 1);
        assert_eq!(check(400, &[("gone.rs", 600, "a table")]).len(), 1);
    }
}
