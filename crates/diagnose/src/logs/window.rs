//! One window of decoding, and whether its speed can be believed.

use serde::{Deserialize, Serialize};

/// Whether the speed of a window says how fast the server decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Validity {
    /// Decoding alone, with a steady number of requests.
    Clean,
    /// The number of running requests changed inside.
    RunningChanged,
    /// A prefill ran inside, so time is missing.
    AcrossPrefill,
    /// The first of a run or after idling: its time reaches back to before the first token.
    AfterIdle,
    /// Nothing ran.
    Idle,
}

impl Validity {
    /// Why the window is dropped, in words; `None` for a clean one.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Validity::Clean => None,
            Validity::RunningChanged => Some("running changed"),
            Validity::AcrossPrefill => Some("across prefill"),
            Validity::AfterIdle => Some("after idle"),
            Validity::Idle => Some("idle"),
        }
    }
}

/// One window. Accept lengths never lie; speeds do unless [`Window::validity`] is clean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// When it ended, in seconds by the clock of the log.
    pub t: Option<f64>,
    /// Wall time that it covers, where known.
    pub seconds: Option<f32>,
    /// Requests running.
    pub running: f32,
    /// Requests waiting.
    pub queue: Option<f32>,
    /// Tokens per second of all requests together.
    pub tok_s: f32,
    /// Tokens committed per request and step, bonus included; `None` without speculation.
    pub accept_len: Option<f32>,
    /// Steps per second of the engine.
    pub steps_per_s: Option<f32>,
    /// Prompt tokens per second, where the line tells it.
    pub prompt_tok_s: Option<f32>,
    /// Share of the KV pool in use.
    pub kv_usage: Option<f32>,
    /// Share of the state slots in use.
    pub state_usage: Option<f32>,
    /// Share of prompt tokens found in the prefix cache, where the line tells it.
    pub hit_rate: Option<f32>,
    /// Whether steps ran as graphs: 1, 0, or between in merged windows.
    pub graph: Option<f32>,
    /// Whether the speed can be believed.
    pub validity: Validity,
    /// Line of the log, from 1.
    pub line: u64,
    /// Lines merged into this one.
    pub n: u32,
}

impl Window {
    /// Speed of one stream.
    pub fn stream_tok_s(&self) -> Option<f64> {
        (self.running > 0.0).then(|| f64::from(self.tok_s) / f64::from(self.running))
    }

    /// Two neighbours as one.
    pub fn merge(&self, next: &Window) -> Window {
        let (a, b) = (self.n as f32, next.n as f32);
        let mix = |x: f32, y: f32| (x * a + y * b) / (a + b);
        let maybe = |x: Option<f32>, y: Option<f32>| match (x, y) {
            (Some(x), Some(y)) => Some(mix(x, y)),
            (x, y) => x.or(y),
        };
        Window {
            t: next.t.or(self.t),
            seconds: self.seconds.zip(next.seconds).map(|(x, y)| x + y),
            running: mix(self.running, next.running),
            queue: maybe(self.queue, next.queue),
            tok_s: mix(self.tok_s, next.tok_s),
            accept_len: maybe(self.accept_len, next.accept_len),
            steps_per_s: maybe(self.steps_per_s, next.steps_per_s),
            prompt_tok_s: maybe(self.prompt_tok_s, next.prompt_tok_s),
            kv_usage: maybe(self.kv_usage, next.kv_usage),
            state_usage: maybe(self.state_usage, next.state_usage),
            hit_rate: maybe(self.hit_rate, next.hit_rate),
            graph: maybe(self.graph, next.graph),
            validity: self.validity.max(next.validity),
            line: self.line,
            n: self.n + next.n,
        }
    }
}
