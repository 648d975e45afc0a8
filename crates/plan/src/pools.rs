//! How the budget is shared out.
//!
//! Weights and buffers come first. What is left is split between recurrent state and KV as SGLang
//! does, state : KV = `mamba_full_memory_ratio` : 1, with two differences that a machine whose
//! memory serves other programs too asks for:
//! - Nobody takes more than can be used. KV for every running request at full length is enough; one
//!   slot for each running request and two more for snapshots (none without a prefix cache) are
//!   enough. What one side does not take, the other may.
//! - A minimum comes before the ratio: one slot, and KV for one request of the context length that
//!   was asked for (of 2048 tokens where none was).
//!
//! `max_*` flags are upper bounds: memory may lower them, and the plan says so. A context length or
//! a number of slots is a promise: it is kept, or there is no plan.

use crate::bytes::{BLOCK_LEN, CARRY_ROWS, KvType, ModelBytes};
use crate::error::PlanError;
use crate::host::Host;
use crate::options::{DEFAULT_RUNNING, PlanOptions};
use crate::server::{Limit, Plan, Setting};
use crate::units::Bytes;

/// Slots per running request that make a prefix cache worth having: its own and two snapshots.
const SLOTS_PER_REQUEST: usize = 3;
/// The shortest context that is worth serving where none was asked for.
const MIN_CONTEXT: usize = 2048;

/// A pass may follow another before the draft head has consumed the hidden rows of both.
const MAX_DRAFT_DEPTH: usize = CARRY_ROWS / 2 - 1;
/// Sums of int8 products over more elements might not fit into 32 bits.
const MAX_INT8_HEAD: usize = 512;
/// Far above every sensible count; keeps the arithmetic from overflowing.
const MAX_COUNT: usize = 1 << 30;

const CONTEXT: &str = "--context-length";
const RUNNING: &str = "--max-running-requests";
const TOTAL: &str = "--max-total-tokens";
const CHUNK: &str = "--chunked-prefill-size";
const SLOTS: &str = "--max-mamba-cache-size";
const STEPS: &str = "--speculative-num-steps";
const FRACTION: &str = "--mem-fraction-static";

/// Decides every size, or says which flag to change.
///
/// # Errors
/// When a flag means nothing here, or when the model, one request of the wanted context or the
/// wanted slots do not fit the budget.
pub fn plan(options: &PlanOptions, model: &ModelBytes, host: &Host) -> Result<Plan, PlanError> {
    let planner = Planner::new(options, model, host)?;
    let mut largest = planner.running_asked();
    if let Some(n_slots) = options.max_mamba_cache_size {
        largest = largest.min(planner.running_with(n_slots));
    }
    // Fewer running requests need smaller buffers and less state: the most that fit are wanted.
    let (mut running, mut too_many) = (1, largest + 1);
    while running + 1 < too_many {
        let middle = running.midpoint(too_many);
        match planner.pools(middle) {
            Ok(pools) if pools.n_slots >= planner.slots_needed(middle) => running = middle,
            _ => too_many = middle,
        }
    }
    Ok(planner.finish(running, &planner.pools(running)?))
}

/// What does not change while the number of running requests is sought.
struct Planner<'a> {
    options: &'a PlanOptions,
    model: &'a ModelBytes,
    host: &'a Host,
    kv_type: KvType,
    budget: u64,
    weights: u64,
    slot: u64,
    block: u64,
    /// The longest context that could be served: as asked, or the model's.
    context: usize,
    chunk: usize,
    /// Most blocks by `max_total_tokens`.
    block_cap: usize,
    slots_per_request: usize,
}

/// How the memory beside weights and buffers is split.
struct Pools {
    n_slots: usize,
    /// Bytes left for KV.
    kv: u64,
}

impl<'a> Planner<'a> {
    fn new(
        options: &'a PlanOptions,
        model: &'a ModelBytes,
        host: &'a Host,
    ) -> Result<Self, PlanError> {
        check(options, model)?;
        let kv_type = options.kv_type.unwrap_or(KvType::of(model.config.dtype));
        let draft = options.draft_depth > 0;
        let context = options.context_length.unwrap_or(model.config.max_positions);
        Ok(Self {
            options,
            model,
            host,
            kv_type,
            budget: (host.memory_bytes as f64 * options.mem_fraction_static) as u64,
            weights: model.weights.loaded(draft),
            slot: model.slot(draft),
            block: model.kv_block(kv_type, draft),
            context,
            chunk: options.chunked_prefill_size.min(context.next_multiple_of(BLOCK_LEN)),
            // Block ids have 32 bits.
            block_cap: options.max_total_tokens.map_or(u32::MAX as usize, |n| n / BLOCK_LEN),
            slots_per_request: if options.prefix_cache { SLOTS_PER_REQUEST } else { 1 },
        })
    }

    fn running_asked(&self) -> usize {
        self.options.max_running_requests.unwrap_or(DEFAULT_RUNNING)
    }

    /// Requests that so many slots serve: as many as asked, or so that snapshots have room too.
    fn running_with(&self, n_slots: usize) -> usize {
        match self.options.max_running_requests {
            Some(_) => n_slots,
            None => (n_slots / self.slots_per_request).max(1),
        }
    }

    /// Slots without which `running` requests are too many.
    fn slots_needed(&self, running: usize) -> usize {
        match self.options.max_running_requests {
            None if running > 1 => running * self.slots_per_request,
            _ => running,
        }
    }

    /// Drafts of one step: one for each running request, and as many more as a hundredth of the
    /// memory of weights and their state holds, so that deep drafts cost no memory worth mention; but
    /// one request alone always drafts as deep as was asked for.
    fn drafts(&self, running: usize) -> usize {
        let depth = self.options.draft_depth;
        let spare = (self.weights + running as u64 * self.slot) / 100;
        let each = self.model.draft() + self.model.scratch_row();
        let more = (spare / each.max(1)) as usize;
        (running + more).max(depth).min(running * depth)
    }

    fn rows(&self, running: usize, chunk: usize) -> usize {
        chunk + running + self.drafts(running)
    }

    /// Activations, and the drafts that wait to be replayed.
    fn buffers(&self, running: usize, chunk: usize) -> u64 {
        let drafts = self.drafts(running) as u64 * self.model.draft();
        self.model.scratch(self.rows(running, chunk)) + drafts
    }

    /// The context that may not be missing.
    fn context_min(&self) -> usize {
        self.options.context_length.unwrap_or(self.context.min(MIN_CONTEXT))
    }

    /// KV blocks of one request of that context.
    fn blocks_min(&self) -> usize {
        self.context_min().div_ceil(BLOCK_LEN).min(self.block_cap)
    }

    /// KV blocks that running requests of full length can use.
    fn blocks_wanted(&self, running: usize) -> usize {
        running.saturating_mul(self.context.div_ceil(BLOCK_LEN)).min(self.block_cap)
    }

    /// Splits what `running` requests' buffers leave.
    fn pools(&self, running: usize) -> Result<Pools, PlanError> {
        let scratch = self.buffers(running, self.chunk);
        let Some(pool) = self.budget.checked_sub(self.weights + scratch) else {
            return Err(self.too_heavy(scratch));
        };
        let kv_min = self.kv(self.blocks_min());
        let least = self.state_min();
        let Some(most) = pool.checked_sub(kv_min).filter(|most| *most >= least) else {
            return Err(match self.options.max_mamba_cache_size {
                Some(n) if pool >= kv_min => self.too_many_slots(n, pool - kv_min, scratch),
                _ => self.too_long(pool.saturating_sub(least), scratch),
            });
        };
        let n_slots = match self.options.max_mamba_cache_size {
            Some(n) => n,
            None => {
                let ratio = self.options.mamba_full_memory_ratio;
                let share = (pool as f64 * (ratio / (1.0 + ratio))) as u64;
                let unused = pool.saturating_sub(self.kv(self.blocks_wanted(running)));
                let state = share.max(unused).clamp(least, most);
                let affordable = state.checked_div(self.slot).map_or(usize::MAX, |n| n as usize);
                affordable.min(running * self.slots_per_request)
            }
        };
        Ok(Pools { n_slots, kv: pool - n_slots as u64 * self.slot })
    }

    fn kv(&self, n_blocks: usize) -> u64 {
        (n_blocks as u64).saturating_mul(self.block)
    }

    /// State that may not be missing: one slot, or the slots that were asked for.
    fn state_min(&self) -> u64 {
        let n_slots = self.options.max_mamba_cache_size.unwrap_or(1);
        (n_slots as u64).saturating_mul(self.slot)
    }

    fn finish(&self, running: usize, pools: &Pools) -> Plan {
        let options = self.options;
        let affordable = pools.kv.checked_div(self.block).map_or(usize::MAX, |n| n as usize);
        let wanted = self.blocks_wanted(running);
        let n_blocks = wanted.min(affordable);
        let n_blocks = Setting {
            value: n_blocks,
            limit: match options.max_total_tokens {
                _ if n_blocks < wanted => Limit::Memory,
                Some(_) if n_blocks == self.block_cap => Limit::Flag(TOTAL),
                _ => Limit::Running,
            },
        };
        let context_length = self.context_setting(n_blocks);
        let chunk = self.chunk.min(context_length.value.next_multiple_of(BLOCK_LEN));
        let (max_rows, max_drafts) = (self.rows(running, chunk), self.drafts(running));
        let mut plan = Plan {
            architecture: self.model.config.architecture.clone(),
            host: self.host.clone(),
            mem_fraction_static: options.mem_fraction_static,
            budget_bytes: self.budget,
            weights: self.model.weights,
            quantization: self.model.quantization,
            scratch_bytes: self.model.scratch(max_rows),
            replay_bytes: max_drafts as u64 * self.model.draft(),
            draft_depth: options.draft_depth,
            kv_type: self.kv_type,
            block_bytes: self.block,
            n_blocks,
            slot_bytes: self.slot,
            n_slots: Setting {
                value: pools.n_slots,
                limit: match options.max_mamba_cache_size {
                    Some(_) => Limit::Flag(SLOTS),
                    None if pools.n_slots < running * self.slots_per_request => Limit::Memory,
                    None => Limit::Running,
                },
            },
            context_length,
            max_running_requests: self.running_setting(running),
            max_queued_requests: options.max_queued_requests,
            chunked_prefill_size: Setting {
                value: chunk,
                limit: match chunk {
                    n if n < options.chunked_prefill_size => Limit::Context,
                    n if n == PlanOptions::default().chunked_prefill_size => Limit::Default,
                    _ => Limit::Flag(CHUNK),
                },
            },
            max_rows,
            max_drafts,
            threads: match options.threads {
                Some(n) => Setting { value: n, limit: Limit::Flag("--threads") },
                None => Setting { value: self.host.n_cores, limit: Limit::Cores },
            },
            notes: Vec::new(),
        };
        plan.notes = self.notes(&plan);
        debug_assert!(plan.total_bytes() <= plan.budget_bytes, "{plan:?}");
        plan
    }

    /// One request of the full context length always fits the pool.
    fn context_setting(&self, n_blocks: Setting<usize>) -> Setting<usize> {
        let held = n_blocks.value * BLOCK_LEN;
        match self.options.context_length {
            Some(value) => Setting { value, limit: Limit::Flag(CONTEXT) },
            None if held < self.context => Setting { value: held, limit: n_blocks.limit },
            None => Setting { value: self.context, limit: Limit::Model },
        }
    }

    fn running_setting(&self, running: usize) -> Setting<usize> {
        let by_slots = self.options.max_mamba_cache_size.map(|n| self.running_with(n));
        let limit = match self.options.max_running_requests {
            _ if running == self.running_asked() => match self.options.max_running_requests {
                Some(_) => Limit::Flag(RUNNING),
                None => Limit::Default,
            },
            _ if by_slots == Some(running) => Limit::Flag(SLOTS),
            _ => Limit::Memory,
        };
        Setting { value: running, limit }
    }

    fn notes(&self, plan: &Plan) -> Vec<String> {
        let mut notes = Vec::new();
        let running = plan.max_running_requests;
        if let Some(asked) = self.options.max_running_requests
            && running.value < asked
        {
            notes.push(match running.limit {
                Limit::Flag(flag) => {
                    format!("{RUNNING} {asked} is capped to {} by {flag}", running.value)
                }
                _ => format!(
                    "{RUNNING} {asked} is capped to {} by memory (a slot of recurrent state takes \
                     {}); raise {FRACTION} or --mamba-full-memory-ratio, or lower {CONTEXT}",
                    running.value,
                    Bytes(self.slot)
                ),
            });
        }
        if let Some(asked) = self.options.max_total_tokens
            && plan.n_blocks.limit == Limit::Memory
        {
            notes.push(format!(
                "{TOTAL} {asked} is more than memory allows: {}",
                plan.max_total_tokens()
            ));
        }
        let (threads, cores) = (plan.threads.value, self.host.n_cores);
        if threads > cores {
            notes.push(format!(
                "--threads {threads} is more than the {cores} cores that this process may use; \
                 threads will wait for each other"
            ));
        }
        notes
    }

    fn too_heavy(&self, scratch: u64) -> PlanError {
        let mut advice = self.raise_fraction(scratch);
        if scratch > self.weights / 4 {
            advice = format!("lower {CHUNK}, or {advice}");
        }
        PlanError::Weights {
            weights: self.weights,
            scratch,
            budget: self.budget,
            fraction: self.options.mem_fraction_static,
            memory: self.host.memory_bytes,
            advice,
        }
    }

    /// `left` bytes are too few for the least KV.
    fn too_long(&self, left: u64, scratch: u64) -> PlanError {
        let fits = left.checked_div(self.block).unwrap_or(0) as usize * BLOCK_LEN;
        let mut ways = Vec::new();
        if fits > 0 {
            ways.push(format!("use {CONTEXT} <= {fits}"));
        }
        match self.kv_type {
            KvType::F32 => ways.push("use --kv-cache-dtype bf16 or int8".to_string()),
            KvType::Bf16 => ways.push("use --kv-cache-dtype int8".to_string()),
            KvType::Int8 => {}
        }
        ways.push(self.raise_fraction(scratch));
        PlanError::Context {
            context: self.context_min(),
            needs: self.kv(self.blocks_min()),
            left,
            fits,
            advice: ways.join(", or "),
        }
    }

    fn too_many_slots(&self, n_slots: usize, left: u64, scratch: u64) -> PlanError {
        let more = self.raise_fraction(scratch);
        let advice = match left / self.slot {
            0 => format!("lower {CONTEXT}, or {more}"),
            n => format!("use {SLOTS} <= {n}, or lower {CONTEXT}, or {more}"),
        };
        PlanError::Slots { n_slots, slot: self.slot, left, advice }
    }

    /// The share of the memory that would hold the least that is needed, if there is one.
    fn raise_fraction(&self, scratch: u64) -> String {
        let parts = [self.weights, scratch, self.state_min(), self.kv(self.blocks_min())];
        let needs = parts.into_iter().fold(0, u64::saturating_add);
        // Rounded up to a hundredth.
        let share = (needs as f64 / self.host.memory_bytes as f64 * 100.0).ceil() / 100.0;
        match share <= 1.0 {
            true => format!("raise {FRACTION} to {share} or more"),
            false => format!("free memory: {} are needed", Bytes(needs)),
        }
    }
}

/// Refuses values that mean nothing here.
fn check(options: &PlanOptions, model: &ModelBytes) -> Result<(), PlanError> {
    let flag = |flag, problem: String| Err(PlanError::Flag { flag, problem });
    let fraction = options.mem_fraction_static;
    if !(fraction > 0.0 && fraction <= 1.0) {
        return flag(FRACTION, format!("{fraction} is not a share above 0 and up to 1"));
    }
    let ratio = options.mamba_full_memory_ratio;
    if !(ratio > 0.0 && ratio.is_finite()) {
        return flag("--mamba-full-memory-ratio", format!("{ratio} is not a number above 0"));
    }
    for (name, value) in [
        (CONTEXT, options.context_length),
        (RUNNING, options.max_running_requests),
        (SLOTS, options.max_mamba_cache_size),
        ("--threads", options.threads),
    ] {
        if let Some(n) = value
            && !(1..=MAX_COUNT).contains(&n)
        {
            return flag(name, format!("{n} is not a number from 1 to {MAX_COUNT}"));
        }
    }
    let chunk = options.chunked_prefill_size;
    if chunk == 0 || !chunk.is_multiple_of(BLOCK_LEN) {
        let (down, up) = (chunk / BLOCK_LEN * BLOCK_LEN, chunk.next_multiple_of(BLOCK_LEN).max(64));
        let nearest = if down == 0 { up.to_string() } else { format!("{down} or {up}") };
        return flag(CHUNK, format!("{chunk} is not a multiple of {BLOCK_LEN}; use {nearest}"));
    }
    let head_dim = model.config.attention.head_dim;
    if options.kv_type == Some(KvType::Int8) && head_dim > MAX_INT8_HEAD {
        let problem = format!("int8 heads have at most {MAX_INT8_HEAD} elements, not {head_dim}");
        return flag("--kv-cache-dtype", problem);
    }
    let longest = model.config.max_positions;
    if let Some(context) = options.context_length
        && context > longest
    {
        return flag(CONTEXT, format!("{context} is more than the {longest} of the model"));
    }
    if let Some(total) = options.max_total_tokens {
        let held = total / BLOCK_LEN * BLOCK_LEN;
        let needed = options.context_length.unwrap_or(1);
        if held < needed {
            let least = needed.next_multiple_of(BLOCK_LEN);
            return flag(
                TOTAL,
                format!("{total} tokens do not hold one request; use {least} or more"),
            );
        }
    }
    if options.draft_depth > MAX_DRAFT_DEPTH {
        let depth = options.draft_depth;
        return flag(
            STEPS,
            format!("{depth} is more than the {MAX_DRAFT_DEPTH} that a slot holds"),
        );
    }
    if options.draft_depth > 0 && model.config.n_mtp_layers == 0 {
        return flag(STEPS, "the model has no draft head (mtp_num_hidden_layers)".to_string());
    }
    Ok(())
}
