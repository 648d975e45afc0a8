//! What all routes share: the model's names and limits, its text tools, the engine, and who is served.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use telemetry::histogram::RequestHistograms;
use telemetry::reporter::LastWindow;
use text::{ChatTemplate, Tokenizer};
use tokio::sync::Semaphore;

use crate::auth::Keys;
use crate::backend::Backend;
use crate::health::Health;
use crate::limits;

/// The served model, as clients see it.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Name that requests must carry and answers carry back.
    pub served_name: String,
    /// Folder or hub name that was loaded.
    pub model_path: String,
    /// Architecture as `config.json` names it.
    pub architecture: String,
    /// `model_type` of `config.json`.
    pub model_type: String,
    /// Fingerprint of the weights.
    pub weight_version: String,
    /// What a person should know before using the model, such as that it is a demonstration.
    pub note: Option<String>,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Width of the logits: ids below it are valid in prompts and biases.
    pub vocab_size: usize,
}

/// What a request gets that does not say otherwise: the model's generation config, or OpenAI's values.
#[derive(Clone, Copy, Debug)]
pub struct SamplingDefaults {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Nucleus, in (0, 1].
    pub top_p: f32,
    /// Number of tokens kept; 0 keeps all.
    pub top_k: u32,
    /// Relative probability kept, in [0, 1].
    pub min_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
}

/// Sizes from the plan.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Most tokens of a request, prompt and answer together.
    pub context_len: usize,
    /// Token positions in the KV pool: a request cannot hold more.
    pub max_total_num_tokens: usize,
    /// Positions in one KV block.
    pub block_len: usize,
    /// Most sequences that run at once.
    pub max_running_requests: usize,
    /// Most requests that wait; one more is refused.
    pub max_queued_requests: usize,
    /// Whether a draft head is in use.
    pub speculates: bool,
}

/// How answers are read.
#[derive(Clone, Copy, Debug)]
pub struct Parsers {
    /// Split thinking from the answer.
    pub reasoning: bool,
    /// Parse tool calls.
    pub tools: bool,
}

/// Time limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the head of a request, and between requests of a connection.
    pub head: Duration,
    /// For the whole body of a request.
    pub body: Duration,
    /// How long a client may take no bytes of an answer before it is given up.
    pub stall: Duration,
    /// After this long without an event, a stream gets a comment.
    pub keep_alive: Duration,
    /// How long a shutdown waits for running requests.
    pub drain: Duration,
    /// How long `/health_generate` waits for its token.
    pub health: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            head: Duration::from_secs(30),
            body: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            keep_alive: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            health: Duration::from_secs(20),
        }
    }
}

/// Everything that is fixed before the first request.
pub struct ApiOptions {
    /// Generates.
    pub backend: Arc<dyn Backend>,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's chat template; without one, chat requests are refused.
    pub chat_template: Option<ChatTemplate>,
    /// Names.
    pub model: ModelInfo,
    /// Sampling parameters where a request has none.
    pub defaults: SamplingDefaults,
    /// Sizes.
    pub sizes: Sizes,
    /// Readers of answers.
    pub parsers: Parsers,
    /// Who may call.
    pub keys: Keys,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Most connections at once; more wait to be accepted.
    pub max_connections: usize,
    /// The last decode window of the log.
    pub last_window: LastWindow,
    /// Flags, plan and whatever else `/server_info` shows at its top level.
    pub server_info: Map<String, Value>,
}

/// What the routes share.
pub struct ApiState {
    /// What was fixed at start.
    pub options: ApiOptions,
    /// What is observed of requests.
    pub histograms: RequestHistograms,
    /// Whether the engine goes on.
    pub health: Health,
    /// Largest body in bytes.
    pub body_limit: usize,
    /// Bytes of the longest token: a text of n bytes has at least n over this many tokens.
    pub longest_token: usize,
    /// Start, in Unix seconds.
    pub started_unix_s: u64,
    /// Room for the threads that render and encode.
    pub encoders: Arc<Semaphore>,
    /// Room for the bodies of requests that are read and not yet encoded, in units of
    /// [`BODY_UNIT`] bytes.
    pub bodies: Arc<Semaphore>,
    draining: AtomicBool,
    next_id: AtomicU64,
    live: Mutex<HashMap<u64, String>>,
    random: RandomState,
}

/// Encoding takes a core, and decoding needs the cores.
const N_ENCODERS: usize = 2;

/// Bodies are counted in units of this many bytes, a usual body being one.
pub const BODY_UNIT: usize = 64 << 10;

/// All bodies together have room for this many of the largest; others wait to be read.
const N_LARGEST_BODIES: usize = 4;

impl ApiState {
    /// State before the first request.
    pub fn new(options: ApiOptions) -> Arc<ApiState> {
        let (longest_token, longest_escaped) = limits::longest_token(&options.tokenizer);
        let body_limit = limits::body_limit(options.sizes.context_len, longest_escaped);
        Arc::new(ApiState {
            body_limit,
            longest_token,
            options,
            histograms: RequestHistograms::default(),
            health: Health::new(Instant::now()),
            started_unix_s: unix_seconds(),
            encoders: Arc::new(Semaphore::new(N_ENCODERS)),
            bodies: Arc::new(Semaphore::new(N_LARGEST_BODIES * body_limit.div_ceil(BODY_UNIT))),
            draining: AtomicBool::new(false),
            next_id: AtomicU64::new(1),
            live: Mutex::default(),
            random: RandomState::new(),
        })
    }

    /// A number that no request had before.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that cannot be guessed from others: names and seeds.
    pub fn random(&self) -> u64 {
        // The hasher is keyed by the operating system's randomness, and each input is new.
        self.random.hash_one((self.next_id(), SystemTime::now()))
    }

    /// Whether the server takes no new requests.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Takes no new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Notes that sequence `id` belongs to the request `rid`.
    pub fn begin(&self, id: u64, rid: &str) {
        self.live().insert(id, rid.to_owned());
    }

    /// Forgets a sequence that has ended.
    pub fn end(&self, id: u64) {
        self.live().remove(&id);
    }

    /// Ends all sequences of the request `rid`, or of every request.
    pub fn abort(&self, rid: Option<&str>) {
        let ids: Vec<u64> = self
            .live()
            .iter()
            .filter(|(_, of)| rid.is_none_or(|rid| rid == of.as_str()))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().for_each(|id| self.options.backend.cancel(id));
    }

    /// Requests that have not ended.
    pub fn n_live(&self) -> usize {
        self.live().len()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<u64, String>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Now, in whole seconds since the Unix epoch.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
