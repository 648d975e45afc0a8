//! Rules for every file that people write: no stray whitespace, no open ends, one title.

use super::{File, Problem};

/// Words for unfinished work; put together here so that this file does not break its own rule.
const OPEN_ENDS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

/// Trailing whitespace, a missing last line end, and open ends without an issue number.
pub(super) fn check(file: &File) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            problems.push(Problem::new(&file.path, i + 1, "trailing whitespace"));
        }
        if let Some(word) = OPEN_ENDS.iter().find(|word| has_word(line, word))
            && !has_issue_number(line)
        {
            problems.push(Problem::new(&file.path, i + 1, format!("{word} without an issue #")));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        let last = file.text.lines().count();
        problems.push(Problem::new(&file.path, last, "no line end at the end of the file"));
    }
    problems
}

/// A Markdown file has exactly one `#` title.
pub(super) fn check_title(file: &File) -> Vec<Problem> {
    let mut fenced = false;
    let mut n_titles = 0;
    for line in file.text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        n_titles += usize::from(!fenced && line.starts_with("# "));
    }
    match n_titles {
        1 => Vec::new(),
        n => vec![Problem::new(&file.path, 0, format!("{n} `#` titles, there should be one"))],
    }
}

/// Whether `word` stands in `line` by itself and not inside a longer word.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part_of_word) && !line[at + word.len()..].starts_with(part_of_word)
    })
}

fn has_issue_number(line: &str) -> bool {
    line.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{File, OPEN_ENDS, check, check_title};

    fn problems(text: &str) -> Vec<String> {
        let file = File { path: "a.md".into(), text: text.into() };
        check(&file).iter().chain(&check_title(&file)).map(ToString::to_string).collect()
    }

    #[test]
    fn clean_text_passes() {
        assert!(problems("# Title\n\ntext\n").is_empty());
        assert!(problems("# Title\n\n```sh\n# a comment\n```\n").is_empty());
    }

    #[test]
    fn whitespace_and_line_ends() {
        assert_eq!(problems("# Title \ntext\n"), ["a.md:1: trailing whitespace"]);
        assert_eq!(problems("# Title\ntext"), ["a.md:2: no line end at the end of the file"]);
    }

    #[test]
    fn open_ends_need_an_issue() {
        for word in OPEN_ENDS {
            assert_eq!(problems(&format!("# Title\n{word}: later\n")).len(), 1);
            assert!(problems(&format!("# Title\n{word}(#12): later\n")).is_empty());
            assert!(problems(&format!("# Title\nMAS{word}S\n")).is_empty());
        }
    }

    #[test]
    fn one_title() {
        assert_eq!(problems("text\n"), ["a.md: 0 `#` titles, there should be one"]);
        assert_eq!(problems("# A\n# B\n"), ["a.md: 2 `#` titles, there should be one"]);
    }
}
