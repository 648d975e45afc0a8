//! Log grammars of SGLang 0.4 to 0.5.23, vLLM, llama.cpp and Outrider, under any wrapper.
//!
//! [`Parser::line`] takes one raw line and hands on [`Record`]s. Wrappers (journald, docker, Kubernetes, compose),
//! colour codes and carriage returns are taken off; cut lines yield nothing; what no grammar knows is counted and one
//! example is kept. A value that a line does not carry is `None`, never 0 and never a guess.

mod lines;
mod llamacpp;
mod parser;
pub mod rate;
mod request;
mod scan;
mod sglang;
mod sglang_start;
mod time;
mod vllm;
mod warning;
mod wrap;

pub use lines::Lines;
pub use parser::{Counts, Parser};
pub use time::{Clock, Time, parse_iso, within_year};
pub use warning::{Warning, WarningKind};

use crate::config::Config;
use crate::engine::Version;
use crate::factor::Factor;
use crate::value::Value;

/// One thing that a line says.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When, by the line's own stamp or else by its wrapper's.
    pub time: Option<Time>,
    /// Replica (data-parallel rank or engine number) that wrote it.
    pub replica: u16,
    /// What it says.
    pub event: Event,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A decode line of SGLang or Outrider.
    Decode(Decode),
    /// A prefill line of SGLang or Outrider.
    Prefill(Prefill),
    /// vLLM's line per interval.
    Interval(Interval),
    /// A line about drafts.
    Accept(Accept),
    /// A line of llama.cpp about one finished request.
    Timing(Timing),
    /// Running requests were pushed back to the queue.
    Retract(Retract),
    /// A fact of the start-up.
    Start(Start),
    /// A line that an operator should see.
    Warning(Warning),
    /// A logged request; never its text.
    Request(Request),
    /// An HTTP access line.
    Access {
        /// HTTP status.
        status: u16,
    },
}

/// SGLang's decode line: one window of `decode-log-interval` steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Decode {
    /// Requests in the batch at log time.
    pub running: u32,
    /// Requests waiting.
    pub queue: Option<u32>,
    /// KV tokens held by running requests and locked prefixes.
    pub kv_tokens: Option<i64>,
    /// The same as a share of the pool, 0 to 1.
    pub kv_usage: Option<f32>,
    /// State slots in use.
    pub state_slots: Option<i64>,
    /// The same as a share of the slots, 0 to 1.
    pub state_usage: Option<f32>,
    /// Tokens committed per request and verify step, bonus included.
    pub accept_len: Option<f32>,
    /// As printed; its meaning depends on the version, see [`rate`].
    pub accept_rate: Option<f32>,
    /// Whether the last step of the window replayed a graph.
    pub graph: Option<bool>,
    /// Tokens of decode batches since the previous decode line ÷ wall time since then, prefill and idle time included.
    pub gen_tok_s: f32,
    /// The line ends in a comma, as versions 0.5.2 to 0.5.5 write it.
    pub trailing_comma: bool,
}

/// SGLang's prefill line: one prefill batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prefill {
    /// Requests in the batch.
    pub new_seq: u32,
    /// Prompt tokens computed.
    pub new_tokens: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Share of the KV pool in use.
    pub kv_usage: Option<f32>,
    /// Share of the state slots in use.
    pub state_usage: Option<f32>,
    /// Requests running besides.
    pub running: u32,
    /// Requests waiting.
    pub queue: u32,
    /// Prompt tokens still to be computed; from 0.5.11.
    pub pending: Option<u64>,
    /// As printed; before 0.5.11 it belongs to the previous batch.
    pub input_tok_s: Option<f32>,
    /// Whether the batch ran as a graph.
    pub graph: Option<bool>,
}

/// vLLM's line per `VLLM_LOG_STATS_INTERVAL` (10 s): averages over the interval, idle time included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Prompt tokens computed per second.
    pub prompt_tok_s: f32,
    /// Tokens generated per second, all requests.
    pub gen_tok_s: f32,
    /// Requests running at log time.
    pub running: u32,
    /// Requests waiting.
    pub waiting: u32,
    /// Preemptions in the interval.
    pub preemptions: Option<u32>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_usage: Option<f32>,
    /// Prefix cache hits over queries in tokens, over about the last 1000 requests, 0 to 1.
    pub hit_rate: Option<f32>,
}

/// The most draft positions that are kept.
pub const MOST_POSITIONS: usize = 32;

/// A line about drafts, of any engine and age.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accept {
    /// Accepted drafts ÷ drafted tokens, 0 to 1, however it was written.
    pub rate: Option<f32>,
    /// Drafts accepted.
    pub accepted: Option<u64>,
    /// Tokens drafted.
    pub drafted: Option<u64>,
    /// Tokens emitted, bonus included; only old vLLM writes it.
    pub emitted: Option<u64>,
    /// 1 + accepted ÷ verify steps.
    pub mean_len: Option<f32>,
    /// Share of verify steps that accepted at least this many drafts, position by position.
    pub per_pos: [f32; MOST_POSITIONS],
    /// How many positions are given; 0 when the line has none.
    pub n_pos: u8,
    /// Slot and task of a llama.cpp request.
    pub task: Option<(u32, i64)>,
}

impl Accept {
    /// The shares by position.
    pub fn positions(&self) -> &[f32] {
        &self.per_pos[..usize::from(self.n_pos)]
    }

    /// When mean length, positions and rate are all given: how they fail to agree, if they do.
    pub fn mismatch(&self) -> Option<String> {
        let positions = self.positions();
        let (Some(mean), false) = (self.mean_len, positions.is_empty()) else { return None };
        let sum: f32 = positions.iter().sum();
        if (mean - 1.0 - sum).abs() > 0.02 + 0.002 * positions.len() as f32 {
            return Some(format!(
                "mean length {mean:.2} is not 1 + the sum of the positions ({sum:.3})"
            ));
        }
        let rate = self.rate?;
        let expected = sum / positions.len() as f32;
        ((rate - expected).abs() > 0.006)
            .then(|| format!("rate {rate:.3} is not the mean of the positions ({expected:.3})"))
    }

    /// Verify steps in the line, from drafts of `depth` tokens each.
    pub fn steps(&self) -> Option<f64> {
        if let (Some(mean), Some(accepted)) = (self.mean_len, self.accepted)
            && mean > 1.0
            && accepted > 0
        {
            return Some(accepted as f64 / f64::from(mean - 1.0));
        }
        let depth = self.positions().len();
        (depth > 0).then_some(())?;
        Some(self.drafted? as f64 / depth as f64)
    }
}

/// One line of llama.cpp's timing block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Slot and task, where the line names them.
    pub task: Option<(u32, i64)>,
    /// Which part of the request.
    pub phase: Phase,
    /// Its wall time.
    pub ms: f64,
    /// Its tokens; the first generated token does not count under [`Phase::Eval`].
    pub tokens: u64,
}

/// Part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Prompt.
    Prompt,
    /// Generation.
    Eval,
    /// Both.
    Total,
}

/// `KV cache pool is full. Retract requests.`
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Retract {
    /// Requests pushed back.
    pub requests: u32,
    /// KV tokens won by it.
    pub tokens: Option<u64>,
}

/// A fact of the start-up, or of loading.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// The arguments; `resolved` when the engine has filled in what was left open.
    Args {
        /// The configuration.
        config: Box<Config>,
        /// Whether it is what the engine made of the arguments.
        resolved: bool,
    },
    /// The engine's version.
    Version(Version),
    /// One effective setting that a line states.
    Setting(Factor, Value),
    /// Free device memory before the weights, GiB.
    FreeBefore(f64),
    /// Weights are loaded.
    Weights {
        /// GiB they take per device.
        gib: f64,
        /// Free device memory afterwards, GiB.
        free_gib: Option<f64>,
        /// Quantisation named by the line.
        quant: Option<String>,
    },
    /// The recurrent-state pool.
    StatePool {
        /// Slots.
        slots: Option<u64>,
        /// GiB of convolution and delta state.
        gib: f64,
        /// GiB of states kept per draft token.
        draft_gib: Option<f64>,
    },
    /// A KV pool.
    KvPool {
        /// Tokens.
        tokens: u64,
        /// GiB.
        gib: Option<f64>,
    },
    /// SGLang's best fingerprint: effective limits.
    Limits {
        /// KV pool in tokens.
        kv_tokens: u64,
        /// Requests that may run at once after every cap.
        max_running: u64,
        /// Longest sequence.
        context: u64,
        /// Prompt tokens per pass.
        prefill_chunk: Option<i64>,
        /// Free device memory, GiB.
        free_gib: Option<f64>,
    },
    /// Graphs were captured for decode or verify batches.
    Graphs {
        /// Tokens per request in a captured step.
        tokens_per_request: Option<u64>,
        /// Largest batch with a graph.
        max_batch: Option<u64>,
    },
    /// llama.cpp: layers on the device of all layers.
    Offload {
        /// On the device.
        layers: u64,
        /// Of.
        of: u64,
    },
    /// llama.cpp: MiB of a buffer on the host or a device.
    Buffer {
        /// Whether it lies in host memory.
        host: bool,
        /// Whether it holds KV (and not weights).
        kv: bool,
        /// MiB.
        mib: f64,
    },
    /// The server answers from here on.
    Ready,
}

/// A logged request: lengths and sampling, never text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Request {
    /// Whether it is the end of the request.
    pub finished: bool,
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// Output limit.
    pub max_tokens: Option<u64>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: Option<u64>,
}
