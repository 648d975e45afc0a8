//! Bytes of the weights on one device: number type, quantisation, another checkpoint, fewer devices.

use dialects::{Factor, Value};
use serde_json::json;

use super::View;
use super::restore::{compared, places};
use crate::finding::{Finding, Outcome};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::text;

/// A smaller change of the bytes is the allocator's.
const LEAST_RATIO: f64 = 1.12;

pub(super) fn judge(view: View<'_>) -> Outcome {
    let case = view.case;
    let number = |value: Option<Value>| value.and_then(|v| v.as_f64());
    let tp =
        number(case.effective_before(Factor::ParTp)).zip(number(case.effective_now(Factor::ParTp)));
    let fewer_devices = tp.is_some_and(|(before, now)| now < before) || devices_lost(view);
    let weights = view.both(Q::WeightsGib);
    let ratio = weights.map(|(before, now)| now / before);
    let heavier = ratio.is_some_and(|ratio| ratio > LEAST_RATIO);
    let dtype = case.differs(&[Factor::ModelDtype])
        || case
            .now
            .run
            .is_some_and(|(_, run)| run.warning(dialects::log::WarningKind::Upcast).is_some());
    let quant = case.differs(&[Factor::ModelQuant]);
    let path = case.differs(&[Factor::ModelPath]);
    let factor = if fewer_devices {
        Factor::ParTp
    } else if dtype && (heavier || weights.is_none()) {
        Factor::ModelDtype
    } else if (quant || path) && (heavier || (weights.is_none() && quant)) {
        if quant || quant_in_name(view) { Factor::ModelQuant } else { Factor::ModelPath }
    } else if path && !heavier && case.engine != dialects::Engine::LlamaCpp {
        Factor::ModelPath
    } else {
        return match weights {
            None if case.differs(&[Factor::ModelPath, Factor::ModelQuant, Factor::ModelDtype]) => {
                Outcome::NotEnough("the size of the weights on both sides".to_owned())
            }
            _ => Outcome::Pass,
        };
    };
    let mut finding = Finding::new(factor);
    view.with_values(&mut finding);
    values(view, &mut finding, factor);
    finding.covers = vec![
        Factor::ModelPath,
        Factor::ModelQuant,
        Factor::ModelDtype,
        Factor::ModelServedName,
        Factor::GpuVisible,
    ];
    if let (Some((before, now)), Some(ratio)) = (weights, ratio) {
        finding.evidence.push(format!(
            "weights on one device {} -> {} GiB, × {}",
            text::number(before),
            text::number(now),
            text::number(ratio)
        ));
    }
    if let Some(upcast) =
        case.now.run.and_then(|(_, run)| run.warning(dialects::log::WarningKind::Upcast))
    {
        finding.evidence.push(format!("{} ({}:{})", upcast.says, case.now.log(), upcast.line));
    }
    finding.evidence.extend(compared(view, "steps/s", Q::StepsPerS));
    finding.evidence.extend(compared(view, "accept length", Q::AcceptLen));
    finding.evidence.extend(compared(view, "KV pool", Q::KvTokens));
    finding.evidence.extend(devices(view, factor));
    finding.evidence.extend(places(view));
    let (accept, steps) = view.parts().unwrap_or((0.0, view.stream_change().unwrap_or(0.0)));
    // A step cannot grow by more than its bytes, unless the arithmetic left its fast path too.
    let most = ratio.map_or(f64::INFINITY, |ratio| ratio.max(1.0).ln() * 1.5 + 0.1);
    let part = match factor {
        Factor::ModelPath => accept + steps,
        _ => steps.max(-most),
    };
    finding.explains = view.explains_speed(part);
    if heavier && view.losses.size(Felt::FirstToken) > 0.0 {
        finding.explains.push((Felt::FirstToken, 1.0));
        finding.evidence.extend(compared(view, "time to first token", Q::TtftP50));
    }
    view.assume(&mut finding, Felt::Stream, 0.6);
    if steps > -0.03 && !view.losses.losses.is_empty() {
        finding.against.push("the step rate did not fall".to_owned());
        finding.strength = 0.2;
    }
    finding.id = match factor {
        Factor::ParTp => "fewer_devices_share_a_step",
        Factor::ModelPath => "other_model",
        _ => "more_bytes_per_step",
    };
    finding.mechanism = mechanism(view, factor, ratio);
    finding.predicted = view.predict_speed();
    let restored: &[Factor] = match factor {
        Factor::ParTp => &[Factor::ParTp],
        Factor::ModelDtype => &[Factor::ModelDtype],
        _ => &[Factor::ModelPath, Factor::ModelQuant],
    };
    let changed: Vec<Factor> = restored.iter().copied().filter(|f| case.differs(&[*f])).collect();
    finding.fix = view.restore(&changed);
    finding.claim = format!("{factor} changed what a step reads");
    Outcome::Found(Box::new(finding))
}

fn mechanism(view: View<'_>, factor: Factor, ratio: Option<f64>) -> String {
    match factor {
        Factor::ParTp => {
            "fewer devices share the weights, so each step reads more on each".to_owned()
        }
        Factor::ModelPath => "another model serves".to_owned(),
        _ => {
            let prefill = view.both(Q::TtftP50).map(|(before, now)| now / before);
            let slower_than_bytes =
                prefill.zip(ratio).is_some_and(|(prefill, ratio)| prefill > 1.3 * ratio);
            let bytes = ratio.map_or_else(
                || "each step reads other weights".to_owned(),
                |ratio| format!("each step reads {} × the bytes", text::number(ratio)),
            );
            if slower_than_bytes {
                format!(
                    "{bytes}, and prefill slows by more than that: the arithmetic left its fast path"
                )
            } else {
                bytes
            }
        }
    }
}

/// Devices that were used before and idle now.
fn devices_lost(view: View<'_>) -> bool {
    let busy = |side: &crate::facts::SideView<'_>| {
        side.gpu.map(|(_, gpu)| {
            gpu.gpus.iter().filter(|g| g.memory_used_mib.is_some_and(|used| used > 2048.0)).count()
        })
    };
    matches!((busy(&view.case.before), busy(&view.case.now)), (Some(before), Some(now)) if now > 0 && now < before)
}

fn devices(view: View<'_>, factor: Factor) -> Option<String> {
    if factor != Factor::ParTp {
        return None;
    }
    let (source, gpu) = view.case.now.gpu?;
    let idle = gpu.gpus.iter().filter(|g| g.utilization.is_some_and(|u| u < 0.05)).count();
    (idle > 0).then(|| format!("{idle} of {} devices are idle ({source})", gpu.gpus.len()))
}

/// Whether the names of the checkpoints tell different formats: `…-FP8` against `…`.
fn quant_in_name(view: View<'_>) -> bool {
    let name = |value: Option<Value>| {
        value.map(|v| v.to_string().to_ascii_lowercase()).unwrap_or_default()
    };
    let of = |path: String| format_in(&path);
    of(name(view.case.effective_before(Factor::ModelPath)))
        != of(name(view.case.effective_now(Factor::ModelPath)))
}

fn format_in(path: &str) -> Option<&'static str> {
    const FORMATS: &[&str] = &[
        "fp8", "fp4", "int4", "int8", "awq", "gptq", "w4a16", "w8a8", "q4_k", "q5_k", "q6_k",
        "q8_0", "q4_0", "iq4", "f16", "bf16", "f32",
    ];
    FORMATS.iter().copied().find(|format| path.contains(format))
}

/// A quantisation that no flag names is read from the checkpoint's name.
fn values(view: View<'_>, finding: &mut Finding, factor: Factor) {
    if factor == Factor::ParTp && finding.now.is_null() {
        let busy = |side: &crate::facts::SideView<'_>| {
            side.gpu.map(|(_, gpu)| {
                gpu.gpus
                    .iter()
                    .filter(|g| g.memory_used_mib.is_some_and(|used| used > 2048.0))
                    .count()
            })
        };
        finding.before = json!(busy(&view.case.before));
        finding.now = json!(busy(&view.case.now));
    }
    if factor != Factor::ModelQuant {
        return;
    }
    let named = |value: Option<Value>| {
        value
            .and_then(|v| format_in(&v.to_string().to_ascii_lowercase()))
            .map_or(json!("none"), |format| json!(format))
    };
    if finding.before.is_null() {
        finding.before = named(view.case.effective_before(Factor::ModelPath));
    }
    if finding.now.is_null() {
        finding.now = named(view.case.effective_now(Factor::ModelPath));
    }
}
