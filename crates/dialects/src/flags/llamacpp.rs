//! llama.cpp's `llama-server`.

use super::{Flag, Name, Takes, n, value};
use crate::factor::Factor as F;

const fn optional(factor: F, default: Option<&'static str>, names: &'static [Name]) -> Flag {
    Flag { names, factor, takes: Takes::Optional, default }
}

const fn switch(
    factor: F,
    to: bool,
    default: Option<&'static str>,
    names: &'static [Name],
) -> Flag {
    Flag { names, factor, takes: Takes::Turns(to), default }
}

/// `-f`, `--flag` to factor. The first row of a factor is the one a report proposes.
pub(super) const FLAGS: &[Flag] = &[
    value(
        F::ModelPath,
        None,
        &[n("-m"), n("--model"), n("-hf"), n("-hfr"), n("--hf-repo"), n("-mu"), n("--model-url")],
    ),
    value(F::ModelServedName, None, &[n("-a"), n("--alias")]),
    value(F::ModelMaxContext, None, &[n("-c"), n("--ctx-size")]),
    value(F::MemStaticFraction, None, &[n("--fit-target")]),
    value(
        F::MemKvDtype,
        Some("float16"),
        &[n("-ctk"), n("--cache-type-k"), n("-ctv"), n("--cache-type-v")],
    ),
    switch(F::CachePrefix, true, Some("on"), &[n("--cache-prompt")]),
    value(F::CacheHostTier, None, &[n("--cache-ram"), n("-cram")]),
    value(F::CacheStateStrategy, None, &[n("--ctx-checkpoints"), n("--swa-checkpoints")]),
    value(F::SchedMaxRunning, Some("1"), &[n("-np"), n("--parallel")]),
    value(F::SchedPrefillChunk, Some("2048"), &[n("-b"), n("--batch-size")]),
    value(F::SchedPrefillMax, Some("512"), &[n("-ub"), n("--ubatch-size")]),
    value(F::SpecMethod, Some("none"), &[n("--spec-type")]),
    value(
        F::SpecNumSteps,
        Some("3"),
        &[n("--spec-draft-n-max"), n("--draft-max"), n("--draft"), n("--draft-n")],
    ),
    value(F::SpecDraftModel, None, &[n("--spec-draft-model"), n("-md"), n("--model-draft")]),
    value(F::SpecMinProb, Some("0"), &[n("--spec-draft-p-min"), n("--draft-p-min")]),
    value(F::SpecSampling, Some("greedy"), &[n("--spec-draft-sampling")]),
    optional(F::ExecAttention, Some("auto"), &[n("-fa"), n("--flash-attn")]),
    value(F::ExecMoe, None, &[n("-ncmoe"), n("--n-cpu-moe")]),
    switch(F::ExecMoe, true, None, &[n("-cmoe"), n("--cpu-moe")]),
    value(F::ExecOffloadLayers, None, &[n("-ngl"), n("--gpu-layers"), n("--n-gpu-layers")]),
    value(F::ExecThreads, None, &[n("-t"), n("--threads")]),
    value(F::ParTp, None, &[n("-sm"), n("--split-mode")]),
    value(F::ParPp, None, &[n("-ts"), n("--tensor-split")]),
    value(F::GpuVisible, None, &[n("-dev"), n("--device"), n("-mg"), n("--main-gpu")]),
    value(
        F::ApiThinking,
        None,
        &[n("-rea"), n("--reasoning"), n("--reasoning-format"), n("--reasoning-budget")],
    ),
    value(F::ApiSamplingDefault, None, &[n("--temp"), n("--temperature")]),
    value(F::ObsLogLevel, None, &[n("-lv"), n("--verbosity"), n("--log-verbosity")]),
    switch(F::ObsLogRequests, true, Some("off"), &[n("-v"), n("--verbose"), n("--log-verbose")]),
    switch(F::ObsMetrics, true, Some("off"), &[n("--metrics")]),
    value(F::NetHost, Some("127.0.0.1"), &[n("--host")]),
    value(F::NetPort, Some("8080"), &[n("--port")]),
];

pub(super) const VARIABLES: &[(&str, F)] = &[
    ("LLAMA_ARG_MODEL", F::ModelPath),
    ("LLAMA_ARG_CTX_SIZE", F::ModelMaxContext),
    ("LLAMA_ARG_N_PARALLEL", F::SchedMaxRunning),
    ("LLAMA_ARG_N_GPU_LAYERS", F::ExecOffloadLayers),
    ("LLAMA_ARG_FLASH_ATTN", F::ExecAttention),
    ("LLAMA_ARG_CACHE_TYPE_K", F::MemKvDtype),
    ("LLAMA_ARG_BATCH", F::SchedPrefillChunk),
    ("LLAMA_ARG_UBATCH", F::SchedPrefillMax),
    ("LLAMA_ARG_THREADS", F::ExecThreads),
    ("LLAMA_ARG_PORT", F::NetPort),
    ("LLAMA_ARG_HOST", F::NetHost),
    ("LLAMA_ARG_ALIAS", F::ModelServedName),
    ("GGML_CUDA_DISABLE_GRAPHS", F::ExecCudaGraph),
];

/// Other switches without a value.
pub(super) const PLAIN_SWITCHES: &[Name] = &[
    n("--jinja"),
    n("--no-jinja"),
    n("--mlock"),
    n("--no-mmap"),
    n("--slots"),
    n("--no-slots"),
    n("--props"),
    n("--no-warmup"),
    n("--kv-unified"),
    n("-kvu"),
    n("--spec-default"),
    n("--no-webui"),
    n("--no-context-shift"),
    n("--context-shift"),
    n("--embeddings"),
    n("-cb"),
    n("--cont-batching"),
];
