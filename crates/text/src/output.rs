//! Token ids of one answer to typed deltas: detokenizer, stop strings, reasoning, tool calls, in
//! this order.
//!
//! - Control tokens are left out of the text with `skip_special_tokens`, except `<think>` and
//!   `<tool_call>` and their ends where the reasoning split or the call parser need them.
//! - An end token (end of turn, or one of the request's `stop_token_ids`) is counted and has no
//!   text.
//! - Stop strings are matched in the whole text as the model wrote it, as SGLang does: in reasoning
//!   and in content, and in markup and arguments of tool calls too.
//! - What comes after the stop string or the end token is neither shown nor counted, also when it
//!   was accepted in the same step.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::delta::{Delta, push_content, push_reasoning};
use crate::detokenizer::Detokenizer;
use crate::reasoning::{ReasoningSplitter, ReasoningStart};
use crate::schema::Tools;
use crate::stop::{StopError, StopMatcher};
use crate::tokenizer::Tokenizer;
use crate::tool_calls::ToolCallParser;

/// How one answer is read.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    /// Leave control tokens out of the text.
    pub skip_special_tokens: bool,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Show the stop string or the end token too (SGLang's `no_stop_trim`).
    pub include_stop: bool,
    /// Tokens that end the answer: end of turn and the request's own. Empty with `ignore_eos`.
    pub end_tokens: Vec<u32>,
    /// Split thinking from the answer, with the start that the rendered prompt says; `None` leaves
    /// the text as it is.
    pub reasoning: Option<ReasoningStart>,
    /// Parse tool calls of these tools; `None` leaves the text as it is.
    pub tools: Option<Arc<Tools>>,
    /// What the ids of tool calls begin with, unique to the answer.
    pub call_id_prefix: String,
}

/// Whether generation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More tokens are welcome.
    Continue,
    /// The answer is complete: stop generating and call [`OutputParser::finish`].
    Stop,
}

/// What ended the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchedStop {
    /// A stop string.
    Text(String),
    /// An end token.
    Token(u32),
}

/// Counts of tokens, for `usage` and for the list of log probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All tokens of the answer up to the one that ended it, including that one.
    pub completion: usize,
    /// Those of the thinking part, up to and including `</think>`; never more than `completion`.
    pub reasoning: usize,
    /// The first this many tokens are certain to be shown: their text comes before any stop string.
    /// Grows with the text; after `finish` it leaves out only tokens that lie wholly in the stop
    /// string.
    pub shown: usize,
}

/// Reads one answer.
pub struct OutputParser {
    tokenizer: Arc<Tokenizer>,
    options: OutputOptions,
    /// Control tokens that are text to the parsers behind.
    kept: Vec<u32>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    reasoning: Option<ReasoningSplitter>,
    calls: Option<ToolCallParser>,
    matched: Option<MatchedStop>,
    finished: bool,
    counts: Counts,
    /// Where the text of each token begins that is not counted as shown, in bytes of the decoded
    /// text.
    starts: VecDeque<usize>,
    /// Bytes of text decoded, and those that the stop matcher let through.
    n_decoded: usize,
    n_released: usize,
    decoded: String,
    released: String,
}

impl OutputParser {
    /// A parser for one answer. Fails on an empty stop string.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        options: OutputOptions,
    ) -> Result<OutputParser, StopError> {
        let stop = StopMatcher::new(&options.stop, options.include_stop)?;
        let markers: [(bool, [&str; 2]); 2] = [
            (options.reasoning.is_some(), ["<think>", "</think>"]),
            (options.tools.is_some(), ["<tool_call>", "</tool_call>"]),
        ];
        let needed =
            markers.into_iter().filter(|(needed, _)| *needed).flat_map(|(_, markers)| markers);
        let kept = needed.filter_map(|marker| tokenizer.token_id(marker)).collect();
        let calls = options
            .tools
            .clone()
            .map(|tools| ToolCallParser::new(tools, options.call_id_prefix.clone()));
        Ok(OutputParser {
            kept,
            detokenizer: Detokenizer::default(),
            stop,
            reasoning: options
                .reasoning
                .map(|start| ReasoningSplitter::new(start, options.tools.is_some())),
            calls,
            matched: None,
            finished: false,
            counts: Counts::default(),
            starts: VecDeque::new(),
            n_decoded: 0,
            n_released: 0,
            decoded: String::new(),
            released: String::new(),
            tokenizer,
            options,
        })
    }

    /// Takes the next token and appends what became certain to `deltas`.
    /// After [`Flow::Stop`] further tokens are ignored.
    pub fn push(&mut self, token: u32, deltas: &mut Vec<Delta>) -> Flow {
        if self.finished || self.matched.is_some() {
            return Flow::Stop;
        }
        self.counts.completion += 1;
        self.starts.push_back(self.n_decoded);
        let ends = self.options.end_tokens.contains(&token);
        let hidden = if ends {
            !self.options.include_stop
        } else {
            self.options.skip_special_tokens
                && self.tokenizer.is_special(token)
                && !self.kept.contains(&token)
        };
        if !hidden {
            self.detokenizer.push(self.tokenizer.bytes(token), &mut self.decoded);
        }
        self.decode(deltas);
        if ends && self.matched.is_none() {
            self.matched = Some(MatchedStop::Token(token));
        }
        if self.matched.is_some() { Flow::Stop } else { Flow::Continue }
    }

    /// Ends the answer and appends everything that was held back.
    pub fn finish(&mut self, deltas: &mut Vec<Delta>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        if self.matched_text().is_none() {
            self.detokenizer.flush(&mut self.decoded);
            self.decode(deltas);
        }
        if self.matched_text().is_none() {
            self.stop.flush(&mut self.released);
            self.release(deltas);
            self.count_shown(usize::MAX);
        }
        if let Some(splitter) = &mut self.reasoning {
            let (mut reasoning, mut content) = (String::new(), String::new());
            splitter.finish(&mut reasoning, &mut content);
            push_reasoning(deltas, &reasoning);
            self.push_answer(&content, deltas);
        }
        if let Some(calls) = &mut self.calls {
            calls.finish(deltas);
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts;
        if self.reasoning.as_ref().is_some_and(ReasoningSplitter::is_open) {
            counts.reasoning = counts.completion
                - usize::from(matches!(self.matched, Some(MatchedStop::Token(_))));
        }
        counts
    }

    /// What ended the answer, if it was a stop string or an end token.
    pub fn matched_stop(&self) -> Option<&MatchedStop> {
        self.matched.as_ref()
    }

    /// How many tool calls have begun: with one or more, the finish reason of a stopped answer is
    /// `tool_calls`.
    pub fn n_tool_calls(&self) -> usize {
        self.calls.as_ref().map_or(0, ToolCallParser::n_calls)
    }

    fn matched_text(&self) -> Option<&str> {
        match &self.matched {
            Some(MatchedStop::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Sends what was decoded through the stop matcher.
    fn decode(&mut self, deltas: &mut Vec<Delta>) {
        self.n_decoded += self.decoded.len();
        if let Some(index) = self.stop.push(&self.decoded, &mut self.released) {
            self.matched = Some(MatchedStop::Text(self.options.stop[index].clone()));
        }
        self.decoded.clear();
        self.release(deltas);
    }

    /// Sends what the stop matcher let through to the parsers behind it.
    fn release(&mut self, deltas: &mut Vec<Delta>) {
        self.n_released += self.released.len();
        let text = std::mem::take(&mut self.released);
        match &mut self.reasoning {
            Some(splitter) => {
                let was_closed = splitter.closed_at().is_some();
                let (mut reasoning, mut content) = (String::new(), String::new());
                splitter.push(&text, &mut reasoning, &mut content);
                if let Some(end) = splitter.closed_at().filter(|_| !was_closed) {
                    self.count_shown(end);
                    self.counts.reasoning = self.counts.shown;
                }
                push_reasoning(deltas, &reasoning);
                self.push_answer(&content, deltas);
            }
            None => self.push_answer(&text, deltas),
        }
        self.count_shown(self.n_released);
        self.released = text;
        self.released.clear();
    }

    fn push_answer(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        match &mut self.calls {
            Some(calls) => calls.push(text, deltas),
            None => push_content(deltas, text),
        }
    }

    /// Tokens whose text begins before byte `end` of the decoded text are shown.
    fn count_shown(&mut self, end: usize) {
        while self.starts.front().is_some_and(|&start| start < end) {
            self.starts.pop_front();
            self.counts.shown += 1;
        }
    }
}

#[cfg(test)]
mod tests;
