//! The operations routes: health, what is served, what the server does, and small tools.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use telemetry::log_line::share;
use telemetry::metrics::{self, Source};
use telemetry::record::Snapshot;
use text::OutputOptions;

use crate::body::{Read, read_object};
use crate::chat_fields;
use crate::error::ApiError;
use crate::fields::native::{ABORT, DETOKENIZE, TOKENIZE};
use crate::fields::{Args, Kind, ids};
use crate::generation::{Generation, Job, Prompt};
use crate::prompts;
use crate::sampling::{NATIVE_NAMES, Wanted};
use crate::state::ApiState;

type Shared = State<Arc<ApiState>>;

/// `GET /health`: the server takes requests and the engine goes on. Never waits.
pub(crate) async fn health(State(state): Shared) -> StatusCode {
    let stats = state.options.backend.stats();
    if state.is_draining() || !state.health.goes_on(&stats, Instant::now()) {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    StatusCode::OK
}

/// `GET /health_generate`: generates one token, or answers 503 after a while.
pub(crate) async fn health_generate(State(state): Shared) -> StatusCode {
    let probe = async {
        let none = Map::new();
        let mut wanted = Wanted::read(&state, Args(&none), &NATIVE_NAMES)?;
        wanted.max_tokens = Some(1);
        wanted.sampling.ignore_eos = true;
        let job = Job {
            rid: "health".into(),
            prompts: vec![Prompt { ids: vec![0], ..Prompt::default() }],
            wanted,
            default_max_tokens: 1,
            output: OutputOptions::default(),
            param: "prompt",
            arrived: Instant::now(),
        };
        let mut generation = Generation::start(&state, job)?;
        while let Some(piece) = generation.next().await {
            piece?;
        }
        Ok::<_, ApiError>(())
    };
    match tokio::time::timeout(state.options.timeouts.health, probe).await {
        Ok(Ok(())) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// `GET /v1/models`.
pub(crate) async fn models(State(state): Shared) -> Json<Value> {
    Json(json!({"object": "list", "data": [model_card(&state)]}))
}

/// `GET /v1/models/{id}`.
///
/// # Errors
/// When another model is asked for.
pub(crate) async fn model(
    State(state): Shared,
    Path(asked): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let served = state.options.model.served_name.clone();
    if asked == served {
        Ok(Json(model_card(&state)))
    } else {
        Err(ApiError::NoSuchModel { asked, served })
    }
}

fn model_card(state: &ApiState) -> Value {
    let model = &state.options.model;
    let mut card = json!({
        "id": model.served_name,
        "object": "model",
        "created": state.started_unix_s,
        "owned_by": "outrider",
        "root": model.model_path,
        "parent": null,
        "max_model_len": state.options.sizes.context_len,
    });
    if let Some(note) = &model.note {
        card["description"] = note.as_str().into();
    }
    card
}

/// `GET /model_info`.
pub(crate) async fn model_info(State(state): Shared) -> Json<Value> {
    let model = &state.options.model;
    Json(json!({
        "model_path": model.model_path,
        "tokenizer_path": model.model_path,
        "served_model_name": model.served_name,
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": model.weight_version,
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": model.model_type,
        "architectures": [model.architecture],
        "description": model.note,
    }))
}

/// `GET /server_info`: flags and plan, and what the engine has done.
pub(crate) async fn server_info(State(state): Shared) -> Json<Value> {
    let sizes = &state.options.sizes;
    let stats = state.options.backend.stats();
    let decoded = state.options.last_window.decoded();
    let mut info = state.options.server_info.clone();
    info.insert("served_model_name".into(), json!(state.options.model.served_name));
    info.insert("model_path".into(), json!(state.options.model.model_path));
    info.insert("weight_version".into(), json!(state.options.model.weight_version));
    info.insert("max_total_num_tokens".into(), json!(sizes.max_total_num_tokens));
    info.insert("max_req_input_len".into(), json!(longest_prompt(&state)));
    info.insert("tokenizer_path".into(), json!(state.options.model.model_path));
    info.insert("architectures".into(), json!([state.options.model.architecture]));
    info.insert("model_type".into(), json!(state.options.model.model_type));
    info.insert("is_generation".into(), json!(true));
    for width in ["tp_size", "dp_size", "pp_size"] {
        info.insert(width.into(), json!(1));
    }
    info.insert("startup_time".into(), json!(state.started_unix_s));
    info.insert("version".into(), json!(env!("CARGO_PKG_VERSION")));
    let mut internal = json!({
        "last_gen_throughput": decoded.tokens_per_s(),
        "last_spec_accept_length": decoded.accept_length(),
        "last_spec_accept_rate": decoded.accept_rate(),
        "effective_max_running_requests_per_dp": sizes.max_running_requests,
        "memory_usage": {"token_capacity": sizes.max_total_num_tokens},
        "gauges": stats.gauges,
        "totals": stats.totals,
        "spec_num_steps": stats.depth,
    });
    let totals = &stats.totals;
    if sizes.speculates && totals.n_decode_rounds > 0 {
        let rounds = totals.n_decode_rounds as f64;
        internal["avg_spec_accept_length"] = json!((rounds + totals.n_accepted as f64) / rounds);
    }
    info.insert("internal_states".into(), json!([internal]));
    Json(Value::Object(info))
}

fn longest_prompt(state: &ApiState) -> usize {
    let sizes = &state.options.sizes;
    sizes.context_len.min(sizes.max_total_num_tokens + 1).saturating_sub(1)
}

/// `GET /v1/loads`: what a gateway needs to choose between servers.
pub(crate) async fn loads(State(state): Shared) -> Json<Value> {
    let Snapshot { gauges: g, totals: t, .. } = state.options.backend.stats();
    let sizes = &state.options.sizes;
    let decoded = state.options.last_window.decoded();
    let n_used = g.n_blocks_used.saturating_sub(g.n_blocks_cached) * sizes.block_len;
    let usage = share(n_used, sizes.max_total_num_tokens).max(share(g.n_slots_used, g.n_slots));
    let load = json!({
        "dp_rank": 0,
        "num_running_reqs": g.n_running,
        "num_waiting_reqs": g.n_waiting,
        "num_total_reqs": g.n_running + g.n_waiting,
        "num_used_tokens": n_used,
        "num_total_tokens": n_used,
        "max_total_num_tokens": sizes.max_total_num_tokens,
        "token_usage": usage,
        "gen_throughput": if g.n_running > 0 { decoded.tokens_per_s() } else { 0.0 },
        "cache_hit_rate": share(t.n_cached_tokens as usize, t.n_prompt_tokens as usize),
        "utilization": share(g.n_running, sizes.max_running_requests),
        "max_running_requests": sizes.max_running_requests,
        "speculative": {
            "accept_length": decoded.accept_length(),
            "accept_rate": decoded.accept_rate(),
        },
        "queues": {"waiting": g.n_waiting},
    });
    Json(json!({"timestamp": crate::state::unix_seconds(), "dp_rank_count": 1, "loads": [load]}))
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(state): Shared) -> Response {
    let text = metrics::render(&Source {
        model_name: &state.options.model.served_name,
        engine: state.options.backend.stats(),
        decoded: state.options.last_window.decoded(),
        requests: &state.histograms,
        block_len: state.options.sizes.block_len,
        context_len: state.options.sizes.context_len,
        max_running_requests: state.options.sizes.max_running_requests,
    });
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

/// `POST /tokenize`.
///
/// # Errors
/// When there is nothing to encode, or the chat cannot be rendered.
pub(crate) async fn tokenize(
    State(state): Shared,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let Read { object: mut body, room: _room } = read_object(&state, request).await?;
    TOKENIZE.check(&body, "")?;
    let args = Args(&body);
    let listed = args.get("prompt").is_some_and(Value::is_array);
    let ids = match (args.get("prompt").is_some(), args.get("messages").is_some()) {
        (true, false) => {
            let texts = args.texts("prompt").into_iter().map(str::to_owned).collect();
            prompts::encode(&state, texts).await?
        }
        (false, true) => {
            let kwargs = chat_fields::kwargs(&state, args)?;
            let conversation = chat_fields::conversation(&mut body, true, kwargs)?;
            vec![prompts::render(&state, conversation).await?.tokens]
        }
        _ => return Err(ApiError::invalid("prompt", "Send either `prompt` or `messages`.")),
    };
    let counts: Vec<usize> = ids.iter().map(Vec::len).collect();
    let max_model_len = state.options.sizes.context_len;
    Ok(Json(match listed {
        true => json!({"tokens": ids, "count": counts, "max_model_len": max_model_len}),
        false => json!({"tokens": ids[0], "count": counts[0], "max_model_len": max_model_len}),
    }))
}

/// `POST /detokenize`.
///
/// # Errors
/// When `tokens` is no list of token ids, or of such lists.
pub(crate) async fn detokenize(
    State(state): Shared,
    request: Request<Body>,
) -> Result<Json<Value>, ApiError> {
    let Read { object: body, room: _room } = read_object(&state, request).await?;
    DETOKENIZE.check(&body, "")?;
    let args = Args(&body);
    let skip = args.bool("skip_special_tokens").unwrap_or(true);
    let Some(tokens) = args.get("tokens") else {
        return Err(ApiError::invalid("tokens", "`tokens` is missing."));
    };
    let decode = |list: &Value| -> Result<Value, ApiError> {
        Kind::Ids.check(list, "tokens")?;
        Ok(state.options.tokenizer.decode(&ids(list), skip).into())
    };
    let text = match tokens.as_array().filter(|list| list.first().is_some_and(Value::is_array)) {
        Some(lists) => lists.iter().map(decode).collect::<Result<Value, _>>()?,
        None => decode(tokens)?,
    };
    Ok(Json(json!({"text": text})))
}

/// `POST /abort_request`: ends requests; ones that are not there are no error.
///
/// # Errors
/// When the body names nothing to abort.
pub(crate) async fn abort_request(
    State(state): Shared,
    request: Request<Body>,
) -> Result<StatusCode, ApiError> {
    let body = read_object(&state, request).await?.object;
    ABORT.check(&body, "")?;
    let args = Args(&body);
    match (args.flag("abort_all"), args.text("rid")) {
        (true, _) => state.abort(None),
        (false, Some(rid)) => state.abort(Some(rid)),
        (false, None) => return Err(ApiError::invalid("rid", "Send `rid` or `abort_all`.")),
    }
    Ok(StatusCode::OK)
}

/// `/flush_cache`: drops the cached prefixes; 400 while requests run, as in SGLang.
pub(crate) async fn flush_cache(State(state): Shared) -> (StatusCode, &'static str) {
    if state.n_live() > 0 {
        return (StatusCode::BAD_REQUEST, "Requests are running; nothing was flushed.\n");
    }
    state.options.backend.flush_cache();
    (StatusCode::OK, "Cached prefixes are dropped.\n")
}
