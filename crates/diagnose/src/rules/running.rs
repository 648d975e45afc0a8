//! Requests wait although the device could run more: a flag, the state slots or the KV pool hold the running count down.

use dialects::log::WarningKind;
use dialects::{Factor, Value};

use super::View;
use super::restore::{cite, compared, places};
use crate::finding::{Finding, Outcome};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::text;

/// What holds the running count down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// The flag itself.
    Flag,
    /// Recurrent-state slots.
    State,
    /// The KV pool.
    Kv,
}

pub(super) fn judge(view: View<'_>) -> Outcome {
    let (case, now) = (view.case, &view.case.now);
    let (Some(running), Some(queue)) = (now.get(Q::Running), now.get(Q::Queue)) else {
        return Outcome::NotEnough("running and waiting counts".to_owned());
    };
    let limit = now.get(Q::MaxRunning);
    let kv_full = now.get(Q::KvUsage).is_some_and(|usage| usage > 0.9);
    let at_limit = limit.is_some_and(|limit| running >= 0.9 * limit);
    if queue < 0.5 || !(at_limit || kv_full) {
        return Outcome::Pass;
    }
    let held = held_by(view, limit, at_limit, kv_full);
    let Some(factor) = cause(view, held) else {
        // Nothing was changed: more requests came, which the load rule judges.
        return Outcome::Pass;
    };
    let mut finding = Finding::new(factor);
    view.with_values(&mut finding);
    let related = [
        Factor::SchedMaxRunning,
        Factor::ExecGraphMaxBs,
        Factor::MemStateSlots,
        Factor::MemStateDtype,
    ];
    finding.covers = related
        .into_iter()
        .filter(|f| *f != factor && (held == Limit::Flag || *f != Factor::SchedMaxRunning))
        .collect();
    finding.id = match held {
        Limit::Flag => "running_limit_asked_too_low",
        Limit::State => "state_slots_cap_concurrency",
        Limit::Kv => "kv_pool_caps_concurrency",
    };
    finding.mechanism = match held {
        Limit::Flag => {
            "the running limit that was asked for is reached while the pools are nearly empty"
                .to_owned()
        }
        Limit::State => {
            "a running request is charged several state slots; there are too few for more"
                .to_owned()
        }
        Limit::Kv => "the KV pool is full, so no further request is admitted".to_owned(),
    };
    finding.evidence.extend(
        cite(now, Q::Running)
            .map(|cited| format!("running {cited}, waiting {}", text::number(queue))),
    );
    if let Some(warning) = now.run.and_then(|(_, run)| {
        run.warning(WarningKind::RunningCappedByState)
            .or(run.warning(WarningKind::RunningReducedByKv))
    }) {
        finding.evidence.push(format!("{} ({}:{})", warning.says, now.log(), warning.line));
    }
    finding.evidence.extend(
        compared(view, "running limit", Q::MaxRunning)
            .or_else(|| cite(now, Q::MaxRunning).map(|c| format!("running limit {c}"))),
    );
    finding.evidence.extend(compared(view, "state slots", Q::StateSlots));
    finding.evidence.extend(compared(view, "KV pool", Q::KvTokens));
    let usage = [("KV", Q::KvUsage), ("state", Q::StateUsage)]
        .into_iter()
        .filter_map(|(name, q)| Some(format!("{name} {}", text::percent(now.get(q)?))));
    finding.evidence.push(format!("pools in use: {}", usage.collect::<Vec<_>>().join(", ")));
    finding.evidence.extend(places(view));
    finding.evidence.extend(charged(view));
    shares(view, &mut finding);
    finding.predicted = view.predict_aggregate();
    let restored: Vec<Factor> = std::iter::once(factor)
        .chain((held == Limit::Flag).then_some(Factor::ExecGraphMaxBs))
        .filter(|f| case.differs(&[*f]))
        .collect();
    finding.fix = view.restore(&restored);
    options(view, held, &mut finding);
    finding.costs = costs(view, factor);
    finding.claim = match held {
        Limit::Flag => format!("{factor} serialises requests"),
        _ => format!(
            "{factor} leaves room for only {} running requests",
            text::number(limit.unwrap_or(running))
        ),
    };
    Outcome::Found(Box::new(finding))
}

fn held_by(view: View<'_>, limit: Option<f64>, at_limit: bool, kv_full: bool) -> Limit {
    let now = &view.case.now;
    let warned = |kind| now.run.is_some_and(|(_, run)| run.warning(kind).is_some());
    let asked = view.case.effective_now(Factor::SchedMaxRunning).and_then(|v| v.as_f64());
    if kv_full && !at_limit {
        Limit::Kv
    } else if warned(WarningKind::RunningCappedByState) {
        Limit::State
    } else if asked.zip(limit).is_some_and(|(asked, limit)| asked <= limit) {
        Limit::Flag
    } else if now.get(Q::StateUsage).is_some_and(|state| state > now.get(Q::KvUsage).unwrap_or(0.0))
    {
        Limit::State
    } else if warned(WarningKind::RunningReducedByKv) || kv_full {
        Limit::Kv
    } else {
        Limit::Flag
    }
}

/// The setting that made the limit what it is, judged by which pools shrank.
fn cause(view: View<'_>, held: Limit) -> Option<Factor> {
    let case = view.case;
    let first = |factors: &[Factor]| factors.iter().copied().find(|f| case.differs(&[*f]));
    if held == Limit::Flag {
        let lowered = case.difference(Factor::SchedMaxRunning).is_some_and(|d| {
            let number = |v: &Option<Value>| v.as_ref().and_then(Value::as_f64);
            number(&d.a).zip(number(&d.b)).is_none_or(|(a, b)| b < a)
        });
        return lowered.then_some(Factor::SchedMaxRunning);
    }
    let shrank = |q| view.moved(q).map(|moved| moved < -0.05);
    match (shrank(Q::KvTokens), shrank(Q::StateSlots)) {
        // Room moved from the states to the KV pool.
        (Some(false), Some(true)) => first(&[
            Factor::MemStateRatio,
            Factor::MemStateSlots,
            Factor::MemStateDtype,
            Factor::CacheStateStrategy,
            Factor::SpecDraftTokens,
            Factor::MemStaticFraction,
        ]),
        // Both pools are smaller: less memory for all.
        (Some(true), Some(true)) => first(&[
            Factor::MemStaticFraction,
            Factor::ModelQuant,
            Factor::ModelDtype,
            Factor::ModelPath,
            Factor::ParTp,
            Factor::SpecDraftTokens,
            Factor::MemStateRatio,
        ])
        .or_else(|| less_free_memory(view).then_some(Factor::GpuOtherProcess)),
        (Some(true), _) => first(&[
            Factor::MemStaticFraction,
            Factor::MemKvTokens,
            Factor::MemKvDtype,
            Factor::MemStateRatio,
            Factor::ModelQuant,
            Factor::ModelDtype,
            Factor::ModelPath,
            Factor::ParTp,
        ])
        .or_else(|| less_free_memory(view).then_some(Factor::GpuOtherProcess)),
        // Sizes of one side are unknown: the settings alone must tell.
        _ => first(&[
            Factor::MemStateSlots,
            Factor::MemStateRatio,
            Factor::MemStaticFraction,
            Factor::MemKvTokens,
            Factor::MemStateDtype,
            Factor::CacheStateStrategy,
            Factor::SchedMaxRunning,
            Factor::SpecDraftTokens,
        ]),
    }
}

/// Whether the device had less free memory before the weights were loaded.
fn less_free_memory(view: View<'_>) -> bool {
    let free =
        |side: &crate::facts::SideView<'_>| side.run.and_then(|(_, run)| run.sizes.free_before_gib);
    free(&view.case.before)
        .zip(free(&view.case.now))
        .is_some_and(|(before, now)| now < before - 1.0)
}

/// Slots that one running request is charged.
fn charged(view: View<'_>) -> Option<String> {
    let slots = view.case.now.get(Q::StateSlots)?;
    let limit = view.case.now.get(Q::MaxRunning)?;
    let gib = view.case.now.run?.1.sizes.state_gib?;
    let each = (slots / limit).floor();
    (each >= 2.0).then(|| {
        format!(
            "one state slot takes {} MiB; {} slots ÷ {} per request = {}",
            text::number(gib * 1024.0 / (slots + 1.0)),
            text::number(slots),
            text::number(each),
            text::number(limit)
        )
    })
}

/// How much of the lost throughput, and of the waiting, the lower limit explains.
pub(super) fn shares(view: View<'_>, finding: &mut Finding) {
    let (running, queue) =
        (view.case.now.get(Q::Running).unwrap_or(1.0), view.case.now.get(Q::Queue).unwrap_or(0.0));
    let lost = view.losses.size(Felt::Aggregate);
    if lost > 0.0 {
        // The step gets dearer with more requests, so twice as many never give twice as much.
        let could = ((running + queue) / running).ln();
        finding.explains.push((Felt::Aggregate, (could / lost).clamp(0.0, 1.0)));
    }
    if view.losses.size(Felt::FirstToken) > 0.0 {
        finding.explains.push((Felt::FirstToken, queue / (queue + running)));
    }
    if finding.explains.is_empty() {
        let waits = queue / (queue + running);
        finding.explains.push((Felt::Aggregate, waits));
        finding.strength = if view.case.before.is_measured() { 0.4 } else { 0.8 };
    }
}

fn options(view: View<'_>, held: Limit, finding: &mut Finding) {
    if held != Limit::State || !view.case.engine.like_sglang() {
        return;
    }
    let Some(fix) = &mut finding.fix else { return };
    let per_request = view
        .case
        .now
        .get(Q::StateSlots)
        .zip(view.case.now.get(Q::MaxRunning))
        .map_or(5.0, |(slots, limit)| (slots / limit).floor());
    let wanted = (view.demand() * per_request).ceil();
    fix.options.push(vec![("--max-mamba-cache-size".to_owned(), format!("{wanted}"))]);
    fix.options.push(vec![("--mamba-ssm-dtype".to_owned(), "bfloat16".to_owned())]);
}

fn costs(view: View<'_>, factor: Factor) -> Vec<String> {
    match (factor, view.both(Q::KvTokens)) {
        (Factor::MemStateRatio, Some((before, now))) if now > before => {
            vec![format!(
                "the KV pool goes back from {} to {} tokens; {} of it is in use",
                text::number(now),
                text::number(before),
                text::percent(view.case.now.get(Q::KvUsagePeak).unwrap_or(0.0))
            )]
        }
        (Factor::MemStaticFraction, _) => {
            vec!["less memory is left for activations and graphs".to_owned()]
        }
        (Factor::SchedMaxRunning, _) => {
            vec!["each stream is slower while more of them run".to_owned()]
        }
        _ => Vec::new(),
    }
}
