//! Reused prefixes give the bytes of a cold run: cases C01 and C02, and a chat of ten turns.

use serde_json::{Value, json};

use crate::prompts;
use crate::server::{Server, at_once, eventually, native, output};

const COLD: &[&str] = &["--disable-radix-cache", "--speculative-num-steps", "3"];

fn cached(answer: &Value) -> u64 {
    answer["meta_info"]["cached_tokens"].as_u64().unwrap()
}

/// Case C01.
#[test]
fn a_reused_prefix_answers_like_a_cold_run() {
    let server = Server::start(&["--speculative-num-steps", "3"]);
    let cold = Server::start(COLD);
    // More than four of the snapshots that are taken every 256 tokens.
    let long = prompts::long(1, 900);
    let ask = |ending: &str| {
        let sampling = json!({"temperature": 0, "max_new_tokens": 48, "ignore_eos": true});
        native(format!("{long} {ending}"), sampling)
    };
    let first = server.ok("/generate", &ask("First ending."));
    assert!(first["meta_info"]["prompt_tokens"].as_u64() > Some(1100), "{first}");
    assert_eq!(cached(&first), 0);
    assert_eq!(output(&first), output(&cold.ok("/generate", &ask("First ending."))));
    let warm = server.ok("/generate", &ask("First ending."));
    assert!(cached(&warm) > 0);
    assert_eq!(output(&warm), output(&first));

    let before = (server.total("n_drafted"), server.total("n_accepted"));
    let traffic: Vec<Value> = (0..20)
        .map(|i| {
            let sampling = json!({"temperature": 0.8, "sampling_seed": i, "max_new_tokens": 64});
            native(format!("{long} Variation number {i}."), sampling)
        })
        .collect();
    at_once(&traffic, |body| assert!(cached(&server.ok("/generate", body)) > 0));
    let drafted = server.total("n_drafted") - before.0;
    let accepted = server.total("n_accepted") - before.1;
    assert!(accepted < drafted, "no draft was rejected, so that it proves nothing");

    let branch = server.ok("/generate", &ask("Second ending."));
    assert!(cached(&branch) > 0);
    assert_eq!(output(&branch), output(&cold.ok("/generate", &ask("Second ending."))));
    assert_eq!(output(&server.ok("/generate", &ask("First ending."))), output(&first));
    assert_eq!(cold.total("n_cached_tokens"), 0);
}

/// Case C02: what an abandoned prefill left behind is whole.
#[test]
fn a_retry_after_an_abandoned_prefill_answers_like_a_cold_run() {
    let server = Server::start(&["--chunked-prefill-size", "64"]);
    let text = prompts::long(2, 900) + "Go on:";
    let sampling = json!({"temperature": 0, "max_new_tokens": 32, "ignore_eos": true});
    let body = native(&*text, sampling);
    let expected = Server::start(COLD).ok("/generate", &body);
    let n_prompt = expected["meta_info"]["prompt_tokens"].as_u64().unwrap();
    assert!(n_prompt > 8 * 64);
    // It would run until the context is full, so that only its client can have ended it.
    let mut abandoned = native(
        &*text,
        json!({"temperature": 0, "max_new_tokens": 8192 - n_prompt, "ignore_eos": true}),
    );
    abandoned["stream"] = true.into();
    for percent in [10, 50, 90, 101] {
        assert_eq!(server.client().post("/flush_cache", &json!({})).status, 200);
        let (rows, cancelled) = (server.total("n_prefill_rows"), server.total("n_cancelled"));
        let mut gone = None;
        if percent > 100 {
            let mut stream = server.client().stream("/generate", &abandoned);
            assert!(stream.next_event().is_some());
            stream.close();
        } else {
            let bytes = abandoned.to_string();
            gone = Some(server.client().send("POST", "/generate", bytes.as_bytes()));
            eventually("this much of the prefill", || {
                server.total("n_prefill_rows") - rows >= n_prompt * percent / 100
            });
        }
        gone.iter().for_each(testkit::client::close);
        let retry = server.ok("/generate", &body);
        assert_eq!(output(&retry), output(&expected), "abandoned at {percent} %");
        eventually("the cancellation", || server.total("n_cancelled") == cancelled + 1);
        server.wait_until_idle();
    }
}

/// Each turn goes on exactly where the last prompt ended, however short the turns: only what is new is
/// computed.
#[test]
fn ten_turns_of_a_chat_reuse_their_prefix() {
    let server = Server::start(&[]);
    let cold = Server::start(COLD);
    for (n_system, n_question) in [(60, 120), (0, 1)] {
        server.client().post("/flush_cache", &json!({}));
        let mut messages = Vec::new();
        if n_system > 0 {
            messages.push(json!({"role": "system", "content": prompts::long(3, n_system)}));
        }
        let rows = server.total("n_prefill_rows");
        let (mut last_prompt, mut last_cached) = (0, 0);
        for turn in 0..10 {
            let question = format!("{turn}? {}", prompts::long(turn, n_question));
            messages.push(json!({"role": "user", "content": question}));
            let body = json!({"messages": messages, "temperature": 0, "max_tokens": 20,
                "chat_template_kwargs": {"enable_thinking": false}});
            let answer = server.ok("/v1/chat/completions", &body);
            let reference = cold.ok("/v1/chat/completions", &body);
            assert_eq!(answer["choices"], reference["choices"], "turn {turn}");
            let usage = &answer["usage"];
            let n_prompt = usage["prompt_tokens"].as_u64().unwrap();
            let n_cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            if turn == 0 {
                assert_eq!(n_cached, 0);
            } else {
                assert!(n_cached > last_cached, "turn {turn}: {n_cached} after {last_cached}");
                // All of the last prompt but its generation prompt.
                assert!(n_cached + 8 > last_prompt, "turn {turn}: {n_cached} of {last_prompt}");
            }
            (last_prompt, last_cached) = (n_prompt, n_cached);
            let content = answer["choices"][0]["message"]["content"].clone();
            messages.push(json!({"role": "assistant", "content": content}));
        }
        let rows = server.total("n_prefill_rows") - rows;
        assert!(rows < 2 * last_prompt, "{rows} rows computed for prompts up to {last_prompt}");
    }
}
