//! Splits an answer into its thinking part and the rest.
//!
//! Whether the answer begins inside a thinking part is known from how the rendered prompt ends, not
//! guessed from the text. A `<think>` at the very start opens a thinking part too (templates that
//! leave the opening to the model) or repeats an open one; anywhere later it is text. The first
//! `</think>` closes it. Where tools are in use `<tool_call>` closes it as well, as in SGLang:
//! models forget the `</think>` before a call.
//!
//! White space: the line breaks that templates put around the two parts (`<think>\n …
//! \n</think>\n\n …`) belong to neither. Line breaks at both ends of the reasoning and before the
//! content are dropped, those at the end of a reasoning that was cut off are kept.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
const CALL: &str = "<tool_call>";

/// More blanks than this before a `<think>`, and it is not the start of the answer any more.
const MAX_LEADING_SPACE: usize = 32;

/// How the rendered prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningStart {
    /// Inside a thinking part.
    Open,
    /// Outside.
    Closed,
}

/// Incremental split of an answer.
#[derive(Debug)]
pub struct ReasoningSplitter {
    state: State,
    call_closes: bool,
    /// Text that may be the beginning of a marker.
    held: String,
    /// Line breaks at the end of the reasoning so far: shown only when more reasoning follows.
    n_breaks: usize,
    /// Bytes of text taken before `held`.
    n_taken: usize,
    closed_at: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far, perhaps the beginning of `<think>`.
    Start(ReasoningStart),
    /// In the thinking part, before its first character.
    ReasoningStart,
    Reasoning,
    /// After the thinking part, before the first character of the content.
    ContentStart,
    Content,
}

impl ReasoningSplitter {
    /// A splitter for an answer to a prompt that ends as `start` says; `call_closes` where tools
    /// are in use.
    pub fn new(start: ReasoningStart, call_closes: bool) -> ReasoningSplitter {
        ReasoningSplitter {
            state: State::Start(start),
            call_closes,
            held: String::new(),
            n_breaks: 0,
            n_taken: 0,
            closed_at: None,
        }
    }

    /// Takes the next piece of text and appends to `reasoning` and `content` what is certain to
    /// belong there. Within one push reasoning comes before content.
    pub fn push(&mut self, text: &str, reasoning: &mut String, content: &mut String) {
        if self.state == State::Content {
            content.push_str(text);
            return;
        }
        self.held.push_str(text);
        let held = std::mem::take(&mut self.held);
        let rest = self.advance(&held, reasoning, content);
        self.n_taken += held.len() - rest.len();
        self.held = rest.to_owned();
    }

    /// Ends the text: what was held back did not become a marker.
    pub fn finish(&mut self, reasoning: &mut String, content: &mut String) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Start(ReasoningStart::Closed) | State::Content => content.push_str(&held),
            State::ContentStart => content.push_str(held.trim_start_matches('\n')),
            State::Start(ReasoningStart::Open) | State::ReasoningStart | State::Reasoning => {
                if self.state != State::Reasoning {
                    self.state = State::ReasoningStart;
                }
                self.reason(&held, reasoning);
                reasoning.extend(std::iter::repeat_n('\n', std::mem::take(&mut self.n_breaks)));
            }
        }
    }

    /// Where the thinking part ended, in bytes of the text pushed: after `</think>`, or before the
    /// `<tool_call>` that closed it.
    pub fn closed_at(&self) -> Option<usize> {
        self.closed_at
    }

    /// Whether the text so far ends in the thinking part.
    pub fn is_open(&self) -> bool {
        matches!(
            self.state,
            State::Start(ReasoningStart::Open) | State::ReasoningStart | State::Reasoning
        )
    }

    /// Takes `held` as far as it is certain and returns the rest.
    fn advance<'a>(
        &mut self,
        held: &'a str,
        reasoning: &mut String,
        content: &mut String,
    ) -> &'a str {
        let mut rest = held;
        if let State::Start(start) = self.state {
            let text = rest.trim_start();
            let at_start = rest.len() - text.len() <= MAX_LEADING_SPACE;
            if at_start && let Some(after) = text.strip_prefix(OPEN) {
                self.state = State::ReasoningStart;
                rest = after;
            } else if at_start && OPEN.starts_with(text) {
                return rest;
            } else {
                self.state = match start {
                    ReasoningStart::Open => State::ReasoningStart,
                    ReasoningStart::Closed => State::Content,
                };
            }
        }
        if matches!(self.state, State::ReasoningStart | State::Reasoning) {
            let Some((end, n_marker)) = self.find_close(rest) else {
                let hold = self.hold_from(rest);
                self.reason(&rest[..hold], reasoning);
                return &rest[hold..];
            };
            self.reason(&rest[..end], reasoning);
            self.n_breaks = 0;
            self.closed_at = Some(self.n_taken + held.len() - rest.len() + end + n_marker);
            self.state = State::ContentStart;
            rest = &rest[end + n_marker..];
        }
        if self.state == State::ContentStart {
            rest = rest.trim_start_matches('\n');
            if !rest.is_empty() {
                self.state = State::Content;
            }
        }
        content.push_str(rest);
        ""
    }

    /// The first closing marker: where it is, and how much of it does not belong to the content.
    fn find_close(&self, text: &str) -> Option<(usize, usize)> {
        let close = text.find(CLOSE).map(|at| (at, CLOSE.len()));
        let call = if self.call_closes { text.find(CALL).map(|at| (at, 0)) } else { None };
        close.into_iter().chain(call).min()
    }

    /// Where the beginning of a closing marker starts that the text may end with.
    fn hold_from(&self, text: &str) -> usize {
        let begins =
            |tail: &str| CLOSE.starts_with(tail) || (self.call_closes && CALL.starts_with(tail));
        text.rfind('<').filter(|&at| begins(&text[at..])).unwrap_or(text.len())
    }

    fn reason(&mut self, text: &str, reasoning: &mut String) {
        let mut text = text;
        if self.state == State::ReasoningStart {
            text = text.trim_start_matches('\n');
            if text.is_empty() {
                return;
            }
            self.state = State::Reasoning;
        }
        let body = text.trim_end_matches('\n');
        if !body.is_empty() {
            reasoning.extend(std::iter::repeat_n('\n', std::mem::take(&mut self.n_breaks)));
            reasoning.push_str(body);
        }
        self.n_breaks += text.len() - body.len();
    }
}

#[cfg(test)]
mod tests;
