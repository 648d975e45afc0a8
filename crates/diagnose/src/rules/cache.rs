//! The prefix cache: switched off, or on and no longer hitting.

use dialects::log::WarningKind;
use dialects::metrics::Metric;
use dialects::{Factor, Value};
use serde_json::json;

use super::View;
use super::restore::{cite, compared, places};
use crate::finding::{Finding, Outcome};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::text;

pub(super) fn prefix_off(view: View<'_>) -> Outcome {
    let case = view.case;
    let warned =
        case.now.run.is_some_and(|(_, run)| run.warning(WarningKind::PrefixCacheOff).is_some());
    let on = |value: Option<Value>| value.and_then(|v| v.as_bool());
    let off_now = on(case.effective_now(Factor::CachePrefix)) == Some(false) || warned;
    if !off_now || on(case.effective_before(Factor::CachePrefix)) == Some(false) {
        return Outcome::Pass;
    }
    let mut finding = Finding::new(Factor::CachePrefix);
    finding.before = json!("on");
    finding.now = json!("off");
    finding.covers = vec![Factor::CacheStateStrategy, Factor::SchedOverlap];
    let fell = cached_fell(view, &mut finding);
    match fell {
        Some(true) => {}
        Some(false) => finding.strength = 0.2,
        None => finding.strength = 0.6,
    }
    finding.evidence.extend(compared(view, "time to first token", Q::TtftP50));
    if let Some(warning) =
        case.now.run.and_then(|(_, run)| run.warning(WarningKind::PrefixCacheOff))
    {
        finding.evidence.push(format!("{} ({}:{})", warning.says, case.now.log(), warning.line));
    }
    finding.evidence.extend(places(view));
    finding.explains = explains_prefill(view);
    view.assume(&mut finding, Felt::FirstToken, 0.6);
    finding.id = "prompts_computed_again";
    finding.mechanism =
        "every turn computes its whole prompt again, and other streams stand still meanwhile"
            .to_owned();
    finding.predicted = view.predict_earlier(Q::TtftP50);
    finding.fix = view.restore(&[Factor::CachePrefix]);
    finding.costs =
        vec!["cached prefixes take room in the KV pool and hold state slots".to_owned()];
    finding.claim = "cache.prefix is off: prompts are computed again in full".to_owned();
    Outcome::Found(Box::new(finding))
}

pub(super) fn thrash(view: View<'_>) -> Outcome {
    let case = view.case;
    if case.effective_now(Factor::CachePrefix).and_then(|v| v.as_bool()) == Some(false) {
        return Outcome::Pass;
    }
    let Some((before, now)) = view.both(Q::CachedShare) else {
        return Outcome::NotEnough("cached prompt tokens on both sides".to_owned());
    };
    if before < 0.15 || before - now < 0.1 {
        return Outcome::Pass;
    }
    let smaller = view.moved(Q::KvTokens).is_some_and(|moved| moved < -0.05);
    let sizes = [
        Factor::CacheHostTier,
        Factor::MemStaticFraction,
        Factor::MemKvTokens,
        Factor::MemKvDtype,
        Factor::MemStateRatio,
        Factor::MemStateSlots,
        Factor::CacheStateStrategy,
        Factor::CacheBlock,
        Factor::SchedPolicy,
    ];
    let cause = sizes.into_iter().find(|f| {
        case.differs(&[*f])
            && (smaller || !matches!(f, Factor::MemStaticFraction | Factor::MemStateRatio))
    });
    let mut finding = Finding::new(cause.unwrap_or(Factor::WorkloadPrefixReuse));
    view.with_values(&mut finding);
    if cause.is_none() {
        finding.before = json!(format!("{} of the prompts cached", text::percent(before)));
        finding.now = json!(format!("{} of the prompts cached", text::percent(now)));
    }
    cached_fell(view, &mut finding);
    finding.evidence.extend(compared(view, "time to first token", Q::TtftP50));
    finding.evidence.extend(compared(view, "KV pool", Q::KvTokens));
    finding.evidence.extend(compared(view, "requests running", Q::Running));
    let evicted = |side: crate::evidence::Side| {
        case.evidence
            .scrapes
            .iter()
            .filter(|s| s.side == side)
            .find_map(|s| s.what.get(Metric::Evictions))
    };
    match (evicted(crate::evidence::Side::Before), evicted(crate::evidence::Side::Now)) {
        (before, Some(now)) => finding.evidence.push(format!(
            "tokens evicted {} -> {}",
            before.map_or("?".to_owned(), text::number),
            text::number(now)
        )),
        _ => finding.strength = 0.8,
    }
    finding.evidence.extend(places(view));
    finding.explains = explains_prefill(view);
    finding.id = "prefixes_evicted";
    finding.mechanism =
        "prefixes are evicted before their next turn comes, so prompts are computed again"
            .to_owned();
    finding.predicted = view.predict_earlier(Q::TtftP50);
    finding.fix = cause.and_then(|factor| view.restore(&[factor]));
    finding.claim = format!("{}: prefixes no longer stay in the cache", finding.factor);
    Outcome::Found(Box::new(finding))
}

/// Whether the cached share fell; the numbers go to the evidence.
fn cached_fell(view: View<'_>, finding: &mut Finding) -> Option<bool> {
    let fell = view.both(Q::CachedShare).map(|(before, now)| before - now > 0.1);
    match compared(view, "cached share of the prompts", Q::CachedShare) {
        Some(line) => finding.evidence.push(line),
        None => finding.evidence.extend(
            cite(&view.case.now, Q::CachedShare)
                .map(|cited| format!("cached share of the prompts {cited}")),
        ),
    }
    if fell == Some(false) {
        finding.against.push("the cached share of the prompts did not fall".to_owned());
    }
    fell
}

/// Prefill that was not needed before explains waiting, and what it takes from the streams; how much of the waiting it
/// explains is told by the tokens to compute against the prefill rate.
fn explains_prefill(view: View<'_>) -> Vec<(Felt, f64)> {
    let mut out = Vec::new();
    if view.losses.size(Felt::FirstToken) > 0.0 {
        out.push((Felt::FirstToken, 1.0));
    }
    // Decoding itself is as fast as before when acceptance and steps are; the streams only wait for prefill.
    let (accept, _) = view.parts().unwrap_or((0.0, 0.0));
    for felt in [Felt::Stream, Felt::Pauses, Felt::Aggregate] {
        if view.losses.size(felt) > 0.0 && accept > -0.05 {
            out.push((felt, 0.9));
        }
    }
    out
}
