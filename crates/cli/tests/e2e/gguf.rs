//! A model in a GGUF file is served as its folder is, and what is wrong with a file is said.

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, DType};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::gguf::{GgufFile, converted};

use crate::prompts;
use crate::server::{Server, at_once, failure_of, native, output, stdout_of};

/// outrider-tiny as llama.cpp's converter would write it.
fn outrider_tiny(dtype: DType) -> GgufFile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/outrider-tiny");
    converted(&Checkpoint::open(&folder).unwrap(), dtype, 1e5)
}

fn written(files: &[(&str, Vec<u8>)]) -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let paths = files.iter().map(|(name, bytes)| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    });
    let paths = paths.collect();
    (folder, paths)
}

fn answers(server: &Server) -> Vec<Vec<u32>> {
    let bodies: Vec<Value> = (0..4)
        .map(|i| {
            let sampling = json!({"temperature": if i < 2 { 0.0 } else { 0.8 },
                "sampling_seed": i, "max_new_tokens": 40});
            native(prompts::KINDS[i], sampling)
        })
        .collect();
    at_once(&bodies, |body| output(&server.ok("/generate", body)))
}

/// With drafts, in one file and in three, as text and as a chat.
#[test]
fn a_file_is_the_model_that_its_folder_is() {
    let file = outrider_tiny(DType::Bf16);
    let shards = file.shards(3);
    let (_one, one) = written(&[("tiny.gguf", file.bytes())]);
    let names = [1, 2, 3].map(|i| format!("tiny-{i:05}-of-00003.gguf"));
    let three: Vec<(&str, Vec<u8>)> = names.iter().map(String::as_str).zip(shards).collect();
    let (folder, _) = written(&three);
    let embedded = Server::start(&["outrider-tiny", "--speculative-num-steps", "3"]);
    let expected = answers(&embedded);
    let chat = |server: &Server| server.chat_ids("Which month comes after May?");
    for model in [one[0].to_str().unwrap(), folder.path().to_str().unwrap()] {
        let server = Server::start(&[model, "--speculative-num-steps", "3"]);
        assert_eq!(answers(&server), expected, "{model}");
        assert_eq!(chat(&server), chat(&embedded), "{model}");
        assert!(server.log().contains("weights as stored: BF16 10."), "{}", server.log());
        let info = server.client().get("/server_info").json();
        assert!(info["weight_types_bytes"]["BF16"].as_u64().unwrap() > 10_000_000, "{info}");
    }
}

#[test]
fn generate_and_bench_take_a_quantised_file() {
    let (_folder, paths) = written(&[("tiny-q8.gguf", outrider_tiny(DType::Q8_0).bytes())]);
    let path = paths[0].to_str().unwrap();
    let prompt = ["--prompt", "def f0(x):\n    return x\n\ndef f1(", "--max-tokens", "12"];
    let greedy = ["--temperature", "0", "--json"];
    let generate = |model: &str| {
        let text = stdout_of(&[&["generate", model][..], &prompt, &greedy].concat(), "");
        serde_json::from_str::<Value>(&text).unwrap()["token_ids"].clone()
    };
    assert_eq!(generate(path), generate("outrider-tiny"));
    let bench =
        ["bench", path, "--prefill", "16", "--decode", "4", "--batch", "1", "--verify", "none"];
    assert!(!stdout_of(&bench, "").is_empty());
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let bytes = outrider_tiny(DType::Q4_0).bytes();
    let cut = bytes[..bytes.len() / 2].to_vec();
    let (folder, paths) = written(&[("cut.gguf", cut), ("whole.gguf", bytes)]);
    let refused = |path: &Path, parts: &[&str]| {
        let message = failure_of(&["serve", "--port", "0", path.to_str().unwrap()]);
        for part in parts {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
    };
    refused(&paths[0], &["cut.gguf is cut short", "the download may be incomplete"]);
    refused(folder.path(), &["2 models", "cut.gguf", "whole.gguf"]);
    refused(&folder.path().join("other.gguf"), &["other.gguf"]);
}
