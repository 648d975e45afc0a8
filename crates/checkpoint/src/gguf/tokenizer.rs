//! The tokenizer in the metadata, as a `tokenizer.json`.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::meta::Meta;
use super::value::Value;
use crate::CheckpointError;

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const BOS: &str = "tokenizer.ggml.bos_token_id";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// Keys of tokens that end a sequence.
const ENDS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// Control tokens that end a turn or a text wherever they exist: a GGUF file names one end token
/// where a `generation_config.json` lists several.
const END_TEXTS: [&str; 5] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"];

/// What a token is, by its number in `token_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of the merges, or a byte of them.
    Ordinary,
    /// Hidden from the output.
    Control,
    /// Found in the text as it stands.
    UserDefined,
    /// A row without a meaning.
    Unused,
}

/// The vocabulary.
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    kinds: Vec<Kind>,
}

impl<'a> Vocabulary<'a> {
    fn read(meta: &Meta<'a>) -> Result<Self, CheckpointError> {
        let tokens = meta.texts(TOKENS)?.ok_or_else(|| meta.missing(TOKENS))?;
        let kinds = match meta.list(TYPES)? {
            None => vec![Kind::Ordinary; tokens.len()],
            Some(list) => {
                let kind = |value| match value {
                    Value::Signed(1 | 6) | Value::Unsigned(1 | 6) => Some(Kind::Ordinary),
                    Value::Signed(2 | 3) | Value::Unsigned(2 | 3) => Some(Kind::Control),
                    Value::Signed(4) | Value::Unsigned(4) => Some(Kind::UserDefined),
                    Value::Signed(0 | 5) | Value::Unsigned(0 | 5) => Some(Kind::Unused),
                    _ => None,
                };
                list.values().map(kind).collect::<Option<Vec<_>>>().ok_or_else(|| {
                    meta.wrong(TYPES, Value::Array(list), "a list of numbers from 0 to 6")
                })?
            }
        };
        if kinds.len() != tokens.len() {
            return Err(meta.error(format!(
                "`{TYPES}` has {} entries but there are {} tokens",
                kinds.len(),
                tokens.len()
            )));
        }
        Ok(Self { tokens, kinds })
    }

    fn each(&self) -> impl Iterator<Item = (usize, &'a str, Kind)> + '_ {
        self.tokens.iter().zip(&self.kinds).enumerate().map(|(id, (text, kind))| (id, *text, *kind))
    }
}

/// All tokens that end a sequence, the one the file calls the end first.
pub(super) fn end_tokens(meta: &Meta<'_>) -> Result<Vec<u32>, CheckpointError> {
    let mut ids = Vec::new();
    let mut add = |id| {
        if !ids.contains(&id) {
            ids.push(id);
        }
    };
    for key in ENDS {
        meta.token_id(key)?.into_iter().for_each(&mut add);
    }
    if meta.get(TOKENS).is_some() {
        let vocabulary = Vocabulary::read(meta)?;
        vocabulary
            .each()
            .filter(|(_, text, kind)| *kind == Kind::Control && END_TEXTS.contains(text))
            .for_each(|(id, ..)| add(id as u32));
    }
    Ok(ids)
}

/// How a byte-level tokenizer cuts text before it merges.
struct Pre {
    normalizer: Json,
    /// Patterns that cut one after another.
    patterns: &'static [&'static str],
    /// Whole words that are tokens are taken without looking at the merges.
    ignore_merges: bool,
    add_bos: bool,
}

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|]+";

fn pre(name: &str) -> Option<Pre> {
    let plain = Pre { normalizer: Json::Null, patterns: &[], ignore_merges: false, add_bos: false };
    // The models whose text this is compose characters first, by their own `tokenizer.json`.
    let nfc = json!({ "type": "NFC" });
    Some(match name {
        "qwen2" => Pre { normalizer: nfc, patterns: &[QWEN2], ..plain },
        "qwen35" => Pre { normalizer: nfc, patterns: &[QWEN35], ..plain },
        "llama-bpe" | "llama3" | "llama-v3" => {
            Pre { patterns: &[LLAMA3], ignore_merges: true, add_bos: true, ..plain }
        }
        "smollm" => Pre { patterns: &[r"\p{N}", GPT2], ..plain },
        "gpt-2" => Pre { patterns: &[GPT2], ..plain },
        "default" => Pre { patterns: &[PUNCTUATION, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..plain },
        _ => return None,
    })
}

/// The tokenizer as the bytes of a `tokenizer.json`.
pub(super) fn json(meta: &Meta<'_>) -> Result<Vec<u8>, CheckpointError> {
    match meta.text(MODEL)? {
        Some("gpt2") => {}
        None => return Err(meta.error("there is no tokenizer in it (`tokenizer.ggml.model`)")),
        Some(other) => {
            return Err(meta.error(format!(
                "`{MODEL}` is \"{other}\"; byte-level BPE (\"gpt2\") is supported"
            )));
        }
    }
    let name = meta.text(PRE)?.unwrap_or("default");
    let pre = pre(name).ok_or_else(|| {
        meta.error(format!(
            "`{PRE}` is \"{name}\"; qwen35, qwen2, llama-bpe, smollm, gpt-2 and default are supported"
        ))
    })?;
    if meta.flag("tokenizer.ggml.add_eos_token")? == Some(true) {
        return Err(meta.error(
            "`tokenizer.ggml.add_eos_token` is true; a prompt that is ended cannot be continued",
        ));
    }
    let vocabulary = Vocabulary::read(meta)?;
    let (vocab, added) = split(meta, &vocabulary)?;
    let merges = merges(meta, &vocab)?;
    let split = |pattern: &&str| {
        json!({
            "type": "Split",
            "pattern": { "Regex": pattern },
            "behavior": "Isolated",
            "invert": false,
        })
    };
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    let cuts: Vec<Json> = pre.patterns.iter().map(split).chain([byte_level.clone()]).collect();
    let vocab: Map<String, Json> =
        vocab.into_iter().map(|(text, id)| (text.to_string(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": pre.normalizer,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": cuts },
        "post_processor": begin(meta, &vocabulary, pre.add_bos)?,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    });
    Ok(tokenizer.to_string().into_bytes())
}

/// Texts with their ids, in the order of the ids.
type Vocab<'a> = Vec<(&'a str, usize)>;

/// The vocabulary without rows that mean nothing, and the added tokens of it.
fn split<'a>(
    meta: &Meta<'_>,
    vocabulary: &Vocabulary<'a>,
) -> Result<(Vocab<'a>, Vec<Json>), CheckpointError> {
    let mut seen = HashMap::new();
    let (mut vocab, mut added) = (Vec::new(), Vec::new());
    for (id, text, kind) in vocabulary.each() {
        if kind == Kind::Unused {
            continue;
        }
        if let Some(twin) = seen.insert(text, id) {
            return Err(meta.error(format!("`{TOKENS}`: {twin} and {id} are both {text:?}")));
        }
        // Added tokens are here too: it is where the `tokenizers` crate takes their ids from.
        vocab.push((text, id));
        if kind != Kind::Ordinary {
            added.push(json!({
                "id": id,
                "content": text,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": kind == Kind::Control,
            }));
        }
    }
    Ok((vocab, added))
}

/// The merges as pairs; every part and every result is a token.
fn merges<'a>(
    meta: &Meta<'a>,
    vocab: &[(&str, usize)],
) -> Result<Vec<[&'a str; 2]>, CheckpointError> {
    let known: HashMap<&str, usize> = vocab.iter().copied().collect();
    let list = meta.texts(MERGES)?.ok_or_else(|| meta.missing(MERGES))?;
    let mut joined = String::new();
    let mut pairs = Vec::with_capacity(list.len());
    for (i, merge) in list.into_iter().enumerate() {
        // A space is never part of a token here: the byte-level alphabet has another letter for it.
        let pair = merge.split_once(' ').filter(|(a, b)| {
            joined.clear();
            joined.extend([*a, *b]);
            [a, b, joined.as_str()].iter().all(|part| known.contains_key(part))
        });
        match pair {
            Some((a, b)) => pairs.push([a, b]),
            None => {
                return Err(meta.error(format!(
                    "`{MERGES}`: number {i} is {merge:?}; two tokens that make a third are needed"
                )));
            }
        }
    }
    Ok(pairs)
}

/// The post-processor: what belongs before a raw prompt.
fn begin(
    meta: &Meta<'_>,
    vocabulary: &Vocabulary<'_>,
    by_default: bool,
) -> Result<Json, CheckpointError> {
    if !meta.flag(ADD_BOS)?.unwrap_or(by_default) {
        return Ok(Json::Null);
    }
    let id = meta.token_id(BOS)?.ok_or_else(|| meta.missing(BOS))?;
    let text = vocabulary.tokens.get(id as usize);
    let text =
        text.ok_or_else(|| meta.error(format!("`{BOS}` is {id}; there is no such token")))?;
    let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let bos = json!({ "SpecialToken": { "id": text, "type_id": 0 } });
    let mut special = Map::new();
    special.insert((*text).to_string(), json!({ "id": text, "ids": [id], "tokens": [text] }));
    Ok(json!({
        "type": "TemplateProcessing",
        "single": [bos, sequence("A")],
        "pair": [bos, sequence("A"), sequence("B")],
        "special_tokens": special,
    }))
}

/// The entries of a `tokenizer_config.json`: what a chat template may name.
pub(super) fn config(meta: &Meta<'_>) -> Result<Map<String, Json>, CheckpointError> {
    let mut config = Map::new();
    let tokens = meta.texts(TOKENS)?.unwrap_or_default();
    for (key, entry) in [
        (BOS, "bos_token"),
        ("tokenizer.ggml.eos_token_id", "eos_token"),
        ("tokenizer.ggml.unknown_token_id", "unk_token"),
        ("tokenizer.ggml.padding_token_id", "pad_token"),
    ] {
        if let Some(text) = meta.token_id(key)?.and_then(|id| tokens.get(id as usize)) {
            config.insert(entry.into(), json!(text));
        }
    }
    Ok(config)
}
