//! `report/1`: the report for programs.

use serde_json::{Map, Value as Json, json};

use crate::quantity::Quantity as Q;
use crate::rank::Suspect;
use crate::report::{Report, Row, StepReport};

/// The JSON report.
pub fn json(report: &Report) -> Json {
    let primary = report.suspects.first().filter(|_| report.has_cause).map(|suspect| {
        json!({
            "factor": suspect.name,
            "kind": suspect.factor.map(|factor| factor.kind()),
            "before": suspect.before,
            "now": suspect.now,
            "explained": suspect.explained,
            "timing": report.timing,
        })
    });
    json!({
        "schema": "report/1",
        "verdict": report.verdict.name(),
        "summary": report.summary,
        "exit_code": report.exit_code,
        "engine": report.engine,
        "version": report.version,
        "model": report.model,
        "target": report.target,
        "complaint": report.complaint,
        "primary": primary,
        "mechanism": report.mechanism,
        "how": report.how,
        "symptom_metric": report.symptom,
        "suspects": report.suspects.iter().enumerate().map(|(i, s)| suspect(i + 1, s)).collect::<Vec<_>>(),
        "losses": report.losses.iter().map(|loss| json!({ "felt": loss.felt.name(), "before": loss.before, "now": loss.now, "unit": loss.felt.unit() })).collect::<Vec<_>>(),
        "decomposition": decomposition(report),
        "measured_now": report.sides.iter().map(|both| json!({ "name": both.quantity.name(), "unit": both.quantity.unit(), "client": both.client, "server": both.server })).collect::<Vec<_>>(),
        "step": report.step.as_ref().map(step),
        "observed": observed(report),
        "statistics": statistics(report),
        "predicted": report.predicted.as_ref().map(|p| json!({ "metric": p.metric, "range": [p.range.lo, p.range.hi], "basis": p.basis })),
        "validated": report.validated.iter().map(|(metric, value, source)| json!({ "metric": metric, "value": value, "source": source })).collect::<Vec<_>>(),
        "fix": report.fix.as_ref().map(crate::finding::Fix::json),
        "costs": report.costs,
        "notices": report.notices,
        "claims": report.claims,
        "next_step": report.next_test,
        "gaps": report.gaps,
        "configurations": {
            "before": report.places.0,
            "now": report.places.1,
            "differences": report.differences.iter().map(|(factor, before, now, effect)| json!({ "factor": factor, "before": before, "now": now, "effect": effect })).collect::<Vec<_>>(),
        },
    })
}

fn suspect(rank: usize, suspect: &Suspect) -> Json {
    json!({
        "rank": rank,
        "factor": suspect.name,
        "kind": suspect.factor.map(|factor| factor.kind()),
        "before": suspect.before,
        "now": suspect.now,
        "explained": suspect.explained,
        "score": (suspect.score * 1000.0).round() / 1000.0,
        "mechanism": suspect.mechanism,
        "evidence": suspect.evidence,
        "against": suspect.against,
    })
}

fn decomposition(report: &Report) -> Json {
    let mut out = Map::new();
    for row in &report.rows {
        let entry = number(row);
        for alias in row.quantity.aliases() {
            out.insert((*alias).to_owned(), entry.clone());
        }
        out.insert(row.quantity.name().to_owned(), entry);
    }
    if let Some((before, now)) = &report.offloaded {
        out.insert("offloaded_layers".to_owned(), json!({ "before": before, "now": now, "definition": "layers on the device / all layers" }));
    }
    out.into()
}

fn step(step: &StepReport) -> Json {
    let parts: Map<String, Json> =
        step.parts.iter().map(|(name, s)| (format!("{name}_s"), json!(s))).collect();
    json!({
        "step_s": step.step_s,
        "parts": parts,
        "queue_s": step.queue_s,
        "bytes": step.bytes,
        "bytes_per_s": step.bytes_per_s,
        "bandwidth": step.bandwidth,
    })
}

fn number(row: &Row) -> Json {
    let mut entry = Map::new();
    entry.insert("before".to_owned(), json!(row.before.as_ref().map(|(e, _)| e.value)));
    entry.insert("now".to_owned(), json!(row.now.as_ref().map(|(e, _)| e.value)));
    // The interval is that of the newer number.
    if let Some((estimate, _)) = row.now.as_ref().or(row.before.as_ref()) {
        entry.insert("lo".to_owned(), json!(estimate.lo));
        entry.insert("hi".to_owned(), json!(estimate.hi));
        entry.insert("n".to_owned(), json!(estimate.n));
    }
    entry.insert("unit".to_owned(), json!(row.quantity.unit()));
    entry.insert("definition".to_owned(), json!(row.quantity.definition()));
    entry.insert("source_before".to_owned(), json!(row.before.as_ref().map(|(_, source)| source)));
    entry.insert("source_now".to_owned(), json!(row.now.as_ref().map(|(_, source)| source)));
    for (key, value) in &row.extra {
        entry.insert((*key).to_owned(), value.clone());
    }
    entry.into()
}

fn observed(report: &Report) -> Json {
    let mut out = Map::new();
    for quantity in [Q::DecodeTokS, Q::AggregateTokS, Q::TtftP50, Q::Running, Q::Queue] {
        if let Some(row) = report.row(quantity) {
            for (when, side) in [("before", &row.before), ("now", &row.now)] {
                if let Some((estimate, _)) = side {
                    out.insert(format!("{}_{when}", quantity.name()), json!(estimate.value));
                }
            }
        }
    }
    out.into()
}

fn statistics(report: &Report) -> Option<Json> {
    let test = report.test.as_ref()?;
    Some(json!({
        "n_before": test.n_before,
        "n_now": test.n_now,
        "median_before": test.median_before,
        "median_now": test.median_now,
        "p_value": test.p_value,
        "ratio": test.ratio.value,
        "ratio_ci": [test.ratio.lo, test.ratio.hi],
        "detectable_change": test.detectable,
    }))
}
