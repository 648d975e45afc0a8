//! `POST /v1/completions`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use engine::request::TokenOut;
use serde_json::{Map, Value};
use text::{Delta, OutputOptions};

use crate::body::{Read, read_object};
use crate::error::ApiError;
use crate::fields::completions::COMPLETIONS;
use crate::fields::{Args, Kind, ids, shown};
use crate::generation::{Generation, Job, Piece, Prompt, Tally};
use crate::logprobs::Writer;
use crate::prompts::{self, check_model};
use crate::reply::{Common, Reply};
use crate::sampling::{COMPLETIONS_NAMES, Wanted};
use crate::sse::{self, Frames, Render};
use crate::state::ApiState;
use crate::whole;
use crate::wire::TextChoice;

/// OpenAI's default for this route.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Completes prompts.
///
/// # Errors
/// Everything that can be known before the first token.
pub(crate) async fn completions(
    State(state): State<Arc<ApiState>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let Read { object: mut body, room } = read_object(&state, request).await?;
    COMPLETIONS.check(&body, "")?;
    let args = Args(&body);
    check_model(&state, args)?;
    let common = Common::read(args)?;
    let mut wanted = Wanted::read(&state, args, &COMPLETIONS_NAMES)?;
    let n_top = args.u32("logprobs");
    wanted.sampling.logprobs = n_top;
    let echo = args.flag("echo");
    if echo && n_top.is_some() {
        let message = "`echo` with `logprobs` is not supported: logprobs are of the answer only.";
        return Err(ApiError::unsupported("echo", message));
    }
    let reply = Reply::new(&state, "cmpl", &common, &wanted);
    let texts = take_prompt(&mut body)?;
    let (prompts, before) = tokens_of(&state, texts, echo).await?;
    drop(room);
    let n = wanted.n;
    let job = Job {
        rid: reply.id.clone(),
        prompts,
        wanted,
        default_max_tokens: DEFAULT_MAX_TOKENS,
        output: OutputOptions::default(),
        param: "prompt",
        arrived,
    };
    let generation = Generation::start(&state, job)?;
    let before = |answer: usize| before.get(answer / n).cloned().unwrap_or_default();
    let n_answers = generation.n_answers();
    let mut choices: Vec<Choice> =
        (0..n_answers).map(|i| Choice { before: Some(before(i)), n_chars: 0 }).collect();
    if common.stream {
        return Ok(sse::respond(generation, Stream { reply, n_top, choices }));
    }
    let answers = whole::fold(generation).await?;
    let tallies: Vec<Tally> = answers.iter().map(|answer| answer.tally.clone()).collect();
    let choices = answers.into_iter().enumerate().map(|(index, answer)| TextChoice {
        index,
        logprobs: choices[index].logprobs(&reply, n_top, &answer.tokens),
        text: choices[index].text(answer.content),
        finish_reason: Some(answer.reason),
        matched_stop: answer.matched,
    });
    let choices = choices.collect();
    Ok(Json(reply.whole("text_completion", choices, &tallies)).into_response())
}

/// A prompt as it was sent.
enum Sent {
    Text(String),
    Ids(Vec<u32>),
}

/// The prompts of the four shapes that OpenAI allows.
fn take_prompt(body: &mut Map<String, Value>) -> Result<Vec<Sent>, ApiError> {
    const PARAM: &str = "prompt";
    let wrong = |value: &Value| {
        let message = format!(
            "`prompt` must be a string, a list of strings, a list of token ids or a list of such \
             lists, not {}.",
            shown(value)
        );
        ApiError::invalid(PARAM, message)
    };
    match body.remove(PARAM) {
        None | Some(Value::Null) => Err(ApiError::invalid(PARAM, "`prompt` is missing.")),
        Some(Value::String(text)) => Ok(vec![Sent::Text(text)]),
        Some(Value::Array(list)) if list.is_empty() => {
            Err(ApiError::invalid(PARAM, "`prompt` must not be an empty list."))
        }
        Some(Value::Array(list)) if list[0].is_number() => {
            let list = Value::Array(list);
            Kind::Ids.check(&list, PARAM)?;
            Ok(vec![Sent::Ids(ids(&list))])
        }
        Some(Value::Array(list)) => list
            .into_iter()
            .map(|entry| match entry {
                Value::String(text) => Ok(Sent::Text(text)),
                Value::Array(_) => {
                    Kind::Ids.check(&entry, PARAM)?;
                    Ok(Sent::Ids(ids(&entry)))
                }
                other => Err(wrong(&other)),
            })
            .collect(),
        Some(other) => Err(wrong(&other)),
    }
}

/// The prompts as token ids and, to `echo` them, as text.
async fn tokens_of(
    state: &Arc<ApiState>,
    sent: Vec<Sent>,
    echo: bool,
) -> Result<(Vec<Prompt>, Vec<String>), ApiError> {
    let mut texts = Vec::new();
    let mut places = Vec::new();
    let mut before = Vec::new();
    let mut prompts = Vec::new();
    for (i, prompt) in sent.into_iter().enumerate() {
        match prompt {
            Sent::Text(text) => {
                before.extend(echo.then(|| text.clone()));
                texts.push(text);
                places.push(i);
                prompts.push(Prompt::default());
            }
            Sent::Ids(ids) => {
                before.extend(echo.then(|| state.options.tokenizer.decode(&ids, false)));
                prompts.push(prompts::of_ids(state, ids, "prompt")?);
            }
        }
    }
    let encoded = prompts::of_texts(state, texts, "prompt").await?;
    for (place, prompt) in places.into_iter().zip(encoded) {
        prompts[place] = prompt;
    }
    Ok((prompts, before))
}

/// What a choice remembers between its pieces.
struct Choice {
    /// The echoed prompt, until it is sent.
    before: Option<String>,
    /// Characters of text whose tokens have been listed.
    n_chars: usize,
}

impl Choice {
    fn text(&mut self, text: String) -> String {
        match self.before.take() {
            Some(before) if !before.is_empty() => before + &text,
            _ => text,
        }
    }

    fn logprobs(
        &mut self,
        reply: &Reply,
        n_top: Option<u32>,
        tokens: &[TokenOut],
    ) -> Option<Value> {
        let writer = Writer {
            tokenizer: &reply.state.options.tokenizer,
            skip_special_tokens: reply.skip_special_tokens,
            n_top: n_top? as usize,
        };
        Some(writer.completion(tokens, &mut self.n_chars))
    }
}

/// Writes completion events.
struct Stream {
    reply: Reply,
    n_top: Option<u32>,
    choices: Vec<Choice>,
}

impl Render for Stream {
    fn piece(&mut self, piece: Piece, frames: &mut Frames) {
        let Piece { index, deltas, tokens, tally, end } = piece;
        self.reply.note(index, tally);
        let content = deltas.into_iter().filter_map(|delta| match delta {
            Delta::Content(text) => Some(text),
            // Neither is parsed on this route.
            _ => None,
        });
        let choice = &mut self.choices[index];
        let text = choice.text(content.collect());
        let logprobs = match tokens.is_empty() {
            true => None,
            false => choice.logprobs(&self.reply, self.n_top, &tokens),
        };
        if text.is_empty() && logprobs.is_none() && end.is_none() {
            return;
        }
        let (finish_reason, matched_stop) = match end {
            Some(end) => (Some(end.reason), end.matched),
            None => (None, Value::Null),
        };
        let choice = TextChoice { index, text, logprobs, finish_reason, matched_stop };
        self.reply.event("text_completion", vec![choice], frames);
    }

    fn done(&mut self, frames: &mut Frames) {
        self.reply.done::<TextChoice>("text_completion", frames);
    }
}
