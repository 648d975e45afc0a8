//! The fields of SGLang's own `POST /generate` and of the operations routes that take a body.

use super::chat::MODEL;
use super::nested::ROUTING;
use super::sampling::{NOT_HERE, SAMPLING};
use super::{Field, Kind, Table, harmless, honoured, only, refused};

/// `POST /generate`.
pub const GENERATE: Table =
    Table { title: "generate request", groups: &[GENERATE_OWN, MODEL, ROUTING] };

const GENERATE_OWN: &[Field] = &[
    honoured("text", Kind::Texts, "\"Other\"", "The prompt, or a list of prompts."),
    honoured(
        "input_ids",
        Kind::List,
        "[5, 6]",
        "The prompt as token ids, or a list of such lists; instead of `text`.",
    )
    .with(r#"{"text":null}"#),
    honoured(
        "sampling_params",
        Kind::Object(&SAMPLING_PARAMS),
        r#"{"max_new_tokens":2}"#,
        "How to choose tokens, and when to end.",
    ),
    honoured("stream", Kind::Bool, "true", "Sends events; each has the whole text so far."),
    honoured(
        "rid",
        Kind::Text,
        "\"my-request\"",
        "Becomes `meta_info.id`; `/abort_request` takes it.",
    ),
    honoured("return_logprob", Kind::Bool, "true", "Adds `meta_info.output_token_logprobs`."),
    honoured(
        "top_logprobs_num",
        Kind::Int(0, 20),
        "2",
        "Adds `meta_info.output_top_logprobs` with this many of the best.",
    )
    .with(r#"{"return_logprob":true}"#),
    honoured(
        "return_text_in_logprobs",
        Kind::Bool,
        "true",
        "Puts the token's text into the logprobs. Default false.",
    )
    .with(r#"{"return_logprob":true}"#),
    only("logprob_start_len", &["-1"], "logprobs are of the answer only"),
    refused("token_ids_logprob", "logprobs are of the token and of the best"),
    refused("input_embeds", "send text or token ids"),
    refused("image_data", "this model reads text only"),
    refused("video_data", "this model reads text only"),
    refused("audio_data", "this model reads text only"),
    refused("modalities", "this model reads text only"),
    refused("custom_logit_processor", "code from a client is not run"),
    refused("lora_id", "there are no adapters"),
    only("return_bytes", &["false"], "the text of a token is UTF-8, its bytes are not given out"),
    only("return_entropy", &["false"], "the entropy of the distribution is not given out"),
    harmless("no_logs", "whether another server logs the request"),
    harmless("log_metrics", "whether another server counts the request; all are counted"),
    harmless("background", "whether another server answers at once; the answer is the same"),
];

/// `sampling_params` of `POST /generate`.
pub const SAMPLING_PARAMS: Table =
    Table { title: "`sampling_params` object", groups: &[PARAMS_OWN, SAMPLING, NOT_HERE] };

const PARAMS_OWN: &[Field] = &[
    honoured(
        "max_new_tokens",
        Kind::Int(1, u32::MAX as i64),
        "3",
        "Token limit of an answer, shortened to what the context length leaves. Default 128.",
    ),
    honoured(
        "min_new_tokens",
        Kind::Int(0, u32::MAX as i64),
        "2",
        "End and stop tokens cannot be drawn before this many.",
    ),
    honoured("n", Kind::Int(1, 64), "2", "Number of answers for each prompt."),
    honoured(
        "sampling_seed",
        Kind::Int(i64::MIN, i64::MAX),
        "7",
        "With the same seed and parameters the answer is the same. Default: random.",
    ),
    only("stream_interval", &["1"], "every step is sent"),
    refused("max_tokens", "the name is `max_new_tokens` here"),
    refused("min_tokens", "the name is `min_new_tokens` here"),
    refused("seed", "the name is `sampling_seed` here"),
];

/// `POST /tokenize`.
pub const TOKENIZE: Table = Table {
    title: "tokenize request",
    groups: &[&[
        harmless("model", "there is one tokenizer"),
        honoured("prompt", Kind::Texts, "\"Other\"", "Text, or a list of texts."),
        honoured(
            "messages",
            Kind::List,
            r#"[{"role":"user","content":"Hi"}]"#,
            "Instead of `prompt`: a chat, rendered as for an answer.",
        )
        .with(r#"{"prompt":null}"#),
        honoured("tools", Kind::List, "[]", "As in a chat request; with `messages`.")
            .with(r#"{"prompt":null,"messages":[{"role":"user","content":"Hi"}]}"#),
        honoured("chat_template_kwargs", Kind::Map, "{}", "As in a chat request; with `messages`.")
            .with(r#"{"prompt":null,"messages":[{"role":"user","content":"Hi"}]}"#),
        only("add_special_tokens", &["true"], "the tokenizer adds what the model expects"),
        only("add_generation_prompt", &["true"], "a chat is rendered as for an answer"),
    ]],
};

/// `POST /detokenize`.
pub const DETOKENIZE: Table = Table {
    title: "detokenize request",
    groups: &[&[
        harmless("model", "there is one tokenizer"),
        honoured("tokens", Kind::List, "[5, 6]", "Token ids, or a list of such lists."),
        honoured(
            "skip_special_tokens",
            Kind::Bool,
            "false",
            "Leaves special tokens out of the text. Default true.",
        ),
    ]],
};

/// `POST /abort_request`.
pub const ABORT: Table = Table {
    title: "abort request",
    groups: &[&[
        honoured("rid", Kind::Text, "\"my-request\"", "The `id` of the request to end."),
        honoured("abort_all", Kind::Bool, "true", "Ends all requests. Default false."),
        harmless("abort_message", "a note for another server's log"),
    ]],
};
