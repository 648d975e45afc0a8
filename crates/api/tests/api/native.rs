//! SGLang's own `/generate`.

use serde_json::{Value, json};

use crate::backends::Script;
use crate::support::{App, EOS, tokenizer};

const GENERATE: &str = "/generate";

#[tokio::test]
async fn an_answer_has_sglang_s_shape() {
    let app = App::new(Script::says(" world and all<|im_end|>"));
    let answer = app.ok(GENERATE, &json!({"text": "Hello", "rid": "r-1"})).await;
    assert_eq!(answer["text"], " world and all");
    let ids = answer["output_ids"].as_array().unwrap();
    assert_eq!(ids.last().unwrap(), EOS);
    let meta = &answer["meta_info"];
    assert_eq!(meta["id"], "r-1");
    assert_eq!(meta["finish_reason"], json!({"type": "stop", "matched": EOS}));
    assert_eq!(meta["completion_tokens"], ids.len());
    assert_eq!(meta["cached_tokens"], 3);
    assert_eq!(meta["weight_version"], "w-1");
    assert_eq!(meta["spec_accept_length"], 2.5);
    let cut = json!({"text": "Hello", "sampling_params": {"max_new_tokens": 2}});
    let meta = app.ok(GENERATE, &cut).await["meta_info"].clone();
    assert_eq!(meta["finish_reason"], json!({"type": "length", "length": 2}));
}

#[tokio::test]
async fn lists_are_answered_with_lists() {
    let app = App::new(Script::says(" world<|im_end|>"));
    for (body, n) in [
        (json!({"text": ["a", "b"]}), 2),
        (json!({"text": ["a"]}), 1),
        (json!({"input_ids": [[5, 6], [7]]}), 2),
        (json!({"text": "a", "sampling_params": {"n": 3}}), 3),
    ] {
        let answer = app.ok(GENERATE, &body).await;
        let answers = answer.as_array().unwrap_or_else(|| panic!("{body}: {answer}"));
        assert_eq!(answers.len(), n);
        assert!(answers.iter().enumerate().all(|(i, answer)| answer["index"] == i));
    }
    assert!(app.ok(GENERATE, &json!({"input_ids": [5, 6]})).await.is_object());
}

#[tokio::test]
async fn every_event_has_the_whole_text_so_far() {
    let app = App::new(Script::says(" one two three<|im_end|>"));
    let events = app.stream(GENERATE, &json!({"text": "Hello"})).await;
    let texts: Vec<&str> = events.iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert!(texts.windows(2).all(|pair| pair[1].starts_with(pair[0])), "{texts:?}");
    assert_eq!(*texts.last().unwrap(), " one two three");
    let ended = |event: &&Value| !event["meta_info"]["finish_reason"].is_null();
    assert_eq!(events.iter().filter(ended).count(), 1);
    assert!(ended(&events.last().unwrap()));
    let whole = app.ok(GENERATE, &json!({"text": "Hello"})).await;
    assert_eq!(whole["output_ids"], events.last().unwrap()["output_ids"]);
}

#[tokio::test]
async fn one_prompt_is_needed() {
    let app = App::new(Script::says("x"));
    for body in [
        json!({}),
        json!({"text": "a", "input_ids": [5]}),
        json!({"text": []}),
        json!({"input_ids": []}),
        json!({"input_ids": [[5], "a"]}),
        json!({"input_ids": [9999]}),
        json!({"text": "a", "sampling_params": {"max_tokens": 3}}),
        json!({"text": "a", "top_logprobs_num": 3}),
        json!({"text": "a", "sampling_params": {"regex": "a"}}),
    ] {
        assert_eq!(app.refused(GENERATE, &body).await.0, 400, "{body}");
    }
}

#[tokio::test]
async fn tokenize_and_detokenize_are_inverse() {
    let app = App::new(Script::says("x"));
    let tokens = app.ok("/tokenize", &json!({"prompt": "Hello world<|im_end|>"})).await;
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    assert_eq!(tokens["max_model_len"], 2048);
    let body = json!({"tokens": tokens["tokens"], "skip_special_tokens": false});
    assert_eq!(app.ok("/v1/detokenize", &body).await["text"], "Hello world<|im_end|>");
    let hidden = json!({"tokens": tokens["tokens"]});
    assert_eq!(app.ok("/detokenize", &hidden).await["text"], "Hello world");
    let several = app.ok("/v1/tokenize", &json!({"prompt": ["a", "b c"]})).await;
    assert_eq!(several["tokens"].as_array().unwrap().len(), 2);
    let texts = app.ok("/detokenize", &json!({"tokens": several["tokens"]})).await;
    assert_eq!(texts["text"], json!(["a", "b c"]));
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let rendered = app.ok("/tokenize", &chat).await;
    let start = tokenizer().token_id("<|im_start|>").unwrap();
    assert_eq!(rendered["tokens"][0], start);
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({"prompt": "a", "messages": [{"role": "user", "content": "Hi"}]})),
        ("/detokenize", json!({})),
        ("/detokenize", json!({"tokens": ["a"]})),
    ] {
        assert_eq!(app.refused(path, &body).await.0, 400, "{path} {body}");
    }
}
