//! The split of the remaining memory into state slots and KV tokens.

use super::super::version::Version;
use super::EngineError;

/// The four rules of splitting, by release.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rule {
    /// Up to 0.5.8: every slot carries the states of all draft tokens.
    StatesInSlots,
    /// 0.5.9 to 0.5.14: scratch for the requested concurrency comes off first.
    ScratchFirst,
    /// 0.5.15 to 0.5.17: scratch is part of the state share; the draft head is charged.
    ScratchInShare,
    /// From 0.5.18: the same with one slot of padding.
    ScratchInSharePadded,
}

impl Rule {
    pub(super) fn of(version: Version) -> Rule {
        if version < Version(0, 5, 6) {
            Rule::StatesInSlots
        } else if version < Version(0, 5, 15) {
            Rule::ScratchFirst
        } else if version < Version(0, 5, 18) {
            Rule::ScratchInShare
        } else {
            Rule::ScratchInSharePadded
        }
    }

    /// Whether weights and KV of the draft head are charged to the pools.
    pub(super) fn charges_draft(self) -> bool {
        matches!(self, Rule::ScratchInShare | Rule::ScratchInSharePadded)
    }
}

/// What the split depends on; sizes in bytes on one device.
pub(super) struct PoolInput {
    pub(super) rule: Rule,
    /// Memory for all pools.
    pub(super) rest: f64,
    /// One recurrent-state slot, 0 without such layers.
    pub(super) slot_bytes: f64,
    /// State bytes over KV bytes.
    pub(super) state_ratio: f64,
    pub(super) explicit_slots: Option<u64>,
    pub(super) per_request: u64,
    /// Draft tokens per verify with the root, 0 without speculation.
    pub(super) verify_width: u64,
    /// Requested concurrency; `None` only without speculation.
    pub(super) asked: Option<u64>,
    pub(super) prefix_cache: bool,
    /// KV of one token.
    pub(super) cell: f64,
    pub(super) max_total_tokens: Option<u64>,
}

/// The sizes of the pools.
#[derive(Debug)]
pub(super) struct Pools {
    /// State slots without padding; `None` without such layers.
    pub(super) slots: Option<u64>,
    pub(super) kv_tokens: u64,
    pub(super) kv_limited_by: String,
}

/// Splits the memory that the weights leave.
///
/// # Errors
/// When nothing is left, or when a release that checks it finds no slot for a request.
pub(super) fn split(input: &PoolInput) -> Result<Pools, EngineError> {
    if input.rest <= 0.0 {
        return Err(EngineError::Refuses(
            "the weights leave no memory for pools: raise --mem-fraction-static or --tp-size"
                .into(),
        ));
    }
    let (slots, kv_bytes) = if input.slot_bytes == 0.0 {
        (None, input.rest)
    } else {
        let (slots, kv_bytes) = states_and_kv(input);
        if input.rule.charges_draft() && slots / input.per_request == 0 {
            return Err(EngineError::Refuses(format!(
                "{slots} state slots serve no request ({} are needed): raise \
                 --mem-fraction-static or --mamba-full-memory-ratio, lower \
                 --max-running-requests or --speculative-num-draft-tokens",
                input.per_request
            )));
        }
        (Some(slots), kv_bytes)
    };
    let tokens = (kv_bytes / input.cell).floor();
    if tokens < 1.0 {
        return Err(EngineError::Refuses("recurrent states leave no memory for KV".into()));
    }
    let tokens = tokens as u64;
    Ok(match input.max_total_tokens {
        Some(cap) if cap < tokens => {
            Pools { slots, kv_tokens: cap, kv_limited_by: "--max-total-tokens".into() }
        }
        _ => Pools { slots, kv_tokens: tokens, kv_limited_by: kv_reason(input) },
    })
}

fn kv_reason(input: &PoolInput) -> String {
    match (input.slot_bytes == 0.0, input.verify_width) {
        (true, _) => "memory beside the weights".into(),
        (false, 0) => "memory beside weights and state slots".into(),
        (false, _) => "memory beside weights, state slots and speculative scratch".into(),
    }
}

/// Number of slots, and bytes left for KV.
fn states_and_kv(input: &PoolInput) -> (u64, f64) {
    let (rest, slot) = (input.rest, input.slot_bytes);
    let width = input.verify_width as f64;
    let share = |bytes: f64| bytes * input.state_ratio / (1.0 + input.state_ratio);
    // Without a prefix cache a request needs one slot, so the requested concurrency is enough.
    let given = match (input.prefix_cache, input.asked) {
        (false, Some(asked)) => Some(asked),
        (false, None) if input.rule == Rule::StatesInSlots => Some(512),
        _ => None,
    };
    let given = input.explicit_slots.or(given);
    let count = |bytes: f64, each: f64| given.unwrap_or((bytes / each).max(0.0) as u64);
    let running = |slots: u64| {
        let fit = slots / input.per_request;
        input.asked.map_or(fit, |asked| asked.min(fit)) as f64
    };
    // Share of the scratch that each slot brings along, since a request is charged several slots.
    let scratch_per_slot = 1.0 + width / input.per_request as f64;
    match input.rule {
        Rule::StatesInSlots => {
            let each = slot * (1.0 + width);
            let slots = count(share(rest), each);
            (slots, rest - slots as f64 * each)
        }
        Rule::ScratchFirst => {
            let rest = rest - input.asked.unwrap_or(0) as f64 * width * slot;
            let slots = count(share(rest), slot);
            (slots, rest - slots as f64 * slot)
        }
        Rule::ScratchInShare => {
            let slots = count(share(rest), slot * scratch_per_slot);
            (slots, rest - (slots as f64 + running(slots) * width) * slot)
        }
        Rule::ScratchInSharePadded => {
            let slots = count(share(rest) - slot * (1.0 + width), slot * scratch_per_slot);
            let padded = slots as f64 + 1.0 + (running(slots) + 1.0) * width;
            (slots, rest - padded * slot)
        }
    }
}
