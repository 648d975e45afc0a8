//! Text to token ids and ids to bytes, for byte-level BPE tokenizers (`tokenizer.json`).
//!
//! The `tokenizers` crate does the pre-tokenising and the merges.
//! Added tokens (`<|im_end|>`, `<think>`, `<tool_call>`, special or not; "markers" here) are taken
//! away from it and found by our own search, so that the caller decides for each piece of text
//! whether marker text means the marker or just its letters: with [`Markers::Plain`] no added token
//! can come out, because the encoder does not know any.

use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::{AddedToken, AddedVocabulary};

/// Ids from here on are a broken file: a table with a row for each id would not fit in memory.
const MAX_VOCAB: u32 = 1 << 24;

/// Whether text that looks like an added token is that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Markers {
    /// `<|im_end|>` is one token: for text that the template or the operator wrote.
    Parse,
    /// `<|im_end|>` is spelt out in ordinary tokens: for text that a user wrote.
    Plain,
}

/// Why a tokenizer cannot be used, or a text not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.json` is not what the `tokenizers` crate reads.
    #[error("tokenizer.json cannot be read: {0}")]
    Unreadable(String),
    /// Ids map to bytes only where the byte-level alphabet is used (GPT-2, Qwen, Llama 3; not
    /// SentencePiece).
    #[error("tokenizer.json has no byte-level decoder; only byte-level BPE is supported")]
    NotByteLevel,
    /// The pre-tokenizer or the model gave up on a text.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
}

/// A byte-level BPE tokenizer.
pub struct Tokenizer {
    /// Normaliser, pre-tokenizer, merges and post-processor, without any added token.
    plain: tokenizers::Tokenizer,
    added: HashMap<u32, AddedToken>,
    markers: MarkerSet,
    ids: HashMap<String, u32>,
    /// The bytes of all ids in order; `bytes_end[id]` is where those of `id` end.
    bytes: Vec<u8>,
    bytes_end: Vec<u32>,
    /// The ordinary token of each single byte.
    byte_ids: Vec<Option<u32>>,
    prefix: Vec<u32>,
}

/// The search for marker text.
struct MarkerSet {
    search: AhoCorasick,
    /// By pattern index of the search.
    ids: Vec<u32>,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        let unreadable = |e: tokenizers::Error| TokenizerError::Unreadable(e.to_string());
        let mut plain = tokenizers::Tokenizer::from_bytes(json).map_err(unreadable)?;
        let byte_level = serde_json::to_value(plain.get_decoder())
            .is_ok_and(|decoder| decoder.to_string().contains("\"ByteLevel\""));
        if !byte_level {
            return Err(TokenizerError::NotByteLevel);
        }
        let added: HashMap<u32, AddedToken> =
            plain.get_added_tokens_decoder().into_iter().collect();
        let ids: HashMap<String, u32> = plain.get_vocab(true).into_iter().collect();
        if let Some((text, id)) = ids.iter().find(|(_, id)| **id >= MAX_VOCAB) {
            let message = format!("token {text:?} has the id {id}, the limit is {MAX_VOCAB}");
            return Err(TokenizerError::Unreadable(message));
        }
        plain.with_added_vocabulary(AddedVocabulary::new());
        let alphabet = byte_alphabet();
        let (bytes, bytes_end) = id_bytes(&ids, &added, &alphabet);
        let byte_ids = alphabet
            .iter()
            .map(|c| {
                ids.get(c.encode_utf8(&mut [0; 4]) as &str)
                    .copied()
                    .filter(|id| !added.contains_key(id))
            })
            .collect();
        let prefix = plain.encode_fast("", true).map_err(unreadable)?.get_ids().to_vec();
        let markers = MarkerSet::new(&added)?;
        Ok(Tokenizer { plain, added, markers, ids, bytes, bytes_end, byte_ids, prefix })
    }

    /// Encodes `text`; nothing is put before or after it (see [`Tokenizer::prefix_ids`]).
    pub fn encode(&self, text: &str, markers: Markers) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        let mut from = 0;
        if markers == Markers::Parse {
            for (id, span) in self.find_markers(text) {
                self.encode_plain(&text[from..span.start], &mut ids)?;
                ids.push(id);
                from = span.end;
            }
        }
        self.encode_plain(&text[from..], &mut ids)?;
        Ok(ids)
    }

    /// Appends the ids of a text in which nothing is a marker.
    pub(crate) fn encode_plain(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding = self
            .plain
            .encode_fast(text, false)
            .map_err(|e| TokenizerError::Encode(e.to_string()))?;
        for &id in encoding.get_ids() {
            if self.added.contains_key(&id) {
                // Some vocabularies list an added token among the ordinary ones too, within reach
                // of the merges.
                ids.extend(self.bytes(id).iter().filter_map(|&byte| self.byte_ids[byte as usize]));
            } else {
                ids.push(id);
            }
        }
        Ok(())
    }

    /// Where markers stand in `text`, leftmost and longest first, as the `tokenizers` crate would
    /// cut them.
    pub(crate) fn find_markers(&self, text: &str) -> Vec<(u32, Range<usize>)> {
        let mut found: Vec<(u32, Range<usize>)> = Vec::new();
        for m in self.markers.search.find_iter(text) {
            let id = self.markers.ids[m.pattern().as_usize()];
            let token = &self.added[&id];
            let (before, after) = (&text[..m.start()], &text[m.end()..]);
            let word = |c: char| c.is_alphanumeric() || c == '_';
            if token.single_word && (before.ends_with(word) || after.starts_with(word)) {
                continue;
            }
            let mut span = m.range();
            if token.lstrip {
                let free_from = found.last().map_or(0, |(_, span)| span.end);
                span.start = before.trim_end().len().max(free_from);
            }
            if token.rstrip {
                span.end = text.len() - after.trim_start().len();
            }
            found.push((id, span));
        }
        found
    }

    /// The texts of all added tokens.
    pub(crate) fn marker_texts(&self) -> impl Iterator<Item = &str> {
        self.added.values().map(|token| token.content.as_str())
    }

    /// What belongs before a raw prompt (a begin-of-text token); empty for Qwen.
    /// Chat templates write their own.
    pub fn prefix_ids(&self) -> &[u32] {
        &self.prefix
    }

    /// The bytes that a token stands for; none for an id that no token has.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.bytes_end.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.bytes_end[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// The text of a whole sequence, invalid bytes as U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let kept = ids.iter().filter(|&&id| !(skip_special_tokens && self.is_special(id)));
        let bytes: Vec<u8> = kept.flat_map(|&id| self.bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The id of a token, by its text as `tokenizer.json` writes it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Whether the token is a control token that `skip_special_tokens` hides.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|token| token.special)
    }

    /// The ids of all control tokens, ascending.
    pub fn special_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> =
            self.added.keys().copied().filter(|&id| self.is_special(id)).collect();
        ids.sort_unstable();
        ids
    }

    /// One more than the largest id. The model's logits may be wider (padding rows).
    pub fn n_vocab(&self) -> usize {
        self.bytes_end.len()
    }
}

impl MarkerSet {
    fn new(added: &HashMap<u32, AddedToken>) -> Result<MarkerSet, TokenizerError> {
        let mut tokens: Vec<(u32, &str)> = added
            .iter()
            .map(|(&id, t)| (id, t.content.as_str()))
            .filter(|(_, t)| !t.is_empty())
            .collect();
        tokens.sort_unstable();
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(_, text)| text))
            .map_err(|e| TokenizerError::Unreadable(e.to_string()))?;
        Ok(MarkerSet { search, ids: tokens.iter().map(|&(id, _)| id).collect() })
    }
}

/// The bytes of every id: the byte-level alphabet undone for ordinary tokens, the text itself for
/// added ones.
fn id_bytes(
    ids: &HashMap<String, u32>,
    added: &HashMap<u32, AddedToken>,
    alphabet: &[char; 256],
) -> (Vec<u8>, Vec<u32>) {
    let byte_of: HashMap<char, u8> =
        (0..=255).map(|byte: u8| (alphabet[byte as usize], byte)).collect();
    let mut by_id: Vec<(u32, &str)> = ids.iter().map(|(text, &id)| (id, text.as_str())).collect();
    by_id.sort_unstable();
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for (id, text) in by_id {
        // The second of two texts with one id adds nothing.
        if (id as usize) < ends.len() {
            continue;
        }
        // Ids without a token have no bytes.
        ends.resize(id as usize, bytes.len() as u32);
        if added.contains_key(&id) {
            bytes.extend_from_slice(text.as_bytes());
        } else {
            for c in text.chars() {
                match byte_of.get(&c) {
                    Some(&byte) => bytes.push(byte),
                    None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        }
        ends.push(bytes.len() as u32);
    }
    (bytes, ends)
}

/// The byte-level alphabet: a printable character for each byte. Printable Latin-1 bytes stand for
/// themselves, the other 68 are the characters from U+0100 on, in the order of the bytes.
fn byte_alphabet() -> [char; 256] {
    let mut others = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        byte @ (b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) => char::from(byte),
        _ => others.next().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
