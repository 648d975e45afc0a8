//! What a reader should know besides the verdict: definitions that differ, limits that never took effect, numbers that
//! nobody measured.

use dialects::effective::SGLANG_SPEC_MAX_RUNNING;
use dialects::log::WarningKind;
use dialects::{Factor, Value};

use crate::configs::Origin;
use crate::facts::{Case, SideView};
use crate::finding::Prediction;
use crate::losses::{Felt, Losses};
use crate::mechanisms;
use crate::quantity::Quantity as Q;
use crate::text;

/// All notices of a case.
pub(super) fn all(case: &Case<'_>, losses: &Losses, predicted: Option<&Prediction>) -> Vec<String> {
    let mut out = Vec::new();
    rates(case, &mut out);
    caps("before", &case.before, &mut out);
    caps("now", &case.now, &mut out);
    starved(case, &mut out);
    remembered(case, predicted, &mut out);
    windows(case, &mut out);
    chunks(case, &mut out);
    aggregate_is_not_stream(case, losses, &mut out);
    pools(case, &mut out);
    unit_on_disk(case, &mut out);
    statistics(losses, &mut out);
    logs(case, &mut out);
    out
}

fn rates(case: &Case<'_>, out: &mut Vec<String>) {
    if let (Some(before), Some(now)) = case.rates()
        && before != now
    {
        out.push(format!(
            "the accept rates of the two logs are not comparable: before it is {}, now {}; compare accept lengths",
            before.formula(),
            now.formula()
        ));
    }
}

/// A running limit that was asked for and never reached.
fn caps(when: &str, side: &SideView<'_>, out: &mut Vec<String>) {
    let asked = side
        .in_force
        .as_ref()
        .filter(|c| !c.same_process)
        .and_then(|c| c.config.number(Factor::SchedMaxRunning));
    let ran = side.get(Q::MaxRunning);
    if let (Some(asked), Some(ran)) = (asked, ran)
        && ran < asked
    {
        let by_state = side
            .run
            .is_some_and(|(_, run)| run.warning(WarningKind::RunningCappedByState).is_some());
        let by = if by_state { "the state pool" } else { "the pools" };
        out.push(format!(
            "{when}: {} running requests were asked for, but {by} capped it to {}",
            text::number(asked),
            text::number(ran)
        ));
    }
}

/// Pools so small that a second user would wait, although one stream does not notice.
fn starved(case: &Case<'_>, out: &mut Vec<String>) {
    let now = &case.now;
    let (Some(limit), Some(running)) = (now.get(Q::MaxRunning), now.get(Q::Running)) else {
        return;
    };
    if case.engine == dialects::Engine::LlamaCpp
        || limit > 2.0
        || now.get(Q::Queue).unwrap_or(0.0) > 0.0
        || running > limit
    {
        return;
    }
    let pool = now.get(Q::KvTokens).map_or(String::new(), |tokens| {
        format!(" and the KV pool holds {} tokens", text::number(tokens))
    });
    let mut line =
        format!("the running limit is {}{pool}: a second user would wait", text::number(limit));
    let unset = now.in_force.as_ref().is_some_and(|c| {
        c.config.get(Factor::SchedMaxRunning).is_none()
            && c.config.get(Factor::SpecMethod).is_some()
    });
    if unset && case.engine.like_sglang() {
        line.push_str(&format!("; without --max-running-requests, speculation reserves state for {SGLANG_SPEC_MAX_RUNNING} requests and starves both pools"));
        if let Some(before) =
            case.before.in_force.as_ref().and_then(|c| c.config.number(Factor::SchedMaxRunning))
        {
            line.push_str(&format!(
                " (the earlier configuration asked for {})",
                text::number(before)
            ));
        }
    }
    let after = case
        .evidence
        .logs
        .iter()
        .filter(|log| log.side == crate::evidence::Side::After)
        .flat_map(|log| &log.what.runs)
        .find_map(|run| run.sizes.max_running.zip(run.sizes.kv_tokens));
    if let Some((running, tokens)) = after {
        line.push_str(&format!(
            "; after the fix it was {} requests and about {} tokens",
            text::number(running),
            text::number(tokens)
        ));
    }
    out.push(line);
}

/// A number that only the operator remembers.
fn remembered(case: &Case<'_>, predicted: Option<&Prediction>, out: &mut Vec<String>) {
    if case.before.is_measured() || case.launch.is_some() || !case.evidence.client_logs.is_empty() {
        return;
    }
    let Some(now) = case.now.get(Q::DecodeTokS) else { return };
    let numbers = case.evidence.complaint.as_deref().map(speeds_in).unwrap_or_default();
    let Some(claimed) = numbers.into_iter().filter(|n| *n > 1.15 * now).reduce(f64::max) else {
        out.push(
            "no measurement from before exists: shares are those of the gain to be had".to_owned(),
        );
        return;
    };
    let mut line = format!(
        "no measurement of the earlier {} tok/s exists: it is the operator's memory",
        text::number(claimed)
    );
    if let Some(range) = predicted.map(|p| p.range).filter(|range| range.hi < claimed) {
        line.push_str(&format!(
            ", and the prediction of {} to {} lies below it",
            text::number(range.lo),
            text::number(range.hi)
        ));
    }
    out.push(line);
}

/// Numbers in a complaint that can be speeds.
fn speeds_in(complaint: &str) -> Vec<f64> {
    let mut out = Vec::new();
    for word in complaint.split(|c: char| !(c.is_ascii_digit() || c == '.')) {
        let digits = word.trim_matches('.');
        if let Ok(number) = digits.parse::<f64>()
            && (2.0..100_000.0).contains(&number)
        {
            out.push(number);
        }
    }
    out
}

fn windows(case: &Case<'_>, out: &mut Vec<String>) {
    for (when, side) in [("before", &case.before), ("now", &case.now)] {
        let Some((path, run)) = side.run else { continue };
        let believed: u32 = run.believable().iter().map(|w| w.n).sum();
        let all: u32 = run.working().map(|w| w.n).sum();
        if believed > 0 && believed < 3 {
            let first = run
                .windows
                .first()
                .and_then(|w| w.validity.reason())
                .map_or(String::new(), |reason| format!("; the first is {reason}"));
            let many = if all == believed {
                format!("{all} decode windows are few")
            } else {
                format!("only {believed} of {all} windows can be believed")
            };
            out.push(format!("{when}: {many}{first} ({path})"));
        }
    }
}

/// Benchmarks that print the gap between chunks as if it were one between tokens.
fn chunks(case: &Case<'_>, out: &mut Vec<String>) {
    for item in &case.now.tables {
        let table = &item.what;
        if !table.itl_counts_chunks() {
            continue;
        }
        let (per_chunk, itl, tpot) = (
            table.tokens_per_chunk().unwrap_or(1.0),
            table.itl_ms().unwrap_or(0.0),
            table.tpot_ms().unwrap_or(0.0),
        );
        let mut line = format!(
            "the inter-token latency in {} counts chunks, not tokens: one chunk carries {} tokens, so {} ms between chunks is {} ms per token",
            item.source,
            text::number(per_chunk),
            text::number(itl),
            text::number(tpot)
        );
        if let (Some(peak), Some(mean)) =
            (table.get("peak output token throughput"), table.output_tok_s())
            && peak < mean
        {
            line.push_str(&format!(
                "; its peak of {} lies below the mean of {} for the same reason",
                text::number(peak),
                text::number(mean)
            ));
        }
        out.push(line);
    }
}

/// Streams that ran together: as the log counts them, else as the tool was told.
pub(super) fn streams(side: &SideView<'_>) -> Option<f64> {
    let told = || {
        side.tables
            .last()
            .and_then(|item| item.what.concurrency())
            .or_else(|| side.probes.first()?.what.workload.concurrency)
    };
    side.get(Q::Running).or_else(told)
}

/// Whether a complaint sets the speed of all streams against that of one: both numbers are those of now.
pub(super) fn complaint_mixes(case: &Case<'_>) -> bool {
    let numbers = case.evidence.complaint.as_deref().map(speeds_in).unwrap_or_default();
    let near = |wanted: Option<f64>| {
        wanted.is_some_and(|wanted| numbers.iter().any(|n| (n / wanted - 1.0).abs() < 0.12))
    };
    streams(&case.now).is_some_and(|n| n >= 1.5)
        && near(case.now.get(Q::GenTokS))
        && near(case.now.get(Q::TrafficTokS).or(case.now.get(Q::DecodeTokS)))
}

/// A number of all streams set against one of a single stream.
fn aggregate_is_not_stream(case: &Case<'_>, losses: &Losses, out: &mut Vec<String>) {
    let (before, now) = (&case.before, &case.now);
    let (Some(ran), Some(runs)) = (streams(before), streams(now)) else { return };
    let Some(all) = before.get(Q::GenTokS).or(before.get(Q::AggregateTokS)) else { return };
    let Some(single) = now.get(Q::DecodeTokS) else { return };
    let stream = before.get(Q::TrafficTokS).or(before.get(Q::DecodeTokS)).unwrap_or(all / ran);
    if ran >= 1.5 * runs
        && all > 1.3 * single
        && losses.size(Felt::Stream) == 0.0
        && now.get(Q::Queue).unwrap_or(0.0) < 0.5
    {
        out.push(format!(
            "the earlier {} tok/s are of {} streams together, {} each; one stream now has {}: an aggregate is no stream's speed",
            text::number(all),
            text::number(ran),
            text::number(stream),
            text::number(single)
        ));
    }
}

/// Pools that changed as a side effect and limit nothing.
fn pools(case: &Case<'_>, out: &mut Vec<String>) {
    let queue = case.now.get(Q::Queue).unwrap_or(0.0);
    let moved =
        |q: Q| case.before.get(q).zip(case.now.get(q)).filter(|(b, n)| (n / b - 1.0).abs() > 0.05);
    if queue >= 0.5 {
        return;
    }
    let parts: Vec<String> = [
        ("KV tokens", Q::KvTokens),
        ("state slots", Q::StateSlots),
        ("running limit", Q::MaxRunning),
    ]
    .into_iter()
    .filter_map(|(name, q)| {
        moved(q).map(|(b, n)| format!("{name} {} -> {}", text::number(b), text::number(n)))
    })
    .collect();
    if !parts.is_empty() {
        out.push(format!("side effect, not the cause (nothing waits): {}", parts.join(", ")));
    }
}

/// The unit on the disk is not always what runs, and the main file not always what is in force.
fn unit_on_disk(case: &Case<'_>, out: &mut Vec<String>) {
    let Some(now) = case.now.in_force.as_ref() else { return };
    let is_process = now.found.is_some_and(|found| {
        matches!(
            found.origin,
            Origin::Process | Origin::ProcessList | Origin::LogArgs | Origin::ServerInfo
        )
    });
    for found in &case.evidence.configs {
        if found.origin == Origin::UnitWithoutDropIn {
            out.push(format!(
                "{} is not what systemd starts: a drop-in overrides it",
                found.place()
            ));
        }
        let differs = || {
            now.config
                .differences(&found.config)
                .iter()
                .filter_map(|d| d.factor())
                .any(|f| !mechanisms::moves(case.engine, f).is_empty())
        };
        if is_process
            && found.origin == Origin::Unit
            && !now.fragment
            && found.config.engine == now.config.engine
            && differs()
        {
            out.push(format!("{} is not what runs", found.place()));
        }
    }
}

fn statistics(losses: &Losses, out: &mut Vec<String>) {
    let Some(test) = losses.test.as_ref().filter(|_| losses.size(Felt::Stream) == 0.0) else {
        return;
    };
    out.push(format!(
        "{} and {} requests, medians {} and {} tok/s, p = {:.2}: with this spread a change under about {} would not show",
        test.n_before,
        test.n_now,
        text::number(test.median_before),
        text::number(test.median_now),
        test.p_value,
        text::percent(test.detectable)
    ));
}

fn logs(case: &Case<'_>, out: &mut Vec<String>) {
    for item in &case.evidence.logs {
        let log = &item.what;
        if log.not_understood > 0 && log.not_understood * 20 > log.lines {
            let example = log
                .example
                .as_deref()
                .map_or(String::new(), |line| format!(", for example: {}", text::cut(line, 80)));
            out.push(format!(
                "{} of {} lines of {} were not understood{example}",
                log.not_understood, log.lines, item.source
            ));
        }
        if let Some(what) = &log.contradiction {
            out.push(format!(
                "{} lines of {} contradict themselves: {what}",
                log.contradictions, item.source
            ));
        }
    }
    let lossy = |side: &SideView<'_>| {
        side.in_force.as_ref().and_then(|c| c.config.get(Factor::SpecSampling).cloned())
    };
    if let Some(Value::Float(threshold)) = lossy(&case.now)
        && threshold < 1.0
    {
        out.push("an accept threshold below 1 changes the answers".to_owned());
    }
}
