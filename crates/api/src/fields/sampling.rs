//! Fields that choose tokens and end answers; shared by the chat, completions and native requests.

use super::{Field, Kind, harmless, honoured, only, refused};

const NO_GRAMMAR: &str = "constrained decoding is not built yet";
const OTHER_SAMPLER: &str = "this sampler does not exist here";

/// The sampling parameters and the stop conditions.
pub const SAMPLING: &[Field] = &[
    honoured(
        "temperature",
        Kind::Float(0.0, 100.0),
        "0.25",
        "Divides the logits; 0 is greedy. Default: the model's generation config, else 1.",
    ),
    honoured(
        "top_p",
        Kind::FloatAbove(0.0, 1.0),
        "0.5",
        "Keeps the smallest set of tokens with this much probability. \
         Default: the model's generation config, else 1.",
    ),
    honoured(
        "top_k",
        Kind::Int(-1, i32::MAX as i64),
        "7",
        "Keeps this many tokens; -1 and 0 keep all. Default: the model's generation config, else all.",
    ),
    honoured(
        "min_p",
        Kind::Float(0.0, 1.0),
        "0.125",
        "Keeps tokens at least this probable relative to the best. \
         Default: the model's generation config, else 0.",
    ),
    honoured(
        "frequency_penalty",
        Kind::Float(-2.0, 2.0),
        "0.5",
        "Subtracted from a token's logit for every time it was generated. Default 0.",
    ),
    honoured(
        "presence_penalty",
        Kind::Float(-2.0, 2.0),
        "0.5",
        "Subtracted from the logit of every token that was generated. Default 0.",
    ),
    honoured(
        "repetition_penalty",
        Kind::FloatAbove(0.0, 2.0),
        "1.25",
        "Divides (or multiplies, below zero) the logits of tokens seen in prompt or answer. \
         Default: the model's generation config, else 1.",
    ),
    honoured(
        "logit_bias",
        Kind::Map,
        r#"{"5": 2.5}"#,
        "Token id to a number from -100 to 100 that is added to its logit.",
    ),
    honoured(
        "ignore_eos",
        Kind::Bool,
        "true",
        "Goes on after an end token, up to the token limit. Default false.",
    ),
    honoured(
        "stop",
        Kind::Texts,
        r#"["five"]"#,
        "Up to 32 strings that end the answer; none of their text is sent.",
    ),
    honoured("stop_token_ids", Kind::Ids, "[77]", "More token ids that end the answer."),
    honoured(
        "no_stop_trim",
        Kind::Bool,
        "true",
        "Leaves the stop string, or the text of the end token, in the answer. Default false.",
    )
    .with(r#"{"stop":"five"}"#),
    honoured("include_stop_str_in_output", Kind::Bool, "true", "Another name of `no_stop_trim`.")
        .with(r#"{"stop":"five"}"#),
    honoured(
        "skip_special_tokens",
        Kind::Bool,
        "false",
        "Leaves control tokens out of the text. Default true.",
    ),
];

/// What other servers know and this one does not do: shared by all requests that generate.
pub const NOT_HERE: &[Field] = &[
    harmless(
        "spaces_between_special_tokens",
        "the tokens of a byte-level vocabulary have their own spaces",
    ),
    refused("stop_regex", "stops are plain strings"),
    refused("bad_words", "forbidden words are not built; `logit_bias` can forbid tokens"),
    refused("allowed_token_ids", "use `logit_bias`"),
    refused("json_schema", NO_GRAMMAR),
    refused("regex", NO_GRAMMAR),
    refused("ebnf", NO_GRAMMAR),
    refused("grammar", NO_GRAMMAR),
    refused("structural_tag", NO_GRAMMAR),
    refused("structured_outputs", NO_GRAMMAR),
    refused("guided_json", NO_GRAMMAR),
    refused("guided_regex", NO_GRAMMAR),
    refused("guided_choice", NO_GRAMMAR),
    refused("guided_grammar", NO_GRAMMAR),
    refused("guided_decoding_backend", NO_GRAMMAR),
    refused("guided_whitespace_pattern", NO_GRAMMAR),
    refused("custom_logit_processor", "code from a client is not run"),
    refused("custom_params", "there is no custom logit processor"),
    refused("logits_processors", "code from a client is not run"),
    only("best_of", &["1"], "every choice is returned; use `n`"),
    only("use_beam_search", &["false"], "there is no beam search"),
    only("length_penalty", &["1"], "there is no beam search"),
    only("early_stopping", &["false"], "there is no beam search"),
    only("typical_p", &["1"], OTHER_SAMPLER),
    only("tfs_z", &["1"], OTHER_SAMPLER),
    only("top_a", &["0"], OTHER_SAMPLER),
    only("mirostat", &["0"], OTHER_SAMPLER),
    only("mirostat_tau", &["5"], OTHER_SAMPLER),
    only("mirostat_eta", &["0.1"], OTHER_SAMPLER),
    only("dry_multiplier", &["0"], OTHER_SAMPLER),
    only("xtc_probability", &["0"], OTHER_SAMPLER),
    only("dynatemp_range", &["0"], OTHER_SAMPLER),
    only("min_keep", &["0", "1"], OTHER_SAMPLER),
    refused("samplers", "the order of the samplers is fixed"),
    only("repeat_penalty", &["1"], "the name is `repetition_penalty`"),
    only("repeat_last_n", &["-1"], "penalties see the whole text"),
];
