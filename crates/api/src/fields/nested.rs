//! The fields of objects inside requests: messages, tools, stream options.

use super::{Field, Kind, Table, harmless, honoured, only, refused};

/// `stream_options`.
pub const STREAM_OPTIONS: Table = Table {
    title: "`stream_options` object",
    groups: &[&[
        honoured(
            "include_usage",
            Kind::Bool,
            "true",
            "Sends one last event with `choices: []` and the usage. Default false.",
        ),
        honoured(
            "continuous_usage_stats",
            Kind::Bool,
            "true",
            "Puts the usage so far on every event. Default false.",
        ),
        harmless("include_obfuscation", "padding against traffic analysis; none is added"),
    ]],
};

/// One entry of `messages`.
pub const MESSAGE: Table = Table {
    title: "message",
    groups: &[&[
        honoured(
            "role",
            Kind::Text,
            "\"system\"",
            "`system`, `developer` (the same), `user`, `assistant` or `tool`.",
        ),
        honoured(
            "content",
            Kind::Any,
            "\"other\"",
            "A string, `null`, or a list of `{\"type\":\"text\",\"text\":…}` parts, \
             which are joined without a separator.",
        ),
        honoured("name", Kind::Text, "\"ann\"", "Given to the chat template."),
        honoured("tool_call_id", Kind::Text, "\"call_1\"", "Given to the chat template."),
        honoured(
            "tool_calls",
            Kind::List,
            r#"[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]"#,
            "Calls of an earlier answer; `arguments` is parsed, so that the template sees an object.",
        )
        .with(r#"{"role":"assistant"}"#),
        honoured(
            "reasoning_content",
            Kind::Text,
            "\"because\"",
            "Thinking of an earlier answer; given to the chat template, which may drop it.",
        )
        .with(r#"{"role":"assistant"}"#),
        honoured("reasoning", Kind::Text, "\"because\"", "Another name of `reasoning_content`.")
            .with(r#"{"role":"assistant"}"#),
        only("refusal", &[], "refusals are not kept apart from content"),
        only("function_call", &[], "use `tool_calls`"),
        only("audio", &[], "this model reads text only"),
        harmless("annotations", "notes of another server on an earlier answer; no template reads them"),
    ]],
};

/// One part of a message's content.
pub const PART: Table = Table {
    title: "content part",
    groups: &[&[
        honoured("type", Kind::Text, "\"text\"", "`text`; nothing else can be read by this model."),
        honoured("text", Kind::Text, "\"other\"", "The text."),
        refused("image_url", "this model reads text only"),
        refused("video_url", "this model reads text only"),
        refused("input_audio", "this model reads text only"),
        refused("file", "this model reads text only"),
        harmless("cache_control", "a hint where another server should cut its prefix cache"),
    ]],
};

/// One entry of `messages[].tool_calls`.
pub const TOOL_CALL: Table = Table {
    title: "tool call",
    groups: &[&[
        honoured("id", Kind::Text, "\"call_1\"", "Given to the chat template."),
        only("type", &["\"function\""], "only functions can be called"),
        honoured("function", Kind::Object(&CALLED), "{}", "What was called."),
        harmless("index", "place in a streamed answer"),
    ]],
};

/// `messages[].tool_calls[].function`.
pub const CALLED: Table = Table {
    title: "called function",
    groups: &[&[
        honoured("name", Kind::Text, "\"f\"", "Name of the function."),
        honoured("arguments", Kind::Any, "\"{}\"", "A JSON object, or a string that holds one."),
    ]],
};

/// One entry of `tools`.
pub const TOOL: Table = Table {
    title: "tool",
    groups: &[&[
        only("type", &["\"function\""], "only functions can be offered"),
        honoured("function", Kind::Object(&FUNCTION), "{}", "The function on offer."),
    ]],
};

/// `tools[].function`.
pub const FUNCTION: Table = Table {
    title: "function",
    groups: &[&[
        honoured("name", Kind::Text, "\"f\"", "Name of the function."),
        honoured("description", Kind::Text, "\"does f\"", "Given to the chat template."),
        honoured("parameters", Kind::Map, "{}", "JSON schema; its types decide those of a call."),
        only("strict", &["false"], "arguments are not constrained to the schema"),
    ]],
};

/// `reasoning`.
pub const REASONING: Table = Table {
    title: "`reasoning` object",
    groups: &[&[
        honoured("enabled", Kind::Bool, "false", "False is `enable_thinking` false."),
        honoured("effort", Kind::Text, "\"none\"", "As `reasoning_effort`."),
        only("exclude", &["false"], "use `separate_reasoning`"),
        refused("max_tokens", "the thinking part has no limit of its own"),
        refused("summary", "there are no summaries"),
        refused("generate_summary", "there are no summaries"),
    ]],
};

/// Groups that more than one request has.
pub const ROUTING: &[Field] = &[
    harmless("user", "names the end user; nothing is kept"),
    harmless("safety_identifier", "names the end user; nothing is kept"),
    harmless("prompt_cache_key", "a routing hint for a server of many machines"),
    harmless("prompt_cache_retention", "how long another server keeps a prefix"),
    harmless("metadata", "labels for a store of answers; nothing is stored"),
    harmless("store", "nothing is stored"),
    harmless("service_tier", "there is one tier"),
    harmless("cache_prompt", "whether another server keeps the prefix; the answer is the same"),
    harmless("prediction", "a speed hint; the answer is the same"),
    harmless("request_id", "a label for logs; see `rid`"),
    only("priority", &["0"], "there is one queue"),
    only("data_parallel_rank", &["0"], "there is one engine"),
    only("routed_dp_rank", &["0"], "there is one engine"),
    only("id_slot", &["-1"], "the engine chooses the slot"),
    refused("bootstrap_host", "prefill and decode run in one process"),
    refused("bootstrap_port", "prefill and decode run in one process"),
    refused("bootstrap_room", "prefill and decode run in one process"),
    refused("kv_transfer_params", "prefill and decode run in one process"),
    refused("lora_path", "there are no adapters"),
    refused("lora_request", "there are no adapters"),
    refused("session_params", "there are no sessions"),
    refused("cache_salt", "prefixes cannot be kept apart per client yet"),
    refused("extra_key", "prefixes cannot be kept apart per client yet"),
    only("return_hidden_states", &["false"], "hidden states are not given out"),
    only("return_routed_experts", &["false"], "there are no experts"),
    only("return_meta_info", &["false"], "use `/generate`"),
    refused("truncate_prompt_tokens", "a prompt is never cut silently"),
    refused("prompt_logprobs", "logprobs are of the answer only"),
    only("return_token_ids", &["false"], "use `/generate`"),
    only("return_tokens_as_token_ids", &["false"], "use `/generate`"),
    refused("vllm_xargs", "extra arguments of another server"),
];
