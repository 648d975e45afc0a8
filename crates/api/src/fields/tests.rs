//! What holds for every row of the tables, and the messages of refusals.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::chat::CHAT;
use super::completions::COMPLETIONS;
use super::document::{ALL, document};
use super::native::GENERATE;
use super::*;

fn refusal(table: &Table, body: Value) -> String {
    match table.check(body.as_object().unwrap(), "") {
        Ok(()) => panic!("{body} was accepted"),
        Err(error) => {
            assert_eq!(error.status().as_u16(), 400);
            error.to_string()
        }
    }
}

#[test]
fn no_table_has_a_name_twice() {
    for (_, table) in ALL {
        let mut seen = HashSet::new();
        for field in table.fields() {
            assert!(seen.insert(field.name), "{} has `{}` twice", table.title, field.name);
        }
    }
}

#[test]
fn every_field_keeps_its_policy() {
    for (_, table) in ALL {
        for field in table.fields() {
            let send = |value: Value| {
                let mut body = Map::new();
                body.insert(field.name.to_owned(), value);
                table.check(&body, "")
            };
            let context = format!("{} `{}`", table.title, field.name);
            send(Value::Null).unwrap_or_else(|e| panic!("{context}: null: {e}"));
            match &field.policy {
                Policy::Honoured { example, with } => {
                    let example: Value = serde_json::from_str(example).expect(&context);
                    send(example).unwrap_or_else(|e| panic!("{context}: {e}"));
                    assert!(serde_json::from_str::<Map<String, Value>>(with).is_ok(), "{context}");
                }
                Policy::Harmless => send(json!({"any": ["thing"]})).expect(&context),
                Policy::Only(accepted) => {
                    for text in *accepted {
                        send(serde_json::from_str(text).expect(&context)).expect(&context);
                    }
                    let error = send(json!("something else")).expect_err(&context);
                    assert!(error.to_string().contains(field.name), "{context}: {error}");
                    assert!(!field.doc.ends_with('.'), "{context}: the message adds the full stop");
                }
            }
        }
    }
}

/// Wrong types and the nearest values outside each range are refused with the field's name.
#[test]
fn every_typed_field_refuses_wrong_types_and_ranges() {
    for (_, table) in ALL {
        for field in table.fields().filter(|f| matches!(f.policy, Policy::Honoured { .. })) {
            let wrong: Vec<Value> = match field.kind {
                Kind::Bool => vec![json!(1), json!("true")],
                Kind::Int(min, max) => {
                    let mut wrong = vec![json!("10"), json!(1.5), json!(true), json!([1])];
                    wrong.extend(min.checked_sub(1).map(|n| json!(n)));
                    wrong.extend(max.checked_add(1).map(|n| json!(n)));
                    wrong
                }
                Kind::Float(min, max) => vec![json!("1"), json!(min - 0.1), json!(max + 0.1)],
                Kind::FloatAbove(min, max) => vec![json!("1"), json!(min), json!(max + 0.1)],
                Kind::Text => vec![json!(1), json!(["a"])],
                Kind::Texts => vec![json!(1), json!(["a", 1])],
                Kind::Ids => vec![json!(1), json!(["a"]), json!([-1]), json!([1u64 << 32])],
                Kind::Object(_) | Kind::Map => vec![json!("a"), json!([1])],
                Kind::List => vec![json!("a"), json!({})],
                Kind::Any => vec![],
            };
            for value in wrong {
                let message = refusal(table, json!({ field.name: value }));
                assert!(message.contains(field.name), "{message}");
                assert!(message.contains("must be"), "{message}");
            }
        }
    }
}

#[test]
fn an_unknown_field_is_refused_with_the_nearest_name() {
    let message = refusal(&CHAT, json!({"temprature": 1}));
    assert!(message.contains("`temprature`") && message.contains("`temperature`?"), "{message}");
    let message = refusal(&CHAT, json!({"maxtokens": 1}));
    assert!(message.contains("`max_tokens`?"), "{message}");
    let message = refusal(&CHAT, json!({"zebra_crossing": 1}));
    assert!(!message.contains("Did you mean"), "{message}");
    let long = "x".repeat(10_000);
    assert!(refusal(&CHAT, json!({ long: 1 })).len() < 400);
}

#[test]
fn a_nested_field_is_named_by_its_path() {
    let message = refusal(&CHAT, json!({"stream_options": {"include_usge": true}}));
    assert!(message.contains("`stream_options.include_usge`"), "{message}");
    let message = refusal(&GENERATE, json!({"sampling_params": {"top_p": 7}}));
    assert!(message.contains("`sampling_params.top_p`"), "{message}");
}

/// What sglang-router 0.3.2 makes of small requests.
#[test]
fn requests_that_a_router_rewrote_are_accepted() {
    let call = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let chat = json!({
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "x", "tool_calls": [call]},
            {"role": "tool", "content": "y", "tool_call_id": "a"},
        ],
        "model": "m", "logprobs": false, "max_completion_tokens": 8, "stream": false,
        "tool_choice": "auto",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "no_stop_trim": false, "ignore_eos": false, "continue_final_message": false,
        "skip_special_tokens": true, "separate_reasoning": true, "stream_reasoning": true,
        "return_hidden_states": false,
    });
    let completion = json!({
        "model": "m", "prompt": "hi", "max_tokens": 4, "stream": false, "echo": false,
        "no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true,
        "return_hidden_states": false,
    });
    let generate = json!({
        "text": "hi", "model": null, "sampling_params": {"max_new_tokens": 4},
        "return_text_in_logprobs": false, "stream": false, "log_metrics": true,
        "return_hidden_states": false, "background": false, "no_logs": false,
        "return_bytes": false, "return_entropy": false,
    });
    for (table, body) in [(&CHAT, chat), (&COMPLETIONS, completion), (&GENERATE, generate)] {
        table.check(body.as_object().unwrap(), "").unwrap();
    }
}

#[test]
fn whole_numbers_may_be_written_as_floats() {
    assert_eq!(whole(&json!(10.0)), Some(10));
    assert_eq!(whole(&json!(u64::MAX)), Some(i128::from(u64::MAX)));
    assert_eq!(whole(&json!(10.5)), None);
    assert_eq!(whole(&json!(1e300)), None);
    assert_eq!(whole(&json!("10")), None);
}

#[test]
fn the_document_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/request-fields.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, document()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert_eq!(written, document(), "run the test with UPDATE_DOCS=1 to write it anew");
}
