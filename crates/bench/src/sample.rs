//! What one request measured. All times are on one monotonic clock of the client.

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::prompts::PromptSet;

/// One answered request; the first six fields are the common form that others read too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Prompt tokens.
    pub prompt: u64,
    /// Generated tokens.
    pub out: u64,
    /// First generated token, from the intended send time.
    pub ttft_s: f64,
    /// Last generated token, from the intended send time.
    pub e2e_s: f64,
    /// Events that carried text; with speculation one carries several tokens.
    pub chunks: u64,
    /// Longest gap between two such events.
    pub max_gap_s: f64,
    /// Kind of work.
    pub class: String,
    /// Prompt within the set.
    pub prompt_id: String,
    /// Intended send time since the load began.
    pub started_s: f64,
    /// How much later than intended it was sent.
    pub dispatch_delay_s: f64,
    /// First token of the answer after any reasoning, from the intended send time.
    pub ttfo_s: Option<f64>,
    /// Prompt tokens from the prefix cache, if the server says.
    pub cached: Option<u64>,
    /// Generated tokens that were reasoning, if the server says.
    pub reasoning: Option<u64>,
    /// Why the answer ended.
    pub finish: Option<String>,
    /// Whether `out` is an estimate because the server sent no usage.
    pub estimated: bool,
    /// Drafted and accepted tokens, if the server says.
    pub drafts: Option<(u64, u64)>,
    /// Arrival of every event that carried text, from the intended send time.
    #[serde(skip)]
    pub arrivals: Vec<f64>,
    /// Whether reasoning arrived.
    #[serde(skip)]
    pub reasoned: bool,
}

/// A request that was not answered, or not to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of work.
    pub class: String,
    /// Prompt within the set.
    pub prompt_id: String,
    /// Intended send time since the load began.
    pub started_s: f64,
    /// What went wrong.
    pub error: String,
}

/// Bytes of text per token where nothing better is known.
const BYTES_PER_TOKEN: usize = 4;

/// When a request was meant to be sent and was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dispatch {
    pub(crate) started_s: f64,
    pub(crate) delay_s: f64,
}

impl Sample {
    /// A sample of a complete answer; `None` if nothing was generated.
    pub(crate) fn new(
        (class, prompt_id): (PromptSet, &str),
        dispatch: Dispatch,
        answer: Answer,
    ) -> Option<Sample> {
        let (first, last) = (*answer.arrivals.first()?, *answer.arrivals.last()?);
        let gaps = answer.arrivals.windows(2).map(|pair| pair[1] - pair[0]);
        let chunks = answer.arrivals.len() as u64;
        // At least one token per event: servers never split a token over two.
        let estimate = chunks.max((answer.text_bytes / BYTES_PER_TOKEN) as u64);
        let out = answer.completion_tokens.filter(|n| *n > 0);
        Some(Sample {
            prompt: answer.prompt_tokens.unwrap_or(0),
            out: out.unwrap_or(estimate),
            ttft_s: first,
            e2e_s: last,
            chunks,
            max_gap_s: gaps.fold(0.0, f64::max),
            class: class.name().to_owned(),
            prompt_id: prompt_id.to_owned(),
            started_s: dispatch.started_s,
            dispatch_delay_s: dispatch.delay_s,
            ttfo_s: answer.first_answer,
            cached: answer.cached_tokens,
            reasoning: answer.reasoning_tokens,
            finish: answer.finish,
            estimated: out.is_none(),
            drafts: answer.drafts,
            arrivals: answer.arrivals,
            reasoned: answer.reasoned,
        })
    }

    /// Tokens per second between the first and the last token: what a reader feels.
    ///
    /// The first event counts as one token, since servers do not say how many it held.
    #[must_use]
    pub fn decode_tok_s(&self) -> Option<f64> {
        let seconds = self.e2e_s - self.ttft_s;
        (self.out >= 2 && seconds > 0.0).then(|| (self.out - 1) as f64 / seconds)
    }

    /// Seconds per output token after the first.
    #[must_use]
    pub fn tpot_s(&self) -> Option<f64> {
        self.decode_tok_s().map(|speed| 1.0 / speed)
    }

    /// Tokens per event.
    #[must_use]
    pub fn tokens_per_chunk(&self) -> f64 {
        self.out as f64 / self.chunks.max(1) as f64
    }

    /// Gaps between the events that carried text, in seconds.
    pub fn gaps(&self) -> impl Iterator<Item = f64> + '_ {
        self.arrivals.windows(2).map(|pair| pair[1] - pair[0])
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Dispatch, Sample};
    use crate::answer::Answer;
    use crate::prompts::PromptSet;

    /// A chat sample that started at `started_s` with events at these times, `out` tokens by usage.
    pub(crate) fn sample(started_s: f64, arrivals: &[f64], out: Option<u64>) -> Sample {
        let answer = Answer {
            arrivals: arrivals.to_vec(),
            first_answer: arrivals.first().copied(),
            text_bytes: 40,
            completion_tokens: out,
            prompt_tokens: Some(7),
            ..Answer::default()
        };
        let dispatch = Dispatch { started_s, delay_s: 0.0 };
        Sample::new((PromptSet::Chat, "tides"), dispatch, answer).unwrap()
    }

    #[test]
    fn speed_counts_tokens_after_the_first() {
        let sample = sample(0.0, &[0.5, 1.0, 2.5], Some(9));
        assert_eq!(sample.decode_tok_s(), Some(4.0));
        assert_eq!(sample.tpot_s(), Some(0.25));
        assert_eq!((sample.ttft_s, sample.e2e_s, sample.max_gap_s), (0.5, 2.5, 1.5));
        assert_eq!(sample.tokens_per_chunk(), 3.0);
        assert!(!sample.estimated);
    }

    #[test]
    fn without_usage_tokens_are_estimated_and_said_so() {
        let sample = sample(0.0, &[0.5, 1.0], None);
        assert_eq!((sample.out, sample.estimated), (10, true));
    }

    #[test]
    fn one_event_has_no_speed_and_none_is_no_sample() {
        assert_eq!(sample(0.0, &[0.5], Some(5)).decode_tok_s(), None);
        let dispatch = Dispatch { started_s: 0.0, delay_s: 0.0 };
        assert_eq!(Sample::new((PromptSet::Chat, "x"), dispatch, Answer::default()), None);
    }

    #[test]
    fn the_common_form_has_its_six_names() {
        let json = serde_json::to_value(sample(0.0, &[0.5, 1.0], Some(4))).unwrap();
        for name in ["prompt", "out", "ttft_s", "e2e_s", "chunks", "max_gap_s"] {
            assert!(json[name].is_number(), "{name}");
        }
        assert!(json.get("arrivals").is_none());
    }
}
