//! Words of a command line as they stand in a file: untouched ones are written back as they were.

/// One word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// As it is written, with its quotes.
    pub raw: String,
    /// What it means; variables and specifiers stay as written.
    pub value: String,
}

/// Whose rules of quoting hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoting {
    /// `ExecStart=` of a unit.
    Systemd,
    /// A shell.
    Shell,
}

impl Quoting {
    /// Splits a line into words.
    pub fn split(self, line: &str) -> Vec<Word> {
        let mut words: Vec<Word> = Vec::new();
        let mut word: Option<Word> = None;
        let mut quote: Option<char> = None;
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            if quote.is_none() && c.is_whitespace() {
                words.extend(word.take());
                continue;
            }
            let current = word.get_or_insert(Word { raw: String::new(), value: String::new() });
            current.raw.push(c);
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (Some('\''), _) if self == Quoting::Shell => current.value.push(c),
                (_, '\\') => {
                    if let Some(next) = chars.next() {
                        current.raw.push(next);
                        let literal = quote == Some('"')
                            && self == Quoting::Shell
                            && !matches!(next, '"' | '\\' | '$' | '`');
                        if literal {
                            current.value.push('\\');
                        }
                        current.value.push(next);
                    }
                }
                _ => current.value.push(c),
            }
        }
        words.extend(word);
        words
    }

    /// A value as a word.
    ///
    /// # Errors
    /// When the value holds what no line of a file can hold.
    pub fn quote(self, value: &str) -> Result<Word, String> {
        if value.contains(char::is_control) {
            return Err(format!("{value:?} has control characters and cannot be put on a line"));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "_./:=,@+-".contains(c);
        let raw = if !value.is_empty() && value.chars().all(plain) {
            value.to_owned()
        } else {
            match self {
                Quoting::Shell => format!("'{}'", value.replace('\'', "'\\''")),
                Quoting::Systemd => {
                    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"");
                    format!("\"{}\"", escaped.replace('$', "$$").replace('%', "%%"))
                }
            }
        };
        Ok(Word { raw, value: value.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_keep_how_they_were_written() {
        let line = r#"/bin/x --a 'b c' --j="{\"k\": 1}" $ARGS %i  --end"#;
        let words = Quoting::Systemd.split(line);
        let values: Vec<&str> = words.iter().map(|word| word.value.as_str()).collect();
        assert_eq!(values, ["/bin/x", "--a", "b c", "--j={\"k\": 1}", "$ARGS", "%i", "--end"]);
        assert_eq!(words[2].raw, "'b c'");
        assert_eq!(Quoting::Systemd.quote("100% $5").unwrap().raw, "\"100%% $$5\"");
        assert!(Quoting::Systemd.quote("a\nExecStartPre=/bin/rm").is_err());
    }

    proptest! {
        /// Whatever is quoted is one word that means the same to a shell.
        #[test]
        fn quoted_is_one_word(value in "[ -~]{0,40}") {
            let word = Quoting::Shell.quote(&value).unwrap();
            prop_assert_eq!(Quoting::Shell.split(&word.raw), vec![word.clone()]);
            prop_assert_eq!(dialects::shell::words(&word.raw), vec![value.clone()]);
            let word = Quoting::Systemd.quote(&value).unwrap();
            let back = Quoting::Systemd.split(&word.raw);
            prop_assert_eq!(back.len(), 1);
            prop_assert_eq!(back[0].value.replace("%%", "%").replace("$$", "$"), value);
        }
    }
}
