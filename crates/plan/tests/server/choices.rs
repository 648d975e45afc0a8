//! What the plan chooses, what it keeps, and what it says.

use plan::{KvType, Limit, PlanError, PlanOptions, plan};

use crate::models::{GIB, dense, host, large, small, tiny};

fn options() -> PlanOptions {
    PlanOptions::default()
}

#[test]
fn a_small_model_takes_what_it_can_use_and_not_what_there_is() {
    let plan = plan(&options(), &tiny(), &host(256 * GIB)).unwrap();
    assert_eq!(plan.context_length.value, 8192);
    assert_eq!(plan.context_length.limit, Limit::Model);
    assert_eq!(plan.max_running_requests.value, 16);
    assert_eq!(plan.max_running_requests.limit, Limit::Default);
    assert_eq!((plan.n_slots.value, plan.n_slots.limit), (48, Limit::Running));
    assert_eq!(plan.max_total_tokens(), 16 * 8192);
    assert_eq!(plan.n_blocks.limit, Limit::Running);
    assert_eq!(plan.kv_type, KvType::Bf16);
    assert!(plan.total_bytes() < GIB / 2, "{plan}");
    assert!(plan.notes.is_empty());
}

#[test]
fn memory_is_split_by_the_ratio_where_both_sides_want_more() {
    for ratio in [0.2, 0.5, 0.9, 2.0] {
        let options = PlanOptions {
            mamba_full_memory_ratio: ratio,
            max_running_requests: Some(1000),
            ..options()
        };
        let plan = plan(&options, &small(), &host(64 * GIB)).unwrap();
        let found = plan.state_bytes() as f64 / plan.kv_bytes() as f64;
        assert!((found / ratio - 1.0).abs() < 0.02, "{ratio}: {found}\n{plan}");
        assert!(plan.total_bytes() as f64 > 0.999 * plan.budget_bytes as f64);
        assert_eq!(plan.n_blocks.limit, Limit::Memory);
    }
}

#[test]
fn what_one_side_cannot_use_the_other_gets() {
    // Few requests need little state: the rest is KV.
    let few = PlanOptions { max_running_requests: Some(2), ..options() };
    let few = plan(&few, &small(), &host(16 * GIB)).unwrap();
    assert_eq!((few.n_slots.value, few.n_slots.limit), (6, Limit::Running));
    assert!(few.kv_bytes() > 20 * few.state_bytes() / 2, "{few}");
    // Short contexts need little KV: the rest is state.
    let short =
        PlanOptions { context_length: Some(1024), max_running_requests: Some(200), ..options() };
    let short = plan(&short, &small(), &host(16 * GIB)).unwrap();
    assert_eq!(short.n_blocks.limit, Limit::Running);
    assert!(short.state_bytes() > 2 * short.kv_bytes(), "{short}");
    // Without a prefix cache there are no snapshots to keep.
    let plain = PlanOptions { prefix_cache: false, ..options() };
    assert_eq!(plan(&plain, &small(), &host(64 * GIB)).unwrap().n_slots.value, 16);
}

#[test]
fn the_flags_of_an_old_unit_file_are_kept_where_memory_allows() {
    let options = PlanOptions {
        mem_fraction_static: 0.88,
        context_length: Some(131_072),
        max_running_requests: Some(16),
        mamba_full_memory_ratio: 0.5,
        draft_depth: 3,
        ..options()
    };
    let roomy = plan(&options, &large(), &host(128 * GIB)).unwrap();
    assert_eq!(roomy.max_running_requests.value, 16);
    assert_eq!(roomy.max_running_requests.limit, Limit::Flag("--max-running-requests"));
    assert_eq!(roomy.context_length.value, 131_072);
    assert!(roomy.max_total_tokens() > 131_072);
    assert_eq!((roomy.max_rows, roomy.max_drafts), (512 + 16 * 4, 16 * 3));

    // Less memory: fewer at once, and it says so.
    let tight = plan(&options, &large(), &host(70 * GIB)).unwrap();
    let running = tight.max_running_requests;
    assert!(running.value < 16 && running.limit == Limit::Memory, "{tight}");
    assert_eq!(tight.n_slots.value, running.value);
    assert!(tight.notes[0].contains("--max-running-requests 16 is capped to"), "{tight}");
    assert!(tight.to_string().contains(&tight.notes[0]));

    // Less still: the context was a promise.
    let error = plan(&options, &large(), &host(64 * GIB)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("a context of 131072 tokens needs 8.50 GiB of KV but "), "{text}");
    assert!(text.contains("use --context-length <= "), "{text}");
    // And then not even the weights fit.
    let error = plan(&options, &large(), &host(40 * GIB)).unwrap_err();
    assert!(matches!(error, PlanError::Weights { .. }), "{error}");
    assert!(error.to_string().contains("50.91 GiB"), "{error}");
}

#[test]
fn a_context_that_nobody_asked_for_shrinks_to_what_memory_holds() {
    let plan = plan(&options(), &small(), &host(3 * GIB)).unwrap();
    assert_eq!(plan.context_length.limit, Limit::Memory);
    assert_eq!(plan.context_length.value, plan.max_total_tokens());
    assert!((2048..262_144).contains(&plan.context_length.value), "{plan}");
    assert!(plan.max_running_requests.value < 16);
    // Default snapshots are given up last, not first.
    assert!(plan.n_slots.value >= 3 * plan.max_running_requests.value || plan.n_slots.value < 3);
}

#[test]
fn caps_are_kept_and_promises_checked() {
    let capped = PlanOptions { max_total_tokens: Some(10_000), ..options() };
    let capped = plan(&capped, &small(), &host(64 * GIB)).unwrap();
    assert_eq!(capped.max_total_tokens(), 156 * 64);
    assert_eq!(capped.n_blocks.limit, Limit::Flag("--max-total-tokens"));
    assert_eq!(capped.context_length.value, 156 * 64);
    assert_eq!(capped.context_length.limit, Limit::Flag("--max-total-tokens"));

    let slots = PlanOptions { max_mamba_cache_size: Some(10), ..options() };
    let plan_of = |options: &PlanOptions| plan(options, &small(), &host(64 * GIB)).unwrap();
    let ten = plan_of(&slots);
    assert_eq!((ten.n_slots.value, ten.max_running_requests.value), (10, 3));
    assert_eq!(ten.max_running_requests.limit, Limit::Flag("--max-mamba-cache-size"));
    let both = PlanOptions { max_running_requests: Some(12), ..slots };
    let both = plan_of(&both);
    assert_eq!((both.n_slots.value, both.max_running_requests.value), (10, 10));
    assert!(both.notes[0].contains("--max-mamba-cache-size"), "{both}");

    let many = PlanOptions { max_mamba_cache_size: Some(100_000), ..options() };
    let error = plan(&many, &small(), &host(64 * GIB)).unwrap_err().to_string();
    assert!(error.starts_with("100000 recurrent-state slots of "), "{error}");
    assert!(error.contains("use --max-mamba-cache-size <= "), "{error}");

    let wide = PlanOptions { threads: Some(99), ..options() };
    assert!(plan_of(&wide).notes[0].contains("--threads 99"));
    assert_eq!(plan_of(&options()).threads.value, 8);
}

#[test]
fn chunks_are_no_longer_than_the_context() {
    let short = PlanOptions { context_length: Some(100), ..options() };
    let short = plan(&short, &small(), &host(64 * GIB)).unwrap();
    assert_eq!(short.chunked_prefill_size.value, 128);
    assert_eq!(short.chunked_prefill_size.limit, Limit::Context);
    let wide = PlanOptions { chunked_prefill_size: 8192, ..options() };
    let wide = plan(&wide, &small(), &host(64 * GIB)).unwrap();
    assert_eq!(wide.chunked_prefill_size.limit, Limit::Flag("--chunked-prefill-size"));
    assert!(wide.scratch_bytes > 8192 * 4 * 10_000);
}

#[test]
fn dense_models_plan_without_state() {
    let plan = plan(&options(), &dense(), &host(8 * GIB)).unwrap();
    assert_eq!((plan.state_bytes(), plan.n_slots.value), (0, 48));
    assert_eq!(plan.max_total_tokens(), 16 * 8192);
}

#[test]
fn flags_that_mean_nothing_are_refused_by_name() {
    let base = options();
    for (options, flag) in [
        (PlanOptions { mem_fraction_static: 0.0, ..base.clone() }, "--mem-fraction-static"),
        (PlanOptions { mem_fraction_static: 1.1, ..base.clone() }, "--mem-fraction-static"),
        (PlanOptions { mem_fraction_static: f64::NAN, ..base.clone() }, "--mem-fraction-static"),
        (
            PlanOptions { mamba_full_memory_ratio: -1.0, ..base.clone() },
            "--mamba-full-memory-ratio",
        ),
        (PlanOptions { context_length: Some(0), ..base.clone() }, "--context-length"),
        (PlanOptions { context_length: Some(262_145), ..base.clone() }, "--context-length"),
        (PlanOptions { max_running_requests: Some(0), ..base.clone() }, "--max-running-requests"),
        (PlanOptions { max_mamba_cache_size: Some(0), ..base.clone() }, "--max-mamba-cache-size"),
        (PlanOptions { threads: Some(0), ..base.clone() }, "--threads"),
        (PlanOptions { chunked_prefill_size: 100, ..base.clone() }, "--chunked-prefill-size"),
        (PlanOptions { chunked_prefill_size: 0, ..base.clone() }, "--chunked-prefill-size"),
        (PlanOptions { max_total_tokens: Some(63), ..base.clone() }, "--max-total-tokens"),
        (
            PlanOptions {
                max_total_tokens: Some(4096),
                context_length: Some(4097),
                ..base.clone()
            },
            "--max-total-tokens",
        ),
        (PlanOptions { draft_depth: 16, ..base.clone() }, "--speculative-num-steps"),
    ] {
        let error = plan(&options, &small(), &host(64 * GIB)).unwrap_err();
        assert!(matches!(error, PlanError::Flag { .. }), "{error}");
        assert!(error.to_string().starts_with(flag), "{error}");
    }
    let drafting = PlanOptions { draft_depth: 1, ..base };
    let error = plan(&drafting, &dense(), &host(64 * GIB)).unwrap_err().to_string();
    assert!(error.contains("no draft head"), "{error}");
}

#[test]
fn a_request_fits_or_is_too_long() {
    let options = PlanOptions { context_length: Some(1000), ..options() };
    let plan = plan(&options, &small(), &host(64 * GIB)).unwrap();
    assert_eq!(plan.fits(1, 0), Ok(0));
    assert_eq!(plan.fits(64, 1), Ok(1));
    assert_eq!(plan.fits(64, 2), Ok(2));
    assert_eq!(plan.fits(600, 400), Ok(16));
    let unfit = plan.fits(601, 400).unwrap_err();
    assert!(unfit.to_string().contains("1000"), "{unfit}");
    assert!(plan.fits(usize::MAX, 1).is_err());
}

#[test]
fn the_start_up_block_is_readable() {
    let options = PlanOptions { context_length: Some(32_768), draft_depth: 3, ..options() };
    let plan = plan(&options, &small(), &host(16 * GIB)).unwrap();
    let expected = "  \
  model                               Qwen3_5ForCausalLM, with draft head, up to 3 drafts
  processor                           Some CPU, 8 cores
  memory                   16.00 GiB  available on this machine
  budget                   12.80 GiB  --mem-fraction-static 0.8
";
    assert_eq!(&plan.to_string()[..expected.len()], expected);
    for line in plan.to_string().lines() {
        assert!(line.len() <= 110 && !line.ends_with(' '), "{line:?}");
    }
}

#[test]
fn deep_drafts_cost_a_hundredth_of_the_memory() {
    for (model, memory) in [(small(), 64 * GIB), (large(), 256 * GIB)] {
        for running in 1..=32 {
            let plan_at = |draft_depth| {
                let options = PlanOptions {
                    context_length: Some(4096),
                    max_total_tokens: Some(4096),
                    max_running_requests: Some(running),
                    max_mamba_cache_size: Some(running),
                    draft_depth,
                    ..options()
                };
                plan(&options, &model, &host(memory)).unwrap()
            };
            let (one, eight) = (plan_at(1), plan_at(8));
            assert_eq!(eight.state_bytes(), one.state_bytes());
            let growth = eight.total_bytes() as f64 / one.total_bytes() as f64 - 1.0;
            assert!(growth < 0.01, "{running} running: {growth}\n{one}\n{eight}");
            assert!(eight.max_drafts >= running.max(8), "{eight}");
            let text = eight.to_string();
            assert!(text.contains("drafts to replay") && text.contains("in one step"), "{text}");
        }
    }
}
