//! More requests than the same server can run: it delivers as much as ever, or more, and people wait.

use dialects::Factor;
use serde_json::json;

use super::View;
use super::restore::{cite, compared};
use crate::finding::{Finding, Fix, Outcome};
use crate::losses::Felt;
use crate::mechanisms::{self, Component};
use crate::quantity::Quantity as Q;
use crate::text;

pub(super) fn judge(view: View<'_>) -> Outcome {
    let (case, now) = (view.case, &view.case.now);
    let (Some(running), Some(queue)) = (now.get(Q::Running), now.get(Q::Queue)) else {
        return Outcome::Pass;
    };
    let limit = now.get(Q::MaxRunning);
    let saturated = limit.is_some_and(|limit| running >= 0.85 * limit)
        || now.get(Q::KvUsage).is_some_and(|usage| usage > 0.9);
    let waited = queue >= 1.0
        || now.run.is_some_and(|(_, run)| run.working().any(|w| w.queue.is_some_and(|q| q >= 2.0)));
    let arrivals = view.both(Q::ArrivalRate);
    let more_arrive = arrivals.is_some_and(|(before, now)| now > 1.1 * before);
    let more_run = view.moved(Q::Running).is_some_and(|moved| moved > 0.1);
    let delivers =
        view.moved(Q::LogTokS).or(view.moved(Q::AggregateTokS)).is_none_or(|moved| moved > -0.05);
    let changed = case
        .differences
        .iter()
        .filter_map(|d| d.factor())
        .any(|f| mechanisms::moves(case.engine, f).contains(&Component::Running));
    // Below every limit more streams still share the device: each is slower, all together are faster.
    let shared = view.moved(Q::Running).is_some_and(|moved| moved > 0.3)
        && view.moved(Q::GenTokS).is_some_and(|moved| moved > 0.05);
    if !(saturated && waited || shared) || !delivers || !(more_arrive || more_run) || changed {
        return Outcome::Pass;
    }
    let mut finding = Finding::new(Factor::LoadArrivalRate);
    let rate = |n: f64| format!("about {}/s", text::number(n));
    match arrivals {
        Some((before, now)) => {
            finding.before = json!(rate(before));
            finding.now = json!(rate(now));
        }
        None => {
            finding.before = json!(cite(&case.before, Q::Running).map(|c| format!("{c} running")));
            finding.now = json!(format!(
                "{} running, {} waiting",
                text::number(running),
                text::number(queue)
            ));
        }
    }
    finding.evidence.extend(compared(view, "requests per second", Q::ArrivalRate));
    finding.evidence.extend(compared(view, "running", Q::Running));
    let growing = growing(view);
    finding.evidence.push(format!(
        "{} waiting{}",
        text::number(queue),
        if growing { ", and more with time" } else { "" }
    ));
    if let Some(limit) = limit.filter(|_| saturated) {
        finding.evidence.push(format!("{} may run: the limit is reached", text::number(limit)));
    }
    finding.evidence.extend(
        compared(view, "tok/s of all streams", Q::LogTokS)
            .map(|line| format!("{line}: the server delivers more than before")),
    );
    finding.evidence.extend(
        cite(now, Q::QueueTimeS)
            .map(|cited| format!("time in the queue {cited}, the rest of the wait is prefill")),
    );
    finding.evidence.extend(cite(now, Q::KvUsage).map(|cited| format!("KV pool in use {cited}")));
    if case.same_process || case.differences.is_empty() {
        finding.evidence.push("the configuration is the same".to_owned());
    }
    for felt in [Felt::FirstToken, Felt::Stream, Felt::Pauses, Felt::Traffic] {
        if view.losses.size(felt) > 0.0 {
            finding.explains.push((felt, if felt == Felt::FirstToken { 1.0 } else { 0.9 }));
        }
    }
    if finding.explains.is_empty() {
        finding.explains.push((Felt::FirstToken, 0.6));
    }
    finding.strength = if more_arrive { 1.0 } else { 0.7 };
    finding.id = "arrivals_exceed_capacity";
    finding.mechanism =
        "requests arrive faster than they finish; each stream shares the device with more others"
            .to_owned();
    let kv_free = now.get(Q::KvUsage).is_some_and(|usage| usage < 0.5);
    let mut fix = Fix { restart: true, ..Fix::default() };
    if let (true, Some(limit)) = (kv_free, limit)
        && let Some(flag) = dialects::flags::spelling(case.engine, None, Factor::SchedMaxRunning)
    {
        fix.options.push(vec![(flag.to_owned(), format!("{}", (limit * 1.5).round()))]);
    }
    fix.actions = vec!["a second replica, or a limit on admission".to_owned()];
    finding.fix = Some(fix);
    finding.costs =
        vec!["a higher running limit shortens the queue and slows every stream".to_owned()];
    finding.claim = "load.arrival_rate exceeds what the server can run".to_owned();
    Outcome::Found(Box::new(finding))
}

/// Whether the queue is longer in the second half of the log than in the first.
pub(super) fn growing(view: View<'_>) -> bool {
    let queues: Vec<f64> =
        view.case.now.windows.iter().filter_map(|w| w.queue).map(f64::from).collect();
    let (first, second) = queues.split_at(queues.len() / 2);
    matches!((crate::stats::mean(first), crate::stats::mean(second)), (Some(a), Some(b)) if b > a + 1.0)
}
