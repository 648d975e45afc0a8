//! Our own server, from a model's sizes alone: the same plan that `outrider serve` makes before it starts.
//!
//! A device is one machine here: its memory is what the process may take, its bandwidth that of the host memory.

use checkpoint::DType;
use checkpoint::config::{Arch, AttentionConfig, DeltaConfig, LayerKind, ModelConfig};

use super::args::{EngineArgs, Flags};
use super::report::{EnginePlan, MemoryLine};
use super::shape::{FeedForward, ModelShape};
use super::speed::{self, Cost};
use super::{EngineError, GIB};
use crate::{Host, KvType, MemoryLimit, ModelBytes, PlanOptions, Quantization};

/// The plan of `outrider serve`.
///
/// # Errors
/// When it would refuse to start, or cannot run such a model.
pub fn plan(args: &EngineArgs) -> Result<EnginePlan, EngineError> {
    let (flags, model) = (&args.flags, &args.model);
    let refuses = |reason: String| EngineError::Refuses(reason);
    if args.device.count > 1 || flags.tp > 1 {
        return Err(refuses(
            "outrider runs on one machine: give one device, 1xMEMORY@BANDWIDTH".into(),
        ));
    }
    if flags.draft_depth > 0 && model.n_mtp_layers == 0 {
        return Err(refuses("speculation needs a draft head, and this model has none".into()));
    }
    let config = config(model)?;
    let host = Host {
        cpu_name: args.device.to_string(),
        n_cores: 1,
        memory_bytes: (args.device.memory_gib * GIB) as u64,
        memory_limit: MemoryLimit::Machine,
    };
    let bytes = ModelBytes::new(&config, Quantization::AsStored, &|_| DType::Bf16);
    let plan = crate::plan(&options(flags)?, &bytes, &host).map_err(|e| refuses(e.to_string()))?;
    let context = plan.context_length.value as u64;
    let kv_tokens = plan.max_total_tokens() as u64;
    let cost = Cost {
        kv_bytes_per_token: plan.block_bytes as f64 / crate::BLOCK_LEN as f64,
        state_bytes: plan.slot_bytes as f64,
        host_share: 0.0,
        host_gb_s: args.device.bandwidth_gb_s,
    };
    let max_running = plan.max_running_requests.value as u64;
    let mut notices = plan.notes.clone();
    notices
        .push("weights are planned as bf16, as most checkpoints of this family have them".into());
    Ok(EnginePlan {
        engine: args.engine.to_string(),
        model: model.name.clone(),
        device: args.device.to_string(),
        memory: vec![
            MemoryLine { name: "weights", bytes: plan.weight_bytes() as f64 },
            MemoryLine { name: "KV pool", bytes: plan.kv_bytes() as f64 },
            MemoryLine { name: "recurrent-state slots", bytes: plan.state_bytes() as f64 },
            MemoryLine { name: "buffers", bytes: (plan.scratch_bytes + plan.replay_bytes) as f64 },
            MemoryLine {
                name: "left of the budget",
                bytes: plan.budget_bytes.saturating_sub(plan.total_bytes()) as f64,
            },
        ],
        kv_tokens,
        kv_limited_by: plan.n_blocks.limit.to_string(),
        state_slots: model.delta.map(|_| plan.n_slots.value as u64),
        slots_per_request: model.delta.map(|_| 1),
        max_running,
        max_running_asked: flags.max_running,
        running_limited_by: plan.max_running_requests.limit.to_string(),
        max_request_tokens: context,
        full_length_requests: kv_tokens as f64 / context.max(1) as f64,
        speed: speed::table(args, &cost, max_running),
        notices,
    })
}

fn options(flags: &Flags) -> Result<PlanOptions, EngineError> {
    let count = |n: Option<u64>| n.map(|n| n as usize);
    let default = PlanOptions::default();
    let kv_type = match flags.kv_dtype.map(|dtype| dtype.0) {
        None => None,
        Some(1.0) => Some(KvType::Int8),
        Some(2.0) => Some(KvType::Bf16),
        Some(4.0) => Some(KvType::F32),
        Some(_) => {
            return Err(EngineError::Refuses(
                "--kv-cache-dtype: outrider has int8, bf16 and f32".into(),
            ));
        }
    };
    Ok(PlanOptions {
        mem_fraction_static: flags.mem_fraction.unwrap_or(default.mem_fraction_static),
        context_length: count(flags.context_length),
        max_running_requests: count(flags.max_running),
        max_total_tokens: count(flags.max_total_tokens),
        chunked_prefill_size: count(flags.chunked_prefill).unwrap_or(default.chunked_prefill_size),
        mamba_full_memory_ratio: flags.state_ratio.unwrap_or(default.mamba_full_memory_ratio),
        max_mamba_cache_size: count(flags.state_slots),
        kv_type,
        draft_depth: flags.draft_depth as usize,
        prefix_cache: flags.prefix_cache,
        ..default
    })
}

/// The configuration that a `config.json` of these sizes would give.
fn config(model: &ModelShape) -> Result<ModelConfig, EngineError> {
    let FeedForward::Dense { inner } = model.feed_forward else {
        return Err(EngineError::Refuses("outrider runs no models with experts".into()));
    };
    let kinds = [
        (LayerKind::Linear, model.delta.map_or(0, |d| d.n_layers)),
        (LayerKind::Full, model.n_attention_layers),
    ];
    let layers =
        kinds.into_iter().flat_map(|(kind, n)| std::iter::repeat_n(kind, n as usize)).collect();
    Ok(ModelConfig {
        arch: if model.delta.is_some() { Arch::Qwen35 } else { Arch::Qwen3 },
        architecture: model.name.clone(),
        model_type: String::new(),
        vocab_size: model.vocab as usize,
        hidden_size: model.hidden as usize,
        intermediate_size: inner as usize,
        layers,
        attention: AttentionConfig {
            n_heads: model.n_heads as usize,
            n_kv_heads: model.n_kv_heads as usize,
            head_dim: model.head_dim as usize,
            rotary_dim: 0,
            output_gate: model.output_gate,
            qk_norm: true,
            inv_freq: Vec::new(),
        },
        delta: model.delta.map(|d| DeltaConfig {
            n_key_heads: d.n_key_heads as usize,
            n_value_heads: d.n_value_heads as usize,
            key_dim: d.key_dim as usize,
            value_dim: d.value_dim as usize,
            conv_kernel: d.conv_kernel as usize,
        }),
        rms_eps: 1e-6,
        tied: model.tied,
        tie_conflict: false,
        n_mtp_layers: model.n_mtp_layers.min(1) as usize,
        max_positions: model.max_positions as usize,
        dtype: DType::Bf16,
        fp8: None,
        eos_token_ids: Vec::new(),
        bos_token_id: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::args::{Engine, EngineArgs, Flags};
    use super::super::known::known;
    use super::super::plan;

    fn args(model: &str, device: &str) -> EngineArgs {
        EngineArgs {
            engine: Engine::Outrider,
            model: known(model).unwrap(),
            device: device.parse().unwrap(),
            flags: Flags { max_running: Some(4), draft_depth: 3, ..Flags::unset() },
            observed: None,
            load_tokens: 1000,
            acceptance: None,
        }
    }

    #[test]
    fn a_small_model_on_a_small_machine() {
        let plan = plan(&args("Qwen3.5-0.8B", "1x16GiB@31GB/s")).unwrap();
        assert_eq!(
            (plan.max_running, plan.running_limited_by.as_str()),
            (4, "--max-running-requests")
        );
        let weights = plan.memory[0].bytes / 1e9;
        assert!((1.4..2.2).contains(&weights), "{weights} GB");
        let one = plan.speed.iter().find(|row| row.depth == 0 && row.batch == 1).unwrap();
        // 18.2 tok/s were measured at 31 GB/s.
        assert!(one.stream_tok_s.lo < 18.2 && 17.0 < one.stream_tok_s.hi, "{one:?}");
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let refused = |model, device| plan(&args(model, device)).unwrap_err().to_string();
        assert!(refused("Qwen3.6-35B-A3B", "1x128GiB@31GB/s").contains("experts"));
        assert!(refused("Qwen3.6-27B", "2x64GiB@31GB/s").contains("one machine"));
        assert!(!refused("Qwen3.6-27B", "1x16GiB@31GB/s").is_empty());
    }
}
