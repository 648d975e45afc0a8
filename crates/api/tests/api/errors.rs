//! Cases C22 and others: broken input is the client's fault and is told in one shape.

use api::auth::Keys;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::backends::{Broken, Full, Script};
use crate::support::{App, Reply, chat, options, with};

const CHAT: &str = "/v1/chat/completions";

fn app() -> App {
    App::new(Script::says("x</think>y<|im_end|>"))
}

/// Case C22, its raw bodies.
#[tokio::test]
async fn broken_json_and_broken_unicode_are_refused() {
    let app = app();
    let chat = |content: &str| {
        format!(r#"{{"max_tokens":4,"messages":[{{"role":"user","content":"{content}"}}]}}"#)
    };
    let bodies: Vec<Vec<u8>> = vec![
        chat(r"cut \ud83e off").into(),
        chat(r"\udd91 tail").into(),
        chat(r"\ud83e").replacen('{', r#"{"stream":true,"#, 1).into(),
        [&chat("")[..52], "\u{0}"].concat().into_bytes(),
        br#"{"messages":[{"role":"user","content":"#.to_vec(),
        br#"{"temperature":NaN,"messages":[{"role":"user","content":"x"}]}"#.to_vec(),
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}".to_vec(),
        b"[".repeat(20_000),
        b"{\"a\":".repeat(20_000),
        Vec::new(),
        b"null".to_vec(),
    ];
    for body in bodies {
        let reply = app.post_raw(CHAT, body.clone()).await;
        let (status, message) = reply.refusal();
        assert_eq!(status, 400, "{}", String::from_utf8_lossy(&body));
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
        assert!(!message.is_empty());
    }
    let paired = app.post_raw(CHAT, chat(r"whole \ud83e\udd91")).await;
    assert_eq!(paired.status, 200);
}

/// Case C22: ranges and types name the field.
#[tokio::test]
async fn wrong_values_name_their_field() {
    let app = app();
    for (field, value) in [
        ("top_p", json!(7)),
        ("top_p", json!(0)),
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("max_tokens", json!(0)),
        ("max_tokens", json!("ten")),
        ("max_tokens", json!(1.5)),
        ("n", json!(0)),
        ("n", json!(65)),
        ("stop", json!([""])),
        ("stop", json!("")),
        ("stop", json!(vec!["a"; 33])),
        ("stop", json!("a".repeat(2000))),
        ("logit_bias", json!({"a": 1})),
        ("logit_bias", json!({"4096": 1})),
        ("logit_bias", json!({"5": 101})),
        ("logit_bias", json!({"5": 1, "05": 1})),
        ("stop_token_ids", json!([4096])),
        ("top_logprobs", json!(3)),
        ("stream_options", json!({"include_usage": true})),
        ("messages", json!("Hi")),
        ("messages", json!([])),
        ("messages", json!(["Hi"])),
        ("tools", json!([{"type": "function", "function": {}}])),
        ("rid", json!("")),
    ] {
        let (status, message) = app.refused(CHAT, &with(&chat("x"), json!({ field: value }))).await;
        assert_eq!(status, 400, "{field}: {value}");
        assert!(message.contains(field), "{field}: {message}");
    }
    let both = json!({"max_tokens": 3, "max_completion_tokens": 4});
    assert_eq!(app.refused(CHAT, &with(&chat("x"), both)).await.0, 400);
    let both = json!({"max_tokens": 3, "max_completion_tokens": 3});
    app.ok(CHAT, &with(&chat("x"), both)).await;
    let min = json!({"max_tokens": 3, "min_tokens": 4});
    let (status, message) = app.refused(CHAT, &with(&chat("x"), min)).await;
    assert_eq!(status, 400);
    assert!(message.contains("min_tokens"), "{message}");
}

#[tokio::test]
async fn another_model_is_not_found() {
    let app = app();
    let reply = app.post(CHAT, &with(&chat("x"), json!({"model": "gpt-4"}))).await;
    let (status, message) = reply.refusal();
    assert_eq!(status, 404);
    assert!(message.contains("gpt-4") && message.contains("outrider-tiny"), "{message}");
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
    let answer = app.ok(CHAT, &with(&chat("x"), json!({"model": "default"}))).await;
    assert_eq!(answer["model"], "outrider-tiny");
    app.ok(CHAT, &with(&chat("x"), json!({"model": null}))).await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told_apart() {
    let app = app();
    assert_eq!(app.get("/v1/nothing").await.refusal().0, 404);
    let reply = app.get(CHAT).await;
    assert_eq!(reply.refusal().0, 405);
    assert_eq!(reply.headers["allow"], "POST");
}

#[tokio::test]
async fn other_content_types_are_refused() {
    let request = Request::post(CHAT).header("content-type", "text/plain");
    let reply = app().send(request.body(Body::from(chat("x").to_string())).unwrap()).await;
    assert_eq!(reply.refusal().0, 415);
}

#[tokio::test]
async fn a_full_queue_says_when_to_come_back() {
    let app = App::new(std::sync::Arc::new(Full));
    for body in [chat("x"), with(&chat("x"), json!({"stream": true}))] {
        let reply = app.post(CHAT, &body).await;
        assert_eq!(reply.refusal().0, 503);
        assert!(reply.headers.contains_key("retry-after"));
        assert_eq!(reply.json()["error"]["code"], "queue_full");
    }
}

#[tokio::test]
async fn a_panic_is_an_internal_error() {
    let app = App::new(std::sync::Arc::new(Broken));
    let (status, message) = app.refused(CHAT, &chat("x")).await;
    assert_eq!(status, 500);
    assert!(!message.contains("step.rs"), "{message}");
}

#[tokio::test]
async fn keys_are_asked_for_before_the_body_is_read() {
    let mut options = options(Script::says("x</think>y"));
    options.keys = Keys::new(["secret"], ["root"]);
    let app = App::with(options);
    let send = async |method: &str, path: &str, key: Option<&str>| -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = if path == CHAT { chat("x") } else { Value::Object(Default::default()) };
        app.send(request.body(Body::from(body.to_string())).unwrap()).await
    };
    for key in [None, Some("wrong"), Some("secre")] {
        let reply = send("POST", CHAT, key).await;
        assert_eq!(reply.refusal().0, 401);
        assert_eq!(reply.headers["www-authenticate"], "Bearer");
    }
    assert_eq!(send("POST", CHAT, Some("secret")).await.status, 200);
    for path in ["/health", "/metrics", "/ready", "/health_generate"] {
        assert_eq!(send("GET", path, None).await.status, 200, "{path}");
    }
    assert_eq!(send("GET", "/v1/models", None).await.status, 401);
    assert_eq!(send("GET", "/nothing", None).await.status, 401);
    assert_eq!(send("POST", "/flush_cache", Some("secret")).await.status, 401);
    assert_eq!(send("POST", "/flush_cache", Some("root")).await.status, 200);
}
