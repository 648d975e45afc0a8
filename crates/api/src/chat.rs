//! `POST /v1/chat/completions`.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use engine::request::TokenOut;
use serde_json::Value;
use text::{Delta as TextDelta, OutputOptions, ReasoningStart, Tools};

use crate::body::{Read, read_object};
use crate::chat_fields::{self, ChatFields};
use crate::error::ApiError;
use crate::generation::{Generation, Job, Piece, Tally};
use crate::logprobs::Writer;
use crate::prompts;
use crate::reply::Reply;
use crate::sse::{self, Frames, Render};
use crate::state::ApiState;
use crate::whole::{self, Whole, tool_call};
use crate::wire::{ChatChoice, ChatDelta, Delta, Message};

/// Answers a chat.
///
/// # Errors
/// Everything that can be known before the first token.
pub(crate) async fn chat(
    State(state): State<Arc<ApiState>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let Read { object, room } = read_object(&state, request).await?;
    let fields = chat_fields::read(&state, object)?;
    let reply = Reply::new(&state, "chatcmpl", &fields.common, &fields.wanted);
    let shape = Shape { n_top: fields.logprobs, parallel_calls: fields.parallel_calls };
    let output = output(&state, &fields);
    let prompt = prompts::of_chat(&state, fields.conversation).await?;
    drop(room);
    let job = Job {
        rid: reply.id.clone(),
        prompts: vec![prompt],
        wanted: fields.wanted,
        default_max_tokens: u32::MAX,
        output,
        param: "messages",
        arrived,
    };
    let generation = Generation::start(&state, job)?;
    if fields.common.stream {
        let n = generation.n_answers();
        return Ok(sse::respond(generation, Stream { shape, begun: vec![false; n], reply }));
    }
    let answers = whole::fold(generation).await?;
    let tallies: Vec<Tally> = answers.iter().map(|answer| answer.tally.clone()).collect();
    let choices = answers.into_iter().enumerate().map(|(i, a)| choice(i, a, &reply, shape));
    Ok(Json(reply.whole("chat.completion", choices.collect(), &tallies)).into_response())
}

/// What decides the shape of choices.
#[derive(Clone, Copy)]
struct Shape {
    /// Entries beside the chosen token; `None` for no log-probabilities.
    n_top: Option<u32>,
    /// Whether an answer may have more than one call.
    parallel_calls: bool,
}

fn output(state: &ApiState, fields: &ChatFields) -> OutputOptions {
    let tools = &fields.conversation.tools;
    let parse_tools = state.options.parsers.tools && !tools.is_empty();
    OutputOptions {
        // The rendered prompt decides how the answer begins.
        reasoning: fields.separate_reasoning.then_some(ReasoningStart::Closed),
        tools: parse_tools.then(|| Arc::new(Tools::new(tools))),
        call_id_prefix: format!("call_{:016x}_", state.random()),
        ..OutputOptions::default()
    }
}

impl Shape {
    fn logprobs(self, reply: &Reply, tokens: &[TokenOut]) -> Option<Value> {
        let n_top = self.n_top? as usize;
        let writer = Writer {
            tokenizer: &reply.state.options.tokenizer,
            skip_special_tokens: reply.skip_special_tokens,
            n_top,
        };
        Some(writer.chat(tokens))
    }

    fn drops(self, call: usize) -> bool {
        !self.parallel_calls && call > 0
    }
}

fn choice(index: usize, mut answer: Whole, reply: &Reply, shape: Shape) -> ChatChoice {
    let logprobs = shape.logprobs(reply, &answer.tokens);
    answer.calls.retain(|call| !shape.drops(call.index));
    let only_calls = answer.content.is_empty() && !answer.calls.is_empty();
    ChatChoice {
        index,
        message: Message {
            role: "assistant",
            content: (!only_calls).then_some(answer.content),
            reasoning_content: (!answer.reasoning.is_empty()).then_some(answer.reasoning),
            tool_calls: answer.calls,
        },
        logprobs,
        finish_reason: answer.reason,
        matched_stop: answer.matched,
    }
}

/// Writes chat events.
struct Stream {
    reply: Reply,
    shape: Shape,
    /// Which choices had their first event.
    begun: Vec<bool>,
}

impl Stream {
    fn event(&mut self, frames: &mut Frames, choice: ChatDelta) {
        self.reply.event("chat.completion.chunk", vec![choice], frames);
    }
}

fn delta_of(delta: TextDelta) -> Delta {
    match delta {
        TextDelta::Content(text) => Delta { content: Some(text), ..Delta::default() },
        TextDelta::Reasoning(text) => Delta { reasoning_content: Some(text), ..Delta::default() },
        call => Delta { tool_calls: tool_call(call).into_iter().collect(), ..Delta::default() },
    }
}

impl Render for Stream {
    fn piece(&mut self, piece: Piece, frames: &mut Frames) {
        let Piece { index, deltas, tokens, tally, end } = piece;
        self.reply.note(index, tally);
        let plain = |delta| ChatDelta {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            matched_stop: Value::Null,
        };
        if !std::mem::replace(&mut self.begun[index], true) {
            let role = Some("assistant");
            self.event(
                frames,
                plain(Delta { role, content: Some(String::new()), ..Delta::default() }),
            );
        }
        let mut logprobs = match tokens.is_empty() {
            true => None,
            false => self.shape.logprobs(&self.reply, &tokens),
        };
        for delta in deltas {
            let delta = delta_of(delta);
            if delta.tool_calls.iter().any(|call| self.shape.drops(call.index)) {
                continue;
            }
            self.event(frames, ChatDelta { logprobs: logprobs.take(), ..plain(delta) });
        }
        if logprobs.is_some() {
            self.event(frames, ChatDelta { logprobs, ..plain(Delta::default()) });
        }
        if let Some(end) = end {
            let finish_reason = Some(end.reason);
            let last = plain(Delta::default());
            self.event(frames, ChatDelta { finish_reason, matched_stop: end.matched, ..last });
        }
    }

    fn done(&mut self, frames: &mut Frames) {
        self.reply.done::<ChatDelta>("chat.completion.chunk", frames);
    }
}
