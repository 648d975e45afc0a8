//! Promise: nothing accepted and ignored. One check for every field of every request, made from the table
//! that declares it: an honoured field changes what the engine is asked for or what the client gets, a
//! harmless one and an accepted neutral value change nothing, everything else is refused by name.

use api::fields::chat::CHAT;
use api::fields::completions::COMPLETIONS;
use api::fields::native::{DETOKENIZE, GENERATE, SAMPLING_PARAMS, TOKENIZE};
use api::fields::nested::{MESSAGE, REASONING, STREAM_OPTIONS};
use api::fields::{Field, Policy, Table};
use serde_json::{Value, json};

use crate::backends::Script;
use crate::support::{App, EOS, FIM_PREFIX, tokenizer, with};

/// What the script says: something for every field to act on.
fn script() -> std::sync::Arc<Script> {
    let encode = |text: &str| tokenizer().encode(text, text::tokenizer::Markers::Parse).unwrap();
    let mut ids = encode("why\n</think>\n\none two three four five six seven eight");
    ids.insert(8, FIM_PREFIX);
    let call = "\n<tool_call>\n<function=weather>\n<parameter=town>\nTurku\n</parameter>\n\
                </function>\n</tool_call>";
    ids.extend(encode(&call.repeat(2)));
    ids.push(77);
    ids.push(EOS);
    ids.extend(encode(" nine"));
    Script::steps(ids.into_iter().map(|id| vec![id]).collect())
}

/// What a request asked of the engine and what it answered, without names, times and random numbers.
async fn effect(path: &str, body: &Value) -> Result<String, (u16, String)> {
    let script = script();
    let app = App::new(script.clone());
    let reply = app.post(path, body).await;
    if reply.status != 200 {
        return Err(reply.refusal());
    }
    let seeded = body.get("seed").or(body["sampling_params"].get("sampling_seed"));
    let requests: Vec<String> = script
        .taken()
        .into_iter()
        .map(|mut request| {
            request.id = 0;
            if seeded.is_none_or(Value::is_null) {
                request.sampling.seed = 0;
            }
            format!("{request:?}")
        })
        .collect();
    let named = body.get("rid").is_some_and(Value::is_string);
    let answer = reply.text();
    let plain = answer.split("data: ").map(|event| match serde_json::from_str(event.trim()) {
        Ok(value) => without_noise(value, named).to_string(),
        Err(_) => event.to_owned(),
    });
    Ok(format!("{requests:#?}\n{}", plain.collect::<Vec<_>>().join("\n")))
}

fn without_noise(mut value: Value, named: bool) -> Value {
    for name in ["created", "metadata"] {
        if let Some(field) = value.get_mut(name) {
            *field = Value::Null;
        }
    }
    if let Some(latency) = value.pointer_mut("/meta_info/e2e_latency") {
        *latency = Value::Null;
    }
    if !named {
        for pointer in ["/id", "/meta_info/id"] {
            if let Some(field) = value.pointer_mut(pointer) {
                *field = Value::Null;
            }
        }
    }
    for list in ["/choices/0/message/tool_calls", "/choices/0/delta/tool_calls"] {
        for call in value.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            call["id"] = Value::Null;
        }
    }
    value
}

/// Checks every field of `table`; `put` puts fields into a request.
async fn check_table(path: &str, table: &Table, put: impl Fn(Value) -> Value) {
    for field in table.fields() {
        check_field(path, table, field, &put).await;
    }
}

async fn check_field(path: &str, table: &Table, field: &Field, put: &impl Fn(Value) -> Value) {
    let context = format!("{}: `{}`", table.title, field.name);
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect(&context);
    let send = async |fields: Value| effect(path, &put(fields)).await;
    match &field.policy {
        Policy::Honoured { example, with: beside } => {
            let beside = parse(beside);
            let before = send(beside.clone()).await;
            let after = send(with(&beside, json!({ field.name: parse(example) }))).await;
            // The example of `model` is a model that is not served.
            assert_eq!(after.is_ok(), field.name != "model", "{context}: {after:?}");
            assert_ne!(before, after, "{context} is accepted and ignored");
        }
        Policy::Harmless => {
            let before = send(json!({})).await.unwrap();
            let after = send(json!({ field.name: "anything" })).await;
            assert_eq!(Ok(before), after, "{context} is not harmless");
        }
        Policy::Only(accepted) => {
            let before = send(json!({})).await.unwrap();
            for value in *accepted {
                let after = send(json!({ field.name: parse(value) })).await;
                assert_eq!(Ok(&before), after.as_ref(), "{context}: {value}");
            }
            let (status, message) = send(json!({ field.name: "other" })).await.expect_err(&context);
            assert_eq!(status, 400, "{context}");
            assert!(message.contains(field.name), "{context}: {message}");
        }
    }
}

const WEATHER: &str =
    r#"[{"type":"function","function":{"name":"weather","description":"Sky over a town"}}]"#;

#[tokio::test]
async fn every_field_of_a_chat_keeps_its_policy() {
    let base = json!({"messages": [{"role": "user", "content": "Hello"}]});
    check_table("/v1/chat/completions", &CHAT, |fields| with(&base, fields)).await;
}

#[tokio::test]
async fn every_field_of_a_completion_keeps_its_policy() {
    let base = json!({"prompt": "Hello", "max_tokens": 60});
    check_table("/v1/completions", &COMPLETIONS, |fields| with(&base, fields)).await;
}

#[tokio::test]
async fn every_field_of_a_native_request_keeps_its_policy() {
    let base = json!({"text": "Hello", "sampling_params": {"max_new_tokens": 60}});
    check_table("/generate", &GENERATE, |fields| with(&base, fields)).await;
    let params = |fields| {
        let params = with(&json!({"max_new_tokens": 60}), fields);
        json!({"text": "Hello", "sampling_params": params})
    };
    check_table("/generate", &SAMPLING_PARAMS, params).await;
}

#[tokio::test]
async fn every_field_of_nested_objects_keeps_its_policy() {
    let base = json!({"messages": [{"role": "user", "content": "Hello"}]});
    let options = |fields| with(&base, json!({"stream": true, "stream_options": fields}));
    check_table("/v1/chat/completions", &STREAM_OPTIONS, options).await;
    let reasoning = |fields| with(&base, json!({"reasoning": fields}));
    check_table("/v1/chat/completions", &REASONING, reasoning).await;
}

/// What a message may have is given to the chat template; what outrider-tiny's template makes of it is
/// its own affair, so `name` and `tool_call_id` change nothing here.
#[tokio::test]
async fn every_field_of_a_message_keeps_its_policy() {
    let message = |fields: Value| {
        let message = with(&json!({"role": "user", "content": "Hello"}), fields);
        json!({"messages": [message]})
    };
    for field in MESSAGE.fields().filter(|f| !["name", "tool_call_id"].contains(&f.name)) {
        check_field("/v1/chat/completions", &MESSAGE, field, &message).await;
    }
}

#[tokio::test]
async fn every_field_of_the_tokenizer_routes_keeps_its_policy() {
    let base = json!({"prompt": "Hello"});
    for field in TOKENIZE.fields() {
        // An empty list of tools, or of template values, changes nothing: these have their own tests.
        if !["tools", "chat_template_kwargs"].contains(&field.name) {
            check_field("/tokenize", &TOKENIZE, field, &|fields| with(&base, fields)).await;
        }
    }
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let plain = effect("/tokenize", &chat).await;
    for more in [
        json!({"tools": serde_json::from_str::<Value>(WEATHER).unwrap()}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        assert_ne!(effect("/tokenize", &with(&chat, more)).await, plain);
    }
    let base = json!({"tokens": [1, EOS]});
    check_table("/detokenize", &DETOKENIZE, |fields| with(&base, fields)).await;
}

#[tokio::test]
async fn an_unknown_field_is_refused_by_name() {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "temprature": 0.5});
    let (status, message) = effect("/v1/chat/completions", &body).await.unwrap_err();
    assert_eq!(status, 400);
    assert!(message.contains("temprature") && message.contains("`temperature`?"), "{message}");
}

#[tokio::test]
async fn a_template_value_that_the_template_does_not_read_is_refused() {
    let ask = async |kwargs: Value| {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": kwargs});
        effect("/v1/chat/completions", &body).await
    };
    assert!(ask(json!({"enable_thinking": true})).await.is_ok());
    let (status, message) = ask(json!({"enable_thinkin": true})).await.unwrap_err();
    assert_eq!(status, 400);
    assert!(message.contains("enable_thinkin"), "{message}");
}
