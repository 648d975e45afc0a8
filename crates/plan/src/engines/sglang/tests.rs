//! Every worked number: one configuration of the 27B hybrid on two 48 GiB cards and its variants,
//! and pool sizes as logs state them.

use super::super::args::{ElementBytes, Engine, EngineArgs, Flags, ObservedMemory, StateStrategy};
use super::super::report::EnginePlan;
use super::super::shape::tests::{qwen_27b, qwen_35b_a3b};
use super::super::version::Version;
use super::super::{EngineError, plan};

/// Fraction 0.88, ratio 0.5, 16 requested, three steps, extra_buffer, on 0.5.10.
fn base() -> EngineArgs {
    EngineArgs {
        engine: Engine::Sglang(Version(0, 5, 10)),
        model: qwen_27b(),
        device: "2x48GiB@768GB/s".parse().unwrap(),
        flags: Flags {
            tp: 2,
            mem_fraction: Some(0.88),
            context_length: Some(131_072),
            max_running: Some(16),
            state_ratio: Some(0.5),
            state_strategy: Some(StateStrategy::ExtraBuffer),
            draft_depth: 3,
            ..Flags::unset()
        },
        observed: None,
        load_tokens: 2000,
        acceptance: None,
    }
}

/// The same with exactly 15.63 GiB for pools on a card with 47 GiB free before the weights.
fn exact(change: impl FnOnce(&mut EngineArgs)) -> EngineArgs {
    let mut args = base();
    args.observed =
        Some(ObservedMemory { before_gib: 47.0, after_gib: 15.63 + 47.0 * (1.0 - 0.88) });
    change(&mut args);
    args
}

fn check(expected: (u64, u64, u64), change: impl FnOnce(&mut EngineArgs)) -> EnginePlan {
    let plan = plan(&exact(change)).unwrap();
    let (slots, running, tokens) = expected;
    assert_eq!((plan.state_slots, plan.max_running), (Some(slots), running));
    assert!(plan.kv_tokens.abs_diff(tokens) <= 1, "{} for {tokens}", plan.kv_tokens);
    plan
}

#[test]
fn the_story_before_the_change() {
    let plan = plan(&base()).unwrap();
    assert!((240_000..=246_000).contains(&plan.kv_tokens), "{}", plan.kv_tokens);
    assert_eq!(plan.max_running, 10);
    assert_eq!(plan.running_limited_by, "state slots: 51 slots, 5 per request");
    assert!((1.8..1.9).contains(&plan.full_length_requests));
}

#[test]
fn the_story_after_the_change() {
    let mut args = base();
    args.flags.max_running = None;
    let plan = plan(&args).unwrap();
    assert!((41_000..=43_500).contains(&plan.kv_tokens), "{}", plan.kv_tokens);
    assert_eq!(plan.max_running, 1);
}

/// A deployment that named neither fraction nor ratio nor concurrency logged 7 slots, 1 running
/// request and 19122 tokens.
#[test]
fn the_story_with_every_default() {
    let mut args = base();
    args.engine = Engine::Sglang(Version(0, 5, 11));
    args.flags = Flags {
        tp: 2,
        state_strategy: Some(StateStrategy::ExtraBuffer),
        draft_depth: 1,
        ..Flags::unset()
    };
    let plan = plan(&args).unwrap();
    assert_eq!((plan.state_slots, plan.max_running), (Some(7), 1));
    assert!((17_000..=21_000).contains(&plan.kv_tokens), "{}", plan.kv_tokens);
}

#[test]
fn worked_numbers_of_0_5_9_to_0_5_12() {
    let plan = check((51, 10, 242_028), |_| {});
    assert_eq!(plan.slots_per_request, Some(5));
    check((72, 14, 192_699), |args| args.flags.state_ratio = None);
    check((25, 5, 303_102), |args| args.flags.state_ratio = Some(0.2));
    check((59, 10, 279_612), |args| args.flags.max_running = Some(10));
    check((8, 1, 42_363), |args| args.flags.max_running = None);
    check((12, 2, 32_967), |args| {
        args.flags.max_running = None;
        args.flags.state_ratio = None;
    });
    check((121, 16, 290_718), |args| args.flags.state_dtype = Some(ElementBytes(2.0)));
    check((51, 10, 484_057), |args| args.flags.kv_dtype = Some(ElementBytes(1.0)));
    check((62, 12, 291_357), |args| args.flags.draft_depth = 1);
    check((40, 8, 192_699), |args| args.flags.draft_depth = 5);
    check((51, 12, 242_028), |args| args.flags.overlap = false);
    check((16, 16, 324_243), |args| args.flags.prefix_cache = false);
    check((72, 16, 343_035), |args| {
        args.flags.draft_depth = 0;
        args.flags.state_strategy = Some(StateStrategy::NoBuffer);
    });
    check((72, 14, 343_035), |args| args.flags.draft_depth = 0);
}

#[test]
fn worked_numbers_of_0_5_23() {
    let newest = |change: fn(&mut Flags)| {
        move |args: &mut EngineArgs| {
            args.engine = Engine::Sglang(Version(0, 5, 23));
            // Draft weights and the multimodal cache come off as well.
            args.observed.as_mut().unwrap().after_gib -= 0.54;
            change(&mut args.flags);
        }
    };
    let near = |expected: (u64, u64, u64), change: fn(&mut Flags)| {
        let plan = plan(&exact(newest(change))).unwrap();
        assert_eq!((plan.state_slots, plan.max_running), (Some(expected.0), expected.1));
        let error = plan.kv_tokens as f64 / expected.2 as f64 - 1.0;
        assert!(error.abs() < 2e-3, "{} for {}", plan.kv_tokens, expected.2);
    };
    near((36, 7, 312_835), |_| {});
    near((73, 14, 314_419), |flags| flags.state_dtype = Some(ElementBytes(2.0)));
    near((32, 8, 312_835), |flags| flags.state_strategy = Some(StateStrategy::ExtraBufferLazy));
    near((52, 10, 250_932), |flags| flags.state_ratio = None);
}

#[test]
fn the_estimate_without_a_log_finds_the_same_upgrade() {
    let mut args = base();
    args.engine = Engine::Sglang(Version(0, 5, 23));
    let plan = plan(&args).unwrap();
    assert_eq!(plan.max_running, 7);
    assert!((305_000..=320_000).contains(&plan.kv_tokens), "{}", plan.kv_tokens);
}

/// Pool sizes as 0.5.23 logs them, from the free memory in the same log: (slots, running, tokens).
#[test]
fn logged_pools_of_0_5_23() {
    let logged = |args: &EngineArgs, before_gib, after_gib| {
        let mut args = args.clone();
        args.engine = Engine::Sglang(Version(0, 5, 23));
        args.observed = Some(ObservedMemory { before_gib, after_gib });
        args.flags.tp = 1;
        args.flags.state_ratio = Some(0.9);
        let plan = plan(&args).unwrap();
        (plan.state_slots.unwrap(), plan.max_running, plan.kv_tokens)
    };
    let near = |found: (u64, u64, u64), expected: (u64, u64, u64)| {
        assert_eq!((found.0, found.1), (expected.0, expected.1));
        // The log rounds free memory to 0.01 GiB.
        assert!(found.2.abs_diff(expected.2) < 400, "{} for {}", found.2, expected.2);
    };
    let mut args = base();
    args.flags.mem_fraction = Some(0.85);
    args.flags.max_running = None;
    args.flags.draft_depth = 1;
    near(logged(&args, 94.31, 42.60), (65, 13, 230_942));

    let mut args = base();
    args.model = qwen_35b_a3b();
    args.flags.mem_fraction = Some(0.85);
    near(logged(&args, 78.60, 44.40), (140, 16, 956_915));
    args.flags.draft_depth = 5;
    args.flags.draft_tokens = Some(16);
    near(logged(&args, 78.60, 44.40), (57, 11, 839_730));
    args.flags.draft_depth = 3;
    args.flags.draft_tokens = None;
    args.flags.prefix_cache = false;
    near(logged(&args, 78.60, 44.40), (16, 16, 1_311_330));
}

#[test]
fn other_releases() {
    // Up to 0.5.5 every slot carries four more states, and a request is charged three slots.
    let plan_of = |version| {
        plan(&exact(|args| {
            args.engine = Engine::Sglang(version);
            args.flags.state_strategy = None;
        }))
    };
    let old = plan_of(Version(0, 5, 5)).unwrap();
    assert_eq!((old.state_slots, old.slots_per_request, old.max_running), (Some(14), Some(3), 4));
    // 0.5.9 drops the prefix cache, 0.5.10 refuses, later ones choose another strategy.
    let silent = plan_of(Version(0, 5, 9)).unwrap();
    assert_eq!(silent.slots_per_request, Some(1));
    assert!(silent.notices.iter().any(|notice| notice.contains("prefix cache off")));
    assert!(matches!(plan_of(Version(0, 5, 10)), Err(EngineError::Refuses(_))));
    assert_eq!(plan_of(Version(0, 5, 15)).unwrap().slots_per_request, Some(5));
    let between = plan_of(Version(0, 5, 20)).unwrap();
    assert!(between.notices.iter().any(|notice| notice.contains("was not read")));
}

#[test]
fn explicit_limits_hold() {
    let plan = check((40, 8, 267_867), |args| args.flags.state_slots = Some(40));
    assert_eq!(plan.running_limited_by, "state slots: 40 slots, 5 per request");
    let plan = plan_with(|args| args.flags.max_total_tokens = Some(100_000));
    assert_eq!((plan.kv_tokens, plan.kv_limited_by.as_str()), (100_000, "--max-total-tokens"));
    let plan = plan_with(|args| args.flags.max_running = Some(4));
    assert_eq!((plan.max_running, plan.running_limited_by.as_str()), (4, "what was asked"));
}

fn plan_with(change: impl FnOnce(&mut EngineArgs)) -> EnginePlan {
    plan(&exact(change)).unwrap()
}

#[test]
fn what_cannot_start_is_refused() {
    let refused = |change: fn(&mut EngineArgs)| match plan(&exact(change)) {
        Err(EngineError::Refuses(reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert!(refused(|args| args.flags.tp = 4).contains("do not fit 2 devices"));
    assert!(
        refused(|args| args.observed.as_mut().unwrap().after_gib = 5.0)
            .contains("--mem-fraction-static")
    );
    assert!(
        refused(|args| {
            args.engine = Engine::Sglang(Version(0, 5, 23));
            args.flags.state_ratio = Some(0.01);
        })
        .contains("state slots serve no request")
    );
}

#[test]
fn a_model_without_states_has_one_pool() {
    let mut model = qwen_27b();
    model.delta = None;
    let plan = plan_with(|args| {
        args.model = model;
        args.flags.draft_depth = 0;
        args.flags.max_running = None;
    });
    assert_eq!(plan.state_slots, None);
    assert_eq!((plan.max_running, plan.running_limited_by.as_str()), (2048, "the default"));
    assert_eq!(plan.kv_limited_by, "memory beside the weights");
}

#[test]
fn the_report_reads_on_a_terminal_and_as_json() {
    let plan = plan(&base()).unwrap();
    let text = plan.text();
    for part in ["Qwen3.6-27B · SGLang 0.5.10 · 2x48GiB@768GB/s", "10 of 16 asked", "depth 3"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 120));
    let json = plan.json();
    assert_eq!(json["max_running"], 10);
    assert_eq!(json["speed"][0]["batch"], 1);
}
