//! Case C07 on the real model: prompts at, near and over the context limit, and what clients get wrong.

use serde_json::{Value, json};
use testkit::openai::{chat, with};

use crate::prompts;
use crate::server::{Server, ids};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const LEN: usize = 2048;

/// Token ids of real text, and a completion of the first `n` of them.
fn prompt_of(server: &Server, n: usize, max_tokens: usize) -> Value {
    let text = json!({"prompt": prompts::long(7, 2200)});
    let ids = ids(&server.ok("/tokenize", &text)["tokens"]);
    json!({"prompt": ids[..n], "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true})
}

#[test]
fn prompts_at_the_context_limit() {
    let flags = ["--context-length", "2048", "--speculative-num-steps", "3"];
    let server = Server::start(&flags);
    for (n, max_tokens) in [(3000, 16), (LEN + 1, 1), (LEN, 1)] {
        let (status, message) = server.refused(COMPLETIONS, &prompt_of(&server, n, max_tokens));
        assert_eq!(status, 400);
        assert!(message.contains("2048") && message.contains(&n.to_string()), "{message}");
    }
    let streamed = with(&chat(&prompts::long(7, 2200)), json!({"stream": true}));
    assert_eq!(server.refused(CHAT, &streamed).0, 400);

    let plain = Server::start(&["--context-length", "2048", "--speculative-algorithm", "none"]);
    for (n, n_generated) in [(LEN - 1, 1), (LEN - 3, 3), (LEN - 8, 8)] {
        let body = prompt_of(&server, n, 8);
        let answer = server.ok(COMPLETIONS, &body);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["prompt_tokens"], n);
        assert_eq!(answer["usage"]["completion_tokens"], n_generated);
        assert_eq!(answer["choices"], plain.ok(COMPLETIONS, &body)["choices"], "{n} tokens");
    }

    let large = chat(&"word ".repeat(3 << 20 >> 2));
    assert!(large.to_string().len() > 3 << 20);
    let (status, message) = server.refused(CHAT, &large);
    assert_eq!(status, 400, "{message}");
    let answer = server.ok(COMPLETIONS, &json!({"prompt": "Hello", "max_tokens": 4}));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert!(server.is_idle());
}

/// What a client gets wrong is told in OpenAI's shape, and the next request works.
#[test]
fn wrong_requests_are_refused_and_the_next_one_works() {
    let server = Server::start(&[]);
    let message = r#"[{"role": "user", "content": "x"}]"#;
    let chat = |rest: &str| format!(r#"{{"messages": {message}, {rest}}}"#);
    let next = json!({"messages": [{"role": "user", "content": "x"}], "temperature": 0,
        "max_tokens": 4});
    let expected = server.ok(CHAT, &next)["choices"].clone();
    let wrong = [
        (r#"{"messages": ["#.to_owned(), 400, "JSON"),
        ("[".repeat(20_000), 400, "JSON"),
        (chat(r#""temperature": NaN"#), 400, "JSON"),
        (chat(r#""temperature": -1"#), 400, "`temperature`"),
        (chat(r#""top_p": 7"#), 400, "`top_p`"),
        (chat(r#""max_tokens": "ten""#), 400, "`max_tokens`"),
        (chat(r#""max_tokens": 0"#), 400, "`max_tokens`"),
        (chat(r#""temprature": 1"#), 400, "`temperature`?"),
        (chat(r#""model": "another""#), 404, "another"),
        (chat(r#""logit_bias": {"4096": 1}"#), 400, "4096"),
        (r#"{"messages": []}"#.to_owned(), 400, "messages"),
        (r#"{"messages": [{"role": "user", "content": "\ud83e"}]}"#.to_owned(), 400, ""),
        (r#"{"messages": [{"role": "narrator", "content": "x"}]}"#.to_owned(), 400, "narrator"),
    ];
    for (body, status, part) in wrong {
        let shown: String = body.chars().take(90).collect();
        let reply = server.client().post_raw(CHAT, body.as_bytes());
        assert_eq!(reply.status, status, "{shown}: {}", reply.json());
        let error = &reply.json()["error"];
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(part), "{shown}: {message}");
        assert!(error["type"].is_string(), "{shown}: {error}");
        assert_eq!(server.ok(CHAT, &next)["choices"], expected, "after {shown}");
    }
}
