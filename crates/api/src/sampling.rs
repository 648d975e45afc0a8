//! From the sampling fields of a request to what the engine takes, with the model's defaults.

use std::collections::BTreeMap;

use engine::request::Sampling;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Args, shown};
use crate::state::ApiState;

/// Most stop strings of a request.
const MAX_STOPS: usize = 32;
/// Longest stop string in bytes.
const MAX_STOP_LEN: usize = 1024;
/// Below this a temperature is greedy, as in SGLang.
const GREEDY_BELOW: f32 = 1e-6;
/// Random seeds stay below this, so that every JSON reader gets them back whole.
const RANDOM_SEEDS: u64 = 1 << 53;

/// What the fields of one kind of request are called.
pub(crate) struct Names {
    /// Put before a name in messages.
    pub path: &'static str,
    /// Token limits; if several are sent they must agree.
    pub max_tokens: &'static [&'static str],
    /// Tokens before which nothing ends.
    pub min_tokens: &'static str,
    /// The seed.
    pub seed: &'static str,
}

/// Names of `/v1/chat/completions`.
pub(crate) const CHAT_NAMES: Names = Names {
    path: "",
    max_tokens: &["max_completion_tokens", "max_tokens"],
    min_tokens: "min_tokens",
    seed: "seed",
};

/// Names of `/v1/completions`.
pub(crate) const COMPLETIONS_NAMES: Names = Names { max_tokens: &["max_tokens"], ..CHAT_NAMES };

/// Names of `sampling_params` in `/generate`.
pub(crate) const NATIVE_NAMES: Names = Names {
    path: "sampling_params.",
    max_tokens: &["max_new_tokens"],
    min_tokens: "min_new_tokens",
    seed: "sampling_seed",
};

/// How the answers of a request are to be made.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// For the engine; its seed is that of the first answer.
    pub sampling: Sampling,
    /// Whether the request named the seed.
    pub seeded: bool,
    /// Token limit, where the request has one.
    pub max_tokens: Option<u32>,
    /// Answers for each prompt.
    pub n: usize,
    /// Stop strings, none of them empty.
    pub stop: Vec<String>,
    /// Show what stopped the answer.
    pub include_stop: bool,
    /// Leave control tokens out of the text.
    pub skip_special_tokens: bool,
}

impl Wanted {
    /// Reads the fields, which `check` of the table has passed.
    ///
    /// # Errors
    /// When values do not fit each other or the model.
    pub(crate) fn read(
        state: &ApiState,
        args: Args<'_>,
        names: &Names,
    ) -> Result<Wanted, ApiError> {
        let defaults = &state.options.defaults;
        let max_tokens = max_tokens(args, names)?;
        let min_tokens = args.u32(names.min_tokens).unwrap_or(0);
        if max_tokens.is_some_and(|max| min_tokens > max) {
            let param = format!("{}{}", names.path, names.min_tokens);
            return Err(ApiError::invalid(&param, format!("`{param}` is above the token limit.")));
        }
        let seed = args.int(names.seed).map(|seed| seed as u64);
        let temperature = args.f32("temperature").unwrap_or(defaults.temperature);
        let top_k = args.int("top_k").map(|k| u32::try_from(k).unwrap_or(0));
        Ok(Wanted {
            sampling: Sampling {
                temperature: if temperature < GREEDY_BELOW { 0.0 } else { temperature },
                top_p: args.f32("top_p").unwrap_or(defaults.top_p),
                top_k: top_k.unwrap_or(defaults.top_k),
                min_p: args.f32("min_p").unwrap_or(defaults.min_p),
                repetition_penalty: args
                    .f32("repetition_penalty")
                    .unwrap_or(defaults.repetition_penalty),
                presence_penalty: args.f32("presence_penalty").unwrap_or(0.0),
                frequency_penalty: args.f32("frequency_penalty").unwrap_or(0.0),
                logit_bias: logit_bias(state, args, names)?,
                seed: seed.unwrap_or_else(|| state.random() % RANDOM_SEEDS),
                min_tokens,
                ignore_eos: args.flag("ignore_eos"),
                stop_token_ids: stop_token_ids(state, args, names)?,
                logprobs: None,
            },
            seeded: seed.is_some(),
            max_tokens,
            n: args.u32("n").unwrap_or(1) as usize,
            stop: stop(args, names)?,
            include_stop: args.flag("no_stop_trim") || args.flag("include_stop_str_in_output"),
            skip_special_tokens: args.bool("skip_special_tokens").unwrap_or(true),
        })
    }

    /// The seed of one answer. The first has the request's seed; a named seed gives each prompt of a
    /// list the answers that it would have alone, a random one gives every answer its own.
    pub(crate) fn seed_of(&self, prompt: usize, choice: usize) -> u64 {
        let index = if self.seeded { choice } else { prompt * self.n + choice };
        if index == 0 { self.sampling.seed } else { mix(self.sampling.seed, index as u64) }
    }
}

/// A seed that has nothing in common with `seed` (the finaliser of splitmix64).
fn mix(seed: u64, index: u64) -> u64 {
    let mut x = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn max_tokens(args: Args<'_>, names: &Names) -> Result<Option<u32>, ApiError> {
    let mut sent = names.max_tokens.iter().filter_map(|name| Some((*name, args.u32(name)?)));
    let Some((_, first)) = sent.next() else { return Ok(None) };
    match sent.find(|(_, other)| *other != first) {
        Some((name, _)) => Err(ApiError::invalid(
            name,
            format!("`{}` must be equal.", names.max_tokens.join("` and `")),
        )),
        None => Ok(Some(first)),
    }
}

fn stop(args: Args<'_>, names: &Names) -> Result<Vec<String>, ApiError> {
    let param = format!("{}stop", names.path);
    let invalid = |what: String| Err(ApiError::invalid(&param, format!("`{param}` {what}.")));
    let stops = args.texts("stop");
    if stops.len() > MAX_STOPS {
        return invalid(format!("has {} strings, the most is {MAX_STOPS}", stops.len()));
    }
    if stops.iter().any(|stop| stop.is_empty()) {
        return invalid("has an empty string, which would stop every answer at once".into());
    }
    if stops.iter().any(|stop| stop.len() > MAX_STOP_LEN) {
        return invalid(format!("has a string of more than {MAX_STOP_LEN} bytes"));
    }
    Ok(stops.into_iter().map(str::to_owned).collect())
}

fn stop_token_ids(state: &ApiState, args: Args<'_>, names: &Names) -> Result<Vec<u32>, ApiError> {
    let ids = args.ids("stop_token_ids");
    let vocab_size = state.options.model.vocab_size;
    match ids.iter().find(|id| **id as usize >= vocab_size) {
        None => Ok(ids),
        Some(id) => {
            let param = format!("{}stop_token_ids", names.path);
            let message = format!("`{param}` has the id {id}; ids are below {vocab_size}.");
            Err(ApiError::invalid(&param, message))
        }
    }
}

fn logit_bias(
    state: &ApiState,
    args: Args<'_>,
    names: &Names,
) -> Result<Vec<(u32, f32)>, ApiError> {
    let none = Map::new();
    let sent = args.get("logit_bias").and_then(Value::as_object).unwrap_or(&none);
    let param = format!("{}logit_bias", names.path);
    let vocab_size = state.options.model.vocab_size;
    let mut biases = BTreeMap::new();
    for (key, value) in sent {
        let id = key.parse::<u32>().ok().filter(|id| (*id as usize) < vocab_size);
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let (Some(id), Some(bias)) = (id, bias) else {
            let key: String = key.chars().take(40).collect();
            let message = format!(
                "`{param}` must map token ids below {vocab_size} to numbers from -100 to 100, not \
                 {key:?} to {}.",
                shown(value)
            );
            return Err(ApiError::invalid(&param, message));
        };
        if biases.insert(id, bias as f32).is_some() {
            return Err(ApiError::invalid(&param, format!("`{param}` has the id {id} twice.")));
        }
    }
    Ok(biases.into_iter().collect())
}
