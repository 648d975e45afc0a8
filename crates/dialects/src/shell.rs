//! Splits shell text into commands and words, as far as finding a server's command line needs it.
//!
//! Nothing is executed and nothing is substituted except variables whose values the caller gives.

/// One simple command: the words between operators, quotes removed.
pub type Words = Vec<String>;

/// The most words kept from one text; a hostile file must not cost memory.
const MOST_WORDS: usize = 20_000;

/// Splits a script or a line into simple commands.
///
/// Handles quotes, backslashes, continued lines, comments, `;`, `&&`, `||`, `|`, `&`, brackets and redirections;
/// variables found by `lookup` are replaced, others stay as they are written.
pub fn split(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Vec<Words> {
    let mut splitter = Splitter {
        chars: text.chars().collect(),
        at: 0,
        word: None,
        words: Vec::new(),
        commands: Vec::new(),
        lookup,
        n_words: 0,
    };
    splitter.run();
    splitter.commands
}

/// Splits one line of words without operators: an `ExecStart=` value or a `command:` string.
pub fn words(text: &str) -> Words {
    split(text, &|_| None).concat()
}

struct Splitter<'a> {
    chars: Vec<char>,
    at: usize,
    word: Option<String>,
    words: Words,
    commands: Vec<Words>,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    n_words: usize,
}

impl Splitter<'_> {
    fn run(&mut self) {
        while let Some(c) = self.next() {
            match c {
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some('\r') if self.peek() == Some('\n') => self.at += 1,
                    Some(c) => self.push(c),
                },
                '\'' => self.single_quoted(),
                '"' => self.double_quoted(),
                '$' => self.variable(),
                '#' if self.word.is_none() => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '\n' | ';' | '&' | '|' | '(' | ')' => self.end_command(),
                '<' | '>' => {
                    self.end_word();
                    self.skip_redirection();
                }
                c if c.is_whitespace() => self.end_word(),
                c => self.push(c),
            }
            if self.n_words > MOST_WORDS {
                break;
            }
        }
        self.end_command();
    }

    fn next(&mut self) -> Option<char> {
        let c = self.chars.get(self.at).copied();
        self.at += 1;
        c
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn single_quoted(&mut self) {
        self.word.get_or_insert_default();
        while let Some(c) = self.next() {
            if c == '\'' {
                return;
            }
            self.push(c);
        }
    }

    fn double_quoted(&mut self) {
        self.word.get_or_insert_default();
        while let Some(c) = self.next() {
            match c {
                '"' => return,
                '$' => self.variable(),
                '\\' => match self.next() {
                    Some('\n') | None => {}
                    Some(c @ ('"' | '\\' | '$' | '`')) => self.push(c),
                    Some(c) => {
                        self.push('\\');
                        self.push(c);
                    }
                },
                c => self.push(c),
            }
        }
    }

    /// After a `$`: `$NAME`, `${NAME}` and `${NAME:-default}`; anything else stays as written.
    fn variable(&mut self) {
        let start = self.at;
        let braced = self.peek() == Some('{');
        if braced {
            self.at += 1;
        }
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
            self.at += 1;
        }
        let mut default = None;
        if braced {
            let rest: String = self.chars[self.at.min(self.chars.len())..]
                .iter()
                .take_while(|c| **c != '}')
                .collect();
            self.at += rest.chars().count() + 1;
            default = rest.strip_prefix(":-").or_else(|| rest.strip_prefix('-')).map(str::to_owned);
        }
        let found = if name.is_empty() { None } else { (self.lookup)(&name).or(default) };
        match found {
            Some(value) => self.push_str(&value),
            None => {
                let end = self.at.min(self.chars.len());
                let written: String = self.chars[start.min(end)..end].iter().collect();
                self.push('$');
                self.push_str(&written);
            }
        }
    }

    fn push_str(&mut self, text: &str) {
        self.word.get_or_insert_default().push_str(text);
    }

    /// Skips the target of a redirection; a number before it belongs to it.
    fn skip_redirection(&mut self) {
        if self.words.last().is_some_and(|w| w.len() == 1 && w.chars().all(|c| c.is_ascii_digit()))
        {
            self.words.pop();
        }
        while self.peek().is_some_and(|c| matches!(c, '<' | '>' | '&' | ' ')) {
            self.at += 1;
        }
        while self.peek().is_some_and(|c| !c.is_whitespace() && !matches!(c, ';' | '|' | '&' | ')'))
        {
            self.at += 1;
        }
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            self.words.push(word);
            self.n_words += 1;
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        if !self.words.is_empty() {
            self.commands.push(std::mem::take(&mut self.words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_commands() {
        let got = split(
            "cd /srv && A=1 exec vllm serve \\\n  m --sc '{\"k\": 3}' \"a b\" # note\nls | wc 2>&1 >x",
            &|_| None,
        );
        assert_eq!(got[0], ["cd", "/srv"]);
        assert_eq!(got[1], ["A=1", "exec", "vllm", "serve", "m", "--sc", "{\"k\": 3}", "a b"]);
        assert_eq!(got[2], ["ls"]);
        assert_eq!(got[3], ["wc"]);
    }

    #[test]
    fn variables_are_replaced_when_known() {
        let known = |name: &str| (name == "CTX").then(|| "65536".to_owned());
        assert_eq!(
            split("x $CTX ${CTX} ${N:-4} $M ${Q}", &known).concat(),
            ["x", "65536", "65536", "4", "$M", "${Q}"]
        );
    }

    #[test]
    fn broken_quotes_end_at_the_end() {
        assert_eq!(words("a 'b c"), ["a", "b c"]);
        assert_eq!(words("a \"b $"), ["a", "b $"]);
        assert_eq!(words("\\"), Vec::<String>::new());
    }
}
