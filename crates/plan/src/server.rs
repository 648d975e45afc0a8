//! The plan of our own server: every size, its effective value, and what limited it.

use std::fmt;

use crate::bytes::{BLOCK_LEN, KvType, Quantization, WeightBytes};
use crate::host::{Host, MemoryLimit};
use crate::units::Bytes;

/// Every size that the server uses, decided before it starts. Nothing grows afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Architecture of the model, as its configuration names it.
    pub architecture: String,
    /// The machine.
    pub host: Host,
    /// Share of the memory, as asked.
    pub mem_fraction_static: f64,
    /// That share in bytes; all parts together take no more.
    pub budget_bytes: u64,
    /// Packed weights.
    pub weights: WeightBytes,
    /// How they are packed.
    pub quantization: Quantization,
    /// Activation buffers, logits included.
    pub scratch_bytes: u64,
    /// What drafts keep until the next step, which replays those that were accepted.
    pub replay_bytes: u64,
    /// Deepest draft; 0 when the draft head is not loaded.
    pub draft_depth: usize,
    /// Element type of the KV store.
    pub kv_type: KvType,
    /// Bytes of one KV block of 64 positions, all layers.
    pub block_bytes: u64,
    /// KV blocks.
    pub n_blocks: Setting<usize>,
    /// Bytes of one recurrent-state slot, all layers.
    pub slot_bytes: u64,
    /// Recurrent-state slots: one for each running request, the rest for snapshots.
    pub n_slots: Setting<usize>,
    /// Longest prompt and answer of one request, in tokens.
    pub context_length: Setting<usize>,
    /// Most requests that run at once.
    pub max_running_requests: Setting<usize>,
    /// Most requests that wait.
    pub max_queued_requests: usize,
    /// Most prompt tokens in one step; a multiple of 64.
    pub chunked_prefill_size: Setting<usize>,
    /// Most rows of one pass: a chunk, a row for each running request, and the drafts.
    pub max_rows: usize,
    /// Most drafts of one pass, all requests together.
    pub max_drafts: usize,
    /// Worker threads.
    pub threads: Setting<usize>,
    /// What was asked for and could not be had in full, one sentence each.
    pub notes: Vec<String>,
}

/// A value and why it is not larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The effective value.
    pub value: T,
    /// What set it.
    pub limit: Limit,
}

/// What set a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// This flag.
    Flag(&'static str),
    /// The default of the flag.
    Default,
    /// What the model was made for.
    Model,
    /// The memory that was left.
    Memory,
    /// The context length: more would be of no use.
    Context,
    /// The running requests: more could not be used by them.
    Running,
    /// The cores of the machine.
    Cores,
}

/// Why a request can never run under a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{n_prompt} prompt tokens and {max_tokens} more exceed the context length of {context_length}"
)]
pub struct Unfit {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens asked for.
    pub max_tokens: usize,
    /// Most tokens of both together.
    pub context_length: usize,
}

impl Plan {
    /// KV tokens of all blocks.
    pub fn max_total_tokens(&self) -> usize {
        self.n_blocks.value * BLOCK_LEN
    }

    /// Bytes of all weights that are loaded.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.loaded(self.draft_depth > 0)
    }

    /// Bytes of all KV blocks.
    pub fn kv_bytes(&self) -> u64 {
        self.n_blocks.value as u64 * self.block_bytes
    }

    /// Bytes of all recurrent-state slots.
    pub fn state_bytes(&self) -> u64 {
        self.n_slots.value as u64 * self.slot_bytes
    }

    /// Bytes of all parts together; at most the budget.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes()
            + self.scratch_bytes
            + self.replay_bytes
            + self.kv_bytes()
            + self.state_bytes()
    }

    /// KV blocks that a request holds at its end; an error if it can never run.
    ///
    /// The last token of an answer is not computed with, so it has no KV.
    /// The pool holds at least one request of the full context length.
    ///
    /// # Errors
    /// When prompt and answer are longer than the context.
    pub fn fits(&self, n_prompt: usize, max_tokens: usize) -> Result<usize, Unfit> {
        let context_length = self.context_length.value;
        match n_prompt.checked_add(max_tokens) {
            Some(n) if n <= context_length => Ok(n.saturating_sub(1).div_ceil(BLOCK_LEN)),
            _ => Err(Unfit { n_prompt, max_tokens, context_length }),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag(flag) => flag,
            Self::Default => "default",
            Self::Model => "all that the model was made for",
            Self::Memory => "all that memory allows",
            Self::Context => "the context length",
            Self::Running => "enough for all running requests",
            Self::Cores => "the cores of this machine",
        })
    }
}

impl fmt::Display for Plan {
    /// The block that the server prints at start; no newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String, why: String| {
            let text = format!("  {name:<22}{value:>12}  {why}");
            writeln!(f, "{}", text.trim_end())
        };
        let bytes = |n: u64| Bytes(n).to_string();
        let host = &self.host;
        let source = match host.memory_limit {
            MemoryLimit::Machine => "available on this machine",
            MemoryLimit::Cgroup => "left by the control group",
        };
        let draft = match self.draft_depth {
            0 => "without draft head".to_string(),
            n => format!("with draft head, up to {n} drafts"),
        };
        let kv_type = self.kv_type.name();
        line("model", String::new(), format!("{}, {draft}", self.architecture))?;
        line("processor", String::new(), format!("{}, {} cores", host.cpu_name, host.n_cores))?;
        line("memory", bytes(host.memory_bytes), source.to_string())?;
        let fraction = format!("--mem-fraction-static {}", self.mem_fraction_static);
        line("budget", bytes(self.budget_bytes), fraction)?;
        line("weights", bytes(self.weight_bytes()), self.quantization.to_string())?;
        line("buffers", bytes(self.scratch_bytes), format!("{} rows", self.max_rows))?;
        if self.max_drafts > 0 {
            let drafts = format!("up to {} in one step, of all requests", self.max_drafts);
            line("drafts to replay", bytes(self.replay_bytes), drafts)?;
        }
        let slots = format!("{} slots of {}", self.n_slots.value, Bytes(self.slot_bytes));
        let state = format!("{slots}: {}", self.n_slots.limit);
        line("recurrent state", bytes(self.state_bytes()), state)?;
        let blocks = format!("{} blocks of {}", self.n_blocks.value, Bytes(self.block_bytes));
        let kv = format!("{blocks}, {kv_type}: {}", self.n_blocks.limit);
        line("KV", bytes(self.kv_bytes()), kv)?;
        line("left of the budget", bytes(self.budget_bytes - self.total_bytes()), String::new())?;
        for (name, setting) in [
            ("context_length", self.context_length),
            ("max_running_requests", self.max_running_requests),
            ("chunked_prefill_size", self.chunked_prefill_size),
            ("threads", self.threads),
        ] {
            line(name, setting.value.to_string(), setting.limit.to_string())?;
        }
        line("max_queued_requests", self.max_queued_requests.to_string(), String::new())?;
        let tokens = format!("in {}", blocks);
        line("max_total_tokens", self.max_total_tokens().to_string(), tokens)?;
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        Ok(())
    }
}
