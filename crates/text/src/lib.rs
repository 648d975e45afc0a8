//! Text work at the edge of the server: everything between an OpenAI conversation and token ids,
//! and back.
//!
//! The way in: [`messages`](mod@messages) brings the request into one shape, [`ChatTemplate`]
//! renders it and encodes it with the [`Tokenizer`] so that nothing a user wrote can become a
//! control token. The way out: [`OutputParser`] turns token ids into typed deltas, through
//! [`Detokenizer`] (bytes to text), [`StopMatcher`] (stop strings), [`ReasoningSplitter`] (thinking
//! or answer) and [`ToolCallParser`] (calls). Nothing here knows logits, blocks, JSON over HTTP or
//! async.

pub mod delta;
pub mod detokenizer;
mod guard;
mod jinja;
pub mod messages;
pub mod output;
mod python;
pub mod reasoning;
pub mod schema;
pub mod stop;
pub mod template;
#[cfg(test)]
mod testing;
pub mod tokenizer;
pub mod tool_calls;

pub use delta::Delta;
pub use detokenizer::Detokenizer;
pub use messages::MessageError;
pub use output::{Counts, Flow, MatchedStop, OutputOptions, OutputParser};
pub use reasoning::{ReasoningSplitter, ReasoningStart};
pub use schema::Tools;
pub use stop::{StopError, StopMatcher};
pub use template::{ChatRequest, ChatTemplate, Rendered, TemplateError};
pub use tokenizer::{Markers, Tokenizer, TokenizerError};
pub use tool_calls::ToolCallParser;
