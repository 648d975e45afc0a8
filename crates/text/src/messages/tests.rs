//! Cases C19 and C20: the shapes of messages.

use super::*;
use serde_json::json;

fn messages(messages: Json) -> Result<Conversation, MessageError> {
    normalise(messages.as_array().unwrap(), true)
}

fn check(given: Json, want: Json) {
    assert_eq!(Json::from(messages(given).unwrap().messages), want);
}

#[track_caller]
fn check_refused(given: Json, words: &[&str]) {
    let error = messages(given).unwrap_err().to_string();
    for word in words {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn null_missing_and_empty_content_are_the_same() {
    let call = json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]);
    let want = json!([{"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}]);
    check(json!([{"role": "assistant", "content": null, "tool_calls": call}]), want.clone());
    check(json!([{"role": "assistant", "tool_calls": call}]), want.clone());
    check(
        json!([{"role": "assistant", "content": "", "tool_calls": call, "refusal": null}]),
        want.clone(),
    );
    check(
        json!([{"role": "assistant", "content": [], "tool_calls": call, "function_call": null}]),
        want,
    );
}

#[test]
fn text_parts_are_joined() {
    let given = json!([{"role": "user", "content": [{"type": "text", "text": "First, "}, "second", {"type": "text", "text": "."}]}]);
    check(given, json!([{"role": "user", "content": "First, second."}]));
}

#[test]
fn what_a_text_model_cannot_take_is_refused_by_name() {
    let user = json!({"role": "user", "content": "x"});
    check_refused(
        json!([user, {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {}}]}]),
        &["image_url", "messages[1]"],
    );
    check_refused(
        json!([user, {"role": "narrator", "content": "x"}]),
        &["narrator", "messages[1].role"],
    );
    check_refused(json!([{"content": "x"}]), &["messages[0].role"]);
    check_refused(json!([{"role": "user", "content": 3}]), &["messages[0].content"]);
    check_refused(
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        &["messages[0].content[0]"],
    );
    check_refused(json!([{"role": "assistant", "function_call": {}}]), &["function_call"]);
    check_refused(json!([{"role": "assistant", "reasoning_content": 1}]), &["reasoning_content"]);
    check_refused(json!([{"role": "assistant", "tool_calls": {}}]), &["tool_calls"]);
    check_refused(json!([{"role": "assistant", "tool_calls": [{}]}]), &["tool_calls[0].function"]);
    check_refused(
        json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]),
        &["tool_calls[0].function.arguments"],
    );
    check_refused(json!(["x"]), &["messages[0] is not an object"]);
    assert_eq!(messages(json!([])).unwrap_err(), MessageError::Empty);
}

#[test]
fn leading_system_messages_are_merged_in_order() {
    let given = json!([{"role": "system", "content": "One."}, {"role": "developer", "content": [{"type": "text", "text": "Two."}]}, {"role": "system"}, {"role": "user", "content": "Hi"}]);
    check(
        given,
        json!([{"role": "system", "content": "One.\n\nTwo."}, {"role": "user", "content": "Hi"}]),
    );
}

#[test]
fn the_position_of_a_late_system_message_is_kept() {
    let given = json!([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user"}, {"role": "developer", "content": "c"}]);
    assert_eq!(messages(given).unwrap().late_system, Some(3));
}

#[test]
fn a_thinking_part_in_the_content_is_moved() {
    check(
        json!([{"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."}]),
        json!([{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}]),
    );
    check(
        json!([{"role": "assistant", "content": "Yes.", "reasoning": "Hm."}]),
        json!([{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}]),
    );
    check(
        json!([{"role": "assistant", "content": "Hm.\n</think>\n\nYes"}, {"role": "user", "content": "a</think>b"}]),
        json!([{"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}, {"role": "user", "content": "a</think>b"}]),
    );
    let given = [json!({"role": "assistant", "content": "a</think>b"})];
    assert_eq!(normalise(&given, false).unwrap().messages, given);
    let given = [json!({"role": "assistant", "content": "a</think>b", "reasoning_content": "c"})];
    assert_eq!(normalise(&given, true).unwrap().messages, given);
}
