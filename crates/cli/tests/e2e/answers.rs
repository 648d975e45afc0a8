//! Answers of the real model, whole and streamed: cases C13, C14 and C15.

use serde_json::{Value, json};
use testkit::openai::{chat, put_together, with};

use crate::server::Server;

const CHAT: &str = "/v1/chat/completions";

fn greedy(message: &str, max_tokens: u32, thinking: bool) -> Value {
    let more = json!({"temperature": 0, "max_tokens": max_tokens,
        "chat_template_kwargs": {"enable_thinking": thinking}});
    with(&chat(message), more)
}

fn streamed(body: &Value) -> Value {
    with(body, json!({"stream": true}))
}

/// Case C13, and the same for every way in which tokens may come out of a step.
#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let messages = [
        "Repeat exactly: 海の月 🦑🧵 naïve Ωmega",
        "Which month comes after May?",
        "Write function number 1 that adds 1 to its argument.",
    ];
    for steps in ["0", "5"] {
        let server = Server::start(&["--speculative-num-steps", steps]);
        for (message, thinking) in messages.iter().flat_map(|m| [(m, true), (m, false)]) {
            let body = greedy(message, 80, thinking);
            let answer = server.ok(CHAT, &body);
            let choice = &answer["choices"][0];
            let whole = &choice["message"];
            let stream = server.client().stream(CHAT, &streamed(&body)).events();
            let stream = put_together(&stream, 0);
            assert_eq!(stream.content, whole["content"].as_str().unwrap_or_default(), "{body}");
            let reasoning = whole["reasoning_content"].as_str().unwrap_or_default();
            assert_eq!(stream.reasoning, reasoning, "{body}");
            assert_eq!(json!(stream.finish_reason), choice["finish_reason"], "{body}");
            for text in [&stream.content, &stream.reasoning] {
                assert!(!text.contains("think>") && !text.contains("<|"), "{body}: {text}");
            }
        }
    }
}

/// Characters that no token holds whole: the model is made to write them byte by byte.
#[test]
fn characters_of_several_bytes_come_whole() {
    let server = Server::start(&["--speculative-num-steps", "5"]);
    let text = "月🦑é";
    let tokens = server.ok("/tokenize", &json!({"prompt": text}))["tokens"].clone();
    let tokens = tokens.as_array().unwrap();
    assert!(tokens.len() > text.chars().count(), "every character is one token: {tokens:?}");
    let bias: serde_json::Map<String, Value> =
        tokens.iter().map(|id| (id.to_string(), json!(100))).collect();
    for seed in 0..8 {
        let body = json!({"prompt": text, "temperature": 1.5, "seed": seed, "max_tokens": 40,
            "logit_bias": bias, "ignore_eos": true});
        let whole = server.ok("/v1/completions", &body);
        let events = server.client().stream("/v1/completions", &streamed(&body)).events();
        let whole = whole["choices"][0]["text"].as_str().unwrap();
        assert_eq!(put_together(&events, 0).content, whole, "seed {seed}");
        assert!(!whole.is_ascii(), "{whole:?}");
    }
}

/// Case C14, and what the events of a stream share.
#[test]
fn the_usage_event_comes_when_asked_for_once_and_last() {
    let server = Server::start(&[]);
    let legacy = json!({"prompt": "Say hi.", "temperature": 0, "max_tokens": 8});
    for (path, body) in [(CHAT, greedy("Say hi.", 8, true)), ("/v1/completions", legacy)] {
        let usage = server.ok(path, &body)["usage"].clone();
        for include in [None, Some(false), Some(true)] {
            let mut body = streamed(&body);
            if let Some(include) = include {
                body["stream_options"] = json!({"include_usage": include});
            }
            let events = server.client().stream(path, &body).events();
            let without_choices =
                |event: &&Value| event["choices"].as_array().is_some_and(Vec::is_empty);
            let n = events.iter().filter(without_choices).count();
            assert_eq!(n, usize::from(include == Some(true)), "{path}");
            let (last, rest) = events.split_last().unwrap();
            assert!(rest.iter().all(|event| event["usage"].is_null()), "{path}");
            if include == Some(true) {
                assert_eq!(last["choices"], json!([]));
                for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                    assert!(usage[name].is_u64() && last["usage"][name] == usage[name], "{last}");
                }
            } else {
                assert!(last["usage"].is_null(), "{last}");
            }
            for name in ["id", "created", "model"] {
                assert!(events.iter().all(|event| event[name] == events[0][name]), "{name}");
            }
            assert!(put_together(&events, 0).finish_reason.is_some());
        }
    }
}

/// Case C15: what is cut inside the thinking part is reasoning.
#[test]
fn thinking_that_is_cut_off_is_reasoning() {
    let server = Server::start(&["--speculative-num-steps", "3"]);
    let body = greedy("Which month comes after May?", 6, true);
    let answer = server.ok(CHAT, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let reasoning = choice["message"]["reasoning_content"].as_str().unwrap();
    assert!(!reasoning.is_empty() && !reasoning.contains("think>"), "{reasoning}");
    assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), "");
    let events = server.client().stream(CHAT, &streamed(&body)).events();
    let stream = put_together(&events, 0);
    assert_eq!((&*stream.reasoning, &*stream.content), (reasoning, ""));

    let answer = server.ok(CHAT, &greedy("Which month comes after May?", 12, false));
    let message = &answer["choices"][0]["message"];
    assert!(!message["content"].as_str().unwrap().is_empty(), "{message}");
    assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), "");
}
