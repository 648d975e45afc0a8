//! Measured requests, `probe/1`: what a prober writes and this crate reads.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::stats;

/// One probe run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// When, in seconds since 1970.
    pub taken_at: Option<f64>,
    /// What was sent.
    pub workload: Workload,
    /// The requests.
    pub requests: Vec<Request>,
    /// Delay between intended and actual send at the 99th percentile, in seconds.
    pub dispatch_delay_p99_s: Option<f64>,
}

/// What was sent: two probes compare only when these agree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Name of the prompt set.
    pub id: String,
    /// Requests in flight, for a closed loop.
    pub concurrency: Option<f64>,
    /// Requests per second, for an open loop.
    pub rate_per_s: Option<f64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Whether the model was asked to think.
    pub thinking: Option<bool>,
    /// Output limit.
    pub max_tokens: Option<f64>,
}

/// One request; times in seconds from its intended send time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Prompt tokens.
    pub prompt: f64,
    /// Output tokens by the server's count.
    pub out: f64,
    /// To the first token.
    pub ttft_s: f64,
    /// To the last token.
    pub e2e_s: f64,
    /// Streamed chunks that carried text.
    #[serde(default)]
    pub chunks: f64,
    /// Longest time without a chunk.
    #[serde(default)]
    pub max_gap_s: f64,
}

impl Request {
    /// Tokens per second after the first token.
    pub fn decode_tok_s(&self) -> Option<f64> {
        let seconds = self.e2e_s - self.ttft_s;
        (seconds > 0.0 && self.out > 1.0).then(|| (self.out - 1.0) / seconds)
    }
}

/// Reads `probe/1`; `None` when the text is something else.
pub fn parse(text: &str) -> Option<Probe> {
    let json: Json = serde_json::from_str(text).ok()?;
    if !json.get("schema")?.as_str()?.starts_with("probe/") {
        return None;
    }
    let workload = json.get("workload").cloned().unwrap_or(Json::Null);
    let number = |value: &Json, key: &str| value.get(key).and_then(Json::as_f64);
    let requests: Vec<Request> = json
        .get("requests")?
        .as_array()?
        .iter()
        .filter_map(|request| serde_json::from_value(request.clone()).ok())
        .filter(|r: &Request| {
            r.e2e_s.is_finite() && r.ttft_s.is_finite() && r.e2e_s >= r.ttft_s && r.out >= 0.0
        })
        .collect();
    Some(Probe {
        taken_at: json.get("taken_at").and_then(Json::as_str).and_then(dialects::log::parse_iso),
        workload: Workload {
            id: dialects::redact::line(
                workload.get("id").and_then(Json::as_str).unwrap_or("unnamed"),
                60,
            ),
            concurrency: number(&workload, "concurrency"),
            rate_per_s: number(&workload, "rate_per_s"),
            temperature: number(&workload, "temperature"),
            thinking: workload.get("thinking").and_then(Json::as_bool),
            max_tokens: number(&workload, "max_tokens"),
        },
        requests,
        dispatch_delay_p99_s: json.get("dispatch_delay_s").and_then(|delay| number(delay, "p99")),
    })
}

impl Workload {
    /// Whether two probes sent the same prompts under as much load, however they were sampled.
    pub fn same_prompts(&self, other: &Workload) -> bool {
        self.id == other.id && close(self.concurrency, other.concurrency)
    }

    /// Whether two probes sent the same thing in the same way, the rate of an open loop aside.
    pub fn comparable(&self, other: &Workload) -> bool {
        self.same_prompts(other)
            && close(self.temperature, other.temperature)
            && close(self.max_tokens, other.max_tokens)
            && (self.thinking.is_none()
                || other.thinking.is_none()
                || self.thinking == other.thinking)
    }
}

/// Equal, or not known on a side.
fn close(a: Option<f64>, b: Option<f64>) -> bool {
    a.zip(b).is_none_or(|(a, b)| (a - b).abs() < 1e-6)
}

/// Output tokens per second of all streams together, over the time in which all of them were busy.
///
/// The requests of a closed loop are laid out again as they must have run: each starts when a stream becomes free.
/// The window ends when the first stream finds no further request.
pub fn aggregate_tok_s(requests: &[Request], concurrency: usize) -> Option<f64> {
    let streams = concurrency.max(1);
    if requests.len() < streams {
        return None;
    }
    let mut free_at = vec![0.0f64; streams];
    let mut laid_out = Vec::with_capacity(requests.len());
    for request in requests {
        let next = free_at.iter_mut().min_by(|a, b| a.total_cmp(b))?;
        laid_out.push((*next, *request));
        *next += request.e2e_s;
    }
    let end = free_at.iter().copied().fold(f64::INFINITY, f64::min);
    let delivered: f64 = laid_out
        .iter()
        .map(|(start, request)| {
            let (first, last) = (start + request.ttft_s, start + request.e2e_s);
            if last <= end {
                request.out
            } else if first < end && last > first {
                request.out * (end - first) / (last - first)
            } else {
                0.0
            }
        })
        .sum();
    (end > 0.0).then(|| delivered / end)
}

/// Requests of several probes of one workload together.
pub fn pooled<'a>(probes: impl IntoIterator<Item = &'a Probe>) -> Vec<Request> {
    probes.into_iter().flat_map(|probe| probe.requests.iter().copied()).collect()
}

/// Decode speeds of requests.
pub fn decode_speeds(requests: &[Request]) -> Vec<f64> {
    requests.iter().filter_map(Request::decode_tok_s).collect()
}

/// Tokens per streamed chunk: how many tokens a step commits, seen from the client.
pub fn tokens_per_chunk(requests: &[Request]) -> Option<f64> {
    stats::median(requests.iter().filter(|r| r.chunks > 1.0).map(|r| r.out / r.chunks))
}

/// The same without the first chunk of each request, which comes from its prefill: tokens per decode step.
pub fn tokens_per_later_chunk(requests: &[Request]) -> Vec<f64> {
    let decoding = requests.iter().filter(|r| r.chunks > 2.0 && r.out >= r.chunks);
    decoding.map(|r| (r.out - 1.0) / (r.chunks - 1.0)).collect()
}

/// Chunks per second of one stream while it decodes: steps per second, seen from the client.
pub fn chunk_rates(requests: &[Request]) -> Vec<f64> {
    requests
        .iter()
        .filter(|r| r.chunks > 2.0 && r.e2e_s > r.ttft_s)
        .map(|r| (r.chunks - 1.0) / (r.e2e_s - r.ttft_s))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_window_of_a_closed_loop() {
        // Two streams, each request 100 tokens in 10 s after 1 s: 200 tokens in 11 s while both are busy.
        let request = Request {
            prompt: 10.0,
            out: 100.0,
            ttft_s: 1.0,
            e2e_s: 11.0,
            chunks: 50.0,
            max_gap_s: 0.1,
        };
        let two = aggregate_tok_s(&[request; 2], 2).unwrap();
        assert!((two - 200.0 / 11.0).abs() < 1e-9);
        // A third request runs alone: its time is not part of the window.
        let three = aggregate_tok_s(&[request; 3], 2).unwrap();
        assert!((three - two).abs() < 1e-9);
        assert_eq!(aggregate_tok_s(&[request], 2), None);
    }

    #[test]
    fn only_like_is_compared_with_like() {
        let text = r#"{"schema": "probe/1", "taken_at": "2026-11-27T08:12:00Z", "workload": {"id": "w", "concurrency": "open loop", "temperature": 0.0},
            "requests": [{"prompt": 1, "out": 11, "ttft_s": 1.0, "e2e_s": 2.0, "chunks": 6, "max_gap_s": 0.1}, {"prompt": 1}]}"#;
        let probe = parse(text).unwrap();
        assert_eq!((probe.requests.len(), probe.workload.concurrency), (1, None));
        assert_eq!(probe.requests[0].decode_tok_s(), Some(10.0));
        let hotter = Workload { temperature: Some(0.8), ..probe.workload.clone() };
        assert!(!probe.workload.comparable(&hotter));
        assert!(probe.workload.comparable(&probe.workload));
    }
}
