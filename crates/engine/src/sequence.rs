//! One sequence: its tokens, what decides the next one, and the way out to its listener.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use cache::Lease;

use crate::depth::SequenceDepth;
use crate::handle::Submission;
use crate::history::History;
use crate::request::{
    Event, EventSink, Finish, FinishReason, Gone, Sampling, SpeculationCounts, Timings, TokenOut,
};
use crate::sampler::Draw;
use crate::snapshots::SnapshotPoints;

/// A request inside the engine. It is all that survives preemption: everything else is recomputed.
pub(crate) struct Sequence {
    pub(crate) id: u64,
    /// The prompt, then the answer so far. Its capacity is the whole length it can reach.
    pub(crate) tokens: Vec<u32>,
    pub(crate) n_prompt: usize,
    /// Offsets into the prompt where others are likely to branch off.
    pub(crate) boundaries: Vec<usize>,
    pub(crate) max_tokens: usize,
    pub(crate) sampling: Sampling,
    /// Tokens that end the answer.
    ends: Vec<u32>,
    history: History,
    outlet: Outlet,
    pub(crate) clock: Clock,
    /// Prompt tokens that came from the prefix cache at the first admission.
    pub(crate) n_cached: usize,
    pub(crate) speculation: SpeculationCounts,
    pub(crate) depth: SequenceDepth,
}

/// When things happened to a sequence.
pub(crate) struct Clock {
    pub(crate) submitted: Instant,
    pub(crate) first_scheduled: Option<Instant>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) last_token: Option<Instant>,
}

/// How a sequence leaves the engine.
#[derive(Debug)]
pub(crate) enum End {
    Finished(FinishReason),
    Failed(String),
}

impl Sequence {
    pub(crate) fn new(submission: Submission, eos_token_ids: &[u32]) -> Sequence {
        let Submission { request, sink, at } = submission;
        let max_tokens = request.max_tokens as usize;
        let history = History::new(&request.sampling, &request.prompt, max_tokens);
        let depth = SequenceDepth::at(request.sampling.temperature);
        let mut ends = request.sampling.stop_token_ids.clone();
        if !request.sampling.ignore_eos {
            ends.extend_from_slice(eos_token_ids);
        }
        let n_prompt = request.prompt.len();
        let mut tokens = request.prompt;
        tokens.reserve_exact(max_tokens);
        Sequence {
            id: request.id,
            tokens,
            n_prompt,
            boundaries: request.boundaries,
            max_tokens,
            sampling: request.sampling,
            ends,
            history,
            outlet: Outlet { sink: Some(sink) },
            clock: Clock {
                submitted: at,
                first_scheduled: None,
                first_token: None,
                last_token: None,
            },
            n_cached: 0,
            speculation: SpeculationCounts::default(),
            depth,
        }
    }

    pub(crate) fn n_generated(&self) -> usize {
        self.tokens.len() - self.n_prompt
    }

    /// Tokens that may still be generated, at least one while the sequence lives.
    pub(crate) fn n_remaining(&self) -> usize {
        self.max_tokens - self.n_generated()
    }

    /// Positions that its KV can ever take: the last token is never fed back.
    pub(crate) fn n_positions_max(&self) -> usize {
        self.n_prompt + self.max_tokens - 1
    }

    /// What decides the next token besides logits.
    pub(crate) fn next_draw(&self) -> Draw<'_> {
        Draw {
            sampling: &self.sampling,
            ends: &self.ends,
            history: &self.history,
            n_generated: self.n_generated(),
            position: self.tokens.len(),
        }
    }

    /// The tokens, and what draws drafts after them.
    pub(crate) fn drafter(&mut self) -> (&[u32], Drafter<'_>) {
        let drafter = Drafter {
            sampling: &self.sampling,
            ends: &self.ends,
            history: &mut self.history,
            n_generated: self.tokens.len() - self.n_prompt,
            position: self.tokens.len(),
        };
        (&self.tokens, drafter)
    }

    /// Appends a drawn token; says whether it ends the sequence. A stop wins over the limit.
    pub(crate) fn push(&mut self, token: u32) -> Option<FinishReason> {
        self.tokens.push(token);
        self.history.push(token);
        if self.ends.contains(&token) {
            return Some(FinishReason::Stop { token: Some(token) });
        }
        (self.n_remaining() == 0).then_some(FinishReason::Length)
    }

    /// Hands tokens to the listener; its answer may end the sequence.
    pub(crate) fn send(&mut self, tokens: Vec<TokenOut>) -> Option<FinishReason> {
        match self.outlet.send(Event::Tokens(tokens)) {
            Ok(()) => None,
            Err(Gone::Disconnected) => Some(FinishReason::Cancelled),
            Err(Gone::Satisfied) => Some(FinishReason::Stop { token: None }),
        }
    }

    /// The one way out.
    pub(crate) fn end(self, end: End, now: Instant) {
        let event = match end {
            End::Failed(why) => Event::Failed(why),
            End::Finished(reason) => Event::Finished(Finish {
                reason,
                n_prompt: self.n_prompt,
                n_cached: self.n_cached,
                n_generated: self.n_generated(),
                timings: self.clock.timings(now),
                speculation: self.speculation,
            }),
        };
        self.outlet.end(event);
    }
}

/// Draws as its sequence would, with drafts added to the history for the time being.
pub(crate) struct Drafter<'a> {
    sampling: &'a Sampling,
    ends: &'a [u32],
    history: &'a mut History,
    n_generated: usize,
    position: usize,
}

impl Drafter<'_> {
    /// What decides draft `i`, once the drafts before it are pushed.
    pub(crate) fn draw(&self, i: usize) -> Draw<'_> {
        Draw {
            sampling: self.sampling,
            ends: self.ends,
            history: self.history,
            n_generated: self.n_generated + i,
            position: self.position + i,
        }
    }

    pub(crate) fn push(&mut self, draft: u32) {
        self.history.push(draft);
    }

    /// Takes back the last draft pushed.
    pub(crate) fn undo(&mut self, draft: u32) {
        self.history.pop(draft);
    }
}

impl Clock {
    fn timings(&self, now: Instant) -> Timings {
        let scheduled = self.first_scheduled.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        let last = self.last_token.unwrap_or(first);
        Timings {
            queue_wait_s: (scheduled - self.submitted).as_secs_f64(),
            prefill_s: (first - scheduled).as_secs_f64(),
            decode_s: (last - first).as_secs_f64(),
        }
    }
}

/// The listener of one request, and the promise that it hears of exactly one end.
struct Outlet {
    sink: Option<Box<dyn EventSink>>,
}

impl Outlet {
    /// A listener that panics has left.
    fn send(&mut self, event: Event) -> Result<(), Gone> {
        let Some(sink) = &mut self.sink else { return Err(Gone::Disconnected) };
        catch_unwind(AssertUnwindSafe(|| sink.send(event))).unwrap_or(Err(Gone::Disconnected))
    }

    fn end(mut self, event: Event) {
        // Whether anybody still listens makes no difference to an end.
        let _ = self.send(event);
        self.sink = None;
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        // Reached with a sink only when a panic takes the sequence with it.
        let _ = self.send(Event::Failed("the engine lost the request".into()));
    }
}

/// A sequence with its blocks and its slot, and how far they hold it.
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    pub(crate) lease: Lease,
    /// `tokens[..n_computed]` have been fed: their KV is final.
    pub(crate) n_computed: usize,
    /// The last of these whose recurrent state is still pending in the slot: accepted drafts, which the
    /// next pass replays.
    pub(crate) n_replay: usize,
    /// Position of the first hidden row that the draft head has not consumed.
    pub(crate) carried_from: usize,
    /// Where its state is kept.
    pub(crate) snapshots: SnapshotPoints,
}

impl Running {
    /// Whether the next pass feeds nothing but the newest token of the answer.
    pub(crate) fn is_decoding(&self) -> bool {
        self.n_computed >= self.sequence.n_prompt
            && self.n_computed + 1 == self.sequence.tokens.len()
    }
}
