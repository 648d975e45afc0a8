//! The four engines and their versions.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A server program whose flags, logs and metrics are known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Engine {
    /// SGLang.
    #[serde(rename = "sglang")]
    Sglang,
    /// vLLM.
    #[serde(rename = "vllm")]
    Vllm,
    /// llama.cpp's `llama-server`.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    /// Outrider itself, which writes SGLang's grammar.
    #[serde(rename = "outrider")]
    Outrider,
}

impl Engine {
    /// Every engine, for tables and tests.
    pub const ALL: [Engine; 4] = [Engine::Sglang, Engine::Vllm, Engine::LlamaCpp, Engine::Outrider];

    /// The name in reports and in saved evidence.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Sglang => "sglang",
            Engine::Vllm => "vllm",
            Engine::LlamaCpp => "llama.cpp",
            Engine::Outrider => "outrider",
        }
    }

    /// Reads a name as people write it (`llama-server`, `SGLang`, ...).
    pub fn from_name(name: &str) -> Option<Engine> {
        match name.to_ascii_lowercase().as_str() {
            "sglang" => Some(Engine::Sglang),
            "vllm" => Some(Engine::Vllm),
            "llama.cpp" | "llamacpp" | "llama_cpp" | "llama-server" | "llama-cpp" => {
                Some(Engine::LlamaCpp)
            }
            "outrider" => Some(Engine::Outrider),
            _ => None,
        }
    }

    /// Whether the engine's logs and flags follow SGLang's.
    pub fn like_sglang(self) -> bool {
        matches!(self, Engine::Sglang | Engine::Outrider)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A release such as `0.5.10.post1`, or a llama.cpp build such as `b6123`.
///
/// Ordered by the four numbers; the text is kept for display.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    parts: [u32; 4],
    text: String,
}

impl Version {
    /// Reads a version at the start of `text`; `v` and `b` prefixes are allowed.
    pub fn parse(text: &str) -> Option<Version> {
        let text = text.trim();
        let end = text
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-' | '_')))
            .unwrap_or(text.len());
        let text = &text[..end];
        let digits = text.trim_start_matches(['v', 'b', 'V', 'B']);
        let mut parts = [0u32; 4];
        let mut n = 0;
        for piece in digits.split(['.', '+', '-', '_']) {
            if let Some(post) = piece.strip_prefix("post") {
                parts[3] = post.parse().unwrap_or(0);
                break;
            }
            let number: String = piece.chars().take_while(char::is_ascii_digit).collect();
            if number.is_empty() || n >= 3 {
                break;
            }
            parts[n] = number.parse().ok()?;
            n += 1;
            if number.len() < piece.len() {
                break; // "0rc1": the release candidate counts as the release
            }
        }
        (n > 0).then(|| Version { parts, text: text.to_owned() })
    }

    /// A version from its numbers, for tables.
    pub fn of(major: u32, minor: u32, patch: u32) -> Version {
        Version { parts: [major, minor, patch, 0], text: format!("{major}.{minor}.{patch}") }
    }

    /// Whether this version is at least `major.minor.patch`.
    pub fn at_least(&self, major: u32, minor: u32, patch: u32) -> bool {
        self.parts >= [major, minor, patch, 0]
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        self.parts == other.parts
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Version) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Version) -> Ordering {
        self.parts.cmp(&other.parts)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Version {
    type Error = String;
    fn try_from(text: String) -> Result<Version, String> {
        Version::parse(&text).ok_or_else(|| format!("no version in {text:?}"))
    }
}

impl From<Version> for String {
    fn from(version: Version) -> String {
        version.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let v = |s| Version::parse(s).unwrap();
        assert!(v("0.5.9") < v("0.5.10.post1"));
        assert!(v("0.5.10") < v("0.5.10.post1"));
        assert!(v("v0.33.0") > v("0.19.1rc1"));
        assert_eq!(v("b6123").to_string(), "b6123");
        assert!(v("0.5.23+cu129").at_least(0, 5, 23));
        assert!(Version::parse("nightly").is_none());
    }
}
