//! Every flag, declared once: name, type, default, document.
//!
//! Names are SGLang's where it has one, with both spellings where it renamed a flag.
//! `docs/configuration.md` is derived from this file; a test compares them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::baseline::BaselineFlags;
use crate::diagnosis::{ConfigsFlags, DiagnoseFlags, DiffFlags, LogsFlags};
use crate::eval::EvalFlags;
use crate::fix::{FixFlags, ValidateFlags};
use crate::plan::PlanFlags;
use crate::probe::ProbeFlags;

/// Serve hybrid language models, and find out why a server is as fast as it is.
#[derive(Parser)]
#[command(name = "outrider", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Serve a model behind an OpenAI-compatible API
    Serve(Box<ServeFlags>),
    /// Answer one prompt and exit
    Generate(GenerateFlags),
    /// Chat in the terminal, with a model or with a running server
    Chat(ChatFlags),
    /// Measure prefill and decode speed beside the machine's read bandwidth
    Bench(BenchFlags),
    /// Measure a running server of any engine, from the client's side and its own
    Probe(Box<ProbeFlags>),
    /// Predict pools, limits and speed of an engine from a model, devices and flags
    Plan(PlanFlags),
    /// Keep what was measured, and tell later whether it still holds
    Baseline(BaselineFlags),
    /// Measure how well a model predicts a text, alone or beside another format of it
    Eval(EvalFlags),
    /// Turn server logs into windows of throughput, accept length and queue
    Logs(LogsFlags),
    /// Find every server configuration that a host remembers
    Configs(ConfigsFlags),
    /// Lay two configurations side by side
    Diff(DiffFlags),
    /// Explain why a server is slower than it was, from itself and from what its host remembers
    Diagnose(Box<DiagnoseFlags>),
    /// Print the fix of the last diagnosis, put it in force, or take it back
    Fix(FixFlags),
    /// Prove a fix with restarts and measurements; one that does not hold is taken back
    Validate(Box<ValidateFlags>),
}

/// Which model, and where.
#[derive(Args, Clone)]
pub(crate) struct ModelFlags {
    /// A folder with a checkpoint, a `.gguf` file, a name on the hub (`org/name`), or
    /// `outrider-tiny`, the model inside this binary [default: outrider-tiny]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// The same as MODEL, as SGLang spells it
    #[arg(long, visible_alias = "model", value_name = "MODEL", conflicts_with = "model")]
    pub(crate) model_path: Option<String>,

    /// Revision on the hub: a branch, tag or commit
    #[arg(long, value_name = "REV")]
    pub(crate) revision: Option<String>,

    /// Worker threads [default: the cores this process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Instruction set of the kernels; all give the same bits
    #[arg(long, value_enum, default_value_t = IsaChoice::Auto, value_name = "ISA")]
    pub(crate) isa: IsaChoice,

    /// Weights in fewer bits, quantised while they are loaded [default: as they are stored]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) quantization: Option<Quantization>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quantization {
    /// 8 bits, a scale for 128 columns
    #[value(alias = "w8a8_int8")]
    Int8,
    /// 4 bits, a scale for 32 columns; the embedding and the output matrix in 8
    Int4,
}

impl Quantization {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

impl ModelFlags {
    /// The flags of another model, as it is stored, on the same threads.
    pub(crate) fn stored(model: &str, like: &Self) -> Self {
        Self {
            model: Some(model.to_owned()),
            model_path: None,
            revision: None,
            quantization: None,
            ..like.clone()
        }
    }

    /// The model asked for; the embedded one when none is.
    pub(crate) fn name(&self) -> &str {
        self.model.as_deref().or(self.model_path.as_deref()).unwrap_or(crate::embedded::NAME)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsaChoice {
    /// The widest this CPU has
    Auto,
    /// Plain Rust, the definition the others are tested against
    Scalar,
    /// AVX2 with FMA
    Avx2,
    /// AVX-512
    Avx512,
}

/// Sizes of the pools; what is not given is decided by the plan.
#[derive(Args, Clone)]
pub(crate) struct PoolFlags {
    /// Share of the memory this process may use for weights, KV, state and buffers together
    #[arg(long, value_name = "F", default_value_t = 0.8)]
    pub(crate) mem_fraction_static: f64,

    /// Longest prompt plus answer of one request, in tokens [default: what the model allows]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context_length: Option<usize>,

    /// Most requests that run at once; more wait in the queue [default: 16, as memory allows]
    #[arg(long, value_name = "N")]
    pub(crate) max_running_requests: Option<usize>,

    /// Most requests that wait; one more is answered with 503
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_queued_requests: usize,

    /// Most KV tokens in all [default: as memory allows]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_total_tokens: Option<usize>,

    /// Most prompt tokens computed in one step
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub(crate) chunked_prefill_size: usize,

    /// Bytes of recurrent state over bytes of KV when the two share the memory that is left
    #[arg(long, value_name = "RATIO", default_value_t = 0.9)]
    pub(crate) mamba_full_memory_ratio: f64,

    /// Number of recurrent-state slots, instead of the ratio
    #[arg(long, value_name = "SLOTS")]
    pub(crate) max_mamba_cache_size: Option<usize>,

    /// Element type of the KV cache; auto is the checkpoint's own (bf16 or f32), int8 rounds keys
    /// and values to a 127th of the largest element of their head and takes half the bytes of bf16
    #[arg(long, value_enum, default_value_t = KvChoice::Auto, value_name = "TYPE")]
    pub(crate) kv_cache_dtype: KvChoice,

    /// Compute every prompt from its first token instead of reusing shared prefixes
    #[arg(long)]
    pub(crate) disable_radix_cache: bool,

    /// Keep recurrent state for reuse each time a sequence has grown by this many tokens, besides
    /// the places where messages begin; a multiple of 64
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub(crate) mamba_track_interval: usize,
}

impl PoolFlags {
    /// Pools for one request at a time, for the commands that are not servers.
    pub(crate) fn one_request() -> Self {
        Self {
            mem_fraction_static: 0.8,
            context_length: None,
            max_running_requests: Some(1),
            max_queued_requests: 1,
            max_total_tokens: None,
            chunked_prefill_size: 512,
            mamba_full_memory_ratio: 0.9,
            max_mamba_cache_size: None,
            kv_cache_dtype: KvChoice::Auto,
            disable_radix_cache: true,
            mamba_track_interval: 256,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvChoice {
    /// The checkpoint's own type
    Auto,
    /// 16-bit
    #[value(alias = "bfloat16")]
    Bf16,
    /// 32-bit
    #[value(alias = "float32", alias = "fp32")]
    F32,
    /// 8-bit integers, with a scale for each position and head of keys and of values
    Int8,
}

impl KvChoice {
    /// What is asked for; none for the checkpoint's own.
    pub(crate) fn kv_type(self) -> Option<plan::KvType> {
        match self {
            Self::Auto => None,
            Self::Bf16 => Some(plan::KvType::Bf16),
            Self::F32 => Some(plan::KvType::F32),
            Self::Int8 => Some(plan::KvType::Int8),
        }
    }
}

/// Drafting with the checkpoint's own head.
#[derive(Args, Clone)]
pub(crate) struct SpeculationFlags {
    /// NEXTN drafts with the checkpoint's own head (EAGLE is SGLang's other name for it), none does
    /// not draft [default: NEXTN if the checkpoint has a draft head]
    #[arg(long, value_enum, ignore_case = true, value_name = "NAME")]
    pub(crate) speculative_algorithm: Option<Algorithm>,

    /// Drafts of one step: a number, or auto for as many as pay [default: auto]
    #[arg(long, value_name = "N|auto", value_parser = steps)]
    pub(crate) speculative_num_steps: Option<Steps>,

    /// Branches of a draft; drafts are a chain, so 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) speculative_eagle_topk: usize,

    /// Rows of a verify, the newest token included: always steps + 1; with auto steps, the most
    #[arg(long, value_name = "N")]
    pub(crate) speculative_num_draft_tokens: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// The checkpoint's own draft head
    #[value(alias = "eagle")]
    Nextn,
    /// No drafting
    None,
}

/// Drafts of one step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Steps {
    Auto,
    Fixed(usize),
}

fn steps(text: &str) -> Result<Steps, String> {
    match text {
        "auto" => Ok(Steps::Auto),
        _ => text.parse().map(Steps::Fixed).map_err(|_| "neither a number nor `auto`".to_owned()),
    }
}

#[derive(Args, Clone)]
pub(crate) struct ServeFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) pools: PoolFlags,
    #[command(flatten)]
    pub(crate) speculation: SpeculationFlags,

    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,

    /// Port to listen on; 0 takes a free one and prints it
    #[arg(long, default_value_t = 30000)]
    pub(crate) port: u16,

    /// Name in `/v1/models` and in answers [default: MODEL]
    #[arg(long, value_name = "NAME")]
    pub(crate) served_model_name: Option<String>,

    /// Key that clients must send as `Authorization: Bearer KEY`
    #[arg(long, value_name = "KEY", env = "OUTRIDER_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,

    /// Chat template file, instead of the checkpoint's
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,

    /// Name of the weights in `metadata.weight_version` [default: a digest of the checkpoint]
    #[arg(long, value_name = "NAME")]
    pub(crate) weight_version: Option<String>,

    /// Decode steps between two decode log lines
    #[arg(long, value_name = "STEPS", default_value_t = 40)]
    pub(crate) decode_log_interval: u64,

    /// Seconds that running requests get to finish after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain_timeout: u64,

    /// Let no pass of the network be shorter than this, as on a machine with slower memory: to see
    /// what other settings are worth there
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) least_pass_ms: Option<u16>,

    /// Write one JSON line per step to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// File that one JSON line is appended to at start and one at stop, or `none`
    /// [default: outrider/launches.jsonl in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FILE|none", value_parser = ledger_choice)]
    pub(crate) launch_ledger: Option<LedgerChoice>,

    /// Read bandwidth of the memory for the ledger: GB/s as known, or `measure` to take a second
    /// for it before the weights are loaded
    #[arg(long, value_name = "GB/s|measure", value_parser = bandwidth)]
    pub(crate) memory_bandwidth: Option<Bandwidth>,

    /// Log level: error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: String,
}

/// Where launches are recorded.
#[derive(Clone)]
pub(crate) enum LedgerChoice {
    None,
    File(PathBuf),
}

fn ledger_choice(text: &str) -> Result<LedgerChoice, String> {
    Ok(if text == "none" { LedgerChoice::None } else { LedgerChoice::File(text.into()) })
}

/// Where the number for the read bandwidth comes from.
#[derive(Clone, Copy)]
pub(crate) enum Bandwidth {
    Measure,
    Stated(f64),
}

fn bandwidth(text: &str) -> Result<Bandwidth, String> {
    match text {
        "measure" => Ok(Bandwidth::Measure),
        _ => text
            .parse()
            .ok()
            .filter(|gb_per_s: &f64| gb_per_s.is_finite() && *gb_per_s > 0.0)
            .map(Bandwidth::Stated)
            .ok_or_else(|| "neither GB/s above 0 nor `measure`".to_owned()),
    }
}

#[derive(Args, Clone)]
pub(crate) struct GenerateFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,

    #[command(flatten)]
    pub(crate) speculation: SpeculationFlags,

    /// The text to continue
    #[arg(long, short, value_name = "TEXT")]
    pub(crate) prompt: String,

    /// Put the prompt into the chat template as a user's message
    #[arg(long)]
    pub(crate) chat: bool,

    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,

    /// 0 is greedy [default: the checkpoint's]
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,

    /// Seed of the sampling; the same seed gives the same text
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Print one JSON object instead of the text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Clone)]
pub(crate) struct ChatFlags {
    /// A server's address (`http://…`), or a model as for `serve` [default: outrider-tiny]
    #[arg(value_name = "MODEL|URL")]
    pub(crate) target: Option<String>,

    /// Weights in fewer bits, as for `serve`; a server decides for itself
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) quantization: Option<Quantization>,

    /// Key for a server that asks for one
    #[arg(long, value_name = "KEY", env = "OUTRIDER_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,

    /// A system message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// 0 is greedy [default: the checkpoint's]
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,

    /// Most tokens of one answer
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u32>,

    /// Ask for answers without a thinking part
    #[arg(long)]
    pub(crate) no_think: bool,
}

/// What the rows of a kind measure; empty when they are not wanted.
#[derive(Clone)]
pub(crate) struct Counts(pub(crate) Vec<usize>);

fn counts(text: &str) -> Result<Counts, String> {
    if text == "none" {
        return Ok(Counts(Vec::new()));
    }
    let number = |n: &str| match n.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("`{n}` is not a number of at least 1; `none` leaves these rows out")),
    };
    text.split(',').map(number).collect::<Result<_, _>>().map(Counts)
}

#[derive(Args, Clone)]
pub(crate) struct BenchFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,

    /// Prompt lengths of the prefill rows, in tokens
    #[arg(long, value_name = "N,…|none", value_parser = counts, default_value = "128,512")]
    pub(crate) prefill: Counts,

    /// Tokens generated by each sequence of a decode row
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) decode: usize,

    /// Context lengths before the decode rows, in tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [0])]
    pub(crate) depth: Vec<usize>,

    /// Numbers of sequences of the decode rows
    #[arg(long, value_name = "N,…|none", value_parser = counts, default_value = "1,4,8")]
    pub(crate) batch: Counts,

    /// Rows of one sequence in one pass, as in a verify
    #[arg(long, value_name = "N,…|none", value_parser = counts, default_value = "1,2,4,8")]
    pub(crate) verify: Counts,

    /// Measurements of each row; the table shows the median and the range
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) repeat: usize,

    /// Measure what drafting buys instead: accept length and speed by kind of prompt, at depths 0
    /// to 8 and auto
    #[arg(long)]
    pub(crate) speculative: bool,

    /// Element type of the KV cache
    #[arg(long, value_enum, default_value_t = KvChoice::Auto, value_name = "TYPE")]
    pub(crate) kv_cache_dtype: KvChoice,

    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}
