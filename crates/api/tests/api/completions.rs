//! Completions: the shapes of prompts, echo, several prompts.

use serde_json::{Value, json};

use crate::backends::Script;
use crate::support::{App, EOS, put_together, tokenizer, with};

const COMPLETIONS: &str = "/v1/completions";

fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text, text::tokenizer::Markers::Parse).unwrap()
}

#[tokio::test]
async fn a_prompt_may_have_four_shapes() {
    let script = Script::says(" world<|im_end|>");
    let app = App::new(script.clone());
    let hello = ids("Hello");
    for (prompt, n) in [
        (json!("Hello"), 1),
        (json!(["Hello", "Goodbye"]), 2),
        (json!(hello), 1),
        (json!([hello, [5, 6]]), 2),
    ] {
        let answer = app.ok(COMPLETIONS, &json!({"prompt": prompt})).await;
        assert_eq!(answer["object"], "text_completion");
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), n);
        for (i, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], i);
            assert_eq!(choice["text"], " world");
            assert_eq!(choice["matched_stop"], EOS);
        }
        let taken = script.taken();
        assert_eq!(taken[0].prompt, hello, "{prompt}");
        let n_prompt: usize = taken.iter().map(|request| request.prompt.len()).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], n_prompt);
    }
}

#[tokio::test]
async fn a_wrong_prompt_is_refused() {
    let app = App::new(Script::says("x"));
    for prompt in [
        json!(7),
        json!([]),
        json!(["a", 7]),
        json!([[1], "a", {}]),
        json!([-1]),
        json!([1.5]),
        json!([[1, "a"]]),
        json!({"text": "a"}),
        json!([4096]),
        json!([[]]),
        json!(""),
        Value::Null,
    ] {
        let (status, message) = app.refused(COMPLETIONS, &json!({"prompt": prompt})).await;
        assert_eq!(status, 400, "{prompt}");
        assert!(message.contains("prompt"), "{prompt}: {message}");
    }
}

#[tokio::test]
async fn an_echo_comes_before_the_answer_and_is_not_counted() {
    let app = App::new(Script::says(" world<|im_end|>"));
    let body = json!({"prompt": ["Hello", "Goodbye"], "echo": true});
    let answer = app.ok(COMPLETIONS, &body).await;
    assert_eq!(answer["choices"][0]["text"], "Hello world");
    assert_eq!(answer["choices"][1]["text"], "Goodbye world");
    assert_eq!(answer["usage"]["completion_tokens"], 2 * ids(" world<|im_end|>").len());
    let events = app.stream(COMPLETIONS, &body).await;
    assert_eq!(put_together(&events, 0).content, "Hello world");
    assert_eq!(put_together(&events, 1).content, "Goodbye world");
    let from_ids = json!({"prompt": ids("Hello"), "echo": true});
    assert_eq!(app.ok(COMPLETIONS, &from_ids).await["choices"][0]["text"], "Hello world");
    let (status, message) = app.refused(COMPLETIONS, &with(&body, json!({"logprobs": 1}))).await;
    assert_eq!(status, 400);
    assert!(message.contains("echo"), "{message}");
}

#[tokio::test]
async fn without_a_limit_a_completion_has_sixteen_tokens() {
    let script = Script::says("x");
    let app = App::new(script.clone());
    app.ok(COMPLETIONS, &json!({"prompt": "Hello"})).await;
    app.ok("/v1/chat/completions", &crate::support::chat("Hello")).await;
    let taken = script.taken();
    assert_eq!(taken[0].max_tokens, 16);
    assert_eq!(taken[1].max_tokens as usize + taken[1].prompt.len(), crate::support::CONTEXT_LEN);
}

#[tokio::test]
async fn defaults_come_from_the_model_and_requests_override_them() {
    let script = Script::says("x");
    let app = App::new(script.clone());
    app.ok(COMPLETIONS, &json!({"prompt": "Hello"})).await;
    let own = json!({"prompt": "Hello", "temperature": 1e-9, "top_k": -1, "top_p": 1, "seed": -3});
    app.ok(COMPLETIONS, &own).await;
    let taken = script.taken();
    let sampling = &taken[0].sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.75, 20));
    let sampling = &taken[1].sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.0, 1.0, 0));
    assert_eq!(sampling.seed, -3i64 as u64);
}

/// Case C21: a raw prompt may write markers.
#[tokio::test]
async fn a_raw_prompt_may_write_markers() {
    let script = Script::says("x");
    App::new(script.clone()).ok(COMPLETIONS, &json!({"prompt": "a<|im_end|>"})).await;
    assert_eq!(script.taken()[0].prompt.last(), Some(&EOS));
}
