//! Over random models, machines and flags: a plan fits its budget, and advice can be followed.

use checkpoint::DType;
use plan::{Host, KvType, ModelBytes, Plan, PlanError, PlanOptions, plan};
use proptest::option::of;
use proptest::prelude::*;
use serde_json::json;

use crate::models::{host, model};

fn models() -> impl Strategy<Value = ModelBytes> {
    let sizes = (
        prop::sample::select(vec![64, 192, 1024, 5120]),
        1usize..40,
        prop::sample::select(vec![(4, 2, 32), (8, 2, 256), (3, 1, 80), (24, 4, 128)]),
        prop::sample::select(vec![(2, 4, 32, 16), (16, 16, 128, 128), (16, 48, 128, 128)]),
        prop::sample::select(vec![384, 4096, 248_320]),
        prop::sample::select(vec![512, 8192, 262_144]),
    );
    (sizes, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |((hidden, layers, heads, delta, vocab, positions), hybrid, tied, mtp, wide)| {
            let config = json!({
                "model_type": if hybrid { "qwen3_5_text" } else { "qwen3" },
                "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers,
                "intermediate_size": 3 * hidden, "max_position_embeddings": positions,
                "num_attention_heads": heads.0, "num_key_value_heads": heads.1,
                "head_dim": heads.2, "rope_theta": 1e7, "tie_word_embeddings": tied,
                "linear_num_key_heads": delta.0, "linear_num_value_heads": delta.1,
                "linear_key_head_dim": delta.2, "linear_value_head_dim": delta.3,
                "mtp_num_hidden_layers": i32::from(mtp), "partial_rotary_factor": 0.5,
            });
            model(&config, if wide { DType::F32 } else { DType::Bf16 })
        },
    )
}

fn hosts() -> impl Strategy<Value = Host> {
    // From 16 MiB to 4 TiB, every magnitude as likely.
    (24f64..42.0).prop_map(|bits| host(bits.exp2() as u64))
}

fn flags() -> impl Strategy<Value = PlanOptions> {
    let counts = (
        of(prop_oneof![1usize..300, 1usize..300_000]),
        of(prop_oneof![1usize..40, 1usize..5000]),
        of(prop_oneof![64usize..5000, 64usize..5_000_000]),
        of(prop_oneof![1usize..60, 1usize..5000]),
    );
    let kinds =
        (prop::sample::select(vec![None, Some(KvType::F32), Some(KvType::Bf16)]), 0usize..8);
    (counts, kinds, 0.1f64..1.0, 0.01f64..5.0, 1usize..40, any::<bool>()).prop_map(
        |(
            (context, running, total, slots),
            (kv_type, draft_depth),
            fraction,
            ratio,
            chunks,
            cache,
        )| {
            PlanOptions {
                mem_fraction_static: (fraction * 100.0).round() / 100.0,
                context_length: context,
                max_running_requests: running,
                max_total_tokens: total,
                chunked_prefill_size: 64 * chunks,
                mamba_full_memory_ratio: ratio,
                max_mamba_cache_size: slots,
                kv_type,
                draft_depth,
                prefix_cache: cache,
                ..PlanOptions::default()
            }
        },
    )
}

/// Everything that holds for every plan.
fn check(plan: &Plan, options: &PlanOptions, model: &ModelBytes, host: &Host) {
    assert!(plan.total_bytes() <= plan.budget_bytes && plan.budget_bytes <= host.memory_bytes);
    let running = plan.max_running_requests.value;
    assert!(running >= 1 && plan.n_slots.value >= running);
    let context = plan.context_length.value;
    assert!((1..=model.config.max_positions).contains(&context));
    assert!(plan.fits(context, 0).unwrap() <= plan.n_blocks.value);
    assert!(plan.fits(context, 1).is_err());
    assert!(u32::try_from(plan.n_blocks.value).is_ok());

    let chunk = plan.chunked_prefill_size.value;
    assert!(chunk >= 64 && chunk.is_multiple_of(64) && chunk <= options.chunked_prefill_size);
    assert_eq!(plan.max_rows, chunk + running + plan.max_drafts);
    let depth = options.draft_depth;
    assert!((depth..=running * depth).contains(&plan.max_drafts));
    assert_eq!(plan.scratch_bytes, model.scratch(plan.max_rows));

    // Promises are kept, caps are caps.
    assert!(options.context_length.is_none_or(|n| n == context));
    assert!(options.max_mamba_cache_size.is_none_or(|n| n == plan.n_slots.value));
    assert!(options.max_running_requests.is_none_or(|n| n >= running));
    assert!(options.max_total_tokens.is_none_or(|n| n >= plan.max_total_tokens()));
    // Nothing that nobody could use.
    let blocks = running * context.max(model.config.max_positions).div_ceil(64);
    assert!(plan.n_blocks.value <= blocks);
    for line in plan.to_string().lines() {
        assert!(line.starts_with("  ") && !line.ends_with(' '), "{line:?}");
    }
}

/// The number after `words` in an advice.
fn advised<T: std::str::FromStr>(text: &str, words: &str) -> Option<T> {
    let rest = text.split_once(words)?.1;
    rest.split([',', ' ']).next()?.parse().ok()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn a_plan_fits_and_advice_helps(model in models(), host in hosts(), mut options in flags()) {
        if model.config.n_mtp_layers == 0 {
            options.draft_depth = 0;
        }
        let error = match plan(&options, &model, &host) {
            Err(error) => error,
            Ok(plan) => {
                check(&plan, &options, &model, &host);
                return Ok(());
            }
        };
        let text = error.to_string();
        prop_assert!(text.contains("--") || text.contains("free memory"), "{}", text);
        if matches!(error, PlanError::Flag { .. }) {
            return Ok(());
        }
        if let Some(context) = advised(&text, "use --context-length <= ") {
            let shorter = PlanOptions { context_length: Some(context), ..options.clone() };
            check(&plan(&shorter, &model, &host).unwrap(), &shorter, &model, &host);
        }
        if let Some(n) = advised(&text, "use --max-mamba-cache-size <= ") {
            let fewer = PlanOptions { max_mamba_cache_size: Some(n), ..options.clone() };
            check(&plan(&fewer, &model, &host).unwrap(), &fewer, &model, &host);
        }
        if let Some(fraction) = advised(&text, "raise --mem-fraction-static to ") {
            let more = PlanOptions { mem_fraction_static: fraction, ..options.clone() };
            prop_assert!(fraction > options.mem_fraction_static, "{}", text);
            check(&plan(&more, &model, &host).unwrap(), &more, &model, &host);
        }
    }
}
