//! OpenAI requests, and streams of answers put together again.

use serde_json::{Value, json};

/// A chat of outrider-tiny with one message of the user.
pub fn chat(content: &str) -> Value {
    json!({"model": "outrider-tiny", "messages": [{"role": "user", "content": content}]})
}

/// `base` with the fields of `more`.
///
/// # Panics
/// When one of them is no object.
pub fn with(base: &Value, more: Value) -> Value {
    let mut all = base.clone();
    for (name, value) in more.as_object().unwrap() {
        all[name] = value.clone();
    }
    all
}

/// One choice of a stream, put together.
#[derive(Debug, Default, PartialEq)]
pub struct Streamed {
    /// The answer.
    pub content: String,
    /// The thinking part.
    pub reasoning: String,
    /// Tool calls, their arguments joined.
    pub calls: Vec<Value>,
    /// Entries of chat log-probabilities.
    pub logprobs: Vec<Value>,
    /// Why it ended; none if it did not.
    pub finish_reason: Option<String>,
    /// What stopped it.
    pub matched_stop: Value,
}

/// Puts choice `index` of chat or completion events together and checks what holds for every stream.
///
/// # Panics
/// When it does not hold.
pub fn put_together(events: &[Value], index: usize) -> Streamed {
    let mut whole = Streamed::default();
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    for (i, choice) in choices.filter(|choice| choice["index"] == index).enumerate() {
        assert_eq!(whole.finish_reason, None, "an event after the end: {choice}");
        let delta = &choice["delta"];
        if delta.is_object() {
            assert_eq!(delta.get("role").is_some(), i == 0, "the role comes first and once");
        }
        let text = delta["content"].as_str().or_else(|| choice["text"].as_str());
        whole.content += text.unwrap_or_default();
        whole.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = piece["index"].as_u64().unwrap() as usize;
            if at == whole.calls.len() {
                assert!(piece["id"].is_string() && piece["type"] == "function", "{piece}");
                whole.calls.push(piece.clone());
            } else {
                assert!(piece.get("id").is_none(), "{piece}");
                let arguments = &mut whole.calls[at]["function"]["arguments"];
                let more = piece["function"]["arguments"].as_str().unwrap();
                *arguments = (arguments.as_str().unwrap().to_owned() + more).into();
            }
        }
        whole
            .logprobs
            .extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
        whole.finish_reason = choice["finish_reason"].as_str().map(str::to_owned);
        whole.matched_stop = choice["matched_stop"].clone();
    }
    whole
}
