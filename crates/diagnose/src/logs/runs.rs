//! One run of a server, from its start to the next, as its log tells it.

use std::collections::BTreeMap;

use dialects::log::rate::Inferred;
use dialects::log::{Clock, Counts, WarningKind};
use dialects::{Config, Engine, Version};
use serde::{Deserialize, Serialize};

use super::store::Thinned;
use super::window::{Validity, Window};

/// A whole log file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogSummary {
    /// The engine that wrote it.
    pub engine: Option<Engine>,
    /// Its runs in order.
    pub runs: Vec<Run>,
    /// Lines in all.
    pub lines: u64,
    /// Lines that gave something.
    pub understood: u64,
    /// Lines that no grammar knows, or that were cut.
    pub not_understood: u64,
    /// One of those, made safe to print.
    pub example: Option<String>,
    /// Lines at debug level.
    pub debug_lines: u64,
    /// Lines about single requests.
    pub request_lines: u64,
    /// Lines about drafts whose numbers contradict each other, with one explained.
    pub contradictions: u64,
    /// What is wrong with the first of them.
    pub contradiction: Option<String>,
}

impl LogSummary {
    pub(super) fn take_counts(&mut self, counts: &Counts) {
        self.lines = counts.lines;
        self.understood = counts.understood;
        self.not_understood = counts.not_understood;
        self.example = counts.example.clone();
        self.debug_lines = counts.debug;
        self.request_lines = counts.request_lines;
    }
}

/// Sizes that a server states when it starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizes {
    /// KV pool in tokens.
    pub kv_tokens: Option<f64>,
    /// KV pool in GiB.
    pub kv_gib: Option<f64>,
    /// Recurrent-state slots.
    pub state_slots: Option<f64>,
    /// States in GiB.
    pub state_gib: Option<f64>,
    /// States kept per draft token, in GiB.
    pub draft_state_gib: Option<f64>,
    /// Weights on one device in GiB.
    pub weights_gib: Option<f64>,
    /// Free memory of the device before the weights, in GiB.
    pub free_before_gib: Option<f64>,
    /// Free memory of the device after the weights, in GiB.
    pub free_after_gib: Option<f64>,
    /// Requests that may run at once after every cap.
    pub max_running: Option<f64>,
    /// Longest sequence.
    pub context: Option<f64>,
    /// Prompt tokens per pass.
    pub prefill_chunk: Option<f64>,
    /// Tokens per request in a verify step, as the graphs were captured.
    pub verify_width: Option<f64>,
    /// Largest batch with a graph.
    pub graph_max_bs: Option<f64>,
    /// Layers on the device and of how many (llama.cpp).
    pub offloaded: Option<(u64, u64)>,
    /// MiB of weights in host memory (llama.cpp).
    pub host_weights_mib: Option<f64>,
    /// MiB of KV in host memory (llama.cpp).
    pub host_kv_mib: Option<f64>,
}

/// A warning and how often it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarningSeen {
    /// In plain words.
    pub says: String,
    /// How often.
    pub count: u64,
    /// Line of the first, from 1.
    pub line: u64,
    /// A number before, or asked for.
    pub from: Option<f64>,
    /// The number that took its place.
    pub to: Option<f64>,
}

/// One run of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The arguments as logged.
    pub asked: Option<Config>,
    /// Line of the arguments, from 1.
    pub asked_line: u64,
    /// What the engine made of the arguments.
    pub resolved: Option<Config>,
    /// Single settings that lines state.
    pub stated: Option<Config>,
    /// The version, where the log names it.
    pub version: Option<Version>,
    /// Sizes stated at the start.
    pub sizes: Sizes,
    /// Whether the log says that the server was ready.
    pub ready: bool,
    /// Warnings by kind.
    pub warnings: BTreeMap<String, WarningSeen>,
    /// Retract lines, and requests pushed back by them.
    pub retract_events: u64,
    /// Requests pushed back.
    pub retracted_requests: u64,
    /// KV tokens thrown away by it.
    pub retracted_tokens: u64,
    /// The windows.
    pub windows: Vec<Window>,
    /// What the printed accept rates mean, as the numbers themselves tell.
    pub rate: Option<Inferred>,
    /// Share of draft positions accepted, pooled over the run, position by position.
    pub positions: Vec<f64>,
    /// Prefill batches.
    pub prefill_batches: u64,
    /// Prompt tokens computed.
    pub new_tokens: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Largest prefill batch in tokens.
    pub largest_prefill: u64,
    /// Lengths of prompts, cached part included.
    pub prompts: Thinned,
    /// Prompt tokens per second of prefill batches that followed one another.
    pub prefill_rates: Thinned,
    /// Temperatures of logged requests.
    pub temperatures: Thinned,
    /// Output lengths of logged requests.
    pub outputs: Thinned,
    /// Requests that arrived, as prefill lines count them.
    pub arrivals: u64,
    /// Generation requests answered, by the access lines.
    pub answered: u64,
    /// Of these, answered with an error status.
    pub errors: u64,
    /// Preemptions that interval lines count.
    pub preemptions: u64,
    /// What the time stamps count from.
    pub clock: Option<Clock>,
    /// First and last time stamp.
    pub span: Option<(f64, f64)>,
    /// First and last time stamp of lines about work: prefill, decode, intervals.
    pub busy_span: Option<(f64, f64)>,
    /// Lines of this run between the first and the last line about work.
    pub busy_lines: u64,
    /// Data-parallel replicas seen.
    pub replicas: u16,
}

impl Run {
    /// Windows whose speed can be believed. When there are fewer than three, those that agree with them within 3 % (or,
    /// without any clean one, the later and faster half) are taken too: a few honest lines are better than none.
    pub fn believable(&self) -> Vec<&Window> {
        let clean: Vec<&Window> =
            self.windows.iter().filter(|w| w.validity == Validity::Clean).collect();
        let n: u32 = clean.iter().map(|w| w.n).sum();
        if n >= 3 {
            return clean;
        }
        let reference = clean.iter().filter_map(|w| w.steps_per_s).fold(f32::NAN, f32::max);
        let mut out: Vec<&Window> = self
            .windows
            .iter()
            .filter(|w| {
                let agrees = w.steps_per_s.is_some_and(|s| (s / reference - 1.0).abs() < 0.03);
                w.validity == Validity::Clean || (w.validity < Validity::Idle && agrees)
            })
            .collect();
        if out.is_empty() {
            out = self.windows.iter().filter(|w| w.validity < Validity::AfterIdle).collect();
        }
        if out.is_empty() {
            out = self.windows.iter().filter(|w| w.validity < Validity::Idle).collect();
        }
        out
    }

    /// Windows in which something ran, believable or not.
    pub fn working(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|w| w.validity < Validity::Idle)
    }

    /// A warning of a kind.
    pub fn warning(&self, kind: WarningKind) -> Option<&WarningSeen> {
        self.warnings.get(&format!("{kind:?}"))
    }

    /// Whether the run has anything to compare.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.asked.is_none() && self.sizes == Sizes::default()
    }

    /// The configuration that was in force: the arguments, over what the engine resolved, over what lines state.
    pub fn config(&self) -> Option<Config> {
        let mut config =
            self.asked.clone().or_else(|| self.resolved.clone()).or_else(|| self.stated.clone())?;
        for layer in [&self.resolved, &self.stated].into_iter().flatten() {
            config.fill(layer);
        }
        if let Some(version) = &self.version {
            config.version = Some(version.clone());
        }
        Some(config)
    }
}
