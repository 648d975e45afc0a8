//! Case C12: log-probabilities are numbers of the target model, once for every token.

use engine::config::Speculation;
use serde_json::{Value, json};

use crate::backends::{DRAFTS, EngineSetup, Script, engine};
use crate::support::{App, EOS, chat, put_together, with};

const CHAT: &str = "/v1/chat/completions";

fn ask() -> Value {
    let more = json!({"temperature": 0, "max_tokens": 48, "logprobs": true, "top_logprobs": 5,
        "chat_template_kwargs": {"enable_thinking": false}, "ignore_eos": true});
    with(&chat("Name four rivers."), more)
}

fn app(speculation: Speculation) -> App {
    App::new(engine(EngineSetup { speculation, ..EngineSetup::default() }))
}

fn entries(answer: &Value) -> Vec<Value> {
    answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone()
}

#[tokio::test]
async fn every_token_has_a_number_of_the_target() {
    let answer = app(DRAFTS).ok(CHAT, &ask()).await;
    let entries = entries(&answer);
    assert_eq!(answer["usage"]["completion_tokens"], entries.len());
    let mut bytes = Vec::new();
    for entry in &entries {
        let logprob = entry["logprob"].as_f64().unwrap();
        assert!(logprob < 0.0, "{entry}");
        let top: Vec<f64> = entry["top_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|top| top["logprob"].as_f64().unwrap())
            .collect();
        assert_eq!(top.len(), 5);
        assert!(top.windows(2).all(|pair| pair[0] >= pair[1]), "{entry}");
        assert!(top.iter().map(|p| p.exp()).sum::<f64>() <= 1.0001);
        assert_eq!(logprob, top[0], "greedy takes the best");
        bytes.extend(entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8));
    }
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes).trim_start_matches('\n'), content);
}

#[tokio::test]
async fn speculation_changes_no_number() {
    let on = app(DRAFTS).ok(CHAT, &ask()).await;
    let off = app(Speculation::Off).ok(CHAT, &ask()).await;
    assert_eq!(entries(&on), entries(&off));
}

#[tokio::test]
async fn a_stream_has_every_entry_once() {
    let app = app(DRAFTS);
    let whole = app.ok(CHAT, &ask()).await;
    let streamed = put_together(&app.stream(CHAT, &ask()).await, 0);
    assert_eq!(streamed.logprobs, entries(&whole));
    assert_eq!(streamed.content, whole["choices"][0]["message"]["content"].as_str().unwrap());
}

#[tokio::test]
async fn no_entry_belongs_to_text_after_a_stop() {
    let app = app(DRAFTS);
    let free = app.ok(CHAT, &ask()).await;
    let text = free["choices"][0]["message"]["content"].as_str().unwrap();
    let middle: Vec<char> = text.chars().collect();
    let stop: String = middle[middle.len() / 2..][..6].iter().collect();
    let before = text.find(&stop).unwrap();
    let body = with(&ask(), json!({"stop": stop}));
    let stopped = app.ok(CHAT, &body).await;
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["message"]["content"], text[..before]);
    let shown = entries(&stopped);
    assert_eq!(shown, entries(&free)[..shown.len()]);
    let n_bytes: usize = shown.iter().map(|e| e["bytes"].as_array().unwrap().len()).sum();
    assert!(n_bytes >= before, "the text before the stop is covered");
    let last = shown.last().unwrap()["bytes"].as_array().unwrap().len();
    assert!(n_bytes - last <= before, "only a token that reaches into the stop may go past it");
    let streamed = put_together(&app.stream(CHAT, &body).await, 0);
    assert_eq!(streamed.logprobs, shown);
}

#[tokio::test]
async fn an_end_token_is_counted_listed_and_has_no_bytes() {
    let app = App::new(Script::says("x</think>yes<|im_end|>"));
    let answer = app.ok(CHAT, &with(&chat("?"), json!({"logprobs": true}))).await;
    let entries = entries(&answer);
    assert_eq!(answer["usage"]["completion_tokens"], entries.len());
    let last = entries.last().unwrap();
    assert_eq!((&last["token"], &last["bytes"]), (&json!("<|im_end|>"), &json!([])));
    assert_eq!(last["top_logprobs"], json!([]));
}

#[tokio::test]
async fn completions_have_openai_s_four_lists() {
    let app = app(DRAFTS);
    let body = json!({"prompt": "Hello", "max_tokens": 12, "temperature": 0, "logprobs": 2,
        "ignore_eos": true});
    let answer = app.ok("/v1/completions", &body).await;
    let logprobs = &answer["choices"][0]["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(name).len(), 12, "{name}");
    }
    for (i, token) in list("tokens").iter().enumerate() {
        let best = &list("top_logprobs")[i][token.as_str().unwrap()];
        assert_eq!(*best, list("token_logprobs")[i]);
    }
    assert_eq!(list("text_offset")[0], 0);
    let mut streamed = Vec::new();
    let mut offsets = Vec::new();
    for event in app.stream("/v1/completions", &body).await {
        let logprobs = &event["choices"][0]["logprobs"];
        streamed.extend(logprobs["tokens"].as_array().into_iter().flatten().cloned());
        offsets.extend(logprobs["text_offset"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!((streamed, offsets), (list("tokens"), list("text_offset")));
}

#[tokio::test]
async fn native_logprobs_name_token_and_number() {
    let app = App::new(Script::says("yes<|im_end|>"));
    let body = json!({"text": "Hello", "return_logprob": true, "top_logprobs_num": 2,
        "return_text_in_logprobs": true});
    let meta = app.ok("/generate", &body).await["meta_info"].clone();
    let chosen = meta["output_token_logprobs"].as_array().unwrap();
    assert_eq!(chosen.last().unwrap(), &json!([-0.25, EOS, "<|im_end|>"]));
    assert_eq!(meta["output_top_logprobs"][0].as_array().unwrap().len(), 2);
    assert_eq!(meta["completion_tokens"], chosen.len());
}
