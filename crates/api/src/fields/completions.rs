//! The fields of `POST /v1/completions`.

use super::chat::{MODEL, OPENAI};
use super::nested::ROUTING;
use super::sampling::{NOT_HERE, SAMPLING};
use super::{Field, Kind, Table, honoured, only, refused};

/// A completion request.
pub const COMPLETIONS: Table = Table {
    title: "completion request",
    groups: &[OWN, MODEL, OPENAI, SAMPLING, NOT_HERE, ROUTING],
};

const OWN: &[Field] = &[
    honoured(
        "prompt",
        Kind::Any,
        "\"Other\"",
        "A string, a list of strings, a list of token ids, or a list of such lists. \
         Marker text such as `<|im_start|>` in a string becomes the marker's token.",
    ),
    honoured("logprobs", Kind::Int(0, 20), "2", "Log-probabilities, with this many of the best."),
    honoured("echo", Kind::Bool, "true", "Puts the prompt before the answer; not with `logprobs`."),
    only("suffix", &["\"\""], "there is no text insertion"),
    refused("prompt_embeds", "send text or token ids"),
    only("add_special_tokens", &["true"], "the tokenizer adds what the model expects"),
    only("response_format", &[r#"{"type":"text"}"#], "constrained decoding is not built yet"),
    refused("max_completion_tokens", "the name is `max_tokens` here"),
    refused("top_logprobs", "`logprobs` is the number here"),
    refused("messages", "send messages to `/v1/chat/completions`"),
];
