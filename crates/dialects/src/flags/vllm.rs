//! vLLM 0.6 to 0.33.

use super::{Flag, Name, Takes, n, turns, value};
use crate::factor::Factor as F;

const fn json(factor: F, names: &'static [Name]) -> Flag {
    Flag { names, factor, takes: Takes::Json, default: None }
}

/// `--flag` to factor. The first row of a factor is the one a report proposes.
pub(super) const FLAGS: &[Flag] = &[
    value(F::ModelPath, None, &[n("--model")]),
    Flag {
        names: &[n("--served-model-name")],
        factor: F::ModelServedName,
        takes: Takes::Many,
        default: None,
    },
    value(F::ModelQuant, None, &[n("--quantization"), n("-q")]),
    value(F::ModelDtype, Some("auto"), &[n("--dtype")]),
    value(F::ModelMaxContext, None, &[n("--max-model-len"), n("--max-seq-len")]),
    value(
        F::MemStaticFraction,
        None,
        &[n("--gpu-memory-utilization"), n("--device-memory-utilization")],
    ),
    value(F::MemKvTokens, None, &[n("--num-gpu-blocks-override"), n("--kv-cache-memory-bytes")]),
    value(F::MemKvDtype, Some("auto"), &[n("--kv-cache-dtype")]),
    value(
        F::MemStateDtype,
        Some("auto"),
        &[n("--mamba-ssm-cache-dtype"), n("--mamba-cache-dtype")],
    ),
    value(F::CacheStateStrategy, None, &[n("--mamba-cache-mode")]),
    Flag {
        names: &[n("--enable-prefix-caching")],
        factor: F::CachePrefix,
        takes: Takes::Turns(true),
        default: None,
    },
    value(F::CacheHostTier, None, &[n("--kv-offloading-size"), n("--swap-space")]),
    value(F::CacheBlock, None, &[n("--block-size")]),
    value(F::SchedMaxRunning, None, &[n("--max-num-seqs")]),
    value(F::SchedPrefillChunk, None, &[n("--max-num-batched-tokens")]),
    value(F::SchedPrefillMax, None, &[n("--long-prefill-token-threshold")]),
    value(F::SchedPolicy, Some("fcfs"), &[n("--scheduling-policy")]),
    Flag {
        names: &[n("--async-scheduling")],
        factor: F::SchedOverlap,
        takes: Takes::Turns(true),
        default: None,
    },
    json(F::SpecMethod, &[n("--speculative-config"), n("-sc")]),
    value(F::SpecMethod, Some("none"), &[n("--speculative-config.method"), n("--spec-method")]),
    value(
        F::SpecNumSteps,
        None,
        &[
            n("--speculative-config.num-speculative-tokens"),
            n("--speculative-config.num-spec-tokens"),
            n("--spec-tokens"),
            n("--num-speculative-tokens"),
        ],
    ),
    value(
        F::SpecDraftModel,
        None,
        &[n("--speculative-config.model"), n("--spec-model"), n("--speculative-model")],
    ),
    value(
        F::SpecSampling,
        None,
        &[
            n("--speculative-config.rejection-sample-method"),
            n("--speculative-config.draft-sample-method"),
        ],
    ),
    value(
        F::SpecAdaptive,
        None,
        &[n("--speculative-config.num-speculative-tokens-per-batch-size")],
    ),
    turns(F::ExecCudaGraph, false, &[n("--enforce-eager")]),
    json(F::ExecCompile, &[n("--compilation-config"), n("-cc")]),
    value(F::ExecCudaGraph, None, &[n("--compilation-config.cudagraph-mode")]),
    value(
        F::ExecGraphMaxBs,
        None,
        &[
            n("--max-cudagraph-capture-size"),
            n("--compilation-config.max-cudagraph-capture-size"),
            n("--compilation-config.cudagraph-capture-sizes"),
            n("--cudagraph-capture-sizes"),
        ],
    ),
    value(
        F::ExecCompile,
        None,
        &[
            n("--optimization-level"),
            n("-O"),
            n("--compilation-config.mode"),
            n("--compilation-config.level"),
        ],
    ),
    value(F::ExecAttention, None, &[n("--attention-backend")]),
    value(F::ExecLinearAttention, None, &[n("--gdn-prefill-backend"), n("--mamba-backend")]),
    value(F::ExecMoe, None, &[n("--moe-backend")]),
    value(F::ExecOffloadLayers, Some("0"), &[n("--cpu-offload-gb")]),
    value(F::ParTp, Some("1"), &[n("--tensor-parallel-size"), n("-tp")]),
    value(F::ParPp, Some("1"), &[n("--pipeline-parallel-size"), n("-pp")]),
    value(F::ParDp, Some("1"), &[n("--data-parallel-size"), n("-dp")]),
    turns(F::ParEp, true, &[n("--enable-expert-parallel")]),
    turns(F::ParCustomAllreduce, false, &[n("--disable-custom-all-reduce")]),
    value(F::GpuVisible, None, &[n("--device-ids")]),
    value(F::ApiStreamInterval, Some("1"), &[n("--stream-interval")]),
    value(F::ApiThinking, None, &[n("--reasoning-parser")]),
    value(F::ApiTools, None, &[n("--tool-call-parser")]),
    value(
        F::ApiSamplingDefault,
        None,
        &[n("--generation-config"), n("--override-generation-config")],
    ),
    turns(F::ObsLogRequests, true, &[n("--enable-log-requests")]),
    turns(F::ObsMetrics, false, &[n("--disable-log-stats")]),
    value(F::NetHost, None, &[n("--host")]),
    value(F::NetPort, Some("8000"), &[n("--port")]),
];

pub(super) const VARIABLES: &[(&str, F)] = &[
    ("VLLM_LOGGING_LEVEL", F::ObsLogLevel),
    ("VLLM_TRACE_FUNCTION", F::ObsLogRequests),
    ("VLLM_ATTENTION_BACKEND", F::ExecAttention),
];

/// Other switches without a value.
pub(super) const PLAIN_SWITCHES: &[Name] = &[
    n("--trust-remote-code"),
    n("--enable-auto-tool-choice"),
    n("--enable-chunked-prefill"),
    n("--disable-log-requests"),
    n("--skip-tokenizer-init"),
    n("--headless"),
    n("--language-model-only"),
];
