//! Why a request is refused at the edge.

use thiserror::Error;

/// Why `submit` took no request. The sink was not called and never will be.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SubmitError {
    /// As many requests wait as may wait; try again later.
    #[error("the queue is full: {n_queued} requests wait, the limit is {max_queued}")]
    QueueFull {
        /// Requests that wait.
        n_queued: usize,
        /// The limit.
        max_queued: usize,
    },
    /// The engine is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Prompt and answer do not fit the context.
    #[error(
        "the prompt has {n_prompt} tokens and asks for {max_tokens} more, \
         the context length is {context_length}"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens asked for.
        max_tokens: usize,
        /// Most tokens of both together.
        context_length: usize,
    },
    /// More KV blocks than the whole pool has.
    #[error(
        "{n_tokens} tokens need {n_blocks_needed} KV blocks, the pool has {n_blocks} \
         ({n_positions} tokens)"
    )]
    NeverFits {
        /// Tokens of prompt and answer.
        n_tokens: usize,
        /// Blocks that they need.
        n_blocks_needed: usize,
        /// Blocks in the pool.
        n_blocks: usize,
        /// Positions in the pool.
        n_positions: usize,
    },
    /// A value that means nothing.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field of the request.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}
