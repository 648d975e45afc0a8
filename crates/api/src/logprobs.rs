//! Log-probabilities in the shapes of the three routes.
//!
//! They are of the target model before penalties, bias and temperature, the same with speculation on
//! and off. Every counted token has an entry; a token without text (an end or control token) has no bytes.

use engine::request::TokenOut;
use serde_json::{Map, Value, json};
use text::Tokenizer;

/// JSON has no infinities; this stands for a probability of zero.
const LOWEST: f32 = -9999.0;

/// How tokens are written.
#[derive(Clone, Copy)]
pub(crate) struct Writer<'a> {
    /// Bytes of tokens.
    pub tokenizer: &'a Tokenizer,
    /// Whether control tokens have text in this answer.
    pub skip_special_tokens: bool,
    /// Entries beside the chosen token.
    pub n_top: usize,
}

impl Writer<'_> {
    /// Chat: one entry.
    fn entry(&self, id: u32, logprob: f32) -> Map<String, Value> {
        let mut entry = Map::new();
        let hidden = self.skip_special_tokens && self.tokenizer.is_special(id);
        let bytes = if hidden { &[] } else { self.tokenizer.bytes(id) };
        entry.insert("token".into(), String::from_utf8_lossy(self.tokenizer.bytes(id)).into());
        entry.insert("logprob".into(), json!(finite(logprob)));
        entry.insert("bytes".into(), json!(bytes));
        entry
    }

    /// `choices[].logprobs` of a chat.
    pub(crate) fn chat(&self, tokens: &[TokenOut]) -> Value {
        let content: Vec<Value> = tokens
            .iter()
            .map(|token| {
                let mut entry = self.entry(token.id, token.logprob.unwrap_or(LOWEST));
                let top = token.top.iter().take(self.n_top);
                let top: Vec<Value> = top.map(|(id, p)| self.entry(*id, *p).into()).collect();
                entry.insert("top_logprobs".into(), top.into());
                entry.into()
            })
            .collect();
        json!({"content": content, "refusal": null})
    }

    /// `choices[].logprobs` of a completion. `offset` is where the text of the first token begins, in
    /// characters, and is moved past the last.
    pub(crate) fn completion(&self, tokens: &[TokenOut], offset: &mut usize) -> Value {
        let mut names = Vec::new();
        let mut offsets = Vec::new();
        let mut tops = Vec::new();
        for token in tokens {
            names.push(self.name(token.id));
            offsets.push(*offset);
            if !(self.skip_special_tokens && self.tokenizer.is_special(token.id)) {
                *offset += String::from_utf8_lossy(self.tokenizer.bytes(token.id)).chars().count();
            }
            let top = token.top.iter().take(self.n_top);
            tops.push(
                top.map(|(id, p)| (self.name(*id), json!(finite(*p)))).collect::<Map<_, _>>(),
            );
        }
        let logprobs: Vec<f32> =
            tokens.iter().map(|t| finite(t.logprob.unwrap_or(LOWEST))).collect();
        json!({
            "tokens": names,
            "token_logprobs": logprobs,
            "top_logprobs": if self.n_top > 0 { json!(tops) } else { Value::Null },
            "text_offset": offsets,
        })
    }

    /// The text of a token that is a whole string, else its bytes: names of one position differ.
    fn name(&self, id: u32) -> String {
        let bytes = self.tokenizer.bytes(id);
        match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().fold("bytes:".to_owned(), |s, b| format!("{s}\\x{b:02x}")),
        }
    }

    /// `/generate`: `[logprob, id, text or null]`.
    pub(crate) fn native(&self, id: u32, logprob: Option<f32>, with_text: bool) -> Value {
        let text =
            with_text.then(|| String::from_utf8_lossy(self.tokenizer.bytes(id)).into_owned());
        json!([finite(logprob.unwrap_or(LOWEST)), id, text])
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOWEST }
}
