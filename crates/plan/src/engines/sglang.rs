//! SGLang: how the memory left by the weights is split into KV and recurrent states, by release.
//!
//! Read in eleven releases from 0.4.6 to 0.5.23; a release between two of them is taken to follow
//! the older rule, and the plan says so.

mod fraction;
mod pools;

use self::fraction::default_fraction;
use self::pools::{PoolInput, Pools, Rule, split};
use super::args::{EngineArgs, Flags, StateStrategy};
use super::report::{EnginePlan, MemoryLine};
use super::speed::{self, Cost};
use super::version::Version;
use super::{EngineError, GIB};

/// Releases whose source was read; the rules of others are inferred.
const READ: [Version; 11] = [
    Version(0, 4, 6),
    Version(0, 5, 2),
    Version(0, 5, 4),
    Version(0, 5, 5),
    Version(0, 5, 9),
    Version(0, 5, 10),
    Version(0, 5, 11),
    Version(0, 5, 12),
    Version(0, 5, 15),
    Version(0, 5, 18),
    Version(0, 5, 23),
];
/// Memory that driver, context and communication take before the weights, in GiB.
const CONTEXT_GIB: f64 = 1.0;
/// Weights in memory over weights on disk: the allocator rounds up.
const ALLOCATOR: f64 = 1.01;
/// Reserved for multimodal inputs by 0.5.23, in GiB.
const MULTIMODAL_CACHE_GIB: f64 = 100.0 / 1024.0;
/// Concurrency of a speculative run that asks for none.
const SPECULATIVE_DEFAULT: u64 = 48;

/// The plan of SGLang `version`.
///
/// # Errors
/// When this release would refuse the flags or find no memory for its pools.
pub fn plan(args: &EngineArgs, version: Version) -> Result<EnginePlan, EngineError> {
    let mut notices = Vec::new();
    let flags = &args.flags;
    let rule = Rule::of(version);
    if !READ.contains(&version) {
        notices.push(format!("SGLang {version} was not read; its rules follow its neighbours"));
    }
    let prefix_cache = prefix_cache(args, version, &mut notices)?;
    let strategy = strategy(flags, version);
    let per_request = slots_per_request(flags, prefix_cache, strategy);
    let memory = memory(args, version, &mut notices);

    let model = &args.model;
    let bytes = Bytes::of(args);
    let asked = flags.max_running.or((flags.draft_depth > 0).then_some(SPECULATIVE_DEFAULT));
    let pools = split(&PoolInput {
        rule,
        rest: memory.rest,
        slot_bytes: bytes.slot,
        state_ratio: flags.state_ratio.unwrap_or(0.9),
        explicit_slots: flags.state_slots,
        per_request,
        verify_width: flags.verify_width(),
        asked,
        prefix_cache,
        cell: if rule.charges_draft() {
            bytes.target_cell + bytes.draft_cell
        } else {
            bytes.target_cell
        },
        max_total_tokens: flags.max_total_tokens,
    })?;
    let context = flags.context_length.unwrap_or(model.max_positions).max(1);
    let (max_running, running_limited_by) = running(&Running {
        rule,
        asked: flags.max_running,
        speculative: flags.draft_depth > 0,
        context,
        pools: &pools,
        per_request,
    });
    if max_running == 0 {
        notices.push("no request can run: this release starts and then misbehaves".to_owned());
    }
    if flags.draft_depth > 0 && version <= Version(0, 5, 10) && flags.overlap {
        notices.push(
            "up to 0.5.10 overlap with speculation needs SGLANG_ENABLE_SPEC_V2=1; without it a \
             request is charged 4 slots"
                .to_owned(),
        );
    }
    let cost = Cost {
        kv_bytes_per_token: bytes.target_cell,
        state_bytes: bytes.slot,
        host_share: 0.0,
        host_gb_s: 1.0,
    };
    Ok(EnginePlan {
        engine: args.engine.to_string(),
        model: model.name.clone(),
        device: args.device.to_string(),
        memory: memory_lines(&memory, &bytes, &pools, (max_running + 1) * flags.verify_width()),
        kv_tokens: pools.kv_tokens,
        kv_limited_by: pools.kv_limited_by,
        state_slots: pools.slots,
        slots_per_request: pools.slots.map(|_| per_request),
        max_running,
        max_running_asked: flags.max_running,
        running_limited_by,
        max_request_tokens: context,
        full_length_requests: pools.kv_tokens as f64 / context as f64,
        speed: speed::table(args, &cost, max_running),
        notices,
    })
}

/// Sizes on one device.
struct Bytes {
    /// One recurrent-state slot.
    slot: f64,
    /// KV of one token in the target.
    target_cell: f64,
    /// KV of one token in the draft head, 0 without speculation.
    draft_cell: f64,
}

impl Bytes {
    fn of(args: &EngineArgs) -> Bytes {
        let (model, flags) = (&args.model, &args.flags);
        let kv_element = flags.kv_dtype.map_or(2.0, |dtype| dtype.0);
        let state_element = flags.state_dtype.map_or(4.0, |dtype| dtype.0);
        let conv_rows = model.delta.map_or(0, |delta| delta.conv_kernel.saturating_sub(1));
        let n_draft_layers = if flags.draft_depth == 0 { 0 } else { model.n_mtp_layers };
        let cell = |n_layers| model.kv_bytes_per_token(flags.tp, n_layers, kv_element);
        Bytes {
            slot: model.state_bytes(flags.tp, conv_rows, 2.0, state_element),
            target_cell: cell(model.n_attention_layers),
            draft_cell: cell(n_draft_layers),
        }
    }
}

/// What is allocated: one slot more than usable, and scratch for the requests that really run.
fn memory_lines(memory: &Memory, bytes: &Bytes, pools: &Pools, n_scratch: u64) -> Vec<MemoryLine> {
    let tokens = pools.kv_tokens as f64;
    let slots = pools.slots.map_or(0.0, |slots| (slots + 1) as f64);
    let lines = [
        ("weights", memory.weights),
        ("KV pool", tokens * bytes.target_cell),
        ("KV of the draft head", tokens * bytes.draft_cell),
        ("recurrent-state slots", slots * bytes.slot),
        ("speculative scratch", n_scratch as f64 * bytes.slot),
        ("outside the static fraction", memory.outside),
    ];
    lines.into_iter().map(|(name, bytes)| MemoryLine { name, bytes }).collect()
}

/// Memory of one device in bytes.
struct Memory {
    /// Weights, target and where they are charged also the draft head.
    weights: f64,
    /// What all pools share.
    rest: f64,
    /// What stays outside the static fraction: graphs, activations.
    outside: f64,
}

fn memory(args: &EngineArgs, version: Version, notices: &mut Vec<String>) -> Memory {
    let flags = &args.flags;
    let fraction = flags.mem_fraction.unwrap_or_else(|| {
        let fraction = default_fraction(args, version);
        notices.push(format!("--mem-fraction-static defaults to about {fraction:.3} here"));
        fraction
    });
    let charged_draft = if Rule::of(version).charges_draft() && flags.draft_depth > 0 {
        args.model.mtp_bytes(flags.tp)
    } else {
        0.0
    };
    let estimate = (args.model.weight_bytes(flags.tp) + charged_draft) * ALLOCATOR;
    let (before, after) = match args.observed {
        Some(observed) => (observed.before_gib * GIB, observed.after_gib * GIB),
        None => {
            notices.push(format!(
                "free memory is estimated: {CONTEXT_GIB} GiB for the context, weights × {ALLOCATOR}"
            ));
            let before = (args.device.memory_gib - CONTEXT_GIB) * GIB;
            let multimodal = args.model.vision_params > 0 && Version(0, 5, 23) <= version;
            let cache = if multimodal { MULTIMODAL_CACHE_GIB * GIB } else { 0.0 };
            (before, before - estimate - cache)
        }
    };
    let outside = before * (1.0 - fraction);
    Memory { weights: before - after, rest: after - outside, outside }
}

/// Whether prefixes are cached after the release's own rules for hybrids with speculation.
fn prefix_cache(
    args: &EngineArgs,
    version: Version,
    notices: &mut Vec<String>,
) -> Result<bool, EngineError> {
    let flags = &args.flags;
    let conflict = flags.prefix_cache
        && flags.draft_depth > 0
        && args.model.delta.is_some()
        && strategy(flags, version) == StateStrategy::NoBuffer;
    if !conflict || version < Version(0, 5, 9) {
        return Ok(flags.prefix_cache);
    }
    if version < Version(0, 5, 10) {
        notices.push("this release turns the prefix cache off with speculation".to_owned());
        return Ok(false);
    }
    Err(EngineError::Refuses(
        "speculation with the prefix cache needs --mamba-scheduler-strategy extra_buffer"
            .to_owned(),
    ))
}

/// The strategy in force; `auto` changed its meaning.
fn strategy(flags: &Flags, version: Version) -> StateStrategy {
    let auto = if version < Version(0, 5, 15) || !flags.overlap {
        StateStrategy::NoBuffer
    } else {
        StateStrategy::ExtraBuffer
    };
    flags.state_strategy.unwrap_or(auto)
}

/// Slots that one running request is charged.
fn slots_per_request(flags: &Flags, prefix_cache: bool, strategy: StateStrategy) -> u64 {
    match (prefix_cache, strategy, flags.overlap) {
        (false, ..) => 1,
        (true, StateStrategy::NoBuffer, _) => 3,
        (true, StateStrategy::ExtraBuffer, true) => 5,
        (true, StateStrategy::ExtraBuffer, false) | (true, StateStrategy::ExtraBufferLazy, _) => 4,
    }
}

/// What the running limit depends on.
struct Running<'a> {
    rule: Rule,
    asked: Option<u64>,
    speculative: bool,
    context: u64,
    pools: &'a Pools,
    per_request: u64,
}

/// Requests that can run at once, and what limits them.
fn running(input: &Running<'_>) -> (u64, String) {
    let Pools { kv_tokens, slots, .. } = input.pools;
    let by_context = kv_tokens.saturating_mul(512) / input.context;
    let usual = by_context.clamp(2048, 4096);
    let (mut limit, mut reason) = match (input.asked, input.speculative) {
        (Some(asked), _) => (asked, "what was asked".to_owned()),
        (None, true) => (SPECULATIVE_DEFAULT, "the default with speculation".to_owned()),
        (None, false) => (usual, "the default".to_owned()),
    };
    let tokens_cap = if input.rule.charges_draft() { kv_tokens / 2 } else { usual };
    if tokens_cap < limit {
        (limit, reason) = (tokens_cap, format!("the KV pool of {kv_tokens} tokens"));
    }
    if let Some(slots) = slots
        && slots / input.per_request < limit
    {
        limit = slots / input.per_request;
        reason = format!("state slots: {slots} slots, {} per request", input.per_request);
    }
    (limit, reason)
}

#[cfg(test)]
mod tests;
