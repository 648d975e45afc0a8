//! One streamed answer: what arrived when, from the events of the stream.
//!
//! Whatever a server sends, an event is either understood, counted as malformed, or ends the answer
//! with an error; nothing here panics.

use serde_json::Value;

/// Whether more is to come.
#[derive(Debug, PartialEq)]
pub(crate) enum Flow {
    /// Go on reading.
    More,
    /// The stream said that it is complete.
    Done,
    /// The server reported an error inside the stream.
    Failed(String),
}

/// What has arrived of an answer; times in seconds since the intended send time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// Arrival of every event that carried generated text.
    pub(crate) arrivals: Vec<f64>,
    /// Arrival of the first answer text, after any reasoning.
    pub(crate) first_answer: Option<f64>,
    /// Whether any reasoning arrived.
    pub(crate) reasoned: bool,
    /// Bytes of text.
    pub(crate) text_bytes: usize,
    /// Why the answer ended, as the server says.
    pub(crate) finish: Option<String>,
    /// Events that were not JSON objects.
    pub(crate) n_malformed: u64,
    /// Prompt tokens by the server.
    pub(crate) prompt_tokens: Option<u64>,
    /// Generated tokens by the server.
    pub(crate) completion_tokens: Option<u64>,
    /// Prompt tokens that came from the prefix cache.
    pub(crate) cached_tokens: Option<u64>,
    /// Generated tokens that were reasoning.
    pub(crate) reasoning_tokens: Option<u64>,
    /// Drafted and accepted tokens, from servers that say so per request.
    pub(crate) drafts: Option<(u64, u64)>,
}

impl Answer {
    /// Takes in the data of one event that arrived at `at`.
    pub(crate) fn absorb(&mut self, at: f64, data: &str) -> Flow {
        if data.trim() == "[DONE]" {
            return Flow::Done;
        }
        let Ok(event @ Value::Object(_)) = serde_json::from_str::<Value>(data) else {
            self.n_malformed += 1;
            return Flow::More;
        };
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            let message = error.get("message").unwrap_or(error);
            return Flow::Failed(
                message.as_str().map_or_else(|| message.to_string(), str::to_owned),
            );
        }
        for choice in event["choices"].as_array().into_iter().flatten() {
            self.absorb_choice(at, choice);
        }
        self.absorb_counts(&event);
        Flow::More
    }

    fn absorb_choice(&mut self, at: f64, choice: &Value) {
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish = Some(reason.to_owned());
        }
        let delta = &choice["delta"];
        let text = |value: &Value| value.as_str().map_or(0, str::len);
        let reasoning = text(&delta["reasoning_content"]).max(text(&delta["reasoning"]));
        let calls: usize = delta["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| text(&call["function"]["name"]) + text(&call["function"]["arguments"]))
            .sum();
        let answer = text(&delta["content"]) + text(&choice["text"]) + calls;
        if reasoning + answer > 0 {
            self.arrivals.push(at);
            self.text_bytes += reasoning + answer;
            self.reasoned |= reasoning > 0;
        }
        if answer > 0 && self.first_answer.is_none() {
            self.first_answer = Some(at);
        }
    }

    /// Token counts: usage, or the timings of llama.cpp.
    fn absorb_counts(&mut self, event: &Value) {
        let keep = |slot: &mut Option<u64>, value: &Value| {
            if let Some(count) = value.as_u64() {
                *slot = Some(count);
            }
        };
        let usage = &event["usage"];
        keep(&mut self.prompt_tokens, &usage["prompt_tokens"]);
        keep(&mut self.completion_tokens, &usage["completion_tokens"]);
        keep(&mut self.cached_tokens, &usage["prompt_tokens_details"]["cached_tokens"]);
        keep(&mut self.reasoning_tokens, &usage["reasoning_tokens"]);
        let details = &usage["completion_tokens_details"];
        keep(&mut self.reasoning_tokens, &details["reasoning_tokens"]);
        let timings = &event["timings"];
        if self.completion_tokens.is_none() {
            keep(&mut self.completion_tokens, &timings["predicted_n"]);
        }
        if self.cached_tokens.is_none() {
            keep(&mut self.cached_tokens, &timings["cache_n"]);
        }
        let drafts = (timings["draft_n"].as_u64(), timings["draft_n_accepted"].as_u64());
        if let (Some(drafted), Some(accepted)) = drafts {
            self.drafts = Some((drafted, accepted));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::{Answer, Flow};

    /// Absorbs events that arrive one second apart.
    fn check(events: &[&str]) -> Answer {
        let mut answer = Answer::default();
        for (i, event) in events.iter().enumerate() {
            answer.absorb(i as f64, event);
        }
        answer
    }

    #[test]
    fn text_reasoning_and_calls_are_generated_tokens() {
        let answer = check(&[
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"content":null,"reasoning":"so"}}]}"#,
            r#"{"choices":[{"delta":{"content":"yes"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{}"}}]}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}"#,
        ]);
        assert_eq!(answer.arrivals, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(answer.first_answer, Some(3.0));
        assert!(answer.reasoned);
        assert_eq!(answer.finish.as_deref(), Some("tool_calls"));
        assert_eq!(answer.text_bytes, 9);
    }

    #[test]
    fn counts_come_from_usage_first() {
        let answer = check(&[
            r#"{"choices":[],"timings":{"predicted_n":9,"cache_n":2,"draft_n":8,"draft_n_accepted":5}}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":10,
                "prompt_tokens_details":{"cached_tokens":16},
                "completion_tokens_details":{"reasoning_tokens":4}}}"#,
        ]);
        assert_eq!((answer.prompt_tokens, answer.completion_tokens), (Some(20), Some(10)));
        assert_eq!((answer.cached_tokens, answer.reasoning_tokens), (Some(16), Some(4)));
        assert_eq!(answer.drafts, Some((8, 5)));
    }

    #[test]
    fn endings() {
        let mut answer = Answer::default();
        assert_eq!(answer.absorb(0.0, " [DONE] "), Flow::Done);
        let error = answer.absorb(0.0, r#"{"error":{"message":"too long","code":400}}"#);
        assert_eq!(error, Flow::Failed("too long".into()));
        assert_eq!(answer.absorb(0.0, r#"{"error":"no"}"#), Flow::Failed("no".into()));
        assert_eq!(answer.absorb(0.0, r#"{"error":null}"#), Flow::More);
    }

    #[test]
    fn odd_events_are_counted_and_passed_over() {
        let answer =
            check(&["", "null", "[1]", "{", r#"{"choices":7}"#, r#"{"choices":[3,null]}"#]);
        assert_eq!(answer.n_malformed, 4);
        assert_eq!(answer.arrivals, [0.0; 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(events in proptest::collection::vec(any::<Vec<u8>>(), 0..8)) {
            let mut answer = Answer::default();
            for event in events {
                answer.absorb(0.0, &String::from_utf8_lossy(&event));
            }
        }
    }
}
