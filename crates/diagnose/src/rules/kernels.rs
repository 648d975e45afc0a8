//! What makes every step dearer without changing what it computes: graphs, logging, kernels, the engine itself.

use dialects::log::WarningKind;
use dialects::{Factor, Value};
use serde_json::json;

use super::View;
use super::restore::{cite, compared, places};
use crate::facts::SideView;
use crate::finding::{Finding, Outcome, shown};
use crate::losses::Felt;
use crate::mechanisms::{self, Component};
use crate::quantity::Quantity as Q;
use crate::text;

/// Decode steps without graphs: switched off, or a batch larger than any graph.
pub(super) fn graphs(view: View<'_>) -> Outcome {
    let case = view.case;
    let off_now =
        case.effective_now(Factor::ExecCudaGraph).and_then(|v| v.as_bool()) == Some(false);
    let off_before =
        case.effective_before(Factor::ExecCudaGraph).and_then(|v| v.as_bool()) == Some(false);
    let share = |side: &SideView<'_>| side.get(Q::GraphShare);
    let warned = |side: &SideView<'_>| {
        side.run.is_some_and(|(_, run)| run.warning(WarningKind::GraphsOff).is_some())
    };
    let eager_now = share(&case.now).is_some_and(|s| s < 0.5) || warned(&case.now);
    let eager_before = share(&case.before).is_some_and(|s| s < 0.5) || warned(&case.before);
    if (!eager_now || eager_before) && (!off_now || off_before) {
        return Outcome::Pass;
    }
    let largest = case
        .effective_now(Factor::ExecGraphMaxBs)
        .and_then(|v| v.as_f64())
        .or(case.now.run.and_then(|(_, run)| run.sizes.graph_max_bs));
    let beyond =
        largest.zip(case.now.get(Q::Running)).is_some_and(|(largest, running)| running > largest);
    let factor = if off_now || !beyond { Factor::ExecCudaGraph } else { Factor::ExecGraphMaxBs };
    let mut finding = Finding::new(factor);
    view.with_values(&mut finding);
    if factor == Factor::ExecCudaGraph && finding.now.is_null() {
        finding.before = json!("on");
        finding.now = json!("off");
    }
    finding.covers = vec![
        Factor::ExecCudaGraph,
        Factor::ExecGraphMaxBs,
        Factor::ExecPrefillGraph,
        Factor::ExecCompile,
    ];
    if let Some(share) = share(&case.now) {
        finding.evidence.push(format!(
            "graphs in {} of the decode windows ({})",
            text::percent(share),
            case.now.log()
        ));
    }
    if let Some(warning) = case.now.run.and_then(|(_, run)| run.warning(WarningKind::GraphsOff)) {
        finding.evidence.push(format!("{} ({}:{})", warning.says, case.now.log(), warning.line));
    }
    if beyond && factor == Factor::ExecGraphMaxBs {
        finding.evidence.push(format!(
            "{} requests run, the largest graph is for {}",
            cite(&case.now, Q::Running).unwrap_or_default(),
            text::number(largest.unwrap_or(0.0))
        ));
    }
    finding.evidence.extend(compared(view, "step time", Q::StepMs));
    finding.evidence.extend(compared(view, "accept length", Q::AcceptLen));
    finding
        .evidence
        .extend(cite(&case.now, Q::GpuUtil).map(|cited| format!("device busy {cited}")));
    finding.evidence.extend(places(view));
    let (_, steps) = view.parts().unwrap_or((0.0, 0.0));
    finding.explains = view.explains_speed(steps);
    if steps > -0.03 && case.before.is_measured() {
        finding.strength = 0.2;
        finding.against.push("the step rate did not fall".to_owned());
    }
    view.assume(&mut finding, Felt::Stream, 0.5);
    finding.id = "steps_without_graphs";
    finding.mechanism =
        "every kernel of a step is launched by the host, which adds a constant time".to_owned();
    finding.predicted = view.predict_speed();
    finding.fix = view.restore(
        &[Factor::ExecCudaGraph, Factor::ExecGraphMaxBs]
            .into_iter()
            .filter(|f| case.differs(&[*f]))
            .collect::<Vec<_>>(),
    );
    finding.claim = format!("{factor}: steps run without graphs");
    Outcome::Found(Box::new(finding))
}

/// More log lines per second, or a finer log level, with a step rate that fell.
pub(super) fn logging(view: View<'_>) -> Outcome {
    const PARTS: &[Factor] = &[Factor::ObsLogLevel, Factor::ObsLogRequests, Factor::ObsLogInterval];
    let case = view.case;
    let lines = |side: &SideView<'_>| side.get(Q::LinesPerS);
    let more =
        lines(&case.before).zip(lines(&case.now)).is_some_and(|(b, n)| n > 3.0 * b && n > 5.0);
    let differs = case.differs(PARTS);
    if !differs && !more {
        return Outcome::Pass;
    }
    let mut finding = Finding::new(Factor::ObsLogging);
    finding.covers = PARTS.to_vec();
    let words = |pick: &dyn Fn(&dialects::Difference) -> Option<Value>| {
        let parts: Vec<String> = PARTS
            .iter()
            .filter_map(|f| case.difference(*f))
            .map(|d| {
                format!(
                    "{} {}",
                    d.key,
                    pick(d).map_or_else(|| "not set".to_owned(), |v| v.to_string())
                )
            })
            .collect();
        json!(parts.join(", "))
    };
    if differs {
        finding.before = words(&|d| d.a.clone());
        finding.now = words(&|d| d.b.clone());
    } else {
        let rate =
            |side: &SideView<'_>| lines(side).map(|n| format!("{} lines/s", text::number(n)));
        finding.before = json!(rate(&case.before));
        finding.now = json!(rate(&case.now));
    }
    finding.evidence.extend(compared(view, "log lines", Q::LinesPerS));
    finding.evidence.extend(compared(view, "step time", Q::StepMs));
    finding.evidence.extend(places(view));
    let (_, steps) = view.parts().unwrap_or((0.0, 0.0));
    finding.explains = view.explains_speed(steps);
    finding.strength = match (more, lines(&case.now)) {
        (true, _) => 1.0,
        (false, None) => 0.5,
        (false, Some(_)) if more_by_level(view) => 0.7,
        (false, Some(_)) => 0.2,
    };
    if steps > -0.03 {
        finding.against.push("the step rate did not fall".to_owned());
        finding.strength = 0.1;
    }
    finding.id = "logging_per_step";
    finding.mechanism =
        "the host writes more for every step, which adds a constant time".to_owned();
    finding.predicted = view.predict_speed();
    finding.fix =
        view.restore(&PARTS.iter().copied().filter(|f| case.differs(&[*f])).collect::<Vec<_>>());
    finding.claim = "obs.logging adds host work to every step".to_owned();
    Outcome::Found(Box::new(finding))
}

fn more_by_level(view: View<'_>) -> bool {
    let fine = |value: Option<Value>| {
        value.is_some_and(|v| matches!(v.to_string().as_str(), "debug" | "trace" | "on"))
    };
    [Factor::ObsLogLevel, Factor::ObsLogRequests].iter().any(|f| fine(view.case.effective_now(*f)))
}

/// Settings without a rule of their own that can move a component that moved.
pub(super) fn others(view: View<'_>) -> Outcome {
    const JUDGED: &[Factor] = &[
        Factor::ExecAttention,
        Factor::ExecLinearAttention,
        Factor::ExecCompile,
        Factor::ExecMoe,
        Factor::ExecOffloadLayers,
        Factor::ExecThreads,
        Factor::ParPp,
        Factor::ParEp,
        Factor::ParDp,
        Factor::ParCustomAllreduce,
        Factor::SchedOverlap,
        Factor::SchedMixed,
        Factor::EnvBlocking,
        Factor::GpuVisible,
        Factor::MemKvDtype,
        Factor::CacheStateStrategy,
        Factor::EngineName,
        Factor::ApiSamplingDefault,
        Factor::ApiThinking,
    ];
    let (accept, steps) = view.parts().unwrap_or((0.0, view.stream_change().unwrap_or(0.0)));
    let fell: Vec<(Component, f64)> =
        [(Component::StepRate, steps), (Component::AcceptLen, accept)]
            .into_iter()
            .filter(|(_, moved)| *moved < -0.05)
            .collect();
    let acts = |factor: &Factor| {
        let moves = mechanisms::moves(view.case.engine, *factor);
        fell.iter().any(|(component, _)| moves.contains(component))
    };
    let candidates: Vec<Factor> =
        JUDGED.iter().copied().filter(|f| view.case.differs(&[*f]) && acts(f)).collect();
    let Some(&factor) = candidates.first() else { return Outcome::Pass };
    let difference = view.case.difference(factor);
    let mut finding = Finding::new(factor);
    finding.before = shown(difference.and_then(|d| d.a.as_ref()));
    finding.now = shown(difference.and_then(|d| d.b.as_ref()));
    let moves = mechanisms::moves(view.case.engine, factor);
    finding.explains = view.explains_speed(
        fell.iter()
            .filter(|(component, _)| moves.contains(component))
            .map(|(_, moved)| moved)
            .sum(),
    );
    // One candidate among several shares the blame, and none of them leaves a mark of its own in the log.
    finding.strength =
        if factor == Factor::EnvBlocking { 0.9 } else { 0.6 / candidates.len() as f64 };
    finding.id = "other_setting";
    finding.mechanism = mechanisms::effect(view.case.engine, factor).to_owned();
    finding.evidence.extend(compared(view, "step time", Q::StepMs));
    finding.evidence.extend(compared(view, "accept length", Q::AcceptLen));
    finding.evidence.extend(places(view));
    finding.predicted = view.predict_speed();
    finding.fix = view.restore(&[factor]);
    finding.claim = format!("{factor} changed, and what it can move fell");
    Outcome::Found(Box::new(finding))
}

/// Another version is the last resort: it may change anything and leaves no mark.
pub(super) fn version(view: View<'_>) -> Outcome {
    let case = view.case;
    let stated = case.difference(Factor::EngineVersion);
    let (rate_before, rate_now) = case.rates();
    let by_rate = rate_before.is_some() && rate_now.is_some() && rate_before != rate_now;
    let upgrade = case.evidence.edits.iter().find(|edit| {
        ["pip", "uv ", "docker pull", "git pull"].iter().any(|verb| edit.text.contains(verb))
            && ["sglang", "vllm", "llama"].iter().any(|name| edit.text.contains(name))
    });
    if stated.is_none() && !by_rate && upgrade.is_none() {
        return Outcome::Pass;
    }
    let mut finding = Finding::new(Factor::EngineVersion);
    match stated {
        Some(difference) => {
            finding.before = shown(difference.a.as_ref());
            finding.now = shown(difference.b.as_ref());
        }
        None => {
            finding.before = json!("older");
            finding.now = json!("newer");
        }
    }
    if by_rate {
        finding.evidence.push(
            "the accept rates of the two logs follow different formulas, so the versions differ"
                .to_owned(),
        );
    }
    if let Some(edit) = upgrade {
        finding.evidence.push(format!("{} ({}:{})", edit.text, edit.path, edit.line));
    }
    let (accept, steps) = view.parts().unwrap_or((0.0, 0.0));
    let explained = super::speculation::changed(view)
        || case.differences.iter().filter_map(|d| d.factor()).any(|f| {
            f != Factor::EngineVersion
                && mechanisms::moves(case.engine, f).contains(&Component::StepRate)
        });
    if steps > -0.05 && accept > -0.05 {
        finding.against.push("neither step rate nor acceptance fell".to_owned());
        finding.strength = 0.0;
    } else if steps > -0.05 && super::speculation::changed(view) {
        let line = "the step rate did not fall, and the drafts explain the accept length";
        finding.against.push(line.to_owned());
        finding.strength = 0.0;
    } else if explained {
        finding.against.push("a setting that differs explains what moved".to_owned());
        finding.explains = view.explains_speed(steps.min(0.0));
        finding.strength = 0.15;
    } else {
        finding.explains = view.explains_speed(accept + steps);
        finding.strength = 0.5;
    }
    finding.id = "other_version";
    finding.mechanism = "a new version may change kernels, defaults or the scheduler".to_owned();
    finding.claim = "engine.version differs".to_owned();
    Outcome::Found(Box::new(finding))
}
