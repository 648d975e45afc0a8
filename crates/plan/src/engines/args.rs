//! What is asked of an engine: the flags that change its pools or its speed, under one name each.

use std::fmt;
use std::str::FromStr;

use super::EngineError;
use super::device::Device;
use super::shape::ModelShape;
use super::version::Version;

/// An engine and, where its rules changed over time, its release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Engine {
    /// SGLang; the pool rules depend on the release.
    Sglang(Version),
    /// vLLM with its hybrid block pool.
    Vllm(Version),
    /// The server of llama.cpp.
    LlamaCpp,
    /// Our own server.
    Outrider,
}

impl FromStr for Engine {
    type Err = EngineError;

    /// `sglang[@VERSION]`, `vllm[@VERSION]`, `llama.cpp` or `outrider`; without a version the newest known.
    fn from_str(text: &str) -> Result<Engine, EngineError> {
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        match (name.to_ascii_lowercase().as_str(), version) {
            ("sglang", version) => Ok(Engine::Sglang(version.unwrap_or("0.5.23").parse()?)),
            ("vllm", version) => Ok(Engine::Vllm(version.unwrap_or("0.33.0").parse()?)),
            ("llama.cpp" | "llamacpp" | "llama-cpp", None) => Ok(Engine::LlamaCpp),
            ("outrider", None) => Ok(Engine::Outrider),
            _ => Err(EngineError::Syntax {
                what: "engine",
                text: text.to_owned(),
                expected: "sglang[@VERSION] such as sglang@0.5.10, vllm[@VERSION], llama.cpp or outrider",
            }),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Sglang(version) => write!(f, "SGLang {version}"),
            Engine::Vllm(version) => write!(f, "vLLM {version}"),
            Engine::LlamaCpp => write!(f, "llama.cpp"),
            Engine::Outrider => write!(f, "outrider"),
        }
    }
}

/// Bytes of one stored element; block formats count their scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementBytes(pub f64);

impl FromStr for ElementBytes {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<ElementBytes, EngineError> {
        Ok(ElementBytes(match text.to_ascii_lowercase().as_str() {
            "f32" | "fp32" | "float32" | "float" => 4.0,
            "bf16" | "bfloat16" | "f16" | "fp16" | "float16" | "half" => 2.0,
            "fp8" | "fp8_e4m3" | "fp8_e5m2" | "int8" => 1.0,
            "q8_0" => 34.0 / 32.0,
            "q5_1" => 24.0 / 32.0,
            "q5_0" => 22.0 / 32.0,
            "q4_1" => 20.0 / 32.0,
            "q4_0" | "iq4_nl" => 18.0 / 32.0,
            _ => {
                return Err(EngineError::Syntax {
                    what: "number format",
                    text: text.to_owned(),
                    expected: "float32, bfloat16, float16, fp8_e4m3, fp8_e5m2, int8, q8_0 … q4_0",
                });
            }
        }))
    }
}

/// How SGLang keeps recurrent states for its prefix cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StateStrategy {
    /// States of finished requests go into the tree; no overlap scheduler.
    NoBuffer,
    /// Two further slots per request.
    ExtraBuffer,
    /// One further slot per request, a second on demand.
    ExtraBufferLazy,
}

impl FromStr for StateStrategy {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<StateStrategy, EngineError> {
        match text {
            "no_buffer" => Ok(StateStrategy::NoBuffer),
            "extra_buffer" => Ok(StateStrategy::ExtraBuffer),
            "extra_buffer_lazy" => Ok(StateStrategy::ExtraBufferLazy),
            _ => Err(EngineError::Syntax {
                what: "state strategy",
                text: text.to_owned(),
                expected: "no_buffer, extra_buffer or extra_buffer_lazy",
            }),
        }
    }
}

/// Free memory of the tightest device as a start-up log states it: more exact than any estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObservedMemory {
    /// Before the weights were loaded, in GiB.
    pub before_gib: f64,
    /// After the weights were loaded, in GiB.
    pub after_gib: f64,
}

/// The flags that matter; `None` is "not given". Named after SGLang, with the counterparts beside.
#[derive(Clone, Debug)]
pub struct Flags {
    /// Tensor-parallel width.
    pub tp: usize,
    /// `--mem-fraction-static`; vLLM: `--gpu-memory-utilization`.
    pub mem_fraction: Option<f64>,
    /// `--context-length`; vLLM: `--max-model-len`; llama.cpp: `-c`, shared by its slots.
    pub context_length: Option<u64>,
    /// `--max-running-requests`; vLLM: `--max-num-seqs`; llama.cpp: `-np`.
    pub max_running: Option<u64>,
    /// `--max-total-tokens`.
    pub max_total_tokens: Option<u64>,
    /// `--chunked-prefill-size`; vLLM: `--max-num-batched-tokens`; llama.cpp: `-ub`.
    pub chunked_prefill: Option<u64>,
    /// `--kv-cache-dtype`; llama.cpp: `-ctk` and `-ctv`.
    pub kv_dtype: Option<ElementBytes>,
    /// `--mamba-full-memory-ratio`.
    pub state_ratio: Option<f64>,
    /// `--max-mamba-cache-size`.
    pub state_slots: Option<u64>,
    /// `--mamba-ssm-dtype`; vLLM: `--mamba-ssm-cache-dtype`.
    pub state_dtype: Option<ElementBytes>,
    /// `--mamba-radix-cache-strategy`.
    pub state_strategy: Option<StateStrategy>,
    /// Whether prefixes are cached.
    pub prefix_cache: bool,
    /// Whether the overlap scheduler runs where the strategy allows it.
    pub overlap: bool,
    /// `--speculative-num-steps`; 0 without speculation.
    pub draft_depth: u64,
    /// `--speculative-num-draft-tokens`, the verify width with the root; `None` is depth + 1.
    pub draft_tokens: Option<u64>,
}

impl Flags {
    /// The engine's own defaults: one device, prefix cache and overlap on, no speculation.
    #[must_use]
    pub fn unset() -> Flags {
        Flags {
            tp: 1,
            mem_fraction: None,
            context_length: None,
            max_running: None,
            max_total_tokens: None,
            chunked_prefill: None,
            kv_dtype: None,
            state_ratio: None,
            state_slots: None,
            state_dtype: None,
            state_strategy: None,
            prefix_cache: true,
            overlap: true,
            draft_depth: 0,
            draft_tokens: None,
        }
    }

    /// Rows per request in one verify, 0 without speculation.
    #[must_use]
    pub fn verify_width(&self) -> u64 {
        match self.draft_depth {
            0 => 0,
            depth => self.draft_tokens.unwrap_or(depth + 1),
        }
    }
}

/// Everything that an engine's plan depends on.
#[derive(Clone, Debug)]
pub struct EngineArgs {
    /// Which arithmetic.
    pub engine: Engine,
    /// The model.
    pub model: ModelShape,
    /// The hardware.
    pub device: Device,
    /// What was asked.
    pub flags: Flags,
    /// Free memory from a log of this engine on this hardware, if there is one.
    pub observed: Option<ObservedMemory>,
    /// Tokens of KV per running request that the speed is predicted for.
    pub load_tokens: u64,
    /// Share of first drafts that are accepted, if measured; else a usual range is taken.
    pub acceptance: Option<f64>,
}
