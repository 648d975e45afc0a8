//! Case C07: prompts at, near and over the context limit, and large bodies.

use engine::config::Speculation;
use serde_json::{Value, json};

use crate::backends::{EngineSetup, engine};
use crate::support::{App, CONTEXT_LEN, chat};

const COMPLETIONS: &str = "/v1/completions";

/// That many token ids, none of them a control token.
fn tokens(n: usize) -> Vec<usize> {
    (0..n).map(|i| 100 + i % 3000).collect()
}

fn ask(n: usize, max_tokens: u32) -> Value {
    json!({"prompt": tokens(n), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

#[tokio::test]
async fn a_prompt_over_the_limit_is_refused_with_both_numbers() {
    let app = App::new(engine(EngineSetup::default()));
    for (n, max_tokens) in [(3000, 16), (CONTEXT_LEN + 1, 1), (CONTEXT_LEN, 1)] {
        let reply = app.post(COMPLETIONS, &ask(n, max_tokens)).await;
        let (status, message) = reply.refusal();
        assert_eq!(status, 400);
        assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
        assert!(message.contains(&n.to_string()), "{message}");
        assert!(message.contains(&CONTEXT_LEN.to_string()), "{message}");
    }
    // A stream is refused with a status, not with an event.
    let mut long = chat(&"seven words are in this short sentence ".repeat(500));
    long["stream"] = true.into();
    let (status, message) = app.refused("/v1/chat/completions", &long).await;
    assert_eq!(status, 400);
    assert!(message.contains(&CONTEXT_LEN.to_string()), "{message}");
    let after = app.ok(COMPLETIONS, &json!({"prompt": "Hello", "max_tokens": 4})).await;
    assert_eq!(after["choices"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_answer_is_cut_at_the_limit_and_nothing_else_is() {
    let app = App::new(engine(EngineSetup::default()));
    for (n, n_answer) in [(CONTEXT_LEN - 1, 1), (CONTEXT_LEN - 8, 8)] {
        let answer = app.ok(COMPLETIONS, &ask(n, 8)).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["prompt_tokens"], n);
        assert_eq!(answer["usage"]["completion_tokens"], n_answer);
    }
}

#[tokio::test]
async fn drafts_that_reach_past_the_limit_change_nothing() {
    let plain =
        App::new(engine(EngineSetup { speculation: Speculation::Off, ..Default::default() }));
    let drafting = App::new(engine(EngineSetup::default()));
    let body = ask(CONTEXT_LEN - 8, 8);
    let text = |answer: Value| answer["choices"][0]["text"].clone();
    assert_eq!(
        text(plain.ok(COMPLETIONS, &body).await),
        text(drafting.ok(COMPLETIONS, &body).await)
    );
}

#[tokio::test]
async fn a_body_of_three_mebibytes_is_refused_with_sizes_and_at_once() {
    let app = App::new(engine(EngineSetup::default()));
    let words = "plain words ".repeat((3 << 20) / 12);
    let start = std::time::Instant::now();
    let (status, message) = app.refused("/v1/chat/completions", &chat(&words)).await;
    assert_eq!(status, 400);
    assert!(message.contains("has at least") && message.contains("2048"), "{message}");
    assert!(start.elapsed().as_secs() < 5, "the prompt was encoded");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let app = App::new(engine(EngineSetup::default()));
    let (status, message) = app.refused(COMPLETIONS, &json!({"prompt": "x".repeat(9 << 20)})).await;
    assert_eq!(status, 413);
    assert!(message.contains("bytes"), "{message}");
}

#[tokio::test]
async fn more_answers_than_may_wait_are_refused() {
    let app = App::new(engine(EngineSetup::default()));
    let (status, message) = app.refused(COMPLETIONS, &json!({"prompt": ["a", "b"], "n": 64})).await;
    assert_eq!(status, 400);
    assert!(message.contains("128") && message.contains("64"), "{message}");
}
