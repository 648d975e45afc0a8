//! llama.cpp: what no longer fits the device is computed from host memory.

use dialects::{Engine, Factor, Value};

use super::View;
use super::restore::{compared, places};
use crate::finding::{Finding, Fix, Outcome};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::text;

/// Settings that decide how much fits, in the order in which they are suspected.
const CAUSES: &[Factor] = &[
    Factor::ExecOffloadLayers,
    Factor::ModelMaxContext,
    Factor::MemKvDtype,
    Factor::SchedMaxRunning,
    Factor::ModelPath,
    Factor::ModelQuant,
    Factor::SchedPrefillMax,
    Factor::MemStaticFraction,
];

pub(super) fn offload(view: View<'_>) -> Outcome {
    if view.case.engine != Engine::LlamaCpp {
        return Outcome::Pass;
    }
    let run = |side: &crate::facts::SideView<'_>| side.run.map(|(_, run)| run.sizes.clone());
    let Some(now) = run(&view.case.now) else {
        return Outcome::NotEnough(
            "the log of the load, which says how many layers lie on the device".to_owned(),
        );
    };
    let Some((layers, of)) = now.offloaded else {
        return Outcome::NotEnough(
            "the line that says how many layers lie on the device".to_owned(),
        );
    };
    let before = run(&view.case.before);
    let (was, was_of) = before.as_ref().and_then(|sizes| sizes.offloaded).unwrap_or((of, of));
    if layers >= of || (layers as f64 / of as f64) >= (was as f64 / was_of as f64) {
        return Outcome::Pass;
    }
    let context_grew = view.case.difference(Factor::ModelMaxContext).is_some_and(|d| {
        d.a.as_ref()
            .and_then(Value::as_f64)
            .zip(d.b.as_ref().and_then(Value::as_f64))
            .is_none_or(|(a, b)| b > a)
    });
    let cause = CAUSES
        .iter()
        .copied()
        .find(|f| view.case.differs(&[*f]) && (*f != Factor::ModelMaxContext || context_grew));
    let mut finding = Finding::new(cause.unwrap_or(Factor::ExecOffloadLayers));
    view.with_values(&mut finding);
    finding.covers.push(Factor::ExecOffloadLayers);
    finding.id = if finding.factor == Factor::ModelMaxContext {
        "kv_preallocated_pushes_layers_to_cpu"
    } else {
        "layers_in_host_memory"
    };
    finding.mechanism = if finding.factor == Factor::ModelMaxContext {
        format!(
            "KV for the whole context is reserved at start; {} of {of} layers no longer fit the device",
            of - layers
        )
    } else {
        format!(
            "{} of {of} layers no longer fit the device and are computed from host memory",
            of - layers
        )
    };
    finding.evidence.push(format!(
        "layers on the device {was}/{was_of} -> {layers}/{of} ({})",
        view.case.now.log()
    ));
    if let (Some(kv), Some(kv_before)) =
        (now.kv_gib, before.as_ref().and_then(|sizes| sizes.kv_gib))
    {
        finding.evidence.push(format!(
            "KV reserved {} GiB -> {} GiB",
            text::number(kv_before),
            text::number(kv)
        ));
    }
    if let Some(mib) = now.host_weights_mib {
        finding
            .evidence
            .push(format!("{} GiB of weights lie in host memory", text::number(mib / 1024.0)));
    }
    finding.evidence.extend(
        compared(view, "accept length", Q::AcceptLen)
            .map(|line| format!("{line}: drafts are as good as before")),
    );
    finding.evidence.extend(places(view));
    let (_, steps) = view.parts().unwrap_or((0.0, 0.0));
    finding.explains = view.explains_speed(steps);
    view.assume(&mut finding, Felt::Stream, 0.8);
    if cause.is_none() {
        finding.against.push("no setting differs that decides how much fits: something else takes the device's memory".to_owned());
        finding.strength = 0.5;
    }
    finding.predicted = view.predict_speed();
    finding.fix = view.restore(&[finding.factor]);
    if finding.factor == Factor::ModelMaxContext {
        smaller_context(view, now.context, &mut finding);
    }
    finding.claim = format!("{} leaves layers in host memory", finding.factor);
    Outcome::Found(Box::new(finding))
}

/// Ways to keep part of the longer context, and how much of it was ever used.
fn smaller_context(view: View<'_>, stated: Option<f64>, finding: &mut Finding) {
    let asked = view.case.effective_now(Factor::ModelMaxContext).and_then(|v| v.as_f64());
    let fix = finding.fix.get_or_insert_with(|| Fix { restart: true, ..Fix::default() });
    if let Some(context) = stated.or(asked) {
        fix.options.push(vec![
            ("-c".to_owned(), format!("{:.0}", context / 2.0)),
            ("-ctk".to_owned(), "q8_0".to_owned()),
            ("-ctv".to_owned(), "q8_0".to_owned()),
        ]);
    }
    let longest = view.case.now.run.map_or(0.0, |(_, run)| run.prompts.iter().fold(0.0, f64::max));
    if longest > 0.0 {
        let line = format!("the longest prompt seen has {} tokens", text::number(longest));
        finding.evidence.push(line);
    }
}
