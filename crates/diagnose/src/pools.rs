//! What a fix does to the pools, by the engine's own arithmetic: the plan's rule that reproduces today's pools is asked
//! about the changed flags.

use dialects::{Config, Engine, Factor, effective};
use plan::engines::args::{Engine as Planned, EngineArgs, Flags, ObservedMemory};
use plan::engines::device::Device;
use plan::engines::report::EnginePlan;
use plan::engines::shape::ModelShape;

use crate::facts::Case;
use crate::finding::Fix;
use crate::quantity::Quantity as Q;
use crate::text;

/// Releases whose rules differ, the newest first; tried when the log does not name its version.
const RULES: &[&str] = &["0.5.23", "0.5.18", "0.5.15", "0.5.12", "0.5.9", "0.5.5"];
/// How far a rule may miss today's pools and still count as the one in use.
const MOST_ERROR: f64 = 0.03;

/// Pools with the fix against pools now; `None` where the model's sizes, the free memory or the rule are not known.
pub(crate) fn with_fix(case: &Case<'_>, fix: &Fix) -> Option<String> {
    let now = &case.now;
    let config = now.in_force.as_ref().map(|in_force| &in_force.config)?;
    let sizes = &now.run?.1.sizes;
    let shape = ModelShape::from_config("model", case.evidence.model.as_ref()?).ok()?;
    let observed =
        ObservedMemory { before_gib: sizes.free_before_gib?, after_gib: sizes.free_after_gib? };
    let (tokens, slots) = (now.get(Q::KvTokens)?, now.get(Q::StateSlots)?);
    if !case.engine.like_sglang() || case.engine == Engine::Outrider {
        return None;
    }
    let planned = |config: &Config, version: &str| -> Option<EnginePlan> {
        let engine = Planned::Sglang(version.parse().ok()?);
        let flags = flags(config)?;
        let device = Device {
            count: flags.tp,
            memory_gib: observed.before_gib,
            bandwidth_gb_s: 1000.0,
            tflops: None,
        };
        let args = EngineArgs {
            engine,
            model: shape.clone(),
            device,
            flags,
            observed: Some(observed),
            load_tokens: 1000,
            acceptance: None,
        };
        plan::engines::plan(&args).ok()
    };
    let reproduces = |plan: &EnginePlan| {
        let near = |planned: f64, seen: f64| (planned / seen - 1.0).abs() <= MOST_ERROR;
        near(plan.kv_tokens as f64, tokens)
            && plan.state_slots.is_some_and(|planned| near(planned as f64, slots))
    };
    let named = config.version.as_ref().map(ToString::to_string);
    let version = named
        .as_deref()
        .into_iter()
        .chain(RULES.iter().copied())
        .find(|version| planned(config, version).is_some_and(|plan| reproduces(&plan)))?;
    let fixed = planned(&changed(config, fix), version)?;
    let limit = now.get(Q::MaxRunning).unwrap_or(f64::NAN);
    Some(format!(
        "pools with the fix: {} KV tokens, {} state slots, {} running requests (now {}, {}, {}), by SGLang's own arithmetic",
        text::number(fixed.kv_tokens as f64),
        fixed.state_slots.unwrap_or(0),
        fixed.max_running,
        text::number(tokens),
        text::number(slots),
        text::number(limit)
    ))
}

/// The configuration after a fix.
fn changed(config: &Config, fix: &Fix) -> Config {
    let mut config = config.clone();
    for flag in &fix.unset {
        let name = dialects::flags::canonical_name(flag);
        config.settings.retain(|_, setting| setting.flag != name);
    }
    for (flag, value) in &fix.set {
        config.set_flag(flag, Some(value).filter(|value| !value.is_empty()).map(String::as_str));
    }
    config
}

/// A configuration as the plan takes it.
fn flags(config: &Config) -> Option<Flags> {
    let values = effective::of(config);
    let number = |factor: Factor| values.get(&factor.into()).and_then(|e| e.value.as_f64());
    let asked = |factor: Factor| config.number(factor);
    let word = |factor: Factor| config.get(factor).map(ToString::to_string);
    let switch =
        |factor: Factor| values.get(&factor.into()).and_then(|e| e.value.as_bool()).unwrap_or(true);
    Some(Flags {
        tp: number(Factor::ParTp).unwrap_or(1.0) as usize,
        mem_fraction: asked(Factor::MemStaticFraction),
        context_length: asked(Factor::ModelMaxContext).map(|n| n as u64),
        max_running: asked(Factor::SchedMaxRunning).map(|n| n as u64),
        max_total_tokens: asked(Factor::MemKvTokens).map(|n| n as u64),
        chunked_prefill: asked(Factor::SchedPrefillChunk).filter(|n| *n > 0.0).map(|n| n as u64),
        kv_dtype: word(Factor::MemKvDtype).and_then(|word| word.parse().ok()),
        state_ratio: asked(Factor::MemStateRatio),
        state_slots: asked(Factor::MemStateSlots).map(|n| n as u64),
        state_dtype: word(Factor::MemStateDtype).and_then(|word| word.parse().ok()),
        state_strategy: word(Factor::CacheStateStrategy).and_then(|word| word.parse().ok()),
        prefix_cache: switch(Factor::CachePrefix),
        overlap: switch(Factor::SchedOverlap),
        draft_depth: number(Factor::SpecNumSteps).unwrap_or(0.0) as u64,
        draft_tokens: number(Factor::SpecDraftTokens).map(|n| n as u64),
    })
}
