//! Chats: thinking, tool calls, and the shape of answers.

use serde_json::{Value, json};

use crate::backends::Script;
use crate::support::{App, EOS, chat, put_together, with};

const CHAT: &str = "/v1/chat/completions";

fn weather() -> Value {
    let parameters = json!({"type": "object", "properties": {"town": {"type": "string"}, "days": {"type": "integer"}}});
    json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}])
}

const CALLS: &str = "Let me see.\n</think>\n\nI look.\n\n<tool_call>\n<function=weather>\n\
    <parameter=town>\nTurku\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n\
    <tool_call>\n<function=weather>\n<parameter=town>\nOulu\n</parameter>\n</function>\n</tool_call><|im_end|>";

#[tokio::test]
async fn an_answer_has_the_documented_shape() {
    let app = App::new(Script::says("Because.\n</think>\n\nHello there.<|im_end|>"));
    let answer = app.ok(CHAT, &chat("Hi")).await;
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "outrider-tiny");
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Hello there.");
    assert_eq!(choice["message"]["reasoning_content"], "Because.");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["matched_stop"], EOS);
    assert_eq!(choice["logprobs"], Value::Null);
    assert_eq!(answer["metadata"]["weight_version"], "w-1");
    assert!(answer["metadata"]["seed"].is_u64());
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    assert!(answer.get("sglext").is_none());
}

#[tokio::test]
async fn tool_calls_are_parsed_in_both_forms() {
    let app = App::new(Script::says(CALLS));
    let body = with(&chat("Weather?"), json!({"tools": weather()}));
    let answer = app.ok(CHAT, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "I look.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let arguments = |i: usize| -> Value {
        serde_json::from_str(calls[i]["function"]["arguments"].as_str().unwrap()).unwrap()
    };
    assert_eq!(calls.len(), 2);
    assert_eq!(arguments(0), json!({"town": "Turku", "days": 2}));
    assert_eq!(arguments(1), json!({"town": "Oulu"}));
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let streamed = put_together(&app.stream(CHAT, &body).await, 0);
    assert_eq!(streamed.finish_reason.as_deref(), Some("tool_calls"));
    assert_eq!(streamed.content, "I look.");
    assert_eq!(streamed.reasoning, "Let me see.");
    let without_ids = |calls: &[Value]| -> Vec<Value> {
        calls.iter().map(|call| with(call, json!({"id": null}))).collect()
    };
    assert_eq!(without_ids(&streamed.calls), without_ids(calls));
}

#[tokio::test]
async fn an_answer_of_calls_alone_has_no_content() {
    let app = App::new(Script::says(&CALLS.replace("I look.", "")));
    let answer = app.ok(CHAT, &with(&chat("Weather?"), json!({"tools": weather()}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
}

#[tokio::test]
async fn one_call_at_a_time_keeps_the_first() {
    let app = App::new(Script::says(CALLS));
    let body = with(&chat("?"), json!({"tools": weather(), "parallel_tool_calls": false}));
    let answer = app.ok(CHAT, &body).await;
    assert_eq!(answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(put_together(&app.stream(CHAT, &body).await, 0).calls.len(), 1);
}

#[tokio::test]
async fn calls_of_different_answers_have_different_ids() {
    let app = App::new(Script::says(CALLS));
    let answer = app.ok(CHAT, &with(&chat("?"), json!({"tools": weather(), "n": 3}))).await;
    let calls = answer["choices"].as_array().unwrap().iter();
    let ids = calls.flat_map(|choice| choice["message"]["tool_calls"].as_array().unwrap());
    let ids: std::collections::HashSet<&str> =
        ids.map(|call| call["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 6);
}

#[tokio::test]
async fn without_tools_markup_is_text() {
    let app = App::new(Script::says("x</think>a <function=f> b<|im_end|>"));
    let answer = app.ok(CHAT, &chat("Hi")).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "a <function=f> b");
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
}

#[tokio::test]
async fn tool_choice_is_honoured_or_refused_by_name() {
    let script = Script::says("ok</think>ok");
    let app = App::new(script.clone());
    let ask = |choice: Value| with(&chat("?"), json!({"tools": weather(), "tool_choice": choice}));
    app.ok(CHAT, &ask(json!("auto"))).await;
    app.ok(CHAT, &ask(json!("none"))).await;
    app.ok(CHAT, &chat("?")).await;
    let lengths: Vec<usize> = script.taken().iter().map(|request| request.prompt.len()).collect();
    assert!(lengths[0] > lengths[1], "`auto` shows the tools");
    assert_eq!(lengths[1], lengths[2], "`none` hides them");
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for choice in [json!("required"), named] {
        let (status, message) = app.refused(CHAT, &ask(choice)).await;
        assert_eq!(status, 400);
        assert!(message.contains("tool_choice") && message.contains("constrained"), "{message}");
    }
    let (status, _) = app.refused(CHAT, &ask(json!("sometimes"))).await;
    assert_eq!(status, 400);
    let (status, _) = app.refused(CHAT, &with(&chat("?"), json!({"tool_choice": "auto"}))).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn constrained_decoding_is_refused_by_name() {
    let app = App::new(Script::says("x"));
    for format in [
        json!({"type": "json_object"}),
        json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
    ] {
        let (status, message) =
            app.refused(CHAT, &with(&chat("?"), json!({"response_format": format}))).await;
        assert_eq!(status, 400);
        assert!(
            message.contains("response_format") && message.contains("constrained"),
            "{message}"
        );
    }
    app.ok(CHAT, &with(&chat("?"), json!({"response_format": {"type": "text"}}))).await;
}

#[tokio::test]
async fn speculation_is_reported_when_asked_for() {
    let app = App::new(Script::says("x</think>y<|im_end|>"));
    let body = with(&chat("?"), json!({"return_spec_tokens_details": true}));
    let details = &app.ok(CHAT, &body).await["sglext"]["spec_tokens_details"];
    assert_eq!(details["spec_verify_ct"], 4);
    assert_eq!(details["spec_accept_length"], 2.5);
    assert_eq!(details["spec_accept_rate"], 0.75);
    assert_eq!(details["spec_num_correct_drafts"], 6);
    assert_eq!(details["spec_num_proposed_drafts"], 8);
    assert_eq!(details["spec_correct_drafts_histogram"], json!([0, 2, 2]));
    let events = app.stream(CHAT, &body).await;
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(&last["sglext"]["spec_tokens_details"], details);
}

/// Case C15: an answer that is cut inside the thinking part is reasoning.
#[tokio::test]
async fn thinking_that_is_cut_off_is_reasoning() {
    let app = App::new(Script::says("I think and think and think about it at great length"));
    let body = with(&chat("?"), json!({"max_tokens": 6}));
    let answer = app.ok(CHAT, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["content"], "");
    let reasoning = choice["message"]["reasoning_content"].as_str().unwrap();
    assert!(reasoning.starts_with("I think") && !reasoning.contains("think>"), "{reasoning}");
    let streamed = put_together(&app.stream(CHAT, &body).await, 0);
    assert_eq!((streamed.content.as_str(), streamed.reasoning.as_str()), ("", reasoning));
}

/// Case C15: with thinking off everything is content.
#[tokio::test]
async fn without_thinking_everything_is_content() {
    let script = Script::says("June comes after May.<|im_end|>");
    let app = App::new(script.clone());
    for off in [
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"reasoning_effort": "none"}),
        json!({"reasoning": {"enabled": false}}),
    ] {
        let body = with(&chat("?"), off);
        let answer = app.ok(CHAT, &body).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], "June comes after May.");
        assert_eq!(message["reasoning_content"], Value::Null);
        let streamed = put_together(&app.stream(CHAT, &body).await, 0);
        assert_eq!(streamed.content, "June comes after May.");
        assert_eq!(streamed.reasoning, "");
    }
    let contradiction =
        json!({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": true}});
    assert_eq!(app.refused(CHAT, &with(&chat("?"), contradiction)).await.0, 400);
    let (status, message) =
        app.refused(CHAT, &with(&chat("?"), json!({"reasoning_effort": "high"}))).await;
    assert_eq!(status, 400);
    assert!(message.contains("reasoning_effort"), "{message}");
}

#[tokio::test]
async fn reasoning_can_stay_in_the_content() {
    let app = App::new(Script::says("Because. So: yes.<|im_end|>"));
    let answer = app.ok(CHAT, &with(&chat("?"), json!({"separate_reasoning": false}))).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "Because. So: yes.");
    assert_eq!(message["reasoning_content"], Value::Null);
}

#[tokio::test]
async fn a_failure_of_the_engine_tells_nothing_about_internals() {
    let steps = vec![vec![10], vec![11]];
    let app = App::new(Script::fails_after(steps));
    let reply = app.post(CHAT, &chat("?")).await;
    let (status, message) = reply.refusal();
    assert_eq!(status, 500);
    assert!(!message.contains("step.rs"), "{message}");
    let events = app.stream(CHAT, &chat("?")).await;
    let last = events.last().unwrap();
    assert_eq!(last["error"]["type"], "internal_error");
    assert!(!last.to_string().contains("step.rs"));
}

/// Case C13: characters of several bytes survive any grouping of their tokens into steps.
#[tokio::test]
async fn characters_of_several_bytes_survive_streaming() {
    let text = "x</think>海の月 🦑🧵 naïve Ωmega";
    let ids = crate::support::tokenizer().encode(text, text::tokenizer::Markers::Parse).unwrap();
    for n in 1..=7 {
        let app = App::new(Script::steps(ids.chunks(n).map(<[u32]>::to_vec).collect()));
        let events = app.stream(CHAT, &chat("?")).await;
        let streamed = put_together(&events, 0);
        assert_eq!(streamed.content, "海の月 🦑🧵 naïve Ωmega");
        assert!(events.iter().all(|event| !event.to_string().contains('\u{FFFD}')));
    }
}

/// Case C13: what ends in the middle of a character ends the same way in both forms.
#[tokio::test]
async fn an_unfinished_character_ends_the_same_in_both_forms() {
    let ids = crate::support::tokenizer()
        .encode("x</think>ok 🦑", text::tokenizer::Markers::Parse)
        .unwrap();
    let cut = ids.len() - 1;
    let app = App::new(Script::steps(ids[..cut].iter().map(|id| vec![*id]).collect()));
    let whole = app.ok(CHAT, &chat("?")).await["choices"][0]["message"]["content"].clone();
    let streamed = put_together(&app.stream(CHAT, &chat("?")).await, 0);
    assert_eq!(whole, streamed.content.as_str());
    assert!(streamed.content.starts_with("ok "), "{}", streamed.content);
}
