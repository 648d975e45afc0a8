//! What the operator asks for; names are SGLang's flags.

use crate::bytes::KvType;

/// Requests that run at once where nothing else is asked.
pub const DEFAULT_RUNNING: usize = 16;

/// The flags that decide sizes. `None` leaves the choice to the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// Share of the memory that this process may use, for weights, buffers, state and KV together.
    pub mem_fraction_static: f64,
    /// Longest prompt and answer of one request. A given one is kept or the plan fails.
    pub context_length: Option<usize>,
    /// Most requests that run at once.
    pub max_running_requests: Option<usize>,
    /// Most requests that wait.
    pub max_queued_requests: usize,
    /// Most KV tokens in all.
    pub max_total_tokens: Option<usize>,
    /// Most prompt tokens in one step; a multiple of 64.
    pub chunked_prefill_size: usize,
    /// Bytes of recurrent state over bytes of KV where the two compete for memory.
    pub mamba_full_memory_ratio: f64,
    /// Recurrent-state slots instead of the ratio. A given number is kept or the plan fails.
    pub max_mamba_cache_size: Option<usize>,
    /// Element type of the KV store; the checkpoint's own where not given.
    pub kv_type: Option<KvType>,
    /// Deepest draft; 0 leaves the draft head out.
    pub draft_depth: usize,
    /// Keep slots for snapshots of the state, from which shared prefixes resume.
    pub prefix_cache: bool,
    /// Worker threads; one per core where not given.
    pub threads: Option<usize>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            mem_fraction_static: 0.8,
            context_length: None,
            max_running_requests: None,
            max_queued_requests: 256,
            max_total_tokens: None,
            chunked_prefill_size: 512,
            mamba_full_memory_ratio: 0.9,
            max_mamba_cache_size: None,
            kv_type: None,
            draft_depth: 0,
            prefix_cache: true,
            threads: None,
        }
    }
}
