//! Folds the pieces of a generation into whole answers, for responses that are not streamed.

use engine::request::TokenOut;
use serde_json::Value;
use text::Delta;

use crate::error::ApiError;
use crate::generation::{Generation, Tally};
use crate::wire::{CalledFunction, ToolCall};

/// One whole answer.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    /// Text outside of thinking and calls.
    pub content: String,
    /// Text of the thinking part.
    pub reasoning: String,
    /// Tool calls.
    pub calls: Vec<ToolCall>,
    /// All tokens that are shown.
    pub tokens: Vec<TokenOut>,
    /// Counts.
    pub tally: Tally,
    /// Why it ended.
    pub reason: &'static str,
    /// What stopped it, or null.
    pub matched: Value,
}

/// Waits for all answers, in their order.
///
/// # Errors
/// When the engine could not go on.
pub(crate) async fn fold(mut generation: Generation) -> Result<Vec<Whole>, ApiError> {
    let mut answers: Vec<Whole> = Vec::new();
    answers.resize_with(generation.n_answers(), Whole::default);
    while let Some(piece) = generation.next().await {
        let piece = piece?;
        let answer = &mut answers[piece.index];
        piece.deltas.into_iter().for_each(|delta| answer.add(delta));
        answer.tokens.extend(piece.tokens);
        answer.tally = piece.tally;
        if let Some(end) = piece.end {
            answer.reason = end.reason;
            answer.matched = end.matched;
        }
    }
    Ok(answers)
}

impl Whole {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(&text),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::ToolCallStart { .. } => self.calls.extend(tool_call(delta)),
            Delta::ToolCallArguments { index, fragment } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.function.arguments.push_str(&fragment);
                }
            }
        }
    }
}

/// The wire form of a piece of a call.
pub(crate) fn tool_call(delta: Delta) -> Option<ToolCall> {
    match delta {
        Delta::ToolCallStart { index, id, name } => Some(ToolCall {
            index,
            id: Some(id),
            kind: Some("function"),
            function: CalledFunction { name: Some(name), arguments: String::new() },
        }),
        Delta::ToolCallArguments { index, fragment } => Some(ToolCall {
            index,
            id: None,
            kind: None,
            function: CalledFunction { name: None, arguments: fragment },
        }),
        Delta::Content(_) | Delta::Reasoning(_) => None,
    }
}
