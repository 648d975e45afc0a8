//! The shapes of OpenAI answers, with SGLang's additions.

use engine::request::SpeculationCounts;
use serde::Serialize;
use serde_json::Value;

use crate::generation::Tally;

/// Token counts of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Usage {
    /// Tokens of the prompts, each prompt once.
    pub prompt_tokens: usize,
    /// Prompts and answers.
    pub total_tokens: usize,
    /// Tokens of all answers; end tokens count.
    pub completion_tokens: usize,
    /// Where the prompt tokens came from.
    pub prompt_tokens_details: PromptDetails,
    /// Tokens of the thinking parts, among the completion tokens (SGLang's place for it).
    pub reasoning_tokens: usize,
    /// The same in OpenAI's place.
    pub completion_tokens_details: CompletionDetails,
}

/// Where prompt tokens came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct PromptDetails {
    /// Tokens that came from the prefix cache.
    pub cached_tokens: usize,
}

/// What completion tokens were.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CompletionDetails {
    /// Tokens of the thinking parts.
    pub reasoning_tokens: usize,
}

impl Usage {
    /// Of the answers to a request that wants `n` of them for each prompt.
    pub(crate) fn of(tallies: &[Tally], n: usize) -> Usage {
        let first_of_prompt = || tallies.iter().step_by(n);
        let prompt_tokens = first_of_prompt().map(|t| t.n_prompt).sum();
        let completion_tokens = tallies.iter().map(|t| t.n_completion).sum();
        let reasoning_tokens = tallies.iter().map(|t| t.n_reasoning).sum();
        Usage {
            prompt_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            completion_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: first_of_prompt().map(|t| t.n_cached).sum(),
            },
            reasoning_tokens,
            completion_tokens_details: CompletionDetails { reasoning_tokens },
        }
    }
}

/// What identifies the weights and the draws.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Metadata {
    /// Fingerprint of the weights.
    pub weight_version: String,
    /// Seed of the first answer; sent again it gives the same answers.
    pub seed: u64,
}

/// `sglext`: present on request only.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Extension {
    /// What speculation did for this request.
    pub spec_tokens_details: SpecDetails,
}

/// Acceptance of drafts, under SGLang's names.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct SpecDetails {
    /// Accepted drafts of those proposed.
    pub spec_accept_rate: f64,
    /// Tokens gained per round: accepted drafts + 1.
    pub spec_accept_length: f64,
    /// Rounds: forward passes that gained tokens after the first. A round may have had no draft.
    pub spec_verify_ct: usize,
    /// Drafts accepted.
    pub spec_num_correct_drafts: usize,
    /// Drafts proposed.
    pub spec_num_proposed_drafts: usize,
    /// Rounds by the number of drafts that they accepted, from 0.
    pub spec_correct_drafts_histogram: Vec<usize>,
}

impl SpecDetails {
    /// Of the answers together.
    pub(crate) fn of<'a>(counts: impl Iterator<Item = &'a SpeculationCounts>) -> SpecDetails {
        let mut details = SpecDetails::default();
        // Rounds that accepted at least i drafts, from i = 0.
        let mut at_least = vec![0];
        for c in counts {
            details.spec_num_correct_drafts += c.n_accepted;
            details.spec_num_proposed_drafts += c.n_drafted;
            at_least[0] += c.n_decode_rounds;
            at_least.resize(at_least.len().max(c.n_accepted_at.len() + 1), 0);
            c.n_accepted_at.iter().enumerate().for_each(|(i, n)| at_least[i + 1] += n);
        }
        let ratio =
            |part: usize, whole: usize| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let n_rounds = at_least[0];
        details.spec_verify_ct = n_rounds;
        details.spec_accept_rate =
            ratio(details.spec_num_correct_drafts, details.spec_num_proposed_drafts);
        details.spec_accept_length = ratio(n_rounds + details.spec_num_correct_drafts, n_rounds);
        let next = at_least.iter().skip(1).chain([&0]);
        details.spec_correct_drafts_histogram =
            at_least.iter().zip(next).map(|(n, more)| n.saturating_sub(*more)).collect();
        details
    }
}

/// What all parts of one answer share.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Head {
    /// Name of the request.
    pub id: String,
    /// Which shape follows.
    pub object: &'static str,
    /// Unix seconds.
    pub created: u64,
    /// The served model.
    pub model: String,
}

/// A whole answer, or one event of a stream.
#[derive(Debug, Serialize)]
pub(crate) struct Answer<C> {
    /// What it shares with the other events.
    #[serde(flatten)]
    pub head: Head,
    /// Choices, or their pieces.
    pub choices: Vec<C>,
    /// Counts: of a whole answer, of the last event, or null on events before that last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// With whole answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Where the request asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sglext: Option<Extension>,
}

/// One choice of a whole chat answer.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    /// From 0.
    pub index: usize,
    /// The answer.
    pub message: Message,
    /// `{"content":[…]}` or null.
    pub logprobs: Option<Value>,
    /// Why it ended.
    pub finish_reason: &'static str,
    /// The stop string or token id, or null.
    pub matched_stop: Value,
}

/// The assistant's message.
#[derive(Debug, Serialize)]
pub(crate) struct Message {
    /// `assistant`.
    pub role: &'static str,
    /// The answer without thinking and calls; null where there are only calls.
    pub content: Option<String>,
    /// The thinking part, or null.
    pub reasoning_content: Option<String>,
    /// Calls; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A tool call, whole or a piece of one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ToolCall {
    /// From 0.
    pub index: usize,
    /// Unique; on the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`; on the first piece.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// What is called.
    pub function: CalledFunction,
}

/// The function of a tool call.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CalledFunction {
    /// On the first piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON text, or the next piece of it.
    pub arguments: String,
}

/// One choice of a chat event.
#[derive(Debug, Serialize)]
pub(crate) struct ChatDelta {
    /// From 0.
    pub index: usize,
    /// What is new.
    pub delta: Delta,
    /// Log-probabilities of tokens not sent before, or null.
    pub logprobs: Option<Value>,
    /// Null before the last event of the choice.
    pub finish_reason: Option<&'static str>,
    /// The stop string or token id, or null.
    pub matched_stop: Value,
}

/// What is new in a message.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Delta {
    /// `assistant`, on the first event of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More of the thinking part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// A call, or more of one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// One choice of a completion, whole or a piece.
#[derive(Debug, Serialize)]
pub(crate) struct TextChoice {
    /// From 0 over all prompts.
    pub index: usize,
    /// The answer, or more of it.
    pub text: String,
    /// OpenAI's four lists, or null.
    pub logprobs: Option<Value>,
    /// Null before the last event of the choice.
    pub finish_reason: Option<&'static str>,
    /// The stop string or token id, or null.
    pub matched_stop: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(n_prompt: usize, n_completion: usize) -> Tally {
        Tally { n_prompt, n_completion, n_cached: n_prompt / 2, n_reasoning: 1, ..Tally::default() }
    }

    #[test]
    fn a_prompt_counts_once_however_many_answers_it_gets() {
        let usage = Usage::of(&[tally(10, 3), tally(10, 4), tally(20, 5), tally(20, 6)], 2);
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
            (30, 18, 48)
        );
        assert_eq!(usage.prompt_tokens_details.cached_tokens, 15);
        assert_eq!(usage.reasoning_tokens, 4);
    }

    #[test]
    fn the_histogram_counts_every_round_once() {
        let counts = SpeculationCounts {
            n_decode_rounds: 10,
            n_verify_rounds: 8,
            n_drafted: 24,
            n_accepted: 6 + 3 + 1,
            n_accepted_at: vec![6, 3, 1],
        };
        let details = SpecDetails::of([&counts].into_iter());
        assert_eq!(details.spec_correct_drafts_histogram, [4, 3, 2, 1]);
        assert_eq!(details.spec_accept_length, 2.0);
        assert_eq!(details.spec_accept_rate, 10.0 / 24.0);
        assert_eq!(SpecDetails::of(std::iter::empty()).spec_accept_length, 0.0);
    }
}
