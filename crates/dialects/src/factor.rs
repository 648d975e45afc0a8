//! Canonical factors: one name for one idea, whatever each engine calls it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What sort of thing a factor is; decides the verdict when it is the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A setting of the server.
    Config,
    /// What is asked of the server: prompts, sampling, thinking.
    Workload,
    /// The program that sends the requests.
    Client,
    /// The machine: clocks, other processes.
    Environment,
    /// How many requests arrive.
    Load,
}

macro_rules! factors {
    ($($variant:ident = $name:literal, $kind:ident, $what:literal;)+) => {
        /// A canonical factor; the documentation of each is [`Factor::what`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Factor { $($variant,)+ }

        impl Factor {
            /// Every factor in the order of the table.
            pub const ALL: &'static [Factor] = &[$(Factor::$variant,)+];

            /// The canonical name, such as `spec.num_steps`.
            pub fn name(self) -> &'static str {
                match self { $(Factor::$variant => $name,)+ }
            }

            /// What sort of thing it is.
            pub fn kind(self) -> Kind {
                match self { $(Factor::$variant => Kind::$kind,)+ }
            }

            /// What the factor is, in a few words.
            pub fn what(self) -> &'static str {
                match self { $(Factor::$variant => $what,)+ }
            }
        }
    };
}

factors! {
    ModelPath = "model.path", Config, "weights folder or hub id";
    ModelServedName = "model.served_name", Config, "name that clients use";
    ModelQuant = "model.weights_quant", Config, "format of the weights";
    ModelDtype = "model.dtype", Config, "number type of weights and activations";
    ModelMaxContext = "model.max_context", Config, "longest sequence a request may reach";
    MemStaticFraction = "mem.static_fraction", Config, "share of device memory for weights and pools";
    MemKvTokens = "mem.kv_tokens", Config, "size of the KV pool in tokens";
    MemKvDtype = "mem.kv_dtype", Config, "number type of the KV cache";
    MemStateRatio = "mem.state_ratio", Config, "memory for recurrent state : memory for KV";
    MemStateSlots = "mem.state_slots", Config, "number of recurrent-state slots";
    MemStateDtype = "mem.state_dtype", Config, "number type of the recurrent state";
    CacheStateStrategy = "cache.state_strategy", Config, "how recurrent state is kept for prefixes; sets slots per request";
    CachePrefix = "cache.prefix", Config, "prefix cache";
    CacheHostTier = "cache.host_tier", Config, "prefix cache in host memory";
    CacheBlock = "cache.block", Config, "tokens per KV block";
    SchedMaxRunning = "sched.max_running", Config, "requests that may run at once";
    SchedMaxQueued = "sched.max_queued", Config, "requests that may wait";
    SchedPrefillChunk = "sched.prefill_chunk", Config, "prompt tokens computed in one pass";
    SchedPrefillMax = "sched.prefill_max", Config, "prompt tokens in one prefill batch";
    SchedMixed = "sched.mixed", Config, "prefill and decode in one pass";
    SchedPolicy = "sched.policy", Config, "order of the waiting requests";
    SchedConservativeness = "sched.admission_conservativeness", Config, "reserve kept for output still to come";
    SchedOverlap = "sched.overlap", Config, "host work hidden behind device work";
    SpecMethod = "spec.method", Config, "how tokens are drafted";
    SpecNumSteps = "spec.num_steps", Config, "draft tokens in a chain per verify step";
    SpecTopk = "spec.topk", Config, "branches per draft step";
    SpecDraftTokens = "spec.draft_tokens", Config, "tokens verified per request and step, root included";
    SpecTree = "spec.tree", Config, "shape of the draft tree: steps, branches, verified tokens";
    SpecDraftModel = "spec.draft_model", Config, "weights of the draft model";
    SpecMinProb = "spec.min_prob", Config, "least probability for which drafting goes on";
    SpecSampling = "spec.sampling", Config, "rule by which drafts are accepted";
    SpecAdaptive = "spec.adaptive", Config, "draft depth chosen while running";
    ExecCudaGraph = "exec.cuda_graph", Config, "decode steps replayed as device graphs";
    ExecPrefillGraph = "exec.prefill_graph", Config, "prefill steps replayed as device graphs";
    ExecGraphMaxBs = "exec.graph_max_bs", Config, "largest batch that has a graph";
    ExecAttention = "exec.attention", Config, "attention kernels";
    ExecLinearAttention = "exec.linear_attention", Config, "kernels of the recurrent layers";
    ExecCompile = "exec.compile", Config, "compiled model code";
    ExecMoe = "exec.moe", Config, "kernels or place of the experts";
    ExecOffloadLayers = "exec.offload_layers", Config, "layers on the device, or bytes left on the host";
    ExecThreads = "exec.threads", Config, "host threads";
    ParTp = "par.tp", Config, "tensor parallel width";
    ParPp = "par.pp", Config, "pipeline depth";
    ParDp = "par.dp", Config, "data parallel replicas";
    ParEp = "par.ep", Config, "expert parallel width";
    ParCustomAllreduce = "par.custom_allreduce", Config, "the engine's own all-reduce";
    GpuVisible = "gpu.visible", Config, "devices the process may use";
    ApiStreamInterval = "api.stream_interval", Config, "tokens between stream chunks";
    ApiThinking = "api.thinking", Config, "reasoning parser and template switches";
    ApiSamplingDefault = "api.sampling_default", Config, "sampling used when a request names none";
    ApiTools = "api.tools", Config, "tool-call parser";
    ObsLogging = "obs.logging", Config, "how much the server logs";
    ObsLogLevel = "obs.log_level", Config, "log level";
    ObsLogRequests = "obs.log_requests", Config, "request logging and its level";
    ObsLogInterval = "obs.log_interval", Config, "decode steps between log lines";
    ObsMetrics = "obs.metrics", Config, "metrics endpoint";
    EnvBlocking = "env.blocking", Config, "device calls made synchronous, sanitizers";
    NetHost = "net.host", Config, "address the server listens on";
    NetPort = "net.port", Config, "port the server listens on";
    EngineVersion = "engine.version", Config, "version of the engine";
    EngineName = "engine.name", Config, "which engine serves";
    GpuThrottle = "gpu.throttle", Environment, "clocks held down by heat or power";
    GpuOtherProcess = "gpu.other_process", Environment, "another process computes on the same device";
    GpuModel = "gpu.model", Environment, "which device serves";
    GpuDriver = "gpu.driver", Environment, "driver version";
    WorkloadPromptMix = "workload.prompt_mix", Workload, "kind and length of the prompts";
    WorkloadTemperature = "workload.temperature", Workload, "sampling temperature of the requests";
    WorkloadThinking = "workload.thinking", Workload, "reasoning before the answer";
    WorkloadPrefixReuse = "workload.prefix_reuse", Workload, "share of the prompts that earlier requests had in common";
    ClientConnectionLimit = "client.connection_limit", Client, "connections the client opens at most";
    LoadArrivalRate = "load.arrival_rate", Load, "requests that arrive per second";
}

impl Factor {
    /// Finds a factor by its canonical name.
    pub fn from_name(name: &str) -> Option<Factor> {
        Factor::ALL.iter().copied().find(|factor| factor.name() == name)
    }

    /// The factor under which this one is judged and reported when several of its kind change together.
    pub fn group(self) -> Factor {
        match self {
            Factor::ObsLogLevel | Factor::ObsLogRequests | Factor::ObsLogInterval => {
                Factor::ObsLogging
            }
            Factor::SpecNumSteps | Factor::SpecTopk | Factor::SpecDraftTokens => Factor::SpecTree,
            other => other,
        }
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Factor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Factor, D::Error> {
        let name = String::deserialize(deserializer)?;
        Factor::from_name(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("no factor {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for &factor in Factor::ALL {
            assert_eq!(Factor::from_name(factor.name()), Some(factor));
        }
    }
}
