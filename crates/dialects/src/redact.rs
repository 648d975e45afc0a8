//! Removes secrets, control characters and terminal escapes from anything that may be printed or saved.
//!
//! A secret is recognised by the name it belongs to (`--api-key`, `HF_TOKEN`, `Authorization:`) or by its own shape
//! (`hf_…`, `sk-…`, a password inside a URL, a private key). What is left in its place is [`MARK`].

use std::sync::LazyLock;

use regex::Regex;

/// Stands where a secret was.
pub const MARK: &str = "<redacted>";

/// Words that make a name secret when they stand alone between separators.
const SECRET_WORDS: &[&str] = &[
    "secret",
    "secrets",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "pass",
    "credential",
    "credentials",
    "authorization",
    "bearer",
    "cookie",
    "apikey",
    "authtoken",
    "accesskey",
    "privatekey",
    "token",
    "pat",
];

/// `key` is secret only after one of these: a cache key or a key file is not.
const KEY_KINDS: &[&str] = &[
    "api",
    "access",
    "secret",
    "private",
    "admin",
    "auth",
    "encryption",
    "signing",
    "master",
    "account",
];

/// Whether a flag, variable or field name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    let mut words: Vec<String> = Vec::new();
    for part in name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty()) {
        split_camel(part, &mut words);
    }
    let pair = |i: usize| (words[i].as_str(), words.get(i + 1).map_or("", String::as_str));
    (0..words.len()).any(|i| match pair(i) {
        ("tool", _) => false,
        // `--token-map`, `token_usage`: about tokens of text.
        ("token", next)
            if i + 1 < words.len()
                && !matches!(next, "file" | "value" | "id" | "secret" | "env") =>
        {
            false
        }
        (word, _) if SECRET_WORDS.contains(&word) => true,
        (word, "key" | "keys") => KEY_KINDS.contains(&word),
        _ => false,
    })
}

/// `apiKey` and `ApiKey` into `api`, `key`; `HF_TOKEN` stays one word per part.
fn split_camel(part: &str, words: &mut Vec<String>) {
    let mut word = String::new();
    let mut was_lower = false;
    for c in part.chars() {
        if c.is_ascii_uppercase() && was_lower {
            words.push(std::mem::take(&mut word));
        }
        was_lower = c.is_ascii_lowercase();
        word.push(c.to_ascii_lowercase());
    }
    words.push(word);
}

/// A flag's or variable's value, made safe to show.
pub fn value(name: &str, word: &str) -> String {
    if is_secret_name(name) {
        return MARK.to_owned();
    }
    let shown = text(word);
    if shown == word
        && looks_random(word)
        && crate::factor::Factor::from_name(name).is_none()
        && !is_pathlike(word)
    {
        return MARK.to_owned();
    }
    shown
}

static SHAPES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?:\bhf_[A-Za-z0-9_]{12,}",
        r"|\b(?:sk|pk|rk)-[A-Za-z0-9_\-]{12,}",
        r"|\b(?:AKIA|ASIA)[0-9A-Z]{12,}",
        r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}",
        r"|\bglpat-[A-Za-z0-9_\-]{16,}|\bxox[abposr]-[A-Za-z0-9\-]{10,}|\bnvapi-[A-Za-z0-9_\-]{16,}|\bya29\.[A-Za-z0-9_\-]{16,}",
        r"|\bAIza[A-Za-z0-9_\-]{30,}",
        r"|\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*",
        r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?)",
    ))
    .expect("a constant pattern")
});

/// `scheme://user:password@host`.
static URL_PASSWORD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"([A-Za-z][A-Za-z0-9+.\-]*://)[^\s/@:'\x22]*:[^\s/@'\x22]+@")
        .expect("a constant pattern")
});

/// `Bearer x`, `Basic x`.
static SCHEME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)\b(Bearer|Basic)(\s+)[A-Za-z0-9+/=._~\-]{6,}").expect("a constant pattern")
});

/// A name and what stands between it and its value: `--api-key x`, `TOKEN=x`, `'api_key': 'x'`.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r#"(?P<name>[A-Za-z0-9_.\-]*(?i:key|token|secret|passw|passphrase|pwd|pass|credential|authorization|bearer|cookie|pat)[A-Za-z0-9_.\-]*)"#,
        r#"(?P<gap>['"]?\s*[=:]\s*|\s+|['"],\s*)['"]?"#,
    ))
    .expect("a constant pattern")
});

/// Any text on one line, with its secrets replaced and without anything that a terminal would act on.
pub fn text(text: &str) -> String {
    let plain = without_escapes(text);
    let no_passwords = URL_PASSWORD.replace_all(&plain, format!("${{1}}{MARK}@"));
    let no_shapes = SHAPES.replace_all(&no_passwords, MARK);
    let no_schemes = SCHEME.replace_all(&no_shapes, format!("${{1}}${{2}}{MARK}"));
    without_named(&no_schemes)
}

/// The text without the values of secret names. What follows a name that is none is looked at again: in
/// `--skip-tokenizer-init --api-key x` the second word is no value.
fn without_named(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(found) = NAMED.captures_at(text, at) {
        let (name, gap) = (&found["name"], &found["gap"]);
        let end = found.get_match().end();
        out += &text[at..end];
        at = end;
        let spaced = !gap.contains(['=', ':', ',']);
        // Without a sign between them, only a flag takes the next word: prose about tokens stays as it is.
        if !is_secret_name(name) || (spaced && !name.starts_with("--")) {
            continue;
        }
        let ends = |c: char| c.is_whitespace() || "'\",;}]".contains(c);
        let value = &text[at..at + text[at..].find(ends).unwrap_or(text.len() - at)];
        let is_count =
            name.ends_with("token") && value.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        // A flag for a secret stands where a value should: its own value comes next.
        let is_flag = value.starts_with("--") && is_secret_name(value);
        if !value.is_empty() && !is_harmless(value) && !is_count && !is_flag {
            out += MARK;
            at += value.len();
        }
    }
    out += &text[at..];
    out
}

/// Values that say that there is no secret.
fn is_harmless(value: &str) -> bool {
    matches!(value, "None" | "null" | "none" | "True" | "False" | "true" | "false" | MARK)
        || value.starts_with(['$', '%', '<'])
}

/// A long word without the look of language or of a path: most likely a key.
pub fn looks_random(word: &str) -> bool {
    if word.len() < 24 || word.len() > 512 || !word.is_ascii() || word.contains(char::is_whitespace)
    {
        return false;
    }
    let (mut lower, mut upper, mut digit) = (0u32, 0u32, 0u32);
    let mut counts = [0u32; 128];
    for byte in word.bytes() {
        counts[usize::from(byte & 127)] += 1;
        match byte {
            b'a'..=b'z' => lower += 1,
            b'A'..=b'Z' => upper += 1,
            b'0'..=b'9' => digit += 1,
            _ => {}
        }
    }
    let n = word.len() as f64;
    let entropy: f64 =
        counts.iter().filter(|&&c| c > 0).map(|&c| f64::from(c) / n).map(|p| -p * p.log2()).sum();
    let mixed = digit >= 4 && lower + upper >= 8 && (upper > 0 || digit * 4 >= lower);
    mixed && entropy > 3.6
}

fn is_pathlike(word: &str) -> bool {
    word.contains('/') || word.contains('{') || word.contains(',') || word.contains('.')
}

/// One line of foreign text made safe to print: redacted, without control characters, escapes and direction marks,
/// no longer than `most` characters.
pub fn line(foreign: &str, most: usize) -> String {
    let cut: String = foreign.chars().take(most.saturating_mul(4).saturating_add(256)).collect();
    let plain = text(&cut);
    if plain.chars().count() <= most {
        return plain;
    }
    let mut short: String = plain.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Removes terminal escape sequences and every character that is not visible.
pub fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => skip_escape(&mut chars),
            '\u{9b}' => skip_until(&mut chars, |c| ('@'..='~').contains(&c)),
            '\t' => out.push(' '),
            c if c.is_control() => {}
            '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => {}
            c => out.push(c),
        }
    }
    out
}

fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => skip_until(chars, |c| ('@'..='~').contains(&c)),
        Some(']' | 'P' | '^' | '_' | 'X') => {
            // A string command ends at BEL or at ESC \.
            while let Some(c) = chars.next() {
                if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                    break;
                }
            }
        }
        _ => {}
    }
}

fn skip_until(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, end: impl Fn(char) -> bool) {
    for c in chars.by_ref() {
        if end(c) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_secrets_from_settings() {
        for name in [
            "--api-key",
            "api_key",
            "HF_TOKEN",
            "--hf-token",
            "AWS_SECRET_ACCESS_KEY",
            "DB_PASSWORD",
            "apiKey",
            "admin_api_key",
            "Authorization",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "--max-total-tokens",
            "tokenizer_path",
            "--tool-call-parser",
            "num_draft_tokens",
            "cache_key",
            "token_usage",
            "--speculative-token-map",
            "extra_key",
            "compat",
            "bypass",
            "path",
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn secrets_leave_a_mark() {
        let cases = [
            "Environment=HF_TOKEN=hf_FAKEtokenForRedactionTest000000",
            "sglang --api-key sk-fake-redaction-test-000111 --port 1",
            "vllm serve m --api-key=plain-word-1",
            "{'api_key': 'qwertyuiop', 'port': 3}",
            r#"{"api_key":"qwertyuiop"}"#,
            "curl -H 'Authorization: Bearer abcdef123456' http://x",
            "https://user:hunter2@example.org/x",
            "export DB_PASSWORD=hunter2",
            "docker run -e OPENAI_API_KEY=qwertyuiop image",
            "AKIAIOSFODNN7EXAMPLE",
            "x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.sig y",
        ];
        for case in cases {
            let shown = text(case);
            assert!(shown.contains(MARK), "{shown}");
            for secret in [
                "hf_FAKE",
                "sk-fake",
                "plain-word-1",
                "qwertyuiop",
                "abcdef123456",
                "hunter2",
                "AKIA",
                "eyJ",
            ] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    }

    /// Found by fuzzing: a name that is no secret took the flag after it for its value, and nobody looked at that.
    #[test]
    fn a_flag_after_a_word_about_tokens_is_no_value() {
        for case in [
            "--skip-tokenizer-init --api-key plain-word-1",
            "---Time to First Token---11  --api-key plain-word-1 --port 1",
            "keys --token-map --api-key=plain-word-1",
            "pass token: --api-key plain-word-1",
            "tokenizer: 'api_key': 'plain-word-1'",
        ] {
            let shown = text(case);
            assert!(shown.contains(MARK) && !shown.contains("plain-word"), "{shown}");
            assert_eq!(text(&shown), shown);
        }
        // A long line of such names takes no longer than it is long.
        let long = "key=".repeat(1 << 16);
        assert_eq!(text(&long).len(), long.len());
    }

    #[test]
    fn ordinary_lines_stay_whole() {
        for case in [
            "--speculative-num-draft-tokens 4 --tp 2",
            "token usage: 0.12, accept len: 2.50",
            "max_total_num_tokens=242028, context_len=131072",
            "'tokenizer_path': '/models/Qwen3.6-27B', 'api_key': None",
            "#new-token: 575, #cached-token: 0",
            "http://127.0.0.1:30000/v1",
        ] {
            assert_eq!(text(case), case);
        }
    }

    #[test]
    fn random_words_of_unknown_flags_are_hidden() {
        assert_eq!(value("--license", "a8Fk29dLq0Zx71Pb55Tn3RwQ"), MARK);
        assert_eq!(value("--model-path", "/models/Qwen3.6-27B-FP8"), "/models/Qwen3.6-27B-FP8");
        assert_eq!(value("--reasoning-parser", "qwen3"), "qwen3");
    }

    #[test]
    fn escapes_and_controls_do_not_survive() {
        let nasty = "a\u{1b}[31mred\u{1b}[0m\u{1b}]0;title\u{7}b\rc\u{8}\u{202e}d\u{9b}2Je\u{1b}]52;c;eA==\u{1b}\\f";
        assert_eq!(line(nasty, 80), "aredbcdef");
        assert_eq!(line("abcdef", 4), "abc…");
    }
}
