//! Bytes of tokens to text, piece by piece.
//!
//! A token may end in the middle of a character. The incomplete tail, at most three bytes, is held
//! back until the next token completes it or shows that it never will; truly invalid bytes become
//! U+FFFD at once and never stall a stream. However the bytes are cut, the pieces joined equal
//! `String::from_utf8_lossy` of the whole.

/// Incremental UTF-8 decoder.
#[derive(Debug, Default)]
pub struct Detokenizer {
    /// The start of a character whose other bytes have not come yet.
    tail: [u8; 4],
    n_tail: usize,
}

impl Detokenizer {
    /// Decodes `bytes` and appends the text to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        while self.n_tail > 0 {
            let Some((&next, after)) = rest.split_first() else { return };
            self.tail[self.n_tail] = next;
            match std::str::from_utf8(&self.tail[..=self.n_tail]) {
                Ok(c) => {
                    out.push_str(c);
                    self.n_tail = 0;
                    rest = after;
                }
                Err(e) if e.error_len().is_none() => {
                    self.n_tail += 1;
                    rest = after;
                }
                // `next` does not belong to the character that had begun: it is read again as a
                // first byte.
                Err(_) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.n_tail = 0;
                }
            }
        }
        while let Err(e) = std::str::from_utf8(rest) {
            let (valid, after) = rest.split_at(e.valid_up_to());
            out.push_str(std::str::from_utf8(valid).unwrap_or_default());
            let Some(n_invalid) = e.error_len() else {
                self.n_tail = after.len();
                self.tail[..after.len()].copy_from_slice(after);
                return;
            };
            out.push(char::REPLACEMENT_CHARACTER);
            rest = &after[n_invalid..];
        }
        out.push_str(std::str::from_utf8(rest).unwrap_or_default());
    }

    /// Ends the text: an incomplete character becomes one U+FFFD.
    pub fn flush(&mut self, out: &mut String) {
        if self.n_tail > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            self.n_tail = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decodes `bytes` in pieces that end at `cuts`.
    fn decode(bytes: &[u8], cuts: &[usize]) -> (String, Vec<String>) {
        let mut detokenizer = Detokenizer::default();
        let mut pieces = Vec::new();
        let mut from = 0;
        for &cut in cuts.iter().chain([&bytes.len()]) {
            let mut piece = String::new();
            detokenizer.push(&bytes[from..cut], &mut piece);
            assert!(detokenizer.n_tail <= 3);
            pieces.push(piece);
            from = cut;
        }
        let mut tail = String::new();
        detokenizer.flush(&mut tail);
        pieces.push(tail);
        (pieces.concat(), pieces)
    }

    /// Case C13: every grouping of these byte pieces.
    #[test]
    fn characters_of_several_bytes_survive_every_grouping() {
        let pieces: [&[u8]; 8] = [
            b"\xe6\xb5",
            b"\xb7\xe3\x81",
            b"\xae",
            b"\x20\xf0\x9f",
            b"\xa6\x91",
            b"\xf0",
            b"\x9f\xa7\xb5\x21",
            b"",
        ];
        let bytes = pieces.concat();
        let ends: Vec<usize> = pieces
            .iter()
            .scan(0, |at, piece| {
                *at += piece.len();
                Some(*at)
            })
            .collect();
        for grouping in 0..1 << pieces.len() {
            let cuts: Vec<usize> =
                (0..pieces.len()).filter(|i| grouping >> i & 1 == 1).map(|i| ends[i]).collect();
            let (text, deltas) = decode(&bytes, &cuts);
            assert_eq!(text, "海の 🦑🧵!");
            assert!(deltas.iter().all(|delta| !delta.contains('\u{FFFD}')));
        }
    }

    #[test]
    fn an_unfinished_character_is_flushed_once() {
        let (text, pieces) = decode(b"ok \xf0\x9f\xa6", &[4, 5]);
        assert_eq!(text, "ok \u{FFFD}");
        assert_eq!(pieces.last().map(String::as_str), Some("\u{FFFD}"));
    }

    #[test]
    fn invalid_bytes_do_not_stall() {
        let mut detokenizer = Detokenizer::default();
        let mut text = String::new();
        for i in 1..=100 {
            detokenizer.push(b"\xff", &mut text);
            assert_eq!(text.chars().count(), i);
        }
        detokenizer.push(b"\xf0\x9f", &mut text);
        detokenizer.push(b"a", &mut text);
        assert!(text.ends_with("\u{FFFD}a"));
    }

    proptest! {
        #[test]
        fn any_cutting_equals_lossy_decoding(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), 0x80u8..0xC0, prop::sample::select(b"\xF0\xE2\xEDa".to_vec())],
                0..40,
            ),
            cuts in prop::collection::vec(0usize..40, 0..12),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            prop_assert_eq!(decode(&bytes, &cuts).0, String::from_utf8_lossy(&bytes));
        }
    }
}
