//! The client: "in flight" there is not "running" here.

use dialects::Factor;
use serde_json::json;

use super::View;
use super::restore::cite;
use crate::evidence::Side;
use crate::finding::{Finding, Fix, Outcome};
use crate::losses::{Felt, client_tok_s};
use crate::quantity::Quantity as Q;
use crate::text;

pub(super) fn judge(view: View<'_>) -> Outcome {
    let (case, now) = (view.case, &view.case.now);
    let (Some(running), Some(queue)) = (now.get(Q::Running), now.get(Q::Queue)) else {
        return Outcome::Pass;
    };
    let Some(fact) = now.facts.fact(Q::Running) else { return Outcome::Pass };
    let flat = fact.estimate.hi - fact.estimate.lo <= (0.15 * running).max(1.0);
    let limit = now.get(Q::MaxRunning);
    let below_limit = limit.is_none_or(|limit| running < 0.8 * limit);
    if queue >= 0.5 || !flat || !below_limit || running < 1.0 {
        return Outcome::Pass;
    }
    let log =
        case.evidence.client_logs.iter().filter(|item| item.side != Side::Before).max_by(|a, b| {
            a.what.time.partial_cmp(&b.what.time).unwrap_or(std::cmp::Ordering::Equal)
        });
    let claimed = log.and_then(|item| item.what.in_flight());
    let waits = log.and_then(|item| item.what.queue_wait_s());
    let change = case.evidence.client_changes.iter().find(|item| {
        item.what.now.is_some_and(|n| (n - running).abs() <= 1.0 || n < running + 2.0)
    });
    let probe = now
        .probes
        .iter()
        .find(|item| item.what.workload.concurrency.is_some_and(|c| c > 1.5 * running));
    let probe_reaches = probe.and_then(|item| {
        crate::collect::probe::aggregate_tok_s(
            &item.what.requests,
            item.what.workload.concurrency? as usize,
        )
    });
    let claims_more = claimed.is_some_and(|claimed| claimed > 1.5 * running);
    if !claims_more && change.is_none() && (probe_reaches.is_none() || log.is_none()) {
        return Outcome::Pass;
    }
    let mut finding = Finding::new(Factor::ClientConnectionLimit);
    finding.before =
        change.and_then(|item| item.what.before).map_or(json!("none"), |n| json!(n.round() as i64));
    finding.now = json!(change.and_then(|item| item.what.now).unwrap_or(running).round() as i64);
    finding.evidence.extend(cite(now, Q::Running).map(|cited| {
        format!("running {cited}, waiting {}, flat all the time", text::number(queue))
    }));
    if let Some(limit) = limit {
        finding.evidence.push(format!("the server would run {}", text::number(limit)));
    }
    if let (Some(claimed), Some(log)) = (claimed, log) {
        finding.evidence.push(format!(
            "the client believes {} in flight ({})",
            text::number(claimed),
            log.source
        ));
    }
    if let (Some(waits), Some(log)) = (waits, log) {
        finding.evidence.push(format!(
            "requests wait {} s inside the client ({})",
            text::number(waits),
            log.source
        ));
    }
    if let Some(item) = change {
        finding.evidence.push(format!(
            "{} set to {} ({}:{})",
            item.what.name,
            text::number(item.what.now.unwrap_or(0.0)),
            item.source,
            item.what.line
        ));
    }
    if let (Some(reached), Some(item)) = (probe_reaches, probe) {
        finding.evidence.push(format!(
            "the own probe reaches {} tok/s on the same server ({})",
            text::number(reached),
            item.source
        ));
        if let Some(delay) = item.what.dispatch_delay_p99_s {
            finding.evidence.push(format!(
                "the probe itself sent in time: delay {} s at p99",
                text::number(delay)
            ));
        }
    }
    let lost = view.losses.size(Felt::Client);
    let part =
        probe_reaches.zip(client_tok_s(case)).map(|(reached, (_, client))| (reached / client).ln());
    match (lost > 0.0, part) {
        (true, Some(part)) => finding.explains.push((Felt::Client, (part / lost).clamp(0.0, 1.0))),
        (true, None) => finding.explains.push((Felt::Client, 0.8)),
        (false, _) => finding.explains.push((Felt::Client, 0.7)),
    }
    finding.strength = match (change.is_some(), claims_more, probe_reaches.is_some()) {
        (true, _, true) | (_, true, true) => 1.0,
        (true, _, _) | (_, true, _) => 0.8,
        _ => 0.4,
    };
    finding.id = "client_holds_requests_back";
    finding.mechanism =
        "the client opens fewer connections than it believes to use; the rest waits inside it"
            .to_owned();
    let wanted =
        claimed.or(probe.and_then(|item| item.what.workload.concurrency)).unwrap_or(2.0 * running);
    let name = change.map_or("the connection limit", |item| item.what.name.as_str());
    finding.fix = Some(Fix {
        actions: vec![format!("raise {name} of the client to at least {}", text::number(wanted))],
        restart: false,
        ..Fix::default()
    });
    finding.claim = "client.connection_limit holds requests back".to_owned();
    Outcome::Found(Box::new(finding))
}
