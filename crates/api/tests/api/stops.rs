//! Case C10: a stop string ends the answer, and no piece of it is ever sent.

use serde_json::{Value, json};

use crate::backends::{EngineSetup, Script, at_rest, engine};
use crate::support::{App, chat, put_together, with};

const CHAT: &str = "/v1/chat/completions";

fn ask() -> Value {
    let more = json!({"temperature": 0, "max_tokens": 60, "ignore_eos": true,
        "chat_template_kwargs": {"enable_thinking": false}});
    with(&chat("Tell me."), more)
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// Characters of `text`, and where they begin.
fn middle(text: &str, from: usize, n: usize) -> (usize, String) {
    let at: Vec<(usize, char)> = text.char_indices().skip(from).take(n).collect();
    (at[0].0, at.iter().map(|(_, c)| *c).collect())
}

#[tokio::test]
async fn a_stop_in_the_middle_ends_the_answer_before_it() {
    let app = App::new(engine(EngineSetup::default()));
    let free = app.ok(CHAT, &ask()).await;
    let text = content(&free);
    for from in [10, 40, 80] {
        let (_, stop) = middle(text, from, 12);
        let before = &text[..text.find(&stop).unwrap()];
        let body = with(&ask(), json!({"stop": [stop]}));
        let whole = app.ok(CHAT, &body).await;
        assert_eq!(content(&whole), before);
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        assert_eq!(whole["choices"][0]["matched_stop"], stop);
        assert!(whole["usage"]["completion_tokens"].as_u64().unwrap() < 60);

        let events = app.stream(CHAT, &body).await;
        let streamed = put_together(&events, 0);
        assert_eq!(streamed.content, before);
        assert_eq!(streamed.finish_reason.as_deref(), Some("stop"));
        assert_eq!(streamed.matched_stop, stop.as_str());
    }
}

#[tokio::test]
async fn text_that_only_looks_like_a_stop_is_sent() {
    let app = App::new(engine(EngineSetup::default()));
    let free = app.ok(CHAT, &ask()).await;
    let text = content(&free);
    for from in [10, 40] {
        let (_, begin) = middle(text, from, 3);
        let body = with(&ask(), json!({"stop": [begin + "~@~"]}));
        assert_eq!(content(&app.ok(CHAT, &body).await), text);
        let streamed = put_together(&app.stream(CHAT, &body).await, 0);
        assert_eq!(streamed.content, text);
        assert_eq!(streamed.finish_reason.as_deref(), Some("length"));
    }
}

/// Whatever the steps: tokens after the stop that came in the same step are neither sent nor counted.
#[tokio::test]
async fn what_follows_a_stop_in_the_same_step_is_dropped() {
    let text = "x</think>one two three STOP four five six";
    let ids = crate::support::tokenizer().encode(text, text::tokenizer::Markers::Parse).unwrap();
    let mut counts = Vec::new();
    for n in [1, 2, 3, ids.len()] {
        let app = App::new(Script::steps(ids.chunks(n).map(<[u32]>::to_vec).collect()));
        let answer = app.ok(CHAT, &with(&chat("?"), json!({"stop": "STOP"}))).await;
        assert_eq!(content(&answer), "one two three ");
        counts.push(answer["usage"]["completion_tokens"].as_u64().unwrap());
    }
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    assert!((counts[0] as usize) < ids.len());
}

#[tokio::test]
async fn a_stop_may_be_kept() {
    let app = App::new(Script::says("x</think>one two three four"));
    let body = with(&chat("?"), json!({"stop": ["three"], "no_stop_trim": true}));
    assert_eq!(content(&app.ok(CHAT, &body).await), "one two three");
}

/// The engine is told, so it does not go on to the token limit.
#[tokio::test]
async fn a_stop_ends_the_generation() {
    let backend = engine(EngineSetup::default());
    let app = App::new(backend.clone());
    let free = app.ok(CHAT, &ask()).await;
    let (_, stop) = middle(content(&free), 10, 12);
    let before = at_rest(&backend).totals;
    let body = with(&ask(), json!({"stop": stop, "max_tokens": 1900}));
    let answer = app.ok(CHAT, &body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let after = at_rest(&backend).totals;
    assert!(after.n_generated - before.n_generated < 200);
    assert_eq!((after.n_cancelled, after.n_length), (before.n_cancelled, before.n_length));
}
