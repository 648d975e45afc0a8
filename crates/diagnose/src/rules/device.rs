//! The machine: clocks held down, and somebody else on the same device.

use dialects::Factor;
use serde_json::json;

use super::View;
use super::restore::compared;
use crate::collect::gpu::{GpuProcess, Throttle};
use crate::finding::{Finding, Fix, Outcome, Prediction};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::text;

/// Heat or power holds the clocks down.
pub(super) fn throttle(view: View<'_>) -> Outcome {
    let case = view.case;
    let Some((source, gpu)) = case.now.gpu else {
        return Outcome::NotEnough("a look at the device's clocks while it works".to_owned());
    };
    let reasons: Vec<Throttle> =
        gpu.throttle().into_iter().filter(|reason| *reason != Throttle::PowerCap).collect();
    let capped = gpu.throttle().contains(&Throttle::PowerCap);
    let clock_fell = view.moved(Q::SmMhz).is_some_and(|moved| moved < -0.15)
        || view.moved(Q::MemMhz).is_some_and(|moved| moved < -0.15);
    let busy = case.now.get(Q::GpuUtil).is_none_or(|busy| busy > 0.3);
    if reasons.is_empty() && !(clock_fell && busy && (capped || power_limit_fell(view))) {
        return Outcome::Pass;
    }
    let mut finding = Finding::new(Factor::GpuThrottle);
    let before = case.before.gpu.map(|(_, gpu)| gpu.throttle());
    finding.before = json!(match &before {
        Some(reasons) if !reasons.is_empty() => names(reasons),
        _ => "none".to_owned(),
    });
    let fan =
        gpu.mean(|g| g.fan).map_or(String::new(), |fan| format!(", fan {}", text::percent(fan)));
    finding.now = json!(format!(
        "{}{fan}",
        names(if reasons.is_empty() { &[Throttle::PowerCap] } else { &reasons })
    ));
    finding.evidence.push(format!("{} active ({source})", names(&gpu.throttle())));
    finding.evidence.extend(compared(view, "clock of the arithmetic", Q::SmMhz));
    finding.evidence.extend(compared(view, "clock of the memory", Q::MemMhz));
    finding.evidence.extend(compared(view, "temperature", Q::GpuTemp));
    let (first, late) = (case.now.get(Q::FirstMinutes), case.now.get(Q::LateTokS));
    if let (Some(first), Some(late)) = (first, late) {
        finding.evidence.push(format!(
            "{} tok/s in the first minutes, {} later in the same run ({})",
            text::number(first),
            text::number(late),
            case.now.log()
        ));
    }
    if case.differences.is_empty() && case.before.in_force.is_some() {
        finding.evidence.push("the configuration is the same as before".to_owned());
    }
    let step_fell = view.moved(Q::StepsPerS).is_some_and(|moved| moved < -0.05);
    for felt in [Felt::Drift, Felt::Stream, Felt::Aggregate, Felt::FirstToken] {
        if view.losses.size(felt) > 0.0
            && (felt == Felt::Drift || step_fell || case.before.run.is_none())
        {
            finding.explains.push((felt, 1.0));
        }
    }
    if finding.explains.is_empty() {
        finding.explains.push((Felt::Stream, 0.4));
        finding.strength = if reasons.is_empty() { 0.3 } else { 0.7 };
    }
    finding.id = "clocks_held_down";
    finding.mechanism =
        "the device lowers its clocks, so every step takes longer; acceptance does not change"
            .to_owned();
    finding.predicted = first.map(|speed| Prediction {
        metric: "gen_tok_s".to_owned(),
        range: crate::effects::around_measured(crate::stats::Estimate::exact(speed)),
        basis: "the first minutes after a start, before the device was hot".to_owned(),
    });
    let action = if reasons.is_empty() {
        "raise the power limit or the supply"
    } else {
        "cooling: fan, dust, airflow, ambient temperature"
    };
    finding.fix = Some(Fix { actions: vec![action.to_owned()], restart: false, ..Fix::default() });
    finding.costs = vec!["a probe right after a restart looks healthy: measure for longer than the device takes to get hot".to_owned()];
    finding.claim = "gpu.throttle holds the clocks down".to_owned();
    Outcome::Found(Box::new(finding))
}

fn names(reasons: &[Throttle]) -> String {
    reasons.iter().map(|reason| reason.name()).collect::<Vec<_>>().join(", ")
}

fn power_limit_fell(view: View<'_>) -> bool {
    let limit = |side: &crate::facts::SideView<'_>| {
        side.gpu.and_then(|(_, gpu)| gpu.mean(|g| g.power_limit_w))
    };
    limit(&view.case.before)
        .zip(limit(&view.case.now))
        .is_some_and(|(before, now)| now < 0.9 * before)
}

/// Names by which a server's own processes are known.
const OWN: &[&str] = &[
    "sglang",
    "vllm",
    "llama-server",
    "llama.cpp",
    "outrider",
    "Xorg",
    "gnome-shell",
    "nvidia-persistenced",
];

/// Another process computes on the same device: two speeds within one run, and somebody in the process list.
pub(super) fn other_process(view: View<'_>) -> Outcome {
    let case = view.case;
    let modes = case.now.get(Q::FastModeMs).zip(case.now.get(Q::SlowModeMs));
    let foreign = foreigners(view);
    if foreign.is_empty() {
        return match modes {
            Some(_)
                if case.now.gpu.is_none_or(|(_, gpu)| gpu.processes.is_empty())
                    && case.differences.is_empty()
                    && throttle_free(view) =>
            {
                Outcome::NotEnough(
                    "the list of processes on the device: step times fall into two groups"
                        .to_owned(),
                )
            }
            _ => Outcome::Pass,
        };
    }
    let mut finding = Finding::new(Factor::GpuOtherProcess);
    finding.before = json!("none");
    finding.now = json!(foreign.iter().map(|p| p.name.clone()).collect::<Vec<_>>().join(", "));
    for process in &foreign {
        let memory =
            process.memory_mib.map_or(String::new(), |mib| format!(", {} MiB", text::number(mib)));
        finding.evidence.push(format!(
            "process {} {}{memory} is on the same device",
            process.pid, process.name
        ));
    }
    if let Some((fast, slow)) = modes {
        finding.evidence.push(format!(
            "step time is {} ms or {} ms within one run, nothing between ({})",
            text::number(fast),
            text::number(slow),
            case.now.log()
        ));
    } else {
        finding.strength = 0.5;
        finding.against.push("step times do not fall into two groups".to_owned());
    }
    finding.evidence.extend(compared(view, "accept length", Q::AcceptLen));
    finding.evidence.extend(compared(view, "step time", Q::StepMs));
    let (_, steps) = view.parts().unwrap_or((0.0, 0.0));
    finding.explains = view.explains_speed(steps.min(0.0));
    let undisturbed = modes.map(|(fast, slow)| (slow / fast).ln());
    if let Some(part) = undisturbed {
        finding.explains = finding
            .explains
            .iter()
            .map(|(felt, _)| (*felt, (part / view.losses.size(*felt)).clamp(0.6, 1.0)))
            .collect();
    }
    if finding.explains.is_empty() {
        finding.explains.push((Felt::Stream, if modes.is_some() { 0.8 } else { 0.3 }));
        if case.before.is_measured() && !view.losses.losses.is_empty() {
            finding.strength *= 0.6;
        }
    }
    finding.id = "device_shared";
    finding.mechanism =
        "the device's time and memory are shared with a process that is no server".to_owned();
    finding.predicted = view.predict_speed();
    finding.fix = Some(Fix {
        actions: vec!["move the other process to another device or another time".to_owned()],
        restart: false,
        ..Fix::default()
    });
    finding.claim = "gpu.other_process takes device time".to_owned();
    Outcome::Found(Box::new(finding))
}

fn throttle_free(view: View<'_>) -> bool {
    view.case.now.gpu.is_none_or(|(_, gpu)| gpu.throttle().is_empty())
}

/// Processes on the device that are not the server and were not there before.
fn foreigners(view: View<'_>) -> Vec<GpuProcess> {
    let Some((_, gpu)) = view.case.now.gpu else { return Vec::new() };
    let before: Vec<&str> = view
        .case
        .before
        .gpu
        .map(|(_, gpu)| gpu.processes.iter().map(|p| p.name.as_str()).collect())
        .unwrap_or_default();
    let server_pids: Vec<u64> = view
        .case
        .evidence
        .configs
        .iter()
        .filter_map(|found| found.name.strip_prefix("pid ").and_then(|pid| pid.parse().ok()))
        .collect();
    let is_own = |process: &GpuProcess| {
        server_pids.contains(&process.pid)
            || OWN
                .iter()
                .any(|name| process.name.to_ascii_lowercase().contains(&name.to_ascii_lowercase()))
            || before.contains(&process.name.as_str())
    };
    let mut foreign: Vec<GpuProcess> = gpu
        .processes
        .iter()
        .filter(|p| !is_own(p) && p.memory_mib.is_none_or(|mib| mib > 300.0))
        .cloned()
        .collect();
    // A server that only shows as `python` is the process with the most memory; it is no foreigner.
    if server_pids.is_empty() && !gpu.processes.iter().any(is_own) {
        let own = foreign
            .iter()
            .enumerate()
            .max_by(|a, b| {
                a.1.memory_mib.partial_cmp(&b.1.memory_mib).unwrap_or(std::cmp::Ordering::Equal)
            })
            .map(|(i, _)| i);
        own.map(|i| foreign.remove(i));
    }
    foreign
}
