//! A tokenizer that went through GGUF metadata gives the ids of the `tokenizer.json` it came from.

use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use testkit::gguf::GgufFile;
use text::{Markers, Tokenizer};

const TEXTS: [&str; 12] = [
    "",
    "def f(x):\n    return x + 1  # naïve\n\n\n",
    "海の月 🦑🧵 naïve Ωmega ééé Å",
    "  two  spaces \t tabs\r\n\r\n 12345 it's THEY'LL don't",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<|im_start|><|im_start|><|im_end|",
    "a<think></think><tool_call>b</tool_call><tool_response>",
    "<|endoftext|>",
    "\u{F0000}\u{10FFFD}\u{0}",
    "สวัสดีครับ ผมชื่ออเล็กซ์ नमस्ते",
    "snake_case CamelCase 3.14159 -> λ x. x²; {\"a\": [1, 2]}",
    "你好，世界！今天是2026年8月13日 🎉",
];

fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn assert_same_ids(ours: &Tokenizer, theirs: &Tokenizer, texts: &[&str]) {
    for text in texts {
        for markers in [Markers::Parse, Markers::Plain] {
            let ids = |t: &Tokenizer| t.encode(text, markers).unwrap();
            assert_eq!(ids(ours), ids(theirs), "{text:?}");
        }
        let ids = ours.encode(text, Markers::Parse).unwrap();
        assert_eq!(ours.decode(&ids, false), theirs.decode(&ids, false));
    }
    assert_eq!(ours.special_ids(), theirs.special_ids());
    assert_eq!(ours.prefix_ids(), theirs.prefix_ids());
}

#[test]
fn qwen_tokenizers_come_back_from_the_metadata() {
    // As the package `gguf` writes it.
    let file = Checkpoint::open(&repo("golden/gguf/hybrid-tiny-tied-bf16.gguf")).unwrap();
    let ours = Tokenizer::from_json(&file.tokenizer_json().unwrap()).unwrap();
    let json = std::fs::read(repo("golden/hybrid-tiny-tied-bf16/tokenizer.json")).unwrap();
    let theirs = Tokenizer::from_json(&json).unwrap();
    assert_same_ids(&ours, &theirs, &TEXTS);
    assert_same_ids(&ours, &theirs, &["e\u{301} \u{212b} decomposed"]);
}

/// A llama of nothing but a vocabulary: `change` adds or replaces what the test is about.
fn outrider_tiny(pre: &str, change: impl FnOnce(&mut GgufFile)) -> Result<Tokenizer, String> {
    let json = std::fs::read(repo("models/outrider-tiny/tokenizer.json")).unwrap();
    let mut file = GgufFile::default();
    testkit::gguf::tokenizer(&mut file, &json, pre, 4096);
    change(&mut file);
    testkit::gguf::skeleton(&mut file, 4096);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let checkpoint = Checkpoint::open(&path).map_err(|e| e.to_string())?;
    let json = checkpoint.tokenizer_json().map_err(|e| e.to_string())?;
    Tokenizer::from_json(&json).map_err(|e| e.to_string())
}

#[test]
fn outrider_tinys_tokenizer_comes_back_from_the_metadata() {
    let json = std::fs::read(repo("models/outrider-tiny/tokenizer.json")).unwrap();
    let theirs = Tokenizer::from_json(&json).unwrap();
    let ours = outrider_tiny("qwen35", |_| {}).unwrap();
    assert_same_ids(&ours, &theirs, &TEXTS);
    assert_eq!(ours.n_vocab(), theirs.n_vocab());
}

/// Each kind cuts text in its own way; what it cuts is what can become one token.
#[test]
fn pre_tokenizers_cut_as_their_names_say() {
    // Where a text is cut shows in the ids of the pieces: merges never cross a cut.
    let cuts = |pre: &str, pieces: &[&str]| {
        let bos = |file: &mut GgufFile| {
            file.number("tokenizer.ggml.bos_token_id", 4084);
        };
        let tokenizer = outrider_tiny(pre, bos).unwrap();
        let ids = |text: &str| tokenizer.encode(text, Markers::Plain).unwrap();
        let apart: Vec<u32> = pieces.iter().flat_map(|piece| ids(piece)).collect();
        assert_eq!(ids(&pieces.concat()), apart, "{pre}: {pieces:?}");
    };
    for pre in ["qwen2", "qwen35", "smollm"] {
        cuts(pre, &["1", "2", "3", "4"]);
    }
    cuts("llama-bpe", &["123", "4"]);
    cuts("default", &["return", " self", "."]);
    for pre in ["qwen2", "qwen35", "llama-bpe", "smollm", "gpt-2", "default"] {
        cuts(pre, &["def", " return"]);
    }
}

#[test]
fn a_begin_of_text_token_comes_before_raw_prompts() {
    let bos = |file: &mut GgufFile| {
        file.number("tokenizer.ggml.bos_token_id", 4084);
    };
    assert_eq!(outrider_tiny("llama-bpe", bos).unwrap().prefix_ids(), [4084]);
    assert!(outrider_tiny("qwen35", bos).unwrap().prefix_ids().is_empty());
    let asked = |value| {
        move |file: &mut GgufFile| {
            bos(file);
            file.flag("tokenizer.ggml.add_bos_token", value);
        }
    };
    assert!(outrider_tiny("llama-bpe", asked(false)).unwrap().prefix_ids().is_empty());
    assert_eq!(outrider_tiny("qwen35", asked(true)).unwrap().prefix_ids(), [4084]);
}

#[test]
fn what_cannot_be_honoured_is_named() {
    let refused = |pre: &str, change: &dyn Fn(&mut GgufFile), parts: &[&str]| {
        let message = outrider_tiny(pre, change).err().expect("must be refused");
        for part in parts {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
    };
    refused("tekken", &|_| {}, &["tokenizer.ggml.pre", "tekken", "qwen35, qwen2, llama-bpe"]);
    refused("llama-bpe", &|_| {}, &["tokenizer.ggml.bos_token_id", "missing"]);
    let add_eos = |file: &mut GgufFile| {
        file.flag("tokenizer.ggml.add_eos_token", true);
    };
    refused("qwen35", &add_eos, &["add_eos_token"]);
}
