//! Ends inside an accepted block: cases C09, C10 and C11.

use serde_json::{Value, json};
use testkit::openai::{chat, put_together, with};

use crate::prompts;
use crate::server::{Server, at_once};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// One server with deep drafts and one without any.
fn servers() -> [Server; 2] {
    let deep = Server::start(&["--speculative-num-steps", "5"]);
    [deep, Server::start(&["--speculative-algorithm", "none"])]
}

/// Case C09: the stop wins over the token limit wherever the two fall in a block.
#[test]
fn a_stop_inside_an_accepted_block_wins_over_the_limit() {
    for server in servers() {
        for prompt in [prompts::KINDS[1], prompts::EASY] {
            let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 40, "logprobs": 1});
            let free = server.ok(COMPLETIONS, &body);
            let text = free["choices"][0]["text"].as_str().unwrap();
            let tokens = free["choices"][0]["logprobs"]["tokens"].as_array().unwrap();
            let tokens: Vec<&str> = tokens.iter().map(|token| token.as_str().unwrap()).collect();
            assert_eq!(tokens.concat(), text);
            // The limit, and the stop of tokens k-1 and k with the text before it.
            let mut cases = Vec::new();
            for k in 6..=tokens.len().min(30) {
                let stop = tokens[k - 2..k].concat();
                let before = tokens[..k - 2].concat();
                if text.find(&stop) == Some(before.len()) {
                    cases.extend([k - 2, k, k + 1, k + 2, k + 3].map(|cap| {
                        (
                            k,
                            cap,
                            before.clone(),
                            with(&body, json!({"stop": stop, "max_tokens": cap})),
                        )
                    }));
                }
            }
            assert!(cases.len() >= 5, "no stop occurs only once in {text:?}");
            at_once(&cases, |(k, cap, before, body)| {
                let answer = server.ok(COMPLETIONS, body);
                let (choice, n) = (&answer["choices"][0], &answer["usage"]["completion_tokens"]);
                let n = n.as_u64().unwrap() as usize;
                if cap < k {
                    assert_eq!((choice["finish_reason"].as_str(), n), (Some("length"), *cap));
                } else {
                    assert_eq!(choice["finish_reason"], "stop", "k {k}, limit {cap}: {answer}");
                    assert_eq!(choice["text"].as_str().unwrap(), before, "k {k}, limit {cap}");
                    assert!(n <= *k, "k {k}, limit {cap}: {n} tokens");
                }
            });
        }
    }
}

/// Case C10: no piece of a stop is ever sent, and what only looks like one is.
#[test]
fn a_stream_shows_no_piece_of_a_stop() {
    let mut texts = Vec::new();
    for server in servers() {
        let more = json!({"temperature": 0, "max_tokens": 60,
            "chat_template_kwargs": {"enable_thinking": false}});
        let body = with(&chat("Write a function that reads a file."), more);
        let content = |answer: &Value| {
            answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        };
        let text = content(&server.ok(CHAT, &body));
        let stop: String = text.chars().skip(text.chars().count() / 2).take(12).collect();
        let before = &text[..text.find(&stop).unwrap()];
        let streamed = |stop: &str| {
            let body = with(&body, json!({"stream": true, "stop": [stop]}));
            put_together(&server.client().stream(CHAT, &body).events(), 0)
        };
        let hit = streamed(&stop);
        assert_eq!((&*hit.content, hit.finish_reason.as_deref()), (before, Some("stop")));
        assert_eq!(hit.matched_stop, json!(stop));
        let half: String = stop.chars().take(6).collect();
        assert_eq!(streamed(&format!("{half}~@~")).content, text);
        let whole = server.ok(CHAT, &with(&body, json!({"stop": [stop]})));
        assert_eq!(
            (content(&whole), &whole["choices"][0]["finish_reason"]),
            (before.to_owned(), &json!("stop"))
        );
        let (status, message) = server.refused(CHAT, &with(&body, json!({"stop": [""]})));
        assert_eq!(status, 400);
        assert!(message.contains("`stop`"), "{message}");
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1]);
}

/// Case C11: counts fit each other wherever the limit or the end falls.
#[test]
fn reasoning_is_never_more_than_the_completion() {
    let [deep, plain] = servers();
    let limits: Vec<u64> = (8..=96).step_by(4).collect();
    let ask = |limit: u64| {
        let more = json!({"temperature": 0, "max_tokens": limit,
            "chat_template_kwargs": {"enable_thinking": true}});
        with(&chat("Write function number 1 that adds 1 to its argument."), more)
    };
    let answers = at_once(&limits, |limit| (deep.ok(CHAT, &ask(*limit)), *limit));
    let mut n_ended = 0;
    for (answer, limit) in &answers {
        let usage = &answer["usage"];
        let n = |name: &str| usage[name].as_u64().unwrap();
        assert!(n("reasoning_tokens") <= n("completion_tokens"), "limit {limit}: {usage}");
        assert!(n("completion_tokens") <= *limit);
        assert_eq!(n("total_tokens"), n("prompt_tokens") + n("completion_tokens"));
        assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], n("reasoning_tokens"));
        let choice = &answer["choices"][0];
        if choice["finish_reason"] == "length" {
            assert_eq!(n("completion_tokens"), *limit);
            if choice["message"]["content"] == "" {
                assert!(n("reasoning_tokens") + 1 >= n("completion_tokens"), "{answer}");
            }
        } else {
            n_ended += 1;
        }
    }
    // It ends by itself after 56 tokens: some limits cut its thinking, some its answer, some neither.
    assert!(n_ended > 0 && n_ended < limits.len());
    at_once(&answers, |(answer, limit)| {
        let reference = plain.ok(CHAT, &ask(*limit));
        assert_eq!(answer["choices"], reference["choices"], "limit {limit}");
        assert_eq!(answer["usage"]["reasoning_tokens"], reference["usage"]["reasoning_tokens"]);
        let body = with(
            &ask(*limit),
            json!({"stream": true,
            "stream_options": {"include_usage": true}}),
        );
        let events = deep.client().stream(CHAT, &body).events();
        let usage = |name: &str| &events[events.len() - 1]["usage"][name];
        for name in ["completion_tokens", "reasoning_tokens", "prompt_tokens"] {
            assert_eq!(usage(name), &answer["usage"][name], "limit {limit}: {name}");
        }
    });
}
