//! SGLang 0.4 to 0.5.23.

use super::{Flag, Name, Takes, n, since, turns, until, value};
use crate::factor::Factor as F;

/// `--flag` to factor. The first row of a factor is the one a report proposes.
pub(super) const FLAGS: &[Flag] = &[
    value(F::ModelPath, None, &[n("--model-path"), n("--model")]),
    value(F::ModelServedName, None, &[n("--served-model-name")]),
    value(F::ModelQuant, None, &[n("--quantization")]),
    value(F::ModelDtype, Some("auto"), &[n("--dtype")]),
    value(F::ModelMaxContext, None, &[n("--context-length")]),
    value(F::MemStaticFraction, None, &[n("--mem-fraction-static")]),
    value(F::MemKvTokens, None, &[n("--max-total-tokens")]),
    value(F::MemKvDtype, Some("auto"), &[n("--kv-cache-dtype")]),
    value(F::MemStateRatio, Some("0.9"), &[n("--mamba-full-memory-ratio")]),
    value(F::MemStateSlots, None, &[n("--max-mamba-cache-size")]),
    value(F::MemStateDtype, Some("float32"), &[n("--mamba-ssm-dtype")]),
    value(
        F::CacheStateStrategy,
        Some("auto"),
        &[
            since("--mamba-radix-cache-strategy", (0, 5, 13)),
            until("--mamba-scheduler-strategy", (0, 5, 19)),
        ],
    ),
    turns(F::CachePrefix, false, &[n("--disable-radix-cache")]),
    turns(F::CacheHostTier, true, &[n("--enable-hierarchical-cache")]),
    value(F::CacheBlock, Some("1"), &[n("--page-size")]),
    value(F::SchedMaxRunning, None, &[n("--max-running-requests")]),
    value(F::SchedMaxQueued, None, &[n("--max-queued-requests")]),
    value(F::SchedPrefillChunk, None, &[n("--chunked-prefill-size")]),
    value(F::SchedPrefillMax, Some("16384"), &[n("--max-prefill-tokens")]),
    turns(F::SchedMixed, true, &[n("--enable-mixed-chunk")]),
    value(F::SchedPolicy, Some("fcfs"), &[n("--schedule-policy")]),
    value(F::SchedConservativeness, Some("1"), &[n("--schedule-conservativeness")]),
    turns(F::SchedOverlap, false, &[n("--disable-overlap-schedule")]),
    value(F::SpecMethod, Some("none"), &[n("--speculative-algorithm")]),
    value(F::SpecNumSteps, None, &[n("--speculative-num-steps")]),
    value(F::SpecTopk, None, &[n("--speculative-eagle-topk")]),
    value(
        F::SpecDraftTokens,
        None,
        &[n("--speculative-num-draft-tokens"), n("--speculative-dflash-block-size")],
    ),
    value(
        F::SpecDraftModel,
        None,
        &[n("--speculative-draft-model-path"), n("--speculative-draft-model")],
    ),
    turns(F::SpecSampling, true, &[n("--speculative-use-rejection-sampling")]),
    turns(F::SpecAdaptive, true, &[n("--speculative-adaptive")]),
    turns(F::ExecCudaGraph, false, &[n("--disable-cuda-graph"), n("--disable-decode-cuda-graph")]),
    Flag {
        names: &[n("--cuda-graph-backend-decode")],
        factor: F::ExecCudaGraph,
        takes: Takes::Value,
        default: None,
    },
    turns(
        F::ExecPrefillGraph,
        false,
        &[n("--disable-prefill-cuda-graph"), until("--disable-piecewise-cuda-graph", (0, 5, 19))],
    ),
    value(
        F::ExecGraphMaxBs,
        None,
        &[
            since("--cuda-graph-max-bs-decode", (0, 5, 13)),
            until("--cuda-graph-max-bs", (0, 5, 19)),
        ],
    ),
    value(F::ExecAttention, None, &[n("--attention-backend"), n("--decode-attention-backend")]),
    value(F::ExecLinearAttention, None, &[n("--linear-attn-backend"), n("--mamba-backend")]),
    turns(F::ExecCompile, true, &[n("--enable-torch-compile")]),
    value(F::ExecMoe, Some("auto"), &[n("--moe-runner-backend")]),
    value(F::ExecOffloadLayers, Some("0"), &[n("--cpu-offload-gb")]),
    value(F::ParTp, Some("1"), &[n("--tp-size"), n("--tp"), n("--tensor-parallel-size")]),
    value(F::ParPp, Some("1"), &[n("--pp-size"), n("--pp"), n("--pipeline-parallel-size")]),
    value(
        F::ParDp,
        Some("1"),
        &[n("--dp-size"), n("--dp"), n("--data-parallel-size"), n("--attn-dp-size")],
    ),
    value(F::ParEp, Some("1"), &[n("--ep-size"), n("--ep"), n("--expert-parallel-size")]),
    turns(F::ParCustomAllreduce, false, &[n("--disable-custom-all-reduce")]),
    value(F::ApiStreamInterval, Some("1"), &[n("--stream-interval")]),
    value(F::ApiThinking, None, &[n("--reasoning-parser")]),
    value(F::ApiTools, None, &[n("--tool-call-parser")]),
    value(
        F::ApiSamplingDefault,
        Some("model"),
        &[n("--sampling-defaults"), n("--preferred-sampling-params")],
    ),
    value(F::ObsLogLevel, Some("info"), &[n("--log-level")]),
    turns(F::ObsLogRequests, true, &[n("--log-requests")]),
    value(F::ObsLogInterval, Some("40"), &[n("--decode-log-interval")]),
    turns(F::ObsMetrics, true, &[n("--enable-metrics")]),
    value(F::NetHost, Some("127.0.0.1"), &[n("--host")]),
    value(F::NetPort, Some("30000"), &[n("--port")]),
];

pub(super) const VARIABLES: &[(&str, F)] = &[("SGLANG_MAMBA_SSM_DTYPE", F::MemStateDtype)];

/// Other switches without a value, so that the word after them is not taken for one.
pub(super) const PLAIN_SWITCHES: &[Name] = &[
    n("--trust-remote-code"),
    n("--skip-tokenizer-init"),
    n("--enable-cache-report"),
    n("--enable-dp-attention"),
    n("--enable-linear-replayssm"),
    n("--enable-linear-replayssm-spec"),
    n("--enable-unified-memory"),
    n("--enable-int8-mamba-checkpoint"),
    n("--enable-priority-scheduling"),
    n("--show-time-cost"),
];
