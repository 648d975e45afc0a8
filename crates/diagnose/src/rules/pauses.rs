//! Streams that stop in the middle: requests pushed out, or prefill that holds everybody up.

use dialects::metrics::Metric;
use dialects::{Factor, Value};

use super::View;
use super::restore::{cite, compared, places};
use crate::facts::SideView;
use crate::finding::{Finding, Outcome, Prediction};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::text;
use plan::engines::speed::Range;

/// Running requests that lose their KV and start again.
pub(super) fn retraction(view: View<'_>) -> Outcome {
    let case = view.case;
    let (was, is) =
        (case.before.get(Q::Retracted).unwrap_or(0.0), case.now.get(Q::Retracted).unwrap_or(0.0));
    let counted = case
        .evidence
        .scrapes
        .iter()
        .filter(|s| s.side == crate::evidence::Side::Now)
        .find_map(|s| s.what.get(Metric::Preemptions))
        .unwrap_or(0.0);
    if is.max(counted) < 1.0 || is.max(counted) <= 1.5 * was {
        return Outcome::Pass;
    }
    let number = |v: &Option<Value>| v.as_ref().and_then(Value::as_f64);
    let raised = |factor: Factor| {
        case.difference(factor)
            .is_some_and(|d| number(&d.a).zip(number(&d.b)).is_none_or(|(a, b)| b > a))
    };
    let lowered = |factor: Factor| {
        case.difference(factor)
            .is_some_and(|d| number(&d.a).zip(number(&d.b)).is_none_or(|(a, b)| b < a))
    };
    let factor = if raised(Factor::SchedMaxRunning) {
        Factor::SchedMaxRunning
    } else if lowered(Factor::SchedConservativeness) {
        Factor::SchedConservativeness
    } else if view.moved(Q::KvTokens).is_some_and(|moved| moved < -0.05) {
        [
            Factor::MemStaticFraction,
            Factor::MemKvTokens,
            Factor::MemStateRatio,
            Factor::MemKvDtype,
            Factor::ModelQuant,
            Factor::ModelDtype,
        ]
        .into_iter()
        .find(|f| case.differs(&[*f]))
        .unwrap_or(Factor::MemKvTokens)
    } else if case.differences.is_empty() || case.same_process {
        Factor::WorkloadPromptMix
    } else {
        Factor::SchedMaxRunning
    };
    let mut finding = Finding::new(factor);
    view.with_values(&mut finding);
    finding.id = "kv_pool_full_retractions";
    finding.mechanism = "more long requests are admitted than the KV pool can hold to their end; some lose their KV, wait, and are computed again while every stream stands still".to_owned();
    finding.evidence.push(format!(
        "requests pushed out {} -> {} in the logs; the counter says {}",
        text::number(was),
        text::number(is),
        text::number(counted)
    ));
    finding.evidence.extend(
        cite(&case.now, Q::KvUsagePeak).map(|cited| format!("KV pool in use, peak {cited}")),
    );
    finding.evidence.extend(compared(view, "longest pause, p90", Q::PauseP90));
    finding.evidence.extend(
        compared(view, "tok/s of all streams", Q::AggregateTokS)
            .map(|line| format!("{line}: the mean hides the pauses")),
    );
    finding.evidence.extend(compared(view, "accept length", Q::AcceptLen));
    if let Some((_, run)) = case.now.run.filter(|(_, run)| run.retracted_tokens > 0) {
        finding.evidence.push(format!(
            "{} KV tokens thrown away in the window of the log",
            text::number(run.retracted_tokens as f64)
        ));
    }
    if let Some(state) = case.now.get(Q::StateUsage).filter(|usage| *usage < 0.9) {
        finding.evidence.push(format!(
            "state slots {} in use: they are not what runs out",
            text::percent(state)
        ));
    }
    finding.evidence.extend(places(view));
    for felt in [Felt::Pauses, Felt::Stream, Felt::Aggregate, Felt::FirstToken] {
        if view.losses.size(felt) > 0.0 {
            finding.explains.push((felt, if felt == Felt::Pauses { 1.0 } else { 0.8 }));
        }
    }
    if finding.explains.is_empty() {
        finding.explains.push((Felt::Pauses, 0.6));
        finding.strength = 0.8;
    }
    finding.predicted = view.predict_earlier(Q::PauseP90);
    finding.fix = if case.differs(&[factor]) { view.restore(&[factor]) } else { None };
    if let Some(fix) = &mut finding.fix
        && case.engine.like_sglang()
        && factor == Factor::SchedMaxRunning
    {
        fix.options.push(vec![("--schedule-conservativeness".to_owned(), "1.3".to_owned())]);
        if let Some(fraction) = case
            .effective_now(Factor::MemStaticFraction)
            .and_then(|v| v.as_f64())
            .filter(|f| *f < 0.86)
        {
            fix.options.push(vec![(
                "--mem-fraction-static".to_owned(),
                format!("{:.2}", fraction + 0.06),
            )]);
        }
    }
    finding.costs = vec![
        "fewer requests run at once, so new ones wait longer for their first token".to_owned(),
    ];
    finding.claim = format!("{factor} admits more than the KV pool holds");
    Outcome::Found(Box::new(finding))
}

/// A larger chunk stops the streams for as long as it is computed; a smaller one makes prompts slower.
pub(super) fn prefill_chunk(view: View<'_>) -> Outcome {
    let case = view.case;
    let Some(difference) = case
        .difference(Factor::SchedPrefillChunk)
        .or(case.difference(Factor::SchedMixed))
        .or(case.difference(Factor::SchedPrefillMax))
    else {
        return Outcome::Pass;
    };
    let Some(factor) = difference.factor() else { return Outcome::Pass };
    let mut finding = Finding::new(factor);
    view.with_values(&mut finding);
    finding.covers = vec![Factor::SchedPrefillChunk, Factor::SchedPrefillMax, Factor::SchedMixed];
    let number = |v: &Option<Value>| v.as_ref().and_then(Value::as_f64);
    let chunk = |side: &SideView<'_>, asked: Option<f64>| {
        let stated = side.run.and_then(|(_, run)| run.sizes.prefill_chunk);
        let largest = side.run.map(|(_, run)| run.largest_prefill as f64).filter(|n| *n > 0.0);
        // -1 switches chunks off: then the largest prefill seen is what a stream waits for.
        match asked.filter(|n| *n > 0.0).or(stated) {
            Some(chunk) => Some(largest.map_or(chunk, |largest| chunk.min(largest.max(1.0)))),
            None => largest,
        }
    };
    let (was, is) =
        (chunk(&case.before, number(&difference.a)), chunk(&case.now, number(&difference.b)));
    let rate = case.now.get(Q::PrefillTokS).or(case.before.get(Q::PrefillTokS));
    let expected = is.zip(rate).map(|(chunk, rate)| chunk / rate);
    finding.evidence.extend(compared(view, "longest pause, p90", Q::PauseP90));
    if let (Some(expected), Some(is), Some(rate)) = (expected, is, rate) {
        finding.evidence.push(format!(
            "a chunk of {} tokens at {} tok/s takes {} s",
            text::number(is),
            text::number(rate),
            text::number(expected)
        ));
    }
    finding.evidence.extend(compared(view, "accept length", Q::AcceptLen));
    finding.evidence.extend(compared(view, "steps/s", Q::StepsPerS));
    finding.evidence.extend(places(view));
    // Where the earlier chunk is the engine's own choice, longer pauses say that it was smaller.
    let paused = view.losses.size(Felt::Pauses) > 0.0;
    let grew = was.zip(is).map_or(paused, |(was, is)| is > 1.2 * was);
    if grew && paused {
        let seen = case.now.get(Q::PauseP90).unwrap_or(0.0);
        let fits = expected.is_none_or(|expected| seen < 3.0 * expected && seen > 0.4 * expected);
        finding.explains.push((Felt::Pauses, if fits { 1.0 } else { 0.5 }));
        // Prefill that runs alone takes its time from the streams as well, however it is cut.
        for felt in [Felt::Stream, Felt::Aggregate] {
            if view.losses.size(felt) > 0.0 {
                finding.explains.push((felt, 0.5));
            }
        }
    } else if !grew && view.losses.size(Felt::FirstToken) > 0.0 {
        finding.explains.push((Felt::FirstToken, 0.8));
    } else {
        finding.strength = 0.2;
        finding.against.push("neither pauses nor the time to the first token grew".to_owned());
    }
    finding.id = "prefill_stops_streams";
    finding.mechanism = if grew {
        "streams stand still while a chunk of somebody's prompt is computed; the chunk is larger now".to_owned()
    } else {
        "prompts are computed in smaller pieces, each with its own overhead".to_owned()
    };
    finding.predicted = view.predict_earlier(Q::PauseP90).or_else(|| {
        let (chunk, rate) = was.zip(rate)?;
        let pause = chunk / rate;
        Some(Prediction {
            metric: Q::PauseP90.name().to_owned(),
            range: Range { lo: 0.7 * pause, hi: 1.5 * pause },
            basis: "chunk ÷ prefill rate".to_owned(),
        })
    });
    finding.fix = view.restore(&[factor]);
    finding.costs = vec!["prompts are computed a little more slowly in smaller chunks".to_owned()];
    finding.claim = format!("{factor} decides how long streams stand still for a prefill");
    Outcome::Found(Box::new(finding))
}
