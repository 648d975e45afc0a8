//! Orders what the rules found by the loss that each explains; what another finding explains is not counted twice.

use std::collections::BTreeMap;

use dialects::{Difference, Factor, Key};
use serde_json::Value as Json;

use crate::facts::Case;
use crate::finding::{Finding, Outcome, shown};
use crate::losses::{Felt, Losses};
use crate::mechanisms::{self, Component};
use crate::quantity::Quantity as Q;
use crate::text;

/// A finding below this score is not named as the cause.
const LEAST_SCORE: f64 = 0.25;
/// Raw flags that are listed at most.
const MOST_RAW: usize = 6;

/// One line of the ranking.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// The factor's name, or `raw.FLAG`.
    pub name: String,
    /// The factor, for known ones.
    pub factor: Option<Factor>,
    /// Its value before.
    pub before: Json,
    /// Its value now.
    pub now: Json,
    /// Share of its loss that it explains and no suspect above it does; nothing where no loss was measured.
    pub explained: Option<f64>,
    /// What it is ranked by: share × weight of the loss × strength of the evidence.
    pub score: f64,
    /// How it acts; for decoys, why it does not.
    pub mechanism: String,
    /// Whether it has a mechanism at this load at all.
    pub acts: bool,
    /// Evidence for it.
    pub evidence: Vec<String>,
    /// Evidence against it.
    pub against: Vec<String>,
}

/// The ranking.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// The suspects, the first first.
    pub suspects: Vec<Suspect>,
    /// The finding behind the first suspect, when it is strong enough to be named as the cause.
    pub cause: Option<Finding>,
    /// The loss that the cause explains.
    pub loss: Option<Felt>,
    /// What could not be judged, and what is missing.
    pub gaps: Vec<String>,
}

/// Ranks the outcomes.
pub fn rank(case: &Case<'_>, losses: &Losses, outcomes: Vec<(&'static str, Outcome)>) -> Ranking {
    let mut gaps = Vec::new();
    let mut found: Vec<(f64, Finding)> = Vec::new();
    for (rule, outcome) in outcomes {
        match outcome {
            Outcome::Pass => {}
            Outcome::NotEnough(missing) => gaps.push(format!("{rule}: needs {missing}")),
            Outcome::Found(finding) => found.push((score(losses, &finding), *finding)),
        }
    }
    // A stable sort: of equals the earlier rule stays first.
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let nothing_lost = losses.compared() && losses.losses.is_empty();
    let cause = found
        .first()
        .filter(|(score, _)| *score >= LEAST_SCORE && !nothing_lost)
        .map(|(_, finding)| finding.clone());
    let loss = cause.as_ref().and_then(|finding| main_loss(losses, finding));

    let mut left: BTreeMap<Felt, f64> = BTreeMap::new();
    let mut suspects: Vec<Suspect> = Vec::new();
    for (score, finding) in &found {
        if cause.as_ref().is_some_and(|cause| {
            cause.factor != finding.factor && cause.covers.contains(&finding.factor)
        }) {
            continue;
        }
        if suspects.iter().any(|suspect| suspect.factor == Some(finding.factor)) {
            continue;
        }
        let mut explained = None;
        for (felt, share) in finding.explains.iter().filter(|(felt, _)| losses.size(*felt) > 0.0) {
            let rest = left.entry(*felt).or_insert(1.0);
            let part = (share * finding.strength).min(*rest);
            *rest -= part;
            explained = Some(explained.unwrap_or(0.0f64).max(part * losses.weight(*felt)));
        }
        suspects.push(Suspect {
            name: finding.factor.name().to_owned(),
            factor: Some(finding.factor),
            before: finding.before.clone(),
            now: finding.now.clone(),
            explained,
            score: if nothing_lost { 0.0 } else { *score },
            mechanism: finding.mechanism.clone(),
            acts: *score >= LEAST_SCORE
                && !nothing_lost
                && explained.is_none_or(|share| share > 0.05),
            evidence: finding.evidence.clone(),
            against: finding.against.clone(),
        });
    }
    suspects.extend(decoys(case, &cause, &suspects));
    Ranking { suspects, cause, loss, gaps }
}

/// Share × weight × strength, over the loss where that is most. A loss that nobody measured counts fully when nothing at
/// all was compared, and half when other things were.
fn score(losses: &Losses, finding: &Finding) -> f64 {
    let most = finding
        .explains
        .iter()
        .map(|(felt, share)| {
            let weight = match (losses.size(*felt) > 0.0, losses.compared()) {
                (true, _) => losses.weight(*felt),
                (false, false) => 1.0,
                (false, true) => 0.4,
            };
            share * weight
        })
        .fold(0.0, f64::max);
    most * finding.strength
}

fn main_loss(losses: &Losses, finding: &Finding) -> Option<Felt> {
    let weighed = |(felt, share): &(Felt, f64)| share * losses.weight(*felt);
    finding.explains.iter().max_by(|a, b| weighed(a).total_cmp(&weighed(b))).map(|(felt, _)| *felt)
}

/// Differences that no rule blames: listed with the reason why not.
fn decoys(case: &Case<'_>, cause: &Option<Finding>, above: &[Suspect]) -> Vec<Suspect> {
    let covered = |factor: Factor| {
        cause.as_ref().is_some_and(|cause| cause.covers.contains(&factor) || cause.factor == factor)
    };
    let mut raw = 0;
    let mut out: Vec<Suspect> = Vec::new();
    for difference in &case.differences {
        let reason = match &difference.key {
            Key::Known(factor) => {
                let hidden = matches!(
                    factor,
                    Factor::NetHost
                        | Factor::NetPort
                        | Factor::ModelServedName
                        | Factor::EngineVersion
                );
                if hidden
                    || covered(*factor)
                    || above.iter().any(|suspect| suspect.factor == Some(*factor))
                {
                    continue;
                }
                reason_against(case, *factor)
            }
            Key::Raw(_) => {
                raw += 1;
                if raw > MOST_RAW {
                    continue;
                }
                "a flag that this program does not know".to_owned()
            }
        };
        out.push(decoy(difference, reason));
    }
    out.sort_by_key(|suspect| {
        suspect.factor.is_none_or(|factor| mechanisms::moves(case.engine, factor).is_empty())
    });
    out
}

fn decoy(difference: &Difference, reason: String) -> Suspect {
    Suspect {
        name: difference.key.to_string(),
        factor: difference.factor(),
        before: shown(difference.a.as_ref()),
        now: shown(difference.b.as_ref()),
        explained: Some(0.0),
        score: 0.0,
        mechanism: reason,
        acts: false,
        evidence: Vec::new(),
        against: Vec::new(),
    }
}

/// Why a factor that differs does not act here.
fn reason_against(case: &Case<'_>, factor: Factor) -> String {
    let moves = mechanisms::moves(case.engine, factor);
    if moves.is_empty() {
        return format!(
            "no mechanism in {}: {}",
            case.engine,
            mechanisms::effect(case.engine, factor)
        );
    }
    let queue = case.now.get(Q::Queue).unwrap_or(0.0);
    let only_load = moves
        .iter()
        .all(|c| matches!(c, Component::Running | Component::FirstToken | Component::Pauses));
    if only_load && queue < 0.5 {
        let kv = case
            .now
            .get(Q::KvUsagePeak)
            .map_or(String::new(), |kv| format!(", KV {} in use", text::percent(kv)));
        return format!("no mechanism at this load: nothing waits{kv}");
    }
    if moves.contains(&Component::StepRate) && !only_load {
        let fell = case
            .before
            .get(Q::StepsPerS)
            .zip(case.now.get(Q::StepsPerS))
            .is_some_and(|(b, n)| n < 0.95 * b);
        if !fell {
            return "no mechanism seen: the step rate did not fall".to_owned();
        }
    }
    "explained by the suspects above".to_owned()
}
