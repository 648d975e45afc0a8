//! Speculation: depth, branches and method move tokens per step and the step rate, in opposite directions.

use dialects::{Factor, Value};
use serde_json::json;

use super::View;
use super::restore::{cite, compared, places};
use crate::effects;
use crate::finding::{Finding, Outcome, Prediction};
use crate::losses::Felt;
use crate::quantity::Quantity as Q;
use crate::text;

const SHAPE: &[Factor] = &[Factor::SpecNumSteps, Factor::SpecTopk, Factor::SpecDraftTokens];
const OTHERS: &[Factor] = &[
    Factor::SpecMethod,
    Factor::SpecDraftModel,
    Factor::SpecSampling,
    Factor::SpecMinProb,
    Factor::SpecAdaptive,
];

pub(super) fn judge(view: View<'_>) -> Outcome {
    let Some(shape) = Shape::of(view) else { return Outcome::Pass };
    let factor = shape.factor(view);
    let mut finding = Finding::new(factor);
    finding.covers = SHAPE
        .iter()
        .chain(OTHERS)
        .copied()
        .filter(|f| *f != factor && view.case.differs(&[*f]))
        .collect();
    finding.covers.push(Factor::SpecTree);
    match factor {
        Factor::SpecTree => {
            finding.before = json!(shape.before.words());
            finding.now = json!(shape.now.words());
        }
        Factor::SpecNumSteps => {
            finding.before = json!(shape.before.steps);
            finding.now = json!(shape.now.steps);
        }
        _ => view.with_values(&mut finding),
    }
    finding.evidence.extend(places(view));
    let measured = view.parts().filter(|_| view.moved(Q::AcceptLen).is_some());
    match measured {
        Some((accept, steps)) => {
            let own = shape.own_part(accept, steps);
            finding.explains = own.map_or(Vec::new(), |moved| view.explains_speed(moved));
            finding.evidence.extend(compared(view, "accept length", Q::AcceptLen));
            finding.evidence.extend(compared(view, "steps/s", Q::StepsPerS));
            finding.evidence.extend(verify_width(view, &shape));
            match own {
                None => finding.against.push(
                    "accept length and step rate did not move as this change would move them"
                        .to_owned(),
                ),
                Some(own) if own != accept + steps => finding.evidence.push(
                    "the step rate fell as well, which fewer drafts cannot do: that part is another's"
                        .to_owned(),
                ),
                Some(_) => {}
            }
            finding.predicted = view.predict_speed();
        }
        None => unmeasured(view, &shape, &mut finding),
    }
    finding.id = shape.id();
    finding.mechanism = shape.mechanism();
    finding.claim =
        format!("{} changed from {} to {}", factor, words(&finding.before), words(&finding.now));
    let mut restored: Vec<Factor> =
        OTHERS.iter().copied().filter(|f| view.case.differs(&[*f])).collect();
    restored.extend(SHAPE.iter().copied().filter(|f| view.case.differs(&[*f])));
    finding.fix = view.restore(&restored);
    finding.costs = costs(view, &shape);
    Outcome::Found(Box::new(finding))
}

fn words(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// One side's draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Draft {
    steps: i64,
    topk: i64,
    tokens: i64,
}

impl Draft {
    fn words(self) -> String {
        format!("steps {}, topk {}, draft {}", self.steps, self.topk, self.tokens)
    }
}

/// Both sides' drafts.
#[derive(Clone, Copy, Debug)]
struct Shape {
    before: Draft,
    now: Draft,
}

impl Shape {
    /// `None` when nothing about speculation differs, or a side is not known.
    fn of(view: View<'_>) -> Option<Shape> {
        let int = |value: Option<Value>| value.and_then(|v| v.as_i64());
        // Without any configuration the printed accept rates still tell how many tokens were verified.
        let inferred = |side: &crate::facts::SideView<'_>| {
            side.run.and_then(|(_, run)| run.rate).map(|rate| i64::from(rate.draft_tokens))
        };
        let side = |steps, topk, tokens: Option<i64>, inferred: Option<i64>| {
            let tokens = tokens.or(inferred);
            let steps = int(steps).or(tokens.map(|t| t - 1))?;
            Some(Draft { steps, topk: int(topk).unwrap_or(1), tokens: tokens.unwrap_or(steps + 1) })
        };
        let case = view.case;
        let now = side(
            case.effective_now(Factor::SpecNumSteps),
            case.effective_now(Factor::SpecTopk),
            int(case.effective_now(Factor::SpecDraftTokens)),
            inferred(&case.now),
        )?;
        let before = side(
            case.effective_before(Factor::SpecNumSteps),
            case.effective_before(Factor::SpecTopk),
            int(case.effective_before(Factor::SpecDraftTokens)),
            inferred(&case.before),
        )?;
        (before != now || case.differs(OTHERS)).then_some(Shape { before, now })
    }

    /// A change of depth alone is one of depth; with branches it is one of the tree; without drafts it is the method.
    fn factor(self, view: View<'_>) -> Factor {
        let (a, b) = (self.before, self.now);
        if a.steps == 0 || b.steps == 0 {
            return Factor::SpecMethod;
        }
        let chain = |d: Draft| d.topk == 1 && d.tokens == d.steps + 1;
        match (a == b, chain(a) && chain(b)) {
            (false, true) => Factor::SpecNumSteps,
            (false, false) => Factor::SpecTree,
            (true, _) => OTHERS
                .iter()
                .copied()
                .find(|f| view.case.differs(&[*f]))
                .unwrap_or(Factor::SpecMethod),
        }
    }

    /// What this change can have moved of accept length and step rate together: more verified tokens may raise the one and
    /// lower the other, fewer the opposite. Where fewer came with slower steps, the steps are somebody else's.
    fn own_part(self, accept: f64, steps: f64) -> Option<f64> {
        const TOLERANCE: f64 = 0.04;
        const SLOWER: f64 = -0.15;
        match (self.now.tokens - self.before.tokens).signum() {
            1 => (accept > -TOLERANCE && steps < TOLERANCE).then_some(accept + steps),
            -1 if steps > SLOWER => (accept < TOLERANCE).then_some(accept + steps),
            -1 => (accept < -TOLERANCE).then_some(accept),
            _ => Some(accept + steps),
        }
    }

    fn id(self) -> &'static str {
        match self.now.tokens.cmp(&self.before.tokens) {
            std::cmp::Ordering::Less => "fewer_tokens_per_step",
            std::cmp::Ordering::Greater => "dearer_steps",
            std::cmp::Ordering::Equal => "other_drafts",
        }
    }

    fn mechanism(self) -> String {
        let (a, b) = (self.before, self.now);
        if b.steps == 0 {
            "without drafts every step commits one token".to_owned()
        } else if a.steps == 0 {
            "every step drafts and verifies besides".to_owned()
        } else if b.tokens > a.tokens {
            format!(
                "each step verifies {} tokens per request instead of {}, so steps take longer",
                b.tokens, a.tokens
            )
        } else if b.tokens < a.tokens {
            format!(
                "each step can commit at most {} tokens instead of {}",
                b.steps + 1,
                a.steps + 1
            )
        } else {
            "drafts are made or accepted in another way".to_owned()
        }
    }
}

fn verify_width(view: View<'_>, shape: &Shape) -> Option<String> {
    let width =
        |side: &crate::facts::SideView<'_>| side.run.and_then(|(_, run)| run.sizes.verify_width);
    let (a, b) = (width(&view.case.before), width(&view.case.now)?);
    let a = a.unwrap_or(shape.before.tokens as f64);
    Some(format!(
        "graphs captured for {} tokens per request, {} before ({})",
        text::number(b),
        text::number(a),
        view.case.now.log()
    ))
}

/// No measurement from before: the model says what the earlier shape should give.
fn unmeasured(view: View<'_>, shape: &Shape, finding: &mut Finding) {
    let now = &view.case.now;
    let (Some(len), Some(steps)) = (now.facts.fact(Q::AcceptLen), now.get(Q::StepsPerS)) else {
        finding.strength = 0.2;
        finding.against.push("no accept length was measured on either side".to_owned());
        return;
    };
    finding.evidence.extend(
        cite(now, Q::AcceptLen)
            .map(|cited| format!("accept length {cited}, of at most {}", shape.now.steps + 1)),
    );
    finding.evidence.extend(cite(now, Q::StepsPerS).map(|cited| format!("steps/s {cited}")));
    let chain = shape.before.topk == 1
        && shape.now.topk == 1
        && shape.before.steps > 0
        && shape.now.steps > 0;
    let off = shape.before.topk == 1 && shape.before.steps > 0 && shape.now.steps == 0;
    let (is, was) = (shape.now.steps.max(0) as u64, shape.before.steps.max(0) as u64);
    let predicted = if off {
        Some(effects::with_drafts(steps, was))
    } else {
        chain.then(|| effects::at_depth(len.estimate, steps, is, was)).flatten()
    };
    let Some(at) = predicted else {
        finding.strength = 0.5;
        return;
    };
    let seen = len.estimate.value * steps;
    let gain = (at.tok_s.lo * at.tok_s.hi).sqrt() / seen;
    finding.evidence.push(format!(
        "at {} steps the model gives {} to {} tokens per step and {} to {} steps/s",
        shape.before.steps,
        text::number(at.accept_len.lo),
        text::number(at.accept_len.hi),
        text::number(at.steps_per_s.lo),
        text::number(at.steps_per_s.hi)
    ));
    if gain > 1.0 {
        // Nothing was measured before, so the share is that of the gain to be had.
        let share = (at.tok_s.lo / seen).ln() / gain.ln();
        finding.explains = vec![(Felt::Stream, share.clamp(0.5, 1.0))];
    }
    finding.predicted = (view.demand() <= 1.5).then(|| Prediction {
        metric: "decode_tok_s".to_owned(),
        range: at.tok_s,
        basis: if off {
            "acceptance of trained draft heads on ordinary text; cost of a draft by bytes"
                .to_owned()
        } else {
            format!(
                "acceptance of the first position, {} windows; cost of a draft by bytes",
                len.estimate.n
            )
        },
    });
}

/// More drafts cost state slots and pool tokens; fewer give them back.
fn costs(view: View<'_>, shape: &Shape) -> Vec<String> {
    let mut out = Vec::new();
    if shape.before.tokens > shape.now.tokens
        && view.case.engine.like_sglang()
        && view.case.now.get(Q::StateSlots).is_some()
    {
        let pools = |side: &crate::facts::SideView<'_>| {
            side.get(Q::StateSlots).zip(side.get(Q::MaxRunning))
        };
        match (pools(&view.case.before), pools(&view.case.now)) {
            (Some((slots_b, run_b)), Some((slots_n, run_n))) => out.push(format!(
                "each draft token keeps one more state per running request: {} slots and {} running requests before, {} and {} now",
                slots_b, run_b, slots_n, run_n
            )),
            _ => out.push("each draft token keeps one more state per running request: fewer requests fit".to_owned()),
        }
    }
    out
}

/// A difference in speculation's value, for other rules.
pub(super) fn changed(view: View<'_>) -> bool {
    Shape::of(view).is_some()
}
