//! The fields of `POST /v1/chat/completions`.

use super::nested::{REASONING, ROUTING, STREAM_OPTIONS};
use super::sampling::{NOT_HERE, SAMPLING};
use super::{Field, Kind, Table, honoured, only, refused};

/// A chat request.
pub const CHAT: Table = Table {
    title: "chat completion request",
    groups: &[OWN, MODEL, OPENAI, SAMPLING, NOT_HERE, ROUTING],
};

const OWN: &[Field] = &[
    honoured(
        "messages",
        Kind::List,
        r#"[{"role":"user","content":"Goodbye"}]"#,
        "The conversation; at least one message.",
    ),
    honoured(
        "max_completion_tokens",
        Kind::Int(1, u32::MAX as i64),
        "2",
        "The same as `max_tokens`; if both are sent they must be equal.",
    ),
    honoured(
        "logprobs",
        Kind::Bool,
        "true",
        "Log-probability of every token, of the model before penalties and temperature.",
    ),
    honoured(
        "top_logprobs",
        Kind::Int(0, 20),
        "3",
        "How many of the best tokens to list beside it.",
    )
    .with(r#"{"logprobs":true}"#),
    honoured(
        "tools",
        Kind::List,
        r#"[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}]"#,
        "Functions that the model may call.",
    ),
    honoured(
        "tool_choice",
        Kind::Any,
        "\"none\"",
        "`auto` (the default) or `none`, which hides the tools; `required` and a named function \
         are refused until constrained decoding is built.",
    )
    .with(r#"{"tools":[{"type":"function","function":{"name":"weather"}}]}"#),
    honoured(
        "parallel_tool_calls",
        Kind::Bool,
        "false",
        "False keeps the first call of an answer and drops the others. Default true.",
    )
    .with(r#"{"tools":[{"type":"function","function":{"name":"weather"}}]}"#),
    honoured(
        "chat_template_kwargs",
        Kind::Map,
        r#"{"enable_thinking":false}"#,
        "Values for the chat template, such as `enable_thinking`; names that the template does not \
         read are refused.",
    ),
    honoured(
        "reasoning_effort",
        Kind::Text,
        "\"none\"",
        "`none` is `enable_thinking` false; other levels are given to a template that reads them \
         and refused where it does not.",
    ),
    honoured("reasoning", Kind::Object(&REASONING), r#"{"enabled":false}"#, "Thinking on or off."),
    honoured(
        "separate_reasoning",
        Kind::Bool,
        "false",
        "True (the default) sends thinking as `reasoning_content`; false leaves it in `content`.",
    ),
    only("include_reasoning", &["true"], "use `separate_reasoning`"),
    only("stream_reasoning", &["true"], "thinking is streamed as it comes"),
    only("thinking", &[], "use `chat_template_kwargs`"),
    refused("thinking_budget", "the thinking part has no limit of its own"),
    refused("thinking_token_budget", "the thinking part has no limit of its own"),
    only("response_format", &[r#"{"type":"text"}"#], "constrained decoding is not built yet"),
    only("add_generation_prompt", &["true"], "an answer always begins a new message"),
    only("continue_final_message", &["false"], "an answer always begins a new message"),
    only("echo", &["false"], "the prompt of a chat is not sent back"),
    refused("chat_template", "the model's own template is used"),
    refused("documents", "the template takes messages and tools"),
    refused("input_ids", "send messages here, token ids to `/v1/completions` or `/generate`"),
    refused("functions", "use `tools`"),
    refused("function_call", "use `tool_choice`"),
    only("modalities", &[r#"["text"]"#], "this model writes text only"),
    refused("audio", "this model writes text only"),
    refused("web_search_options", "there is no search"),
    only("verbosity", &["\"medium\""], "the length is the model's choice"),
    refused("mm_processor_kwargs", "this model reads text only"),
];

/// The model; all requests that generate have it.
pub const MODEL: &[Field] = &[honoured(
    "model",
    Kind::Text,
    "\"another-model\"",
    "The served name, or `default`; another name is answered with 404. May be left out.",
)];

/// What the two OpenAI requests share.
pub const OPENAI: &[Field] = &[
    honoured(
        "max_tokens",
        Kind::Int(1, u32::MAX as i64),
        "3",
        "Token limit of an answer, shortened to what the context length leaves. \
         Default: chat, up to the context length; completions, 16.",
    ),
    honoured(
        "min_tokens",
        Kind::Int(0, u32::MAX as i64),
        "2",
        "End and stop tokens cannot be drawn before this many.",
    ),
    honoured(
        "n",
        Kind::Int(1, 64),
        "2",
        "Number of answers; answer 0 has the request's seed, the others have seeds derived from it.",
    ),
    honoured(
        "seed",
        Kind::Int(i64::MIN, i64::MAX),
        "7",
        "With the same seed and parameters the answer is the same. Default: random, and reported \
         in `metadata.seed`.",
    ),
    honoured("stream", Kind::Bool, "true", "Sends the answer as server-sent events."),
    honoured(
        "stream_options",
        Kind::Object(&STREAM_OPTIONS),
        r#"{"include_usage":true}"#,
        "Only together with `stream`.",
    )
    .with(r#"{"stream":true}"#),
    honoured(
        "rid",
        Kind::Text,
        "\"my-request\"",
        "Becomes the `id` of the answer; `/abort_request` takes it.",
    ),
    honoured(
        "return_spec_tokens_details",
        Kind::Bool,
        "true",
        "Adds `sglext.spec_tokens_details`: acceptance of the drafts of this answer.",
    ),
    only("return_cached_tokens_details", &["false"], "see `usage.prompt_tokens_details`"),
];
