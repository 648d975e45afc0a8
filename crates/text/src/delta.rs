//! The typed pieces that an answer is streamed in.

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the answer.
    Content(String),
    /// Text of the thinking part.
    Reasoning(String),
    /// A tool call begins; sent once per call.
    ToolCallStart {
        /// 0 for the first call.
        index: usize,
        /// Unique within the answer, with the request's prefix.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// The next piece of the arguments; the pieces of a finished call join to a JSON object.
    ToolCallArguments {
        /// Of the call.
        index: usize,
        /// JSON text.
        fragment: String,
    },
}

/// Appends content, to the last delta where that is content too.
pub(crate) fn push_content(out: &mut Vec<Delta>, text: &str) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Content(last)) => last.push_str(text),
        _ => out.push(Delta::Content(text.to_owned())),
    }
}

/// Appends reasoning, to the last delta where that is reasoning too.
pub(crate) fn push_reasoning(deltas: &mut Vec<Delta>, text: &str) {
    match deltas.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Reasoning(last)) => last.push_str(text),
        _ => deltas.push(Delta::Reasoning(text.to_owned())),
    }
}
