//! Cases C11 and C14: counts that fit each other, and the usage event.

use serde_json::{Value, json};

use crate::backends::Script;
use crate::support::{App, chat, tokenizer, with};

const CHAT: &str = "/v1/chat/completions";
const SAYS: &str = "I think about it.\n</think>\n\nYes, it is.<|im_end|>";

fn steps(n: usize) -> Vec<Vec<u32>> {
    let ids = tokenizer().encode(SAYS, text::tokenizer::Markers::Parse).unwrap();
    ids.chunks(n).map(<[u32]>::to_vec).collect()
}

/// Case C11: wherever the answer is cut and however many tokens a step has.
#[tokio::test]
async fn reasoning_is_never_more_than_the_completion() {
    for n in 1..=5 {
        let app = App::new(Script::steps(steps(n)));
        for max_tokens in 1..=24 {
            let body = with(&chat("?"), json!({"max_tokens": max_tokens}));
            let answer = app.ok(CHAT, &body).await;
            let usage = &answer["usage"];
            let count = |name: &str| usage[name].as_u64().unwrap();
            let (completion, reasoning) = (count("completion_tokens"), count("reasoning_tokens"));
            assert!(reasoning <= completion && completion <= max_tokens, "{usage}");
            assert_eq!(count("total_tokens"), count("prompt_tokens") + completion);
            assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], reasoning);
            if answer["choices"][0]["finish_reason"] == "length"
                && answer["choices"][0]["message"]["content"] == ""
                && reasoning < completion
            {
                // Only blank lines after the end of the thinking part have no text.
                let text = answer["choices"][0]["message"]["reasoning_content"].as_str().unwrap();
                assert_eq!(text, "I think about it.", "{usage}");
            }
            let streamed = app
                .stream(CHAT, &with(&body, json!({"stream_options": {"include_usage": true}})))
                .await;
            assert_eq!(streamed.last().unwrap()["usage"], *usage);
        }
    }
}

/// Case C11, unit form: what follows an end token in its step is in no count.
#[tokio::test]
async fn tokens_after_the_end_are_in_no_count() {
    let ids = tokenizer().encode(SAYS, text::tokenizer::Markers::Parse).unwrap();
    let mut longer = ids.clone();
    longer.extend([300, 301]);
    let app = App::new(Script::steps(vec![longer]));
    let answer = app.ok(CHAT, &chat("?")).await;
    assert_eq!(answer["usage"]["completion_tokens"], ids.len());
    assert_eq!(answer["choices"][0]["message"]["content"], "Yes, it is.");
}

/// Case C14.
#[tokio::test]
async fn the_usage_event_comes_when_asked_for_once_and_last() {
    let app = App::new(Script::says(SAYS));
    for (path, body) in [
        (CHAT, chat("Say hi.")),
        ("/v1/completions", json!({"prompt": "Say hi.", "max_tokens": 8})),
    ] {
        for options in [Value::Null, json!({"include_usage": false})] {
            let events = app.stream(path, &with(&body, json!({"stream_options": options}))).await;
            assert!(events.iter().all(|event| event["choices"] != json!([])));
            assert!(events.iter().all(|event| event.get("usage").is_none()));
        }
        let ask = with(&body, json!({"stream_options": {"include_usage": true}}));
        let events = app.stream(path, &ask).await;
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        assert!(before.iter().all(|event| event.get("usage") == Some(&Value::Null)));
        assert!(before.iter().all(|event| event["choices"] != json!([])));
        let whole = app.ok(path, &body).await;
        assert_eq!(last["usage"], whole["usage"]);
        for name in ["id", "created", "model", "object"] {
            assert!(events.iter().all(|event| event[name] == events[0][name]), "{name}");
        }
        let ends = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
        assert_eq!(ends.filter(|choice| !choice["finish_reason"].is_null()).count(), 1);
    }
}

#[tokio::test]
async fn continuous_usage_grows_with_every_event() {
    let app = App::new(Script::says(SAYS));
    let ask = with(&chat("?"), json!({"stream_options": {"continuous_usage_stats": true}}));
    let events = app.stream(CHAT, &ask).await;
    let counts: Vec<u64> =
        events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.windows(2).all(|pair| pair[0] <= pair[1]), "{counts:?}");
    assert_eq!(*counts.last().unwrap() as usize, steps(1).len());
}
