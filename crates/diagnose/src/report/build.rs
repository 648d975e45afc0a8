//! Builds the report of a case: judge, rank, and put everything that a reader needs into one value.

use dialects::metrics::Metric;
use dialects::{Factor, Kind};
use serde_json::json;

use super::{Report, Row, Verdict, notices, sides};
use crate::collect::probe;
use crate::evidence::{Evidence, Side};
use crate::facts::{self, Case};
use crate::finding::{Finding, shown};
use crate::losses::{self, Felt, Losses};
use crate::mechanisms;
use crate::pools;
use crate::quantity::Quantity as Q;
use crate::rank::{self, Ranking};
use crate::rules::{self, View};
use crate::stats;
use crate::text;

/// Diagnoses evidence.
pub fn build(evidence: &Evidence) -> Report {
    let case = facts::case(evidence);
    let losses = losses::compare(&case);
    let outcomes = rules::judge_all(View { case: &case, losses: &losses });
    let ranking = rank::rank(&case, &losses, outcomes);
    let verdict = verdict(&case, &losses, &ranking);
    let cause = ranking.cause.as_ref();
    let predicted = cause.and_then(|cause| cause.predicted.clone());
    let model = case
        .now
        .in_force
        .as_ref()
        .and_then(|c| c.config.get(Factor::ModelPath))
        .map(|path| text::cut(&path.to_string(), 60));
    let version =
        case.now.in_force.as_ref().and_then(|c| c.config.version.as_ref()).map(ToString::to_string);
    let mut gaps = evidence.gaps.clone();
    if cause.is_none() && verdict != Verdict::NoRegression {
        gaps.extend(ranking.gaps.iter().cloned());
    }
    let place = |side: &facts::SideView<'_>| side.in_force.as_ref().map(facts::InForce::place);
    Report {
        verdict,
        summary: summary(&case, &losses, &ranking, verdict),
        exit_code: exit_code(verdict, cause.is_some()),
        engine: case.engine,
        version,
        model,
        target: evidence.target.clone(),
        demand: demand(&case),
        complaint: evidence.complaint.clone(),
        has_cause: cause.is_some(),
        mechanism: cause.map(|cause| cause.id).or_else(|| belief(&case, verdict)),
        how: cause.map(|cause| cause.mechanism.clone()),
        symptom: ranking.loss.map(Felt::metric),
        timing: timing(&case, cause.is_some()),
        losses: losses.losses.clone(),
        rows: rows(&case),
        sides: sides::both(&case),
        step: sides::step(evidence),
        offloaded: offloaded(&case),
        test: losses.test.clone(),
        fix: cause.and_then(|cause| cause.fix.clone()),
        validated: validated(evidence),
        costs: costs(&case, cause),
        notices: notices::all(&case, &losses, predicted.as_ref()),
        predicted,
        claims: claims(&ranking, verdict),
        next_test: next_test(&case, &ranking, verdict),
        gaps,
        places: (place(&case.before), place(&case.now)),
        differences: case
            .differences
            .iter()
            .map(|d| {
                let effect = d.factor().map_or("not known to this program", |factor| {
                    mechanisms::effect(case.engine, factor)
                });
                (d.key.to_string(), shown(d.a.as_ref()), shown(d.b.as_ref()), effect)
            })
            .collect(),
        suspects: ranking.suspects,
    }
}

fn verdict(case: &Case<'_>, losses: &Losses, ranking: &Ranking) -> Verdict {
    if let Some(cause) = &ranking.cause {
        return Verdict::of_cause(cause.factor.kind());
    }
    if !losses.losses.is_empty() {
        return Verdict::Regression;
    }
    // Nothing comparable got worse: that needs both sides measured, or one stream as fast as the others' share was.
    let compared = losses.compared()
        || (case.before.is_measured() && case.now.is_measured())
        || notices::complaint_mixes(case);
    if compared { Verdict::NoRegression } else { Verdict::Inconclusive }
}

fn exit_code(verdict: Verdict, explained: bool) -> u8 {
    match verdict {
        Verdict::NoRegression => 0,
        Verdict::Inconclusive => 12,
        _ if explained => 10,
        _ => 11,
    }
}

fn demand(case: &Case<'_>) -> f64 {
    let probed = case.now.probes.first().and_then(|item| item.what.workload.concurrency);
    let seen =
        case.now.get(Q::Running).map(|running| running + case.now.get(Q::Queue).unwrap_or(0.0));
    seen.or(probed).unwrap_or(1.0)
}

fn summary(case: &Case<'_>, losses: &Losses, ranking: &Ranking, verdict: Verdict) -> String {
    let worst = losses.worst().map(|loss| {
        format!("{} {} -> {}", loss.felt.name(), text::number(loss.before), text::number(loss.now))
    });
    match (&ranking.cause, verdict) {
        (Some(cause), _) => {
            let share = ranking.suspects.first().and_then(|suspect| suspect.explained);
            let share = share.map_or(String::new(), |share| {
                format!(" (explains about {} of the loss)", text::percent(share))
            });
            let change = match (cause.before.is_null(), cause.now.is_null()) {
                (true, true) => String::new(),
                _ => format!(" {} -> {}", value(&cause.before), value(&cause.now)),
            };
            let worst = worst.map_or(String::new(), |worst| format!("{worst}: "));
            format!("{worst}{}{change}{share}", cause.factor)
        }
        (None, Verdict::NoRegression) => match &losses.test {
            Some(test) => format!(
                "nothing got slower: medians {} and {} tok/s over {} and {} requests",
                text::number(test.median_before),
                text::number(test.median_now),
                test.n_before,
                test.n_now
            ),
            None => {
                let better = [Q::OutputTokS, Q::DecodeTokS, Q::TrafficTokS]
                    .into_iter()
                    .find_map(|q| Some((q, case.before.get(q)?, case.now.get(q)?)));
                better.map_or(
                    "nothing that was measured on both sides got worse".to_owned(),
                    |(q, b, n)| {
                        format!(
                            "nothing got slower: {} {} -> {}",
                            q.name(),
                            text::number(b),
                            text::number(n)
                        )
                    },
                )
            }
        },
        (None, Verdict::Inconclusive) => "the evidence does not suffice for a verdict".to_owned(),
        (None, _) => format!("{}: nothing that was found explains it", worst.unwrap_or_default()),
    }
}

/// A JSON value as people write it.
pub(crate) fn value(json: &serde_json::Value) -> String {
    match json {
        serde_json::Value::Null => "not set".to_owned(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What made somebody believe in a loss that is none.
fn belief(case: &Case<'_>, verdict: Verdict) -> Option<&'static str> {
    if verdict != Verdict::NoRegression {
        return None;
    }
    if case.now.tables.iter().any(|item| item.what.itl_counts_chunks()) {
        return Some("itl_counts_chunks_not_tokens");
    }
    let fewer = notices::streams(&case.before)
        .zip(notices::streams(&case.now))
        .is_some_and(|(ran, runs)| ran >= 1.5 * runs);
    (fewer || notices::complaint_mixes(case)).then_some("aggregate_is_not_a_stream")
}

/// Dated edits of the files in question, and the date of the earlier configuration.
fn timing(case: &Case<'_>, has_cause: bool) -> Vec<String> {
    if !has_cause || case.differences.is_empty() {
        return Vec::new();
    }
    let mut out = Vec::new();
    if let Some(found) = case.before.in_force.as_ref().and_then(|c| c.found)
        && let Some(time) = found.time
    {
        out.push(format!(
            "{} {}: {}",
            found.origin.name(),
            text::date(time).split(' ').next().unwrap_or(""),
            found.place()
        ));
    }
    let stems: Vec<String> = [&case.before, &case.now]
        .iter()
        .filter_map(|side| side.in_force.as_ref()?.found)
        .chain(
            case.evidence
                .configs
                .iter()
                .filter(|found| found.origin >= crate::configs::Origin::Unit),
        )
        .map(|found| {
            found
                .path
                .rsplit('/')
                .next()
                .unwrap_or("")
                .split(".service")
                .next()
                .unwrap_or("")
                .to_owned()
        })
        .filter(|stem| stem.len() > 3)
        .collect();
    let flags: Vec<&str> = case
        .now
        .in_force
        .iter()
        .flat_map(|c| c.config.settings.values())
        .map(|s| s.flag.as_str())
        .filter(|f| f.len() > 8)
        .collect();
    let related = |text: &str| {
        stems.iter().any(|stem| text.contains(stem.as_str()))
            || flags.iter().any(|flag| text.contains(flag))
    };
    for edit in case.evidence.edits.iter().filter(|edit| related(&edit.text)).take(3) {
        let date = edit.time.map_or_else(|| "undated".to_owned(), text::date);
        out.push(format!("{date} {} ({}:{})", text::cut(&edit.text, 70), edit.path, edit.line));
    }
    out
}

fn rows(case: &Case<'_>) -> Vec<Row> {
    let pick = |side: &facts::SideView<'_>, q: Q| {
        side.facts.fact(q).map(|fact| (fact.estimate, fact.source.clone()))
    };
    Q::ALL
        .iter()
        .filter_map(|&quantity| {
            let (before, now) = (pick(&case.before, quantity), pick(&case.now, quantity));
            (before.is_some() || now.is_some()).then(|| Row {
                quantity,
                before,
                now,
                extra: extra(case, quantity),
            })
        })
        .collect()
}

/// Further keys that single quantities carry in the JSON report.
fn extra(case: &Case<'_>, quantity: Q) -> Vec<(&'static str, serde_json::Value)> {
    let mut out = Vec::new();
    match quantity {
        Q::Retracted => {
            let logged = |side: &facts::SideView<'_>| {
                side.run.map(|(_, run)| run.retracted_requests + run.preemptions)
            };
            let counter = |side: Side| {
                Evidence::of(&case.evidence.scrapes, side)
                    .find_map(|item| item.what.get(Metric::Preemptions))
            };
            out.push(("log_excerpt_before", json!(logged(&case.before))));
            out.push(("log_excerpt_now", json!(logged(&case.now))));
            out.push(("counter_before", json!(counter(Side::Before))));
            out.push(("counter_now", json!(counter(Side::Now))));
        }
        Q::AggregateTokS => {
            if let Some((_, client)) = losses::client_tok_s(case) {
                out.push(("client", json!(client)));
            }
            let own = case.now.probes.iter().find_map(|item| {
                probe::aggregate_tok_s(
                    &item.what.requests,
                    item.what.workload.concurrency? as usize,
                )
            });
            out.push(("own_probe", json!(own)));
        }
        Q::Queue => {
            let half = |late: bool| {
                let queues: Vec<f64> =
                    case.now.windows.iter().filter_map(|w| w.queue).map(f64::from).collect();
                let (first, second) = queues.split_at(queues.len() / 2);
                stats::mean(if late { second } else { first })
            };
            if let (Some(first), Some(second)) = (half(false), half(true)) {
                out.push((
                    "trend",
                    json!(if second > first + 1.0 {
                        "growing"
                    } else if second < first - 1.0 {
                        "shrinking"
                    } else {
                        "steady"
                    }),
                ));
            }
        }
        _ => {}
    }
    // Within one run the first minutes and the end can be compared even without any earlier log.
    if quantity == Q::AcceptLen && case.before.get(quantity).is_none() {
        let lengths: Vec<f64> =
            case.now.windows.iter().filter_map(|w| w.accept_len).map(f64::from).collect();
        let (first, second) = lengths.split_at(lengths.len() / 2);
        if let (Some(first), Some(second)) =
            (stats::mean_estimate(first), stats::mean_estimate(second))
        {
            out.push(("change", json!(change(first.value, second.value, first.hi - first.lo))));
        }
    } else if let (Some(before), Some(now)) =
        (case.before.facts.fact(quantity), case.now.facts.fact(quantity))
    {
        out.push((
            "change",
            json!(change(
                before.estimate.value,
                now.estimate.value,
                before.estimate.hi - before.estimate.lo
            )),
        ));
    }
    out
}

fn change(before: f64, now: f64, width: f64) -> &'static str {
    if (now - before).abs() <= (0.03 * before.abs()).max(width) {
        "none"
    } else if now > before {
        "up"
    } else {
        "down"
    }
}

fn offloaded(case: &Case<'_>) -> Option<(Option<String>, Option<String>)> {
    let side = |side: &facts::SideView<'_>| {
        side.run
            .and_then(|(_, run)| run.sizes.offloaded)
            .map(|(layers, of)| format!("{layers}/{of}"))
    };
    let both = (side(&case.before), side(&case.now));
    (both.0.is_some() || both.1.is_some()).then_some(both)
}

/// What was measured after a fix: it checks the prediction and never makes it.
fn validated(evidence: &Evidence) -> Vec<(String, f64, String)> {
    let mut out = Vec::new();
    for item in Evidence::of(&evidence.probes, Side::After) {
        if let Some(speed) = stats::median(probe::decode_speeds(&item.what.requests)) {
            out.push(("decode_tok_s".to_owned(), speed, item.source.clone()));
        }
    }
    for item in Evidence::of(&evidence.logs, Side::After) {
        for run in &item.what.runs {
            let speeds: Vec<f64> = run.working().filter_map(|w| w.stream_tok_s()).collect();
            if let Some(speed) = stats::mean(&speeds) {
                out.push(("decode_tok_s".to_owned(), speed, item.source.clone()));
            }
        }
    }
    out
}

/// What the cause's rule says that its fix costs, and what the fix does to the pools.
fn costs(case: &Case<'_>, cause: Option<&Finding>) -> Vec<String> {
    let Some(cause) = cause else { return Vec::new() };
    let pools = cause.fix.as_ref().and_then(|fix| pools::with_fix(case, fix));
    cause.costs.iter().cloned().chain(pools).collect()
}

fn claims(ranking: &Ranking, verdict: Verdict) -> Vec<String> {
    match &ranking.cause {
        Some(cause) => vec![cause.claim.clone()],
        None if verdict == Verdict::Regression => {
            vec!["slower, and nothing found explains it".to_owned()]
        }
        None => Vec::new(),
    }
}

fn next_test(case: &Case<'_>, ranking: &Ranking, verdict: Verdict) -> Option<String> {
    let undecided = match verdict {
        Verdict::NoRegression => {
            case.now.probes.len() + case.before.probes.len() > 0
                && !case.now.probes.is_empty()
                && noisy(case)
        }
        Verdict::Inconclusive => true,
        _ => {
            ranking.cause.is_none()
                || ranking.suspects.get(1).is_some_and(|second| {
                    second.acts && second.score > 0.6 * ranking.suspects[0].score
                })
        }
    };
    if !undecided {
        return None;
    }
    if verdict == Verdict::Inconclusive {
        let missing = match (case.now.is_measured(), case.before.is_measured()) {
            (false, _) => "a log of the server that runs now, or a probe of it",
            _ => "something measured before: an older log, a launch record, a saved probe",
        };
        return Some(missing.to_owned());
    }
    if verdict == Verdict::NoRegression || !case.before.is_measured() {
        return Some("fixed paired prompts, at least 5 runs per side".to_owned());
    }
    match ranking.suspects.get(1).filter(|second| second.acts) {
        Some(second) if second.factor.is_some_and(|factor| factor.kind() == Kind::Config) => {
            Some(format!(
                "one restart with {} as it was before: if the loss stays, {} is the cause",
                second.name, ranking.suspects[0].name
            ))
        }
        _ => Some(
            "the fixed probe once more, while the device's clocks and processes are watched"
                .to_owned(),
        ),
    }
}

/// Whether the requests of one side spread so far that single ones say nothing.
fn noisy(case: &Case<'_>) -> bool {
    let speeds =
        probe::decode_speeds(&probe::pooled(case.now.probes.iter().map(|item| &item.what)));
    let sorted = stats::sorted(speeds);
    matches!((stats::quantile(&sorted, 0.1), stats::quantile(&sorted, 0.9)), (Some(low), Some(high)) if high > 1.2 * low)
}
