//! Limits that follow from the context length: how large a body can be that still fits, and how short
//! a prompt must be.

use text::Tokenizer;

/// Head room for what is not prompt: names, sampling parameters, braces.
const BESIDES_PROMPT: usize = 1 << 20;

/// Small contexts still get bodies of this size, so that a prompt that is far too long is answered with
/// its length and the limit.
const SMALLEST_LIMIT: usize = 8 << 20;

/// The bytes of the longest token, and the most bytes that a token can take in a JSON string.
pub(crate) fn longest_token(tokenizer: &Tokenizer) -> (usize, usize) {
    let tokens = (0..tokenizer.n_vocab() as u32).map(|id| tokenizer.bytes(id));
    tokens.fold((1, 1), |(plain, escaped), bytes| {
        (plain.max(bytes.len()), escaped.max(bytes.iter().map(|b| escaped_len(*b)).sum()))
    })
}

/// The most bytes that one byte of text can take in a JSON string.
fn escaped_len(byte: u8) -> usize {
    match byte {
        // `\u0007`
        0..0x20 => 6,
        b'"' | b'\\' | b'/' => 2,
        0x20..0x80 => 1,
        // Two bytes of UTF-8 as `\u00e9`, four as two such groups.
        0x80.. => 3,
    }
}

/// The largest body that is read: it admits every prompt that the context can hold, as text in any
/// spelling that JSON allows or as token ids.
pub(crate) fn body_limit(context_len: usize, longest_escaped: usize) -> usize {
    // An id has at most ten digits; the rest is for a comma and white space.
    let per_token = longest_escaped.max(16);
    (context_len.saturating_mul(per_token)).saturating_add(BESIDES_PROMPT).max(SMALLEST_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_character_is_within_its_bound() {
        let spellings =
            [("é", r"\u00e9"), ("海", r"\u6d77"), ("🦑", r"\ud83e\udd91"), ("/", r"\/")];
        for (text, escaped) in spellings {
            assert!(text.bytes().map(escaped_len).sum::<usize>() >= escaped.len(), "{text}");
        }
        assert_eq!(escaped_len(b'\n'), r"\u000a".len());
    }

    #[test]
    fn a_body_of_token_ids_fits() {
        let ids = vec![u32::MAX; 1000];
        let body = serde_json::to_string_pretty(&ids).unwrap();
        assert!(body_limit(1_000_000, 1) >= 1000 * body.len());
    }
}
