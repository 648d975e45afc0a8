//! The markup of tool calls: tags, names and the JSON object of the Hermes form.

use std::collections::HashMap;

use serde_json::Value as Json;
use serde_json::value::RawValue;

pub(super) const CALL: &str = "<tool_call>";
pub(super) const CALL_END: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const FUNCTION_END: &str = "</function>";
pub(super) const PARAMETER: &str = "<parameter=";
pub(super) const PARAMETER_END: &str = "</parameter>";

/// Longest function or parameter name; what is longer is not a name.
const MAX_NAME: usize = 256;

/// Where in a JSON text we are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Nesting {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Nesting {
    /// Takes one byte; true when it closes the object.
    pub(super) fn step(&mut self, byte: u8) -> bool {
        if self.in_string {
            let escaped = std::mem::take(&mut self.escaped);
            match byte {
                _ if escaped => {}
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// Which tag a text begins with.
pub(super) enum Tag {
    Found(&'static str),
    /// The text is too short to tell.
    Begun,
    None,
}

pub(super) fn tag_at(text: &str, tags: &[&'static str]) -> Tag {
    match tags.iter().find(|tag| text.starts_with(**tag)) {
        Some(tag) => Tag::Found(tag),
        None if tags.iter().any(|tag| tag.starts_with(text)) => Tag::Begun,
        None => Tag::None,
    }
}

/// The name that a text begins with, up to a `>`.
pub(super) enum Name<'a> {
    Found(&'a str),
    Begun,
    None,
}

pub(super) fn name_at(text: &str) -> Name<'_> {
    match text.find(['>', '<', '\n']) {
        Some(n) if n <= MAX_NAME && text[n..].starts_with('>') && !text[..n].trim().is_empty() => {
            Name::Found(&text[..n])
        }
        None if text.len() <= MAX_NAME => Name::Begun,
        _ => Name::None,
    }
}

/// Name and arguments of a call in the Hermes form.
pub(super) fn hermes_call(object: &str) -> Option<(String, String)> {
    let fields: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let name = serde_json::from_str(fields.get("name")?.get()).ok()?;
    let arguments = fields.get("arguments").or_else(|| fields.get("parameters"));
    let arguments = match arguments.map_or("{}", |raw| raw.get()) {
        // Some models write the arguments as a string that holds JSON.
        string if string.starts_with('"') => serde_json::from_str(string).ok()?,
        json => json.to_owned(),
    };
    let is_object = serde_json::from_str::<Json>(&arguments).is_ok_and(|json| json.is_object());
    is_object.then_some((name, arguments))
}

/// The text inside a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Json::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
