//! Every size and choice the engine works with; fixed before the first step.

/// What the plan gives the engine. Passed whole; the engine never changes it.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Most sequences that run at once.
    pub max_running: usize,
    /// Most requests that wait for their first admission; one more is refused.
    pub max_queued: usize,
    /// KV blocks of the model, 64 positions each.
    pub n_blocks: usize,
    /// Recurrent-state slots of the model: `max_running` for sequences, the rest for snapshots.
    pub n_slots: usize,
    /// Most tokens of a request, prompt and answer together.
    pub context_length: usize,
    /// Most prompt rows in one step; a multiple of the block length.
    pub chunked_prefill_size: usize,
    /// Tokens that end an answer unless the request ignores them.
    pub eos_token_ids: Vec<u32>,
    /// How deep the draft head drafts.
    pub speculation: Speculation,
    /// Most drafts of one step, all sequences together: where more sequences decode than can all draft
    /// deep, they share.
    pub max_drafts: usize,
    /// Reuse of prefixes; `None` computes every prompt from its first token.
    pub prefix_cache: Option<PrefixCache>,
}

/// How deep the draft head drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    /// Never; the draft head is not used.
    Off,
    /// This many drafts in every verify, at least one.
    Fixed(usize),
    /// As many as pay, from 0 to `max_depth`, measured while running.
    Auto {
        /// The deepest draft tried.
        max_depth: usize,
    },
}

/// Where recurrent state is kept for reuse, besides the offsets that a request names.
#[derive(Clone, Copy, Debug)]
pub struct PrefixCache {
    /// A snapshot each time a sequence has grown by this many tokens; a multiple of the block length.
    pub snapshot_interval: usize,
}

impl Speculation {
    /// The deepest draft that a step can hold.
    pub fn max_depth(self) -> usize {
        match self {
            Speculation::Off => 0,
            Speculation::Fixed(depth) | Speculation::Auto { max_depth: depth } => depth,
        }
    }
}

impl EngineConfig {
    /// The most rows that one forward pass gets: what the model's scratch must hold.
    pub fn max_rows(&self) -> usize {
        self.chunked_prefill_size + self.max_running + self.max_drafts
    }
}
