//! What each factor can move, engine by engine, and what it cannot: the table behind every "no mechanism".

use dialects::{Engine, Factor};

/// A part of what a user feels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// Tokens committed per request and step.
    AcceptLen,
    /// Steps per second.
    StepRate,
    /// Requests that run at once.
    Running,
    /// Time to the first token: queue and prefill.
    FirstToken,
    /// Stalls in the middle of a stream.
    Pauses,
}

use Component::{AcceptLen, FirstToken, Pauses, Running, StepRate};

/// The components that a factor can move in an engine.
pub fn moves(engine: Engine, factor: Factor) -> &'static [Component] {
    use Factor as F;
    match factor {
        F::SpecMethod
        | F::SpecNumSteps
        | F::SpecTopk
        | F::SpecDraftTokens
        | F::SpecTree
        | F::SpecDraftModel
        | F::SpecAdaptive => {
            // The states kept per draft token also take room from the pools.
            if engine.like_sglang() {
                &[AcceptLen, StepRate, Running]
            } else {
                &[AcceptLen, StepRate]
            }
        }
        F::SpecSampling | F::SpecMinProb | F::ApiSamplingDefault | F::ApiThinking => &[AcceptLen],
        F::ModelPath | F::ModelQuant | F::ModelDtype => &[StepRate, FirstToken, Running, AcceptLen],
        F::ParTp | F::ParPp | F::ParEp | F::GpuVisible | F::GpuModel => {
            &[StepRate, FirstToken, Running]
        }
        F::ParDp => &[Running, FirstToken],
        // Only llama.cpp reserves KV for the whole context when it starts, and then leaves layers on the host.
        F::ModelMaxContext if engine == Engine::LlamaCpp => &[StepRate, FirstToken],
        F::ModelMaxContext => &[],
        F::MemStaticFraction
        | F::MemKvTokens
        | F::MemStateRatio
        | F::MemStateSlots
        | F::MemStateDtype => &[Running, FirstToken, Pauses],
        F::MemKvDtype => &[StepRate, Running, FirstToken, Pauses],
        F::CacheStateStrategy => &[Running, FirstToken, StepRate],
        F::CachePrefix | F::CacheHostTier | F::CacheBlock => &[FirstToken],
        F::SchedMaxRunning => &[Running, FirstToken, Pauses],
        F::SchedMaxQueued => &[],
        F::SchedPrefillChunk | F::SchedPrefillMax | F::SchedMixed => &[FirstToken, Pauses],
        F::SchedPolicy => &[FirstToken],
        F::SchedConservativeness => &[Running, Pauses],
        F::SchedOverlap
        | F::ExecCudaGraph
        | F::ExecGraphMaxBs
        | F::ExecCompile
        | F::EnvBlocking
        | F::ParCustomAllreduce => &[StepRate],
        F::ExecPrefillGraph => &[FirstToken],
        F::ExecAttention
        | F::ExecLinearAttention
        | F::ExecMoe
        | F::ExecOffloadLayers
        | F::ExecThreads => &[StepRate, FirstToken],
        F::ObsLogging | F::ObsLogLevel | F::ObsLogRequests | F::ObsLogInterval => &[StepRate],
        F::EngineVersion | F::EngineName | F::GpuDriver => {
            &[StepRate, AcceptLen, FirstToken, Running]
        }
        F::GpuThrottle | F::GpuOtherProcess => &[StepRate, FirstToken],
        F::WorkloadPromptMix => &[AcceptLen, StepRate, FirstToken],
        F::WorkloadTemperature | F::WorkloadThinking => &[AcceptLen],
        F::WorkloadPrefixReuse => &[FirstToken],
        F::ClientConnectionLimit | F::LoadArrivalRate => &[Running, FirstToken],
        F::ModelServedName
        | F::ApiStreamInterval
        | F::ApiTools
        | F::ObsMetrics
        | F::NetHost
        | F::NetPort => &[],
    }
}

/// What a difference in a factor can do, in one line.
pub fn effect(engine: Engine, factor: Factor) -> &'static str {
    use Factor as F;
    match factor {
        F::SpecMethod | F::SpecNumSteps | F::SpecDraftTokens | F::SpecAdaptive => {
            "tokens per step up or down, each step dearer with depth"
        }
        F::SpecTopk | F::SpecTree => {
            "tokens per step up, step time up with the tokens verified, most at batch and on sparse models"
        }
        F::SpecDraftModel => "how many drafts are accepted, and what a draft costs",
        F::SpecSampling | F::SpecMinProb => "how many drafts are accepted",
        F::ModelPath => "another model: every number may change",
        F::ModelQuant | F::ModelDtype => "bytes read per step, room left for the pools",
        F::ModelMaxContext if engine == Engine::LlamaCpp => {
            "KV for all of it is reserved at start; what no longer fits stays on the host"
        }
        F::ModelMaxContext => "a limit per request; nothing is reserved for it",
        F::MemStaticFraction => "size of both pools, so how many requests run",
        F::MemKvTokens | F::MemKvDtype => "size of the KV pool",
        F::MemStateRatio => {
            "state slots against KV tokens: how many requests run, how much context they have"
        }
        F::MemStateSlots | F::MemStateDtype | F::CacheStateStrategy => {
            "state slots, so how many requests run"
        }
        F::CachePrefix => "prompts computed again in full on every turn",
        F::CacheHostTier => "prefixes kept after they leave the device",
        F::CacheBlock => "how short a prefix can be and still be found",
        F::SchedMaxRunning => {
            "requests that run at once: too few wait, too many push each other out"
        }
        F::SchedMaxQueued => "when requests are refused",
        F::SchedPrefillChunk => {
            "how long a prefill stops the streams, and how fast prompts are computed"
        }
        F::SchedPrefillMax | F::SchedMixed | F::SchedPolicy => {
            "how prefill and decode share the device"
        }
        F::SchedConservativeness => "requests admitted against requests pushed out later",
        F::SchedOverlap => "host work added to every step",
        F::ExecCudaGraph | F::ExecGraphMaxBs => "launches added to every step that has no graph",
        F::ExecPrefillGraph => "launches added to prefill",
        F::ExecAttention | F::ExecLinearAttention | F::ExecMoe | F::ExecCompile => {
            "kernels: step time"
        }
        F::ExecOffloadLayers => "layers computed from host memory are many times slower",
        F::ExecThreads => "host arithmetic",
        F::ParTp | F::ParPp | F::ParEp | F::GpuVisible | F::GpuModel => {
            "devices that share the work of a step"
        }
        F::ParDp => "copies that share the requests",
        F::ParCustomAllreduce => "time to combine results between devices",
        F::ApiStreamInterval => "chunks seen by the client, not speed",
        F::ApiThinking => "length and kind of the answers",
        F::ApiSamplingDefault => "temperature where requests name none, so acceptance",
        F::ObsLogging | F::ObsLogLevel | F::ObsLogRequests | F::ObsLogInterval => {
            "host work added to every step or request"
        }
        F::EnvBlocking => "every launch waits for the device",
        F::EngineVersion | F::EngineName => {
            "anything; judged by whether step rate and acceptance moved"
        }
        F::ModelServedName | F::ApiTools | F::ObsMetrics | F::NetHost | F::NetPort => {
            "nothing about speed"
        }
        F::GpuThrottle => "clocks down: every step slower",
        F::GpuOtherProcess => "device time taken by somebody else",
        F::GpuDriver => "step time",
        F::WorkloadPromptMix => "acceptance and step time follow the text and its length",
        F::WorkloadTemperature => "drafts are accepted less often",
        F::WorkloadThinking => "length and kind of the answers",
        F::WorkloadPrefixReuse => "prompt tokens that must be computed",
        F::ClientConnectionLimit => "requests that reach the server at once",
        F::LoadArrivalRate => "requests that wait",
    }
}
