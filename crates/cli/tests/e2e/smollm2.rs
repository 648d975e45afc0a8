//! A real model from a GGUF file: SmolLM2-135M-Instruct, where `cargo xtask smollm2` has fetched it.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::server::{Server, at_once, ids, native, output};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Where continuations may part: the two best tokens are closer than rounding differs between
/// engines.
const NEAR_TIE: f64 = 0.5;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The file, from the folder that `OUTRIDER_SMOLLM2` names or the one that the task fetches into.
fn model() -> Option<String> {
    let folder = std::env::var_os("OUTRIDER_SMOLLM2").map(PathBuf::from);
    let path = folder.unwrap_or_else(|| repository().join("models/smollm2")).join(FILE);
    if path.exists() {
        return Some(path.to_str().unwrap().to_owned());
    }
    eprintln!("skipped: {} is not there; `cargo xtask smollm2` fetches it", path.display());
    None
}

/// The recorded ids were computed from the same weights in f32 by another implementation.
#[test]
fn greedy_continuations_are_the_recorded_ones_up_to_near_ties() {
    let Some(model) = model() else { return };
    let server = Server::start(&[&model, "--kv-cache-dtype", "f32"]);
    let recorded = std::fs::read(repository().join("golden/smollm2-greedy.json")).unwrap();
    let recorded: Value = serde_json::from_slice(&recorded).unwrap();
    let items = recorded["items"].as_array().unwrap();
    let texts = at_once(items, |item| {
        server.ok("/tokenize", &json!({"prompt": item["prompt"], "add_special_tokens": true}))
    });
    let continued = |prompt: &[u32], n: usize| {
        let sampling = json!({"temperature": 0, "max_new_tokens": n});
        output(&server.ok("/generate", &native(prompt.to_vec(), sampling)))
    };
    let greedy = at_once(items, |item| continued(&ids(&item["prompt_ids"]), 64));
    let mut n_same = 0;
    for ((item, text), greedy) in items.iter().zip(texts).zip(greedy) {
        let prompt = ids(&item["prompt_ids"]);
        assert_eq!(ids(&text["tokens"]), prompt, "{}", item["prompt"]);
        let want = ids(&item["ids"]);
        if greedy == want {
            n_same += 1;
            continue;
        }
        let parted = want.iter().zip(&greedy).take_while(|(a, b)| a == b).count();
        let gap = |i: usize| item["gap"][i].as_f64().unwrap();
        assert!(gap(parted) <= NEAR_TIE, "{}: token {parted}", item["prompt"]);
        let clear: Vec<usize> = (parted..want.len()).filter(|i| gap(*i) > NEAR_TIE).collect();
        let tokens = at_once(&clear, |i| continued(&[&prompt, &want[..*i]].concat(), 1)[0]);
        let expected: Vec<u32> = clear.iter().map(|i| want[*i]).collect();
        assert_eq!(tokens, expected, "{}", item["prompt"]);
    }
    assert!(n_same > 0, "not one continuation is the recorded one");
}

#[test]
fn a_chat_makes_sense() {
    let Some(model) = model() else { return };
    let server = Server::start(&[&model]);
    let log = server.log();
    assert!(log.contains("weights as stored: Q4_1 66.4 MB (210 tensors), Q8_0 30.1 MB"), "{log}");
    let question = "What is the capital of France? Answer in one sentence.";
    let messages = [json!({"role": "user", "content": question})];
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 40});
    let answer = server.ok("/v1/chat/completions", &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.contains("Paris") && !text.contains("<|"), "{text}");
}
