//! vLLM: one pool of blocks for all layer kinds of a hybrid model.
//!
//! The attention block grows until its page is as large as the state of one recurrent layer.
//! Layers form groups of equal size; one block of the pool serves one group of one request.

use super::args::EngineArgs;
use super::report::{EnginePlan, MemoryLine};
use super::speed::{self, Cost};
use super::{EngineError, GIB};

/// Block sizes are multiples of this many tokens.
const BLOCK_STEP: u64 = 16;
/// Block size of a model without recurrent layers.
const PLAIN_BLOCK: u64 = 16;
/// Share of the memory that vLLM uses by default.
const DEFAULT_FRACTION: f64 = 0.92;
/// Concurrency by default.
const DEFAULT_RUNNING: u64 = 256;
/// Activations, graphs and workspace inside the budget, in GiB: an estimate, the log has the truth.
const WORKSPACE_GIB: f64 = 3.0;

/// The plan of vLLM.
///
/// # Errors
/// When the weights leave no blocks, or fewer state blocks than requests were asked for.
pub fn plan(args: &EngineArgs) -> Result<EnginePlan, EngineError> {
    let (flags, model) = (&args.flags, &args.model);
    let mut notices = unused(args);
    let pool = Pool::of(args, &mut notices);
    let context = flags.context_length.unwrap_or(model.max_positions).max(1);
    let asked = flags.max_running.unwrap_or(DEFAULT_RUNNING);
    pool.check(context, asked)?;
    let full_length = pool.n_blocks as f64 / pool.request_blocks(context) as f64;
    let by_load = pool.n_blocks / pool.request_blocks(args.load_tokens);
    let (max_running, running_limited_by) = if by_load < asked {
        (by_load, format!("KV blocks at {} tokens per request", args.load_tokens))
    } else if flags.max_running.is_some() {
        (asked, "what was asked".to_owned())
    } else {
        (asked, "the default".to_owned())
    };
    let cost = Cost {
        kv_bytes_per_token: pool.token_bytes * model.n_attention_layers as f64,
        state_bytes: pool.layer_state * model.delta.map_or(0, |delta| delta.n_layers) as f64,
        host_share: 0.0,
        host_gb_s: 1.0,
    };
    let Pool { n_blocks, block, .. } = pool;
    if block > PLAIN_BLOCK {
        notices.push(format!("blocks hold {block} tokens: shorter prefixes are never found again"));
    }
    Ok(EnginePlan {
        engine: args.engine.to_string(),
        model: model.name.clone(),
        device: args.device.to_string(),
        memory: vec![
            MemoryLine { name: "weights", bytes: pool.weights },
            MemoryLine { name: "block pool", bytes: n_blocks as f64 * pool.block_bytes },
            MemoryLine { name: "one block", bytes: pool.block_bytes },
        ],
        // vLLM states tokens as concurrency at full length times that length.
        kv_tokens: (full_length * context as f64) as u64,
        kv_limited_by: format!("{n_blocks} blocks of {block} tokens"),
        state_slots: None,
        slots_per_request: None,
        max_running,
        max_running_asked: flags.max_running,
        running_limited_by,
        max_request_tokens: context,
        full_length_requests: full_length,
        speed: speed::table(args, &cost, max_running.max(1)),
        notices,
    })
}

/// The pool of blocks on one device; sizes in bytes.
struct Pool {
    weights: f64,
    /// KV of one token in one layer.
    token_bytes: f64,
    /// State of one recurrent layer of one request.
    layer_state: f64,
    /// Tokens per block.
    block: u64,
    block_bytes: f64,
    n_blocks: u64,
    /// Blocks of recurrent state per request.
    state_blocks: u64,
}

impl Pool {
    fn of(args: &EngineArgs, notices: &mut Vec<String>) -> Pool {
        let (flags, model) = (&args.flags, &args.model);
        let speculates = flags.draft_depth > 0;
        let token_bytes =
            model.kv_bytes_per_token(flags.tp, 1, flags.kv_dtype.map_or(2.0, |dtype| dtype.0));
        let layer_state = state_bytes_per_layer(args);
        let block = block_tokens(layer_state, token_bytes);
        let draft_weights = if speculates { model.mtp_bytes(flags.tp) } else { 0.0 };
        let weights = model.weight_bytes(flags.tp) + draft_weights;
        let bytes = match args.observed {
            // The log names what is available to the pool after profiling.
            Some(observed) => observed.after_gib * GIB,
            None => {
                notices.push(format!(
                    "{WORKSPACE_GIB} GiB for activations and graphs are an estimate"
                ));
                let fraction = flags.mem_fraction.unwrap_or(DEFAULT_FRACTION);
                (args.device.memory_gib * fraction - WORKSPACE_GIB) * GIB - weights
            }
        };
        let n_draft_layers = if speculates { model.n_mtp_layers } else { 0 };
        let group_layers = (model.n_attention_layers + n_draft_layers).max(1);
        let n_state_groups = model.delta.map_or(0, |delta| delta.n_layers.div_ceil(group_layers));
        let block_bytes = block as f64 * token_bytes * group_layers as f64;
        Pool {
            weights,
            token_bytes,
            layer_state,
            block,
            block_bytes,
            n_blocks: (bytes / block_bytes).max(0.0) as u64,
            // A speculative request keeps one further state per draft.
            state_blocks: n_state_groups * (1 + flags.draft_depth),
        }
    }

    /// Blocks of one request with this many tokens.
    fn request_blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.block) + self.state_blocks
    }

    /// What the engine checks before it starts.
    fn check(&self, context: u64, asked: u64) -> Result<(), EngineError> {
        let n_blocks = self.n_blocks;
        let reason = if n_blocks == 0 {
            "the weights leave no memory for KV blocks".to_owned()
        } else if n_blocks < self.request_blocks(context) {
            format!(
                "one request of {context} tokens needs {} blocks, the pool has {n_blocks}: lower \
                 --max-model-len",
                self.request_blocks(context)
            )
        } else if self.state_blocks > 0 && n_blocks / self.state_blocks < asked {
            let fit = n_blocks / self.state_blocks;
            format!("--max-num-seqs {asked} exceeds the {fit} requests whose states fit")
        } else {
            return Ok(());
        };
        Err(EngineError::Refuses(reason))
    }
}

/// State of one recurrent layer; its convolution also keeps one input per draft.
fn state_bytes_per_layer(args: &EngineArgs) -> f64 {
    let Some(delta) = args.model.delta else { return 0.0 };
    let conv_rows = delta.conv_kernel.saturating_sub(1) + args.flags.draft_depth;
    let element = args.flags.state_dtype.map_or(4.0, |dtype| dtype.0);
    args.model.state_bytes(args.flags.tp, conv_rows, 2.0, element) / delta.n_layers as f64
}

/// Tokens per block: the smallest multiple of the step whose page holds a layer's state.
fn block_tokens(layer_state: f64, token_bytes: f64) -> u64 {
    let needed = (layer_state / token_bytes).ceil() as u64;
    needed.div_ceil(BLOCK_STEP).max(PLAIN_BLOCK / BLOCK_STEP) * BLOCK_STEP
}

/// Flags that vLLM does not have.
fn unused(args: &EngineArgs) -> Vec<String> {
    let flags = &args.flags;
    [
        (flags.state_ratio.is_some(), "--mamba-full-memory-ratio"),
        (flags.state_slots.is_some(), "--max-mamba-cache-size"),
        (flags.state_strategy.is_some(), "--mamba-radix-cache-strategy"),
        (flags.max_total_tokens.is_some(), "--max-total-tokens"),
    ]
    .iter()
    .filter(|(given, _)| *given)
    .map(|(_, flag)| format!("{flag} has no meaning for vLLM: all layers share one pool"))
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::args::{ElementBytes, Engine, EngineArgs, Flags, ObservedMemory};
    use super::super::shape::ModelShape;
    use super::super::shape::tests::{qwen_27b, qwen_35b_a3b};
    use super::super::version::Version;
    use super::super::{EngineError, plan};
    use super::{block_tokens, state_bytes_per_layer};

    fn args(model: ModelShape) -> EngineArgs {
        EngineArgs {
            engine: Engine::Vllm(Version(0, 33, 0)),
            model,
            device: "1x96GiB@1800GB/s".parse().unwrap(),
            flags: Flags {
                context_length: Some(65_536),
                max_running: Some(32),
                draft_depth: 3,
                ..Flags::unset()
            },
            observed: None,
            load_tokens: 4000,
            acceptance: None,
        }
    }

    fn block(args: &EngineArgs, kv: f64) -> u64 {
        block_tokens(state_bytes_per_layer(args), args.model.kv_bytes_per_token(1, 1, kv))
    }

    /// Block sizes as public logs state them.
    #[test]
    fn attention_blocks_grow_to_the_size_of_a_state() {
        let nine_b = json!({
            "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 12288,
            "vocab_size": 248_320, "num_attention_heads": 16, "num_key_value_heads": 4,
            "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1
        });
        let mut nine_b = args(ModelShape::from_config("9B", &nine_b).unwrap());
        nine_b.flags.draft_depth = 0;
        assert_eq!(block(&nine_b, 2.0), 528);
        assert_eq!(block(&args(qwen_35b_a3b()), 2.0), 1072);
        assert_eq!(block(&args(qwen_27b()), 1.0), 1600);
        assert_eq!(block_tokens(0.0, 4096.0), 16);
    }

    #[test]
    fn states_and_drafts_take_blocks() {
        let mut fp8 = qwen_27b();
        fp8.layer_bytes_per_param = 1.0;
        let with = plan(&args(fp8.clone())).unwrap();
        let mut without = args(fp8);
        without.flags.draft_depth = 0;
        let without = plan(&without).unwrap();
        assert!(with.kv_tokens < without.kv_tokens);
        assert_eq!((with.max_running, with.running_limited_by.as_str()), (32, "what was asked"));
        let stated = with.full_length_requests * 65_536.0;
        assert!((with.kv_tokens as f64 - stated).abs() <= 1.0);
    }

    #[test]
    fn what_cannot_start_is_refused() {
        let refused = |change: fn(&mut EngineArgs)| {
            let mut args = args(qwen_27b());
            change(&mut args);
            matches!(plan(&args), Err(EngineError::Refuses(_)))
        };
        assert!(refused(|args| args.device.memory_gib = 48.0));
        assert!(refused(|args| args.flags.max_running = Some(1000)));
        let little = |args: &mut EngineArgs| {
            args.observed = Some(ObservedMemory { before_gib: 90.0, after_gib: 3.0 });
            args.flags.max_running = Some(1);
        };
        assert!(refused(little));
    }

    #[test]
    fn flags_of_others_are_named() {
        let mut args = args(qwen_27b());
        args.flags.state_ratio = Some(0.5);
        args.flags.kv_dtype = Some(ElementBytes(1.0));
        let notices = plan(&args).unwrap().notices;
        assert!(notices.iter().any(|notice| notice.starts_with("--mamba-full-memory-ratio")));
        assert!(notices.iter().any(|notice| notice.contains("1600 tokens")));
    }
}
