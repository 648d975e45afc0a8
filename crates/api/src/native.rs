//! SGLang's own `POST /generate`: prompts as text or token ids, answers with `meta_info`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use engine::request::TokenOut;
use serde_json::{Map, Value, json};
use text::{Delta, OutputOptions};

use crate::body::{Read, read_object};
use crate::error::ApiError;
use crate::fields::native::GENERATE;
use crate::fields::{Args, Kind, ids};
use crate::generation::{End, Generation, Job, Piece, Prompt, Tally};
use crate::logprobs::Writer;
use crate::prompts;
use crate::reply;
use crate::sampling::{NATIVE_NAMES, Wanted};
use crate::sse::{self, Frames, Render};
use crate::state::ApiState;
use crate::whole;
use crate::wire::SpecDetails;

/// SGLang's default for this route.
const DEFAULT_MAX_TOKENS: u32 = 128;

/// Answers prompts in SGLang's own form.
///
/// # Errors
/// Everything that can be known before the first token.
pub(crate) async fn generate(
    State(state): State<Arc<ApiState>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let Read { object: body, room } = read_object(&state, request).await?;
    GENERATE.check(&body, "")?;
    let args = Args(&body);
    prompts::check_model(&state, args)?;
    let none = Map::new();
    let params = args.object("sampling_params").unwrap_or(Args(&none));
    let mut wanted = Wanted::read(&state, params, &NATIVE_NAMES)?;
    let shape = Shape::read(args, wanted.skip_special_tokens)?;
    wanted.sampling.logprobs = shape.logprobs.then_some(shape.n_top as u32);
    let rid = reply::rid(args)?
        .unwrap_or_else(|| format!("{:016x}{:016x}", state.random(), state.random()));
    let (prompts, listed, param) = prompts_of(&state, args).await?;
    drop(room);
    let job = Job {
        rid: rid.clone(),
        prompts,
        wanted,
        default_max_tokens: DEFAULT_MAX_TOKENS,
        output: OutputOptions::default(),
        param,
        arrived,
    };
    let generation = Generation::start(&state, job)?;
    let n_answers = generation.n_answers();
    let listed = listed || n_answers > 1;
    let writer = Answers {
        state,
        rid,
        shape,
        arrived,
        listed,
        stream: (0..n_answers).map(|_| SoFar::default()).collect(),
    };
    if args.flag("stream") {
        return Ok(sse::respond(generation, writer));
    }
    let answers: Vec<Value> = whole::fold(generation)
        .await?
        .into_iter()
        .enumerate()
        .map(|(index, answer)| {
            let end = End { reason: answer.reason, matched: answer.matched };
            let so_far = SoFar { text: answer.content, tokens: answer.tokens };
            writer.answer(index, &so_far, &answer.tally, Some(&end))
        })
        .collect();
    let body = if listed { json!(answers) } else { answers.into_iter().next().unwrap_or_default() };
    Ok(Json(body).into_response())
}

/// The prompts, whether they came as a list, and the field that carries them.
async fn prompts_of(
    state: &Arc<ApiState>,
    args: Args<'_>,
) -> Result<(Vec<Prompt>, bool, &'static str), ApiError> {
    let both = "Send either `text` or `input_ids`.";
    let (text, sent_ids) = (args.get("text"), args.get("input_ids"));
    match (text, sent_ids.and_then(Value::as_array)) {
        (None, None) => Err(ApiError::invalid("text", both)),
        (Some(_), Some(_)) => Err(ApiError::invalid("input_ids", both)),
        (Some(text), None) => {
            let texts: Vec<String> = args.texts("text").into_iter().map(str::to_owned).collect();
            if texts.is_empty() {
                return Err(ApiError::invalid("text", "`text` must not be an empty list."));
            }
            Ok((prompts::of_texts(state, texts, "text").await?, text.is_array(), "text"))
        }
        (None, Some(list)) => {
            let param = "input_ids";
            let listed = list.first().is_some_and(Value::is_array);
            let whole = [sent_ids.cloned().unwrap_or_default()];
            let mut prompts = Vec::new();
            for entry in if listed { &list[..] } else { &whole } {
                Kind::Ids.check(entry, param)?;
                prompts.push(prompts::of_ids(state, ids(entry), param)?);
            }
            Ok((prompts, listed, param))
        }
    }
}

/// What the answers show.
#[derive(Clone, Copy)]
struct Shape {
    logprobs: bool,
    n_top: usize,
    token_text: bool,
    skip_special_tokens: bool,
}

impl Shape {
    fn read(args: Args<'_>, skip_special_tokens: bool) -> Result<Shape, ApiError> {
        let logprobs = args.flag("return_logprob");
        let n_top = args.u32("top_logprobs_num").unwrap_or(0) as usize;
        let token_text = args.flag("return_text_in_logprobs");
        if !logprobs && (n_top > 0 || token_text) {
            let name = if n_top > 0 { "top_logprobs_num" } else { "return_text_in_logprobs" };
            let message = format!("`{name}` is only for requests with `return_logprob` true.");
            return Err(ApiError::invalid(name, message));
        }
        Ok(Shape { logprobs, n_top, token_text, skip_special_tokens })
    }
}

/// What an answer has said; every event repeats it.
#[derive(Default)]
struct SoFar {
    text: String,
    tokens: Vec<TokenOut>,
}

/// Writes answers, whole and in events.
struct Answers {
    state: Arc<ApiState>,
    rid: String,
    shape: Shape,
    arrived: Instant,
    listed: bool,
    stream: Vec<SoFar>,
}

impl Answers {
    fn answer(&self, index: usize, so_far: &SoFar, tally: &Tally, end: Option<&End>) -> Value {
        let ids: Vec<u32> = so_far.tokens.iter().map(|token| token.id).collect();
        let mut answer = json!({
            "text": so_far.text,
            "output_ids": ids,
            "meta_info": self.meta_info(so_far, tally, end),
        });
        if self.listed {
            answer["index"] = index.into();
        }
        answer
    }

    fn meta_info(&self, so_far: &SoFar, tally: &Tally, end: Option<&End>) -> Value {
        let mut meta = json!({
            "id": self.rid,
            "finish_reason": end.map(finish_reason),
            "prompt_tokens": tally.n_prompt,
            "completion_tokens": tally.n_completion,
            "cached_tokens": tally.n_cached,
            "reasoning_tokens": tally.n_reasoning,
            "weight_version": self.state.options.model.weight_version,
            "e2e_latency": self.arrived.elapsed().as_secs_f64(),
        });
        if let Some(Value::Object(finish)) = meta.get_mut("finish_reason") {
            // SGLang tells the limit that was reached.
            if finish["type"] == "length" {
                finish.insert("length".into(), tally.n_completion.into());
            }
        }
        if self.shape.logprobs {
            self.add_logprobs(&mut meta, &so_far.tokens);
        }
        if end.is_some() {
            meta["queue_time"] = json!(tally.timings.queue_wait_s);
            meta["prefill_time"] = json!(tally.timings.prefill_s);
            meta["decode_time"] = json!(tally.timings.decode_s);
            if self.state.options.sizes.speculates {
                let details = json!(SpecDetails::of(std::iter::once(&tally.speculation)));
                if let (Value::Object(meta), Value::Object(details)) = (&mut meta, details) {
                    meta.extend(details);
                }
            }
        }
        meta
    }

    fn add_logprobs(&self, meta: &mut Value, tokens: &[TokenOut]) {
        let Shape { n_top, token_text, skip_special_tokens, .. } = self.shape;
        let tokenizer = &self.state.options.tokenizer;
        let writer = Writer { tokenizer, skip_special_tokens, n_top };
        let chosen = tokens.iter().map(|t| writer.native(t.id, t.logprob, token_text));
        meta["output_token_logprobs"] = chosen.collect();
        meta["input_token_logprobs"] = json!([]);
        if n_top > 0 {
            let top = |token: &TokenOut| -> Value {
                let top = token.top.iter().take(n_top);
                top.map(|(id, p)| writer.native(*id, Some(*p), token_text)).collect()
            };
            meta["output_top_logprobs"] = tokens.iter().map(top).collect();
        }
    }
}

fn finish_reason(end: &End) -> Value {
    match end.reason {
        "stop" => json!({"type": "stop", "matched": end.matched}),
        reason => json!({"type": reason}),
    }
}

impl Render for Answers {
    fn piece(&mut self, piece: Piece, frames: &mut Frames) {
        let so_far = &mut self.stream[piece.index];
        for delta in piece.deltas {
            if let Delta::Content(text) = delta {
                so_far.text.push_str(&text);
            }
        }
        so_far.tokens.extend(piece.tokens);
        let so_far = &self.stream[piece.index];
        frames.json(&self.answer(piece.index, so_far, &piece.tally, piece.end.as_ref()));
    }

    fn done(&mut self, _: &mut Frames) {}
}
