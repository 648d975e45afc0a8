//! OpenAI messages in all their legal shapes, brought into the one shape that chat templates take.
//!
//! What is done, and nothing else:
//! - role `developer` is `system`; system messages at the start are merged, in order, with an empty
//!   line between them;
//! - `content` is always a string: null, missing and empty are the same, a list of text parts is
//!   joined;
//! - `tool_calls[].function.arguments` is an object (OpenAI sends the JSON as a string, templates
//!   walk it);
//! - fields that are null and an empty list of calls are left out;
//! - `reasoning` is renamed to `reasoning_content`;
//! - where the template itself would look for a thinking part in an assistant's content (from a
//!   client that keeps the raw output), the part is moved to `reasoning_content`: the template
//!   cannot find it any more, since it is shown marker text in a content as mere text.
//!
//! What cannot be shown to a template (images, audio, unknown roles) is refused by name and
//! position.

use serde_json::{Map, Value as Json};

/// Why a conversation is refused. Positions count from 0, as in `messages[0]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// There is nothing to answer.
    #[error("messages must not be empty")]
    Empty,
    /// A role that is none of system, developer, user, assistant and tool.
    #[error(
        "messages[{position}].role is {role:?}; it must be system, developer, user, assistant or tool"
    )]
    UnknownRole {
        /// Index of the message.
        position: usize,
        /// What was given.
        role: String,
    },
    /// A content part that a text model cannot take, such as `image_url`.
    #[error("messages[{position}].content has a part of type {part:?}; this model takes text only")]
    UnsupportedPart {
        /// Index of the message.
        position: usize,
        /// The type of the part.
        part: String,
    },
    /// A field of the wrong form.
    #[error("messages[{position}]{}{field} {problem}", if field.is_empty() { "" } else { "." })]
    Malformed {
        /// Index of the message.
        position: usize,
        /// Path of the field inside the message.
        field: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Messages as templates take them.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// Each an object with `role` and a string `content`.
    pub messages: Vec<Json>,
    /// Index in the request of the first system message that does not stand at the start.
    pub late_system: Option<usize>,
}

/// Brings the `messages` of a request into shape; `split_thinking` where the template does that.
pub(crate) fn normalise(
    messages: &[Json],
    split_thinking: bool,
) -> Result<Conversation, MessageError> {
    let mut conversation = Conversation { messages: Vec::new(), late_system: None };
    for (position, message) in messages.iter().enumerate() {
        let mut message = normalise_one(position, message)?;
        if split_thinking && message["role"] == "assistant" {
            move_thinking(&mut message);
        }
        let is_system = message["role"] == "system";
        match &mut conversation.messages[..] {
            [first] if is_system && first["role"] == "system" => merge_system(first, &message),
            messages => {
                if is_system && !messages.is_empty() {
                    conversation.late_system.get_or_insert(position);
                }
                conversation.messages.push(message);
            }
        }
    }
    if conversation.messages.is_empty() { Err(MessageError::Empty) } else { Ok(conversation) }
}

fn merge_system(first: &mut Json, second: &Json) {
    let texts = [&*first, second].map(|m| m["content"].as_str().unwrap_or_default().to_owned());
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    first["content"] = Json::String(texts.join("\n\n"));
}

fn normalise_one(position: usize, message: &Json) -> Result<Json, MessageError> {
    let malformed =
        |field: &str, problem| MessageError::Malformed { position, field: field.into(), problem };
    let Json::Object(message) = message else {
        return Err(malformed("", "is not an object"));
    };
    let mut message = message.clone();
    let role = match message.get("role").and_then(Json::as_str) {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        Some(role) => return Err(MessageError::UnknownRole { position, role: role.into() }),
        None => return Err(malformed("role", "is missing or not a string")),
    }
    .to_owned();
    let content = text_of(position, message.get("content").unwrap_or(&Json::Null))?;
    message.insert("role".into(), role.clone().into());
    message.insert("content".into(), content.into());
    message.retain(|_, value| !value.is_null());
    if role == "assistant" {
        if message.contains_key("function_call") {
            return Err(malformed("function_call", "is not supported; use tool_calls"));
        }
        normalise_reasoning(&mut message).map_err(|(field, problem)| malformed(field, problem))?;
        normalise_calls(&mut message).map_err(|(field, problem)| malformed(&field, problem))?;
    }
    Ok(Json::Object(message))
}

/// The text of a content in any of its shapes.
fn text_of(position: usize, content: &Json) -> Result<String, MessageError> {
    let malformed = |field: String, problem| MessageError::Malformed { position, field, problem };
    match content {
        Json::Null => Ok(String::new()),
        Json::String(text) => Ok(text.clone()),
        Json::Array(parts) => {
            let mut text = String::new();
            for (i, part) in parts.iter().enumerate() {
                match (part, part.get("type").and_then(Json::as_str), part.get("text")) {
                    (Json::String(piece), ..) | (_, Some("text"), Some(Json::String(piece))) => {
                        text.push_str(piece);
                    }
                    (_, Some(kind), _) if kind != "text" => {
                        return Err(MessageError::UnsupportedPart { position, part: kind.into() });
                    }
                    _ => return Err(malformed(format!("content[{i}]"), "is not a text part")),
                }
            }
            Ok(text)
        }
        _ => Err(malformed("content".into(), "must be a string, null or a list of parts")),
    }
}

fn normalise_reasoning(
    message: &mut Map<String, Json>,
) -> Result<(), (&'static str, &'static str)> {
    if let Some(reasoning) = message.remove("reasoning") {
        message.entry("reasoning_content").or_insert(reasoning);
    }
    match message.get("reasoning_content") {
        None | Some(Json::String(_)) => Ok(()),
        Some(_) => Err(("reasoning_content", "must be a string or null")),
    }
}

/// Moves what stands before `</think>` in the content to `reasoning_content`, as Qwen's templates
/// do: the thinking is what is before the first end and after the last opening, the answer what is
/// after the last end.
fn move_thinking(message: &mut Json) {
    let content = message["content"].as_str().unwrap_or_default();
    let Some((thinking, rest)) = content.split_once("</think>") else { return };
    if message.get("reasoning_content").is_some() {
        return;
    }
    let thinking = thinking.trim_end_matches('\n').rsplit("<think>").next().unwrap_or_default();
    let answer = rest.rsplit("</think>").next().unwrap_or_default();
    let (thinking, answer) =
        (thinking.trim_start_matches('\n').to_owned(), answer.trim_start_matches('\n').to_owned());
    message["reasoning_content"] = thinking.into();
    message["content"] = answer.into();
}

fn normalise_calls(message: &mut Map<String, Json>) -> Result<(), (String, &'static str)> {
    let Some(calls) = message.get_mut("tool_calls") else { return Ok(()) };
    let Json::Array(calls) = calls else {
        return Err(("tool_calls".into(), "must be a list"));
    };
    for (i, call) in calls.iter_mut().enumerate() {
        let field = |name: &str| format!("tool_calls[{i}].{name}");
        let Some(function) = call.get_mut("function").and_then(Json::as_object_mut) else {
            return Err((field("function"), "is missing or not an object"));
        };
        if !function.get("name").is_some_and(Json::is_string) {
            return Err((field("function.name"), "is missing or not a string"));
        }
        let arguments = match function.get("arguments") {
            None | Some(Json::Null) => Some(Json::Object(Map::new())),
            Some(Json::String(json)) if json.trim().is_empty() => Some(Json::Object(Map::new())),
            Some(Json::String(json)) => serde_json::from_str(json).ok(),
            Some(other) => Some(other.clone()),
        };
        match arguments {
            Some(arguments @ Json::Object(_)) => function.insert("arguments".into(), arguments),
            _ => return Err((field("function.arguments"), "must be a JSON object")),
        };
    }
    if calls.is_empty() {
        message.remove("tool_calls");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
