//! A secret that is planted anywhere in anything is gone, and redaction changes nothing twice.

#![no_main]

use dialects::redact;

/// Shapes that are secret wherever they stand.
const SECRETS: &[&str] = &["hf_abcdefghijklmnopqrstuvwx0123456789", "AKIAIOSFODNN7EXAMPLE1", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let once = redact::text(&text);
    assert_eq!(redact::text(&once), once, "redaction of what is redacted changes it");
    let line = redact::line(&text, 80);
    assert!(line.chars().count() <= 80, "{line:?}");
    assert!(!line.chars().any(char::is_control), "{line:?}");
    // Between two words, whatever the words are.
    let at = text.char_indices().map(|(i, _)| i).nth(text.chars().count() / 2).unwrap_or(0);
    let secret = SECRETS[bytes.len() % SECRETS.len()];
    let planted = format!("{} {secret} {}", &text[..at], &text[at..]);
    assert!(!redact::text(&planted).contains(secret), "{planted:?}");
    let flag = format!("{} --api-key plain-word-0815 {}", text.replace(char::is_control, " "), "--port 1");
    if !text.contains(['\'', '"', '\\', '#', '`', '$', '<', '(']) {
        assert!(!redact::text(&flag).contains("plain-word-0815"), "{flag:?}");
    }
});
