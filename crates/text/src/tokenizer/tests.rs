//! The tokenizer against the stock `tokenizers` crate.

use super::*;
use crate::testing::{FOLDERS, read, tokenizer};
use proptest::prelude::*;
use std::sync::{Arc, LazyLock};

const TEXTS: [&str; 9] = [
    "",
    "def f(x):\n    return x + 1  # naïve\n\n\n",
    "海の月 🦑🧵 naïve Ωmega e\u{301} \u{212b}",
    "  two  spaces \t tabs\r\n\r\n 12345 it's THEY'LL",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<|im_start|><|im_start|><|im_end|",
    "a<think></think><tool_call>b</tool_call><tool_response>",
    "<|endoftext|>",
    "\u{F0000}\u{10FFFD}\u{0}",
];

fn stock(folder: &str) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(read(&format!("{folder}/tokenizer.json"))).unwrap()
}

#[test]
fn parsing_equals_the_stock_tokenizer() {
    for folder in FOLDERS {
        let (ours, stock) = (tokenizer(folder), stock(folder));
        for text in TEXTS {
            let want = stock.encode_fast(text, false).unwrap();
            assert_eq!(ours.encode(text, Markers::Parse).unwrap(), want.get_ids(), "{text:?}");
            for skip in [true, false] {
                assert_eq!(
                    ours.decode(want.get_ids(), skip),
                    stock.decode(want.get_ids(), skip).unwrap()
                );
            }
        }
    }
}

#[test]
fn plain_text_never_gives_an_added_token() {
    for folder in FOLDERS {
        let tokenizer = tokenizer(folder);
        let markers: Vec<&str> = tokenizer.marker_texts().collect();
        assert!(markers.contains(&"<think>") && markers.contains(&"<|im_end|>"));
        for text in markers.iter().copied().chain(TEXTS) {
            let ids = tokenizer.encode(text, Markers::Plain).unwrap();
            assert!(ids.iter().all(|id| !tokenizer.added.contains_key(id)), "{text:?}");
            if text.is_ascii() {
                assert_eq!(tokenizer.decode(&ids, true), text);
            }
        }
        let turn_end = tokenizer.encode("<|im_end|>", Markers::Plain).unwrap();
        assert!(turn_end.len() >= 3);
    }
}

/// An added token that the ordinary merges reach as well.
#[test]
fn an_added_token_within_reach_of_the_merges_is_spelt_in_bytes() {
    let mut json: serde_json::Value =
        serde_json::from_slice(&read("golden/hybrid-tiny-f32/tokenizer.json")).unwrap();
    let (word, id) = json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .find(|(word, _)| word.len() >= 2 && word.bytes().all(|b| b.is_ascii_lowercase()))
        .map(|(word, id)| (word.clone(), id.clone()))
        .unwrap();
    let added = serde_json::json!({"id": id, "content": word, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false});
    json["added_tokens"].as_array_mut().unwrap().insert(0, added);
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
    let id = id.as_u64().unwrap() as u32;
    assert_eq!(tokenizer.encode(&word, Markers::Parse).unwrap(), [id]);
    let plain = tokenizer.encode(&word, Markers::Plain).unwrap();
    assert_eq!(plain.len(), word.len());
    assert!(!plain.contains(&id));
    assert_eq!(tokenizer.decode(&plain, false), word);
}

#[test]
fn blanks_beside_a_marker_follow_its_flags() {
    let mut json: serde_json::Value =
        serde_json::from_slice(&read("golden/hybrid-tiny-f32/tokenizer.json")).unwrap();
    for (marker, flag) in
        [("<think>", "lstrip"), ("</think>", "rstrip"), ("<tool_call>", "single_word")]
    {
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        tokens.iter_mut().find(|t| t["content"] == marker).unwrap()[flag] = true.into();
    }
    let json = json.to_string();
    let ours = Tokenizer::from_json(json.as_bytes()).unwrap();
    let stock = tokenizers::Tokenizer::from_bytes(json.as_bytes()).unwrap();
    for text in [
        "a  <think>  b",
        "</think> \n <think>",
        "x<tool_call>",
        " <tool_call>.",
        "_<tool_call>",
        "</think>  ",
    ] {
        let want = stock.encode_fast(text, false).unwrap();
        assert_eq!(ours.encode(text, Markers::Parse).unwrap(), want.get_ids(), "{text:?}");
    }
}

#[test]
fn ids_without_a_token_are_harmless() {
    let tokenizer = tokenizer(FOLDERS[0]);
    assert_eq!(tokenizer.n_vocab(), 4096);
    assert_eq!(tokenizer.bytes(4096), b"");
    assert_eq!(tokenizer.bytes(u32::MAX), b"");
    assert!(!tokenizer.is_special(u32::MAX));
    assert_eq!(tokenizer.decode(&[u32::MAX, 4086], false), "<|im_end|>");
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(4086));
    assert_eq!(tokenizer.special_ids(), (4084..4096).collect::<Vec<u32>>());
    assert!(tokenizer.prefix_ids().is_empty());
}

#[test]
fn every_byte_has_a_token() {
    for folder in FOLDERS {
        let tokenizer = tokenizer(folder);
        for byte in 0..=255u8 {
            let id = tokenizer.byte_ids[byte as usize].unwrap();
            assert_eq!(tokenizer.bytes(id), [byte]);
        }
    }
}

#[test]
fn what_is_not_byte_level_is_refused() {
    let mut json: serde_json::Value =
        serde_json::from_slice(&read("golden/hybrid-tiny-f32/tokenizer.json")).unwrap();
    json["decoder"] = serde_json::json!({"type": "Fuse"});
    let result = Tokenizer::from_json(json.to_string().as_bytes());
    assert!(matches!(result, Err(TokenizerError::NotByteLevel)));
    assert!(matches!(Tokenizer::from_json(b"{}"), Err(TokenizerError::Unreadable(_))));
    json["decoder"] = serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    json["model"]["vocab"]["far"] = u32::MAX.into();
    let error = Tokenizer::from_json(json.to_string().as_bytes()).err().unwrap().to_string();
    assert!(error.contains("far") && error.contains("4294967295"), "{error}");
}

#[test]
fn a_begin_token_of_the_post_processor_is_found() {
    let mut json: serde_json::Value =
        serde_json::from_slice(&read("golden/llama-tiny-f32/tokenizer.json")).unwrap();
    json["post_processor"] = serde_json::json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [352], "tokens": ["<|endoftext|>"]}}
    });
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.prefix_ids(), [352]);
    assert_eq!(tokenizer.encode("a", Markers::Parse).unwrap().len(), 1);
}

proptest! {
    #[test]
    fn marker_soup_is_cut_as_the_stock_tokenizer_cuts_it(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|im_", "<", "|>",
            "a", " ", "\n", "é", "1",
        ]), 0..12),
    ) {
        static STOCK: LazyLock<[(Arc<Tokenizer>, tokenizers::Tokenizer); 2]> =
            LazyLock::new(|| FOLDERS.map(|folder| (tokenizer(folder), stock(folder))));
        let text = pieces.concat();
        for (ours, stock) in STOCK.iter() {
            let want = stock.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(ours.encode(&text, Markers::Parse).unwrap(), want.get_ids());
        }
    }

    #[test]
    fn any_text_round_trips(text in any::<String>()) {
        // This tokenizer does not normalise.
        static TINY: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| tokenizer(FOLDERS[0]));
        let tokenizer = &*TINY;
        for markers in [Markers::Plain, Markers::Parse] {
            let ids = tokenizer.encode(&text, markers).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false), text.as_str());
        }
    }
}
