//! One HTTP request in the engine: its sequences from submission to their ends, read as text.
//!
//! The channel between the engine's thread and a response has room for the whole answer, so a client
//! that reads slowly, or not at all, never makes the engine wait and loses nothing: what it has not
//! taken is kept, at most `max_tokens` tokens, until the connection's stall limit gives it up.
//! Dropping a `Generation` cancels what has not ended, wherever it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use engine::error::SubmitError;
use engine::request::{
    Event, EventSink, Finish, FinishReason, Gone, Request, SpeculationCounts, Timings, TokenOut,
};
use serde_json::{Value, json};
use text::{Delta, Flow, MatchedStop, OutputOptions, OutputParser, ReasoningStart};
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::sampling::Wanted;
use crate::state::ApiState;

/// One prompt, ready for the engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    /// Token ids, at least one.
    pub ids: Vec<u32>,
    /// Where other prompts are likely to branch off.
    pub boundaries: Vec<usize>,
    /// Whether the prompt ends inside an open thinking part.
    pub thinking_open: bool,
}

/// A request that passed all checks.
pub(crate) struct Job {
    /// Names the request for its answer and for aborts.
    pub rid: String,
    /// Prompts, at least one.
    pub prompts: Vec<Prompt>,
    /// How to answer each.
    pub wanted: Wanted,
    /// Token limit where the request has none.
    pub default_max_tokens: u32,
    /// How to read the answers; the stops are filled in from `wanted`.
    pub output: OutputOptions,
    /// Name of the field that carries the prompt, for messages.
    pub param: &'static str,
    /// When the request came in.
    pub arrived: Instant,
}

/// The sequences of one HTTP request. Answer `i` is choice `i % n` of prompt `i / n`.
pub(crate) struct Generation {
    state: Arc<ApiState>,
    events: mpsc::Receiver<(usize, Event)>,
    answers: Vec<Answer>,
    arrived: Instant,
}

/// What became certain of an answer.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Which answer.
    pub index: usize,
    /// Text.
    pub deltas: Vec<Delta>,
    /// The tokens behind the text so far, each once; a token follows when its text is shown.
    pub tokens: Vec<TokenOut>,
    /// Counts so far.
    pub tally: Tally,
    /// Present once, last.
    pub end: Option<End>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    /// `stop`, `length`, `tool_calls` or `abort`.
    pub reason: &'static str,
    /// The stop string or token id, or null.
    pub matched: Value,
}

/// Counts of one answer; the last three come with its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens of the answer; an end token counts.
    pub n_completion: usize,
    /// Of these, tokens of the thinking part with its end marker.
    pub n_reasoning: usize,
    /// Tokens of the prompt that came from the prefix cache.
    pub n_cached: usize,
    /// What speculation did.
    pub speculation: SpeculationCounts,
    /// Where the time went.
    pub timings: Timings,
}

struct Answer {
    id: u64,
    parser: OutputParser,
    /// Tells the engine's side that the answer is complete.
    satisfied: Arc<AtomicBool>,
    /// Tokens whose text is not shown yet.
    held: VecDeque<TokenOut>,
    n_shown: usize,
    tally: Tally,
    last_token: Option<Instant>,
    ended: bool,
}

impl Generation {
    /// Hands all sequences of a job to the engine, or none.
    ///
    /// # Errors
    /// When a prompt is too long or the engine does not take a sequence.
    pub(crate) fn start(state: &Arc<ApiState>, job: Job) -> Result<Generation, ApiError> {
        let mut limits = Vec::new();
        for prompt in &job.prompts {
            limits.push(token_limit(state, &job, prompt)?);
        }
        let n = job.wanted.n;
        let n_sequences = job.prompts.len() * n;
        let max_queued = state.options.sizes.max_queued_requests;
        if n_sequences > max_queued {
            let message = format!(
                "The request asks for {n_sequences} answers; at most {max_queued} can wait at once."
            );
            return Err(ApiError::invalid(if n > 1 { "n" } else { job.param }, message));
        }
        // One event holds at least one token, and there is one end.
        let room = limits.iter().map(|limit| (*limit as usize + 1) * n).sum();
        let (sender, events) = mpsc::channel(room);
        let answers = Vec::with_capacity(n_sequences);
        let mut generation =
            Generation { state: Arc::clone(state), events, answers, arrived: job.arrived };
        for (p, prompt) in job.prompts.iter().enumerate() {
            for choice in 0..n {
                generation.submit(&job, prompt, (p, choice), limits[p], &sender)?;
            }
        }
        Ok(generation)
    }

    fn submit(
        &mut self,
        job: &Job,
        prompt: &Prompt,
        (p, choice): (usize, usize),
        max_tokens: u32,
        sender: &mpsc::Sender<(usize, Event)>,
    ) -> Result<(), ApiError> {
        let id = self.state.next_id();
        let index = self.answers.len();
        let mut sampling = job.wanted.sampling.clone();
        sampling.seed = job.wanted.seed_of(p, choice);
        let satisfied = Arc::new(AtomicBool::new(false));
        let parser = OutputParser::new(
            Arc::clone(&self.state.options.tokenizer),
            output_options(&self.state, job, prompt, index),
        )
        .map_err(|error| ApiError::invalid("stop", error.to_string()))?;
        let request = Request {
            id,
            prompt: prompt.ids.clone(),
            max_tokens,
            sampling,
            boundaries: prompt.boundaries.clone(),
        };
        let sink = Sink { index, sender: sender.clone(), satisfied: Arc::clone(&satisfied) };
        let taken = self.state.options.backend.submit(request, Box::new(sink));
        taken.map_err(|error| refusal(error, job.param))?;
        self.state.begin(id, &job.rid);
        self.answers.push(Answer {
            id,
            parser,
            satisfied,
            held: VecDeque::new(),
            n_shown: 0,
            tally: Tally { n_prompt: prompt.ids.len(), ..Tally::default() },
            last_token: None,
            ended: false,
        });
        Ok(())
    }

    /// The next piece of any answer; `None` when all have ended. Dropping the future loses nothing.
    ///
    /// # Errors
    /// When the engine could not go on.
    pub(crate) async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        while self.is_open() {
            match self.events.recv().await {
                Some((index, event)) => {
                    if let Some(piece) = self.take(index, event) {
                        return Some(piece);
                    }
                }
                None => return Some(Err(ApiError::Internal("the engine ended a sink".into()))),
            }
        }
        None
    }

    /// Whether an answer has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.answers.iter().any(|answer| !answer.ended)
    }

    /// What all routes share.
    pub(crate) fn state(&self) -> &ApiState {
        &self.state
    }

    /// How many answers there are.
    pub(crate) fn n_answers(&self) -> usize {
        self.answers.len()
    }

    /// The next piece, if it is there already.
    pub(crate) fn try_next(&mut self) -> Option<Result<Piece, ApiError>> {
        while let Ok((index, event)) = self.events.try_recv() {
            if let Some(piece) = self.take(index, event) {
                return Some(piece);
            }
        }
        None
    }

    fn take(&mut self, index: usize, event: Event) -> Option<Result<Piece, ApiError>> {
        let answer = &mut self.answers[index];
        let mut deltas = Vec::new();
        let mut end = None;
        match event {
            Event::Tokens(tokens) => {
                answer.observe(&self.state, self.arrived, tokens.len());
                if !answer.push(tokens, &mut deltas) {
                    return None;
                }
            }
            Event::Finished(finish) => {
                answer.parser.finish(&mut deltas);
                answer.ended = true;
                self.state.end(answer.id);
                end = Some(answer.end(finish));
                answer.observe_end(&self.state, self.arrived);
            }
            Event::Failed(why) => {
                answer.ended = true;
                self.state.end(answer.id);
                return Some(Err(ApiError::Internal(why)));
            }
        }
        let counts = answer.parser.counts();
        answer.tally.n_completion = counts.completion;
        answer.tally.n_reasoning = counts.reasoning;
        let n_new = counts.shown - answer.n_shown;
        answer.n_shown = counts.shown;
        let tokens: Vec<TokenOut> = answer.held.drain(..n_new.min(answer.held.len())).collect();
        if deltas.is_empty() && tokens.is_empty() && end.is_none() {
            return None;
        }
        Some(Ok(Piece { index, deltas, tokens, tally: answer.tally.clone(), end }))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        for answer in self.answers.iter().filter(|answer| !answer.ended) {
            self.state.options.backend.cancel(answer.id);
            self.state.end(answer.id);
        }
    }
}

impl Answer {
    /// Reads new tokens; false if the answer was complete before them.
    fn push(&mut self, tokens: Vec<TokenOut>, deltas: &mut Vec<Delta>) -> bool {
        if self.satisfied.load(Ordering::Relaxed) {
            return false;
        }
        for token in tokens {
            let flow = self.parser.push(token.id, deltas);
            self.held.push_back(token);
            if flow == Flow::Stop {
                self.satisfied.store(true, Ordering::Relaxed);
                self.parser.finish(deltas);
                break;
            }
        }
        true
    }

    fn end(&mut self, finish: Finish) -> End {
        self.tally.n_cached = finish.n_cached;
        self.tally.speculation = finish.speculation;
        self.tally.timings = finish.timings;
        let (reason, matched) = match (self.parser.matched_stop(), finish.reason) {
            (Some(MatchedStop::Text(text)), _) => ("stop", json!(text)),
            (Some(MatchedStop::Token(id)), _) => ("stop", json!(id)),
            (None, FinishReason::Stop { token }) => ("stop", json!(token)),
            (None, FinishReason::Length) => ("length", Value::Null),
            (None, FinishReason::Cancelled | FinishReason::Shutdown) => ("abort", Value::Null),
        };
        let calls = reason == "stop" && self.parser.n_tool_calls() > 0;
        End { reason: if calls { "tool_calls" } else { reason }, matched }
    }

    fn observe(&mut self, state: &ApiState, arrived: Instant, n_tokens: usize) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => state.histograms.ttft_s.observe((now - arrived).as_secs_f64()),
            Some(last) => {
                let each = (now - last).as_secs_f64() / n_tokens as f64;
                state.histograms.itl_s.observe_n(each, n_tokens as u64);
            }
        }
    }

    fn observe_end(&self, state: &ApiState, arrived: Instant) {
        let h = &state.histograms;
        h.e2e_s.observe(arrived.elapsed().as_secs_f64());
        h.queue_wait_s.observe(self.tally.timings.queue_wait_s);
        h.n_prompt.observe(self.tally.n_prompt as f64);
        h.n_generated.observe(self.parser.counts().completion as f64);
    }
}

/// The engine's end of the channel.
struct Sink {
    index: usize,
    sender: mpsc::Sender<(usize, Event)>,
    satisfied: Arc<AtomicBool>,
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) -> Result<(), Gone> {
        if matches!(event, Event::Tokens(_)) && self.satisfied.load(Ordering::Relaxed) {
            return Err(Gone::Satisfied);
        }
        // The channel has room for everything that the token limit allows.
        self.sender.try_send((self.index, event)).map_err(|_| Gone::Disconnected)
    }
}

/// How many tokens the answer to `prompt` may have.
fn token_limit(state: &ApiState, job: &Job, prompt: &Prompt) -> Result<u32, ApiError> {
    let sizes = &state.options.sizes;
    // The last token is never fed back, so it needs no KV.
    let limit = sizes.context_len.min(sizes.max_total_num_tokens + 1);
    let n_prompt = prompt.ids.len();
    let left = u32::try_from(limit.saturating_sub(n_prompt)).unwrap_or(u32::MAX);
    if left == 0 {
        return Err(too_long(job.param, &format!("has {n_prompt} tokens"), limit));
    }
    Ok(job.wanted.max_tokens.unwrap_or(job.default_max_tokens).min(left))
}

/// A prompt that leaves no room for an answer; `has` tells its size.
pub(crate) fn too_long(param: &'static str, has: &str, limit: usize) -> ApiError {
    let message = format!(
        "The prompt {has}; the context length is {limit} tokens, of which the answer needs at least one."
    );
    ApiError::TooLong { param, message }
}

fn refusal(error: SubmitError, param: &'static str) -> ApiError {
    match error {
        SubmitError::QueueFull { .. } => ApiError::QueueFull,
        SubmitError::ShuttingDown => ApiError::ShuttingDown,
        SubmitError::PromptTooLong { .. } | SubmitError::NeverFits { .. } => {
            ApiError::TooLong { param, message: format!("{error}.") }
        }
        SubmitError::Invalid { field, .. } => ApiError::invalid(field, format!("{error}.")),
    }
}

fn output_options(state: &ApiState, job: &Job, prompt: &Prompt, index: usize) -> OutputOptions {
    let wanted = &job.wanted;
    let mut output = job.output.clone();
    // Calls of different answers to one request have different ids.
    output.call_id_prefix += &format!("{index}_");
    output.stop.clone_from(&wanted.stop);
    output.include_stop = wanted.include_stop;
    output.skip_special_tokens = wanted.skip_special_tokens;
    output.end_tokens.clone_from(&wanted.sampling.stop_token_ids);
    if !wanted.sampling.ignore_eos {
        output.end_tokens.extend(&state.options.model.eos_token_ids);
    }
    if let Some(start) = &mut output.reasoning {
        *start = if prompt.thinking_open { ReasoningStart::Open } else { ReasoningStart::Closed };
    }
    output
}
