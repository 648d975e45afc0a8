//! What rules share: values of both sides, the change that restores a factor, and what it should give.

use dialects::effective::{self, Why};
use dialects::{Factor, Key, Value, flags};
use plan::engines::speed::Range;

use super::View;
use crate::effects;
use crate::facts::SideView;
use crate::finding::{Finding, Fix, Prediction, shown};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::stats::Estimate;
use crate::text;

impl View<'_> {
    /// A number before and now.
    pub(super) fn both(&self, quantity: Q) -> Option<(f64, f64)> {
        self.case.before.get(quantity).zip(self.case.now.get(quantity))
    }

    /// Logarithm of now ÷ before; negative when it fell.
    pub(super) fn moved(&self, quantity: Q) -> Option<f64> {
        self.both(quantity).filter(|(b, n)| *b > 0.0 && *n > 0.0).map(|(b, n)| (n / b).ln())
    }

    /// Requests that want to run now.
    pub(super) fn demand(&self) -> f64 {
        let now = &self.case.now;
        let probed = now.probes.first().and_then(|item| item.what.workload.concurrency);
        let seen = now.get(Q::Running).map(|running| running + now.get(Q::Queue).unwrap_or(0.0));
        probed.or(seen).unwrap_or(1.0)
    }

    /// The parts of a stream's speed that moved: accept length and step rate, as logarithms.
    pub(super) fn parts(&self) -> Option<(f64, f64)> {
        let accept = self.moved(Q::AcceptLen).unwrap_or(0.0);
        self.moved(Q::StepsPerS)
            .or_else(|| Some(self.stream_change()? - accept))
            .map(|steps| (accept, steps))
    }

    /// How far the speed of one stream moved, from the best source that both sides have.
    pub(super) fn stream_change(&self) -> Option<f64> {
        let size = self.losses.size(Felt::Stream);
        if size > 0.0 {
            Some(-size)
        } else {
            self.moved(Q::TrafficTokS).or_else(|| self.moved(Q::DecodeTokS))
        }
    }

    /// Both losses of speed that a factor explains when it accounts for `part` of the change (logarithms, negative).
    pub(super) fn explains_speed(&self, part: f64) -> Vec<(Felt, f64)> {
        [Felt::Stream, Felt::Aggregate, Felt::Traffic, Felt::Drift]
            .into_iter()
            .filter_map(|felt| {
                let size = self.losses.size(felt);
                (size > 0.0).then(|| (felt, (-part / size).clamp(0.0, 1.0)))
            })
            .collect()
    }

    /// Where nothing at all could be compared, what is found is taken to explain a share of the complaint.
    pub(super) fn assume(&self, finding: &mut Finding, felt: Felt, share: f64) {
        if finding.explains.is_empty() && !self.losses.compared() {
            finding.explains.push((felt, share));
        }
    }

    /// Takes the values of a factor from its difference.
    pub(super) fn with_values(&self, finding: &mut Finding) {
        if let Some(difference) = self.case.difference(finding.factor) {
            finding.before = shown(difference.a.as_ref());
            finding.now = shown(difference.b.as_ref());
        }
    }

    /// The change that puts factors back to what they were: set what was asked for, take away what was not.
    pub(super) fn restore(&self, factors: &[Factor]) -> Option<Fix> {
        let now = self.case.now.in_force.as_ref()?;
        let before = self.case.before.in_force.as_ref()?;
        let was = effective::of(&before.config);
        let is = effective::of(&now.config);
        let mut fix = Fix { restart: true, ..Fix::default() };
        for &factor in factors {
            let Some(flag) =
                flags::spelling(now.config.engine, now.config.version.as_ref(), factor)
            else {
                continue;
            };
            let flag = written(flag);
            let key = Key::Known(factor);
            let asked_now = is.get(&key).filter(|e| e.why == Why::Asked);
            let spelled = now
                .config
                .settings
                .get(&key)
                .map(|setting| setting.flag.clone())
                .filter(|flag| flag.starts_with("--"));
            match was.get(&key) {
                // A log showed that something drafted, and not what: no flag says that.
                Some(old) if old.value.as_str() == Some(effective::DRAFTING) => {}
                Some(old)
                    if matches!(old.why, Why::Default | Why::Resolved)
                        || matches!(old.value, Value::Bool(_)) =>
                {
                    // A switch is restored by taking its flag away, or by giving it again.
                    match asked_now {
                        Some(_) => fix.unset.push(spelled.unwrap_or(flag)),
                        None => fix.set.push((flag, String::new())),
                    }
                }
                Some(old) => fix.set.push((flag, old.value.to_string())),
                None if asked_now.is_some() => fix.unset.push(spelled.unwrap_or(flag)),
                None => {}
            }
        }
        (!fix.set.is_empty() || !fix.unset.is_empty()).then_some(fix)
    }

    /// What going back should give to streams whose step changed: what was measured before, scaled to today's load.
    pub(super) fn predict_speed(&self) -> Option<Prediction> {
        let before = &self.case.before;
        let demand = self.demand().round();
        if demand > 1.5 {
            let (len, steps) = (
                before.get(Q::AcceptLen).unwrap_or(1.0),
                before.facts.fact(Q::StepsPerS)?.estimate,
            );
            let same_running =
                before.get(Q::Running).is_some_and(|running| (running / demand - 1.0).abs() < 0.3);
            if !same_running {
                return None;
            }
            let scale = len * demand;
            let estimate = Estimate {
                value: steps.value * scale,
                lo: steps.lo * scale,
                hi: steps.hi * scale,
                n: steps.n,
            };
            return Some(Prediction {
                metric: format!("aggregate_tok_s_c{demand}"),
                range: effects::around_measured(estimate),
                basis: "accept length × steps/s × running, as measured before".to_owned(),
            });
        }
        let estimate = before.facts.fact(Q::DecodeTokS)?.estimate;
        Some(Prediction {
            metric: "decode_tok_s".to_owned(),
            range: effects::around_measured(estimate),
            basis: "one stream, as measured before".to_owned(),
        })
    }

    /// What going back should give to all streams when the number that may run changed.
    pub(super) fn predict_aggregate(&self) -> Option<Prediction> {
        let (before, now) = (&self.case.before, &self.case.now);
        let demand = self.demand().round();
        let measured =
            before.facts.fact(Q::AggregateTokS).filter(|fact| !fact.source.ends_with(".log"));
        let (value, basis) = match measured {
            Some(fact) => (fact.estimate.value, "all streams, as measured before".to_owned()),
            None => {
                // The log and a probe count differently: only the ratio of like numbers carries over.
                let ratio = before.get(Q::LogTokS)? / now.get(Q::LogTokS)?;
                (
                    now.get(Q::AggregateTokS)? * ratio,
                    format!(
                        "today's measurement × the ratio of both logs ({})",
                        text::number(ratio)
                    ),
                )
            }
        };
        Some(Prediction {
            metric: format!("aggregate_tok_s_c{demand}"),
            range: effects::around_measured(Estimate::exact(value)),
            basis,
        })
    }

    /// A range around the earlier value of a quantity.
    pub(super) fn predict_earlier(&self, quantity: Q) -> Option<Prediction> {
        let estimate = self.case.before.facts.fact(quantity)?.estimate;
        let range: Range = effects::around_measured(estimate);
        Some(Prediction {
            metric: quantity.name().to_owned(),
            range,
            basis: "as measured before".to_owned(),
        })
    }
}

/// `accept len 1.74 (now/server.log)` for an evidence line.
pub(super) fn cite(side: &SideView<'_>, quantity: Q) -> Option<String> {
    let fact = side.facts.fact(quantity)?;
    let unit = quantity.unit();
    let space = if unit.is_empty() { "" } else { " " };
    Some(format!("{}{space}{unit} ({})", text::number(fact.estimate.value), fact.source))
}

/// `steps/s 22 (before.log) -> 24 (now.log)`.
pub(super) fn compared(view: View<'_>, label: &str, quantity: Q) -> Option<String> {
    Some(format!(
        "{label} {} -> {}",
        cite(&view.case.before, quantity)?,
        cite(&view.case.now, quantity)?
    ))
}

/// Where both configurations stand, for an evidence line.
pub(super) fn places(view: View<'_>) -> Option<String> {
    let (before, now) = (view.case.before.in_force.as_ref()?, view.case.now.in_force.as_ref()?);
    Some(format!("{} against {}", before.place(), now.place()))
}

/// A flag as it is typed: behind the dot stands a key of a JSON object, and those are spelled with underscores.
fn written(flag: &str) -> String {
    match flag.split_once('.') {
        Some((parent, key)) => format!("{parent}.{}", key.replace('-', "_")),
        None => flag.to_owned(),
    }
}
