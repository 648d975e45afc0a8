//! What is asked of the server: sampling temperature, kind and length of the prompts.

use dialects::Factor;
use serde_json::json;

use super::View;
use super::restore::{cite, compared};
use crate::facts::SideView;
use crate::finding::{Finding, Fix, Outcome};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::stats;
use crate::text;

/// Warmer sampling accepts fewer drafts.
pub(super) fn temperature(view: View<'_>) -> Outcome {
    let Some((before, now)) = view.both(Q::Temperature) else { return Outcome::Pass };
    if (now - before).abs() < 0.05 {
        return Outcome::Pass;
    }
    let default_changed = view.case.differs(&[Factor::ApiSamplingDefault]);
    let factor =
        if default_changed { Factor::ApiSamplingDefault } else { Factor::WorkloadTemperature };
    let mut finding = Finding::new(factor);
    finding.before = json!(round2(before));
    finding.now = json!(round2(now));
    finding.covers = vec![Factor::ApiSamplingDefault, Factor::WorkloadTemperature];
    finding.evidence.extend(compared(view, "temperature", Q::Temperature));
    finding.evidence.extend(compared(view, "accept length", Q::AcceptLen));
    finding.evidence.extend(compared(view, "steps/s", Q::StepsPerS));
    let (accept, steps) = view.parts().unwrap_or((0.0, 0.0));
    if accept > -0.03 {
        finding.strength = 0.1;
        finding.against.push("acceptance did not fall".to_owned());
    }
    if super::speculation::changed(view) {
        finding.strength *= 0.5;
        finding.against.push("speculation was changed as well".to_owned());
    }
    finding.explains = view.explains_speed(accept.min(0.0));
    if finding.explains.is_empty() && accept < -0.03 {
        // Probes at different temperatures do not compare; the log does.
        finding
            .explains
            .push((Felt::Traffic, (accept / (accept + steps.min(0.0))).clamp(0.0, 1.0)));
    }
    finding.id = "acceptance_falls_with_temperature";
    finding.mechanism =
        "at a higher temperature the target draws other tokens than the draft more often"
            .to_owned();
    finding.fix = Some(Fix {
        actions: vec![format!(
            "temperature {} where the answers allow it, or drafts that are sampled too",
            text::number(before)
        )],
        options: vec![vec![("--speculative-use-rejection-sampling".to_owned(), String::new())]],
        restart: false,
        ..Fix::default()
    });
    finding.claim = format!("{factor}: warmer sampling accepts fewer drafts");
    Outcome::Found(Box::new(finding))
}

fn round2(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// Other prompts: acceptance and step rate follow them while an unchanged probe is as fast as ever.
pub(super) fn prompt_mix(view: View<'_>) -> Outcome {
    let case = view.case;
    let probe_steady = case.fixed_probe && view.losses.size(Felt::Stream) == 0.0;
    let traffic = view.losses.size(Felt::Traffic).max(view.losses.size(Felt::Stream));
    let lengths = view.both(Q::PromptP50);
    let other_lengths = lengths.is_some_and(|(before, now)| (now / before).ln().abs() > 0.5);
    let other_outputs = log_outputs(&case.before)
        .zip(log_outputs(&case.now))
        .is_some_and(|(before, now)| (now / before).ln().abs() > 0.7);
    let (accept, steps) = view.parts().unwrap_or((0.0, 0.0));
    let server_changed = case
        .differences
        .iter()
        .filter_map(|d| d.factor())
        .any(|f| !crate::mechanisms::moves(case.engine, f).is_empty());
    let crowded = fills_the_pool(view);
    let slower =
        traffic > 0.0 && (other_lengths || other_outputs || (probe_steady && accept < -0.05));
    if !slower && !crowded {
        return Outcome::Pass;
    }
    let mut finding = Finding::new(Factor::WorkloadPromptMix);
    finding.before = json!(spread(&case.before).unwrap_or_else(|| "other prompts".to_owned()));
    finding.now = json!(spread(&case.now).unwrap_or_else(|| "other prompts".to_owned()));
    if case.fixed_probe {
        finding.evidence.extend(compared(view, "fixed probe", Q::FixedProbeTokS));
    }
    finding.evidence.extend(compared(view, "prompt length, median", Q::PromptP50));
    finding.evidence.extend(compared(view, "accept length of the users' requests", Q::AcceptLen));
    finding.evidence.extend(compared(view, "steps/s", Q::StepsPerS));
    finding.evidence.push(parts_in_words(view, accept, steps));
    if case.same_process {
        finding.evidence.push("both periods are one and the same process".to_owned());
    }
    finding.explains = view.explains_speed(accept.min(0.0) + steps.min(0.0));
    finding.strength = match (probe_steady, server_changed) {
        (true, _) => 1.0,
        (false, false) if case.fixed_probe => 0.1, // the probe got slower too: it is not the prompts
        (false, false) => 0.8,
        (false, true) => 0.3,
    };
    if crowded {
        // A setting that can slow a step has no part in how many requests fit.
        finding.strength = 1.0;
        finding.evidence.extend(compared(view, "running", Q::Running));
        finding.evidence.extend(compared(view, "waiting", Q::Queue));
        finding.evidence.extend(compared(view, "KV pool in use", Q::KvUsage));
        finding.explains.retain(|(felt, _)| *felt != Felt::Aggregate);
        super::running::shares(view, &mut finding);
        finding.id = "longer_requests_fill_the_pool";
        finding.mechanism =
            "longer requests fill the KV pool, so fewer of them run at once".to_owned();
        finding.fix = Some(Fix {
            actions: vec![
                "more KV tokens (a larger static fraction, an 8-bit KV cache, another device), shorter prompts, or fewer clients"
                    .to_owned(),
            ],
            restart: false,
            ..Fix::default()
        });
        finding.claim = "workload.prompt_mix: longer requests fill the KV pool".to_owned();
        return Outcome::Found(Box::new(finding));
    }
    if case.fixed_probe && !probe_steady {
        finding.against.push("the fixed probe got slower as well".to_owned());
    }
    finding.id = "acceptance_follows_the_prompts";
    finding.mechanism = "drafts are accepted less often in such text, and attention over longer contexts takes longer".to_owned();
    finding.fix = Some(Fix {
        actions: vec![
            "send such requests where the draft depth suits them, or let the depth adapt"
                .to_owned(),
        ],
        options: vec![vec![("--speculative-adaptive".to_owned(), String::new())]],
        restart: false,
        ..Fix::default()
    });
    finding.claim = "workload.prompt_mix: the requests are not the same".to_owned();
    Outcome::Found(Box::new(finding))
}

/// Whether longer prompts hold the running count down: the pool is full, is as large as before, and fewer run.
fn fills_the_pool(view: View<'_>) -> bool {
    let now = &view.case.now;
    let waits = now.get(Q::Queue).is_some_and(|queue| queue >= 0.5);
    let full = now.get(Q::KvUsage).is_some_and(|usage| usage > 0.9);
    let fewer = view.moved(Q::Running).is_some_and(|moved| moved < -0.1);
    let same_pool = view.moved(Q::KvTokens).is_some_and(|moved| moved.abs() < 0.05);
    let longer = view.moved(Q::PromptP50).is_some_and(|moved| moved > 0.4);
    waits && full && fewer && same_pool && longer
}

fn log_outputs(side: &SideView<'_>) -> Option<f64> {
    stats::median(side.run?.1.outputs.iter())
}

/// `prompts of 22 000 to 41 000 tokens`.
fn spread(side: &SideView<'_>) -> Option<String> {
    let lengths = stats::sorted(side.run?.1.prompts.iter());
    let (low, high) = (stats::quantile(&lengths, 0.1)?, stats::quantile(&lengths, 0.9)?);
    Some(format!(
        "prompts of {} to {} tokens",
        text::number(low.round()),
        text::number(high.round())
    ))
}

/// How much of the loss acceptance, step rate and prefill each take.
fn parts_in_words(view: View<'_>, accept: f64, steps: f64) -> String {
    let total = (accept + steps).min(-1e-9);
    let share = |part: f64| text::percent((part / total).clamp(0.0, 1.0));
    let prefill = cite(&view.case.now, Q::LogTokS).map_or(String::new(), |_| {
        let duty = |side: &SideView<'_>| Some(side.get(Q::LogTokS)? / side.get(Q::GenTokS)?);
        match (duty(&view.case.before), duty(&view.case.now)) {
            (Some(before), Some(now)) if now < before => format!(
                "; prefill takes {} of the time, {} before",
                text::percent(1.0 - now),
                text::percent(1.0 - before)
            ),
            _ => String::new(),
        }
    });
    format!(
        "of the slower decoding, acceptance takes {} and the step rate {}{prefill}",
        share(accept),
        share(steps)
    )
}
