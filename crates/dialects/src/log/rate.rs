//! What a printed accept rate means. The same words name three quantities, depending on engine and version.

use serde::{Deserialize, Serialize};

use crate::engine::{Engine, Version};

/// The formula behind a printed accept rate. L is the accept length with its bonus token, D the tokens verified per step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateDef {
    /// (L − 1) / (D − 1): accepted drafts ÷ drafts. SGLang from 0.5.11, vLLM, llama.cpp, Outrider.
    DraftsOnly,
    /// L / D: the bonus token counts on both sides. SGLang 0.5.5 to 0.5.10.
    WithBonus,
    /// L / (steps + 1). SGLang 0.5.4; the same as [`RateDef::WithBonus`] for a chain.
    OverSteps,
}

impl RateDef {
    /// The formula in words.
    pub fn formula(self) -> &'static str {
        match self {
            RateDef::DraftsOnly => "accepted drafts / drafts",
            RateDef::WithBonus => "accept length / draft tokens, bonus token included",
            RateDef::OverSteps => "accept length / (steps + 1), bonus token included",
        }
    }

    /// The formula that a version uses.
    pub fn of_version(engine: Engine, version: &Version) -> RateDef {
        match engine {
            Engine::Sglang if !version.at_least(0, 5, 5) => RateDef::OverSteps,
            Engine::Sglang if !version.at_least(0, 5, 11) => RateDef::WithBonus,
            _ => RateDef::DraftsOnly,
        }
    }

    /// Accepted drafts ÷ drafts, from an accept length and the tokens verified per step.
    pub fn drafts_only(accept_len: f64, draft_tokens: f64) -> f64 {
        (accept_len - 1.0) / (draft_tokens - 1.0)
    }
}

/// What accept lengths and printed rates say together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inferred {
    /// The formula.
    pub def: RateDef,
    /// Tokens verified per request and step that make the formula true; for [`RateDef::OverSteps`] steps + 1.
    pub draft_tokens: u32,
}

/// No server verifies so many tokens per request and step.
const MOST_DRAFTS: f64 = 10_000.0;

/// Finds the formula under which printed pairs of (accept length, accept rate) agree with a whole number of draft tokens.
///
/// `known` is the number of draft tokens, where the configuration tells it. `None` when both formulas or neither fit.
pub fn infer(pairs: &[(f32, f32)], known: Option<u32>) -> Option<Inferred> {
    let usable: Vec<(f64, f64)> = pairs
        .iter()
        .map(|(len, rate)| (f64::from(*len), f64::from(*rate)))
        .filter(|(len, rate)| *len > 1.02 && *rate > 0.02)
        .collect();
    if usable.is_empty() {
        return None;
    }
    let fits = |def: RateDef| -> Option<(u32, f64)> {
        let mut lo = 0.0f64;
        let mut hi = f64::INFINITY;
        let (mut top, mut bottom) = (0.0, 0.0);
        for (len, rate) in &usable {
            let part = if def == RateDef::DraftsOnly { len - 1.0 } else { *len };
            // Both numbers are printed with two decimals.
            lo = lo.max((part - 0.006) / (rate + 0.006));
            hi = hi.min((part + 0.006) / (rate - 0.006).max(1e-3));
            top += part;
            bottom += rate;
        }
        let ratio = top / bottom;
        let whole = ratio.round();
        // A handful of odd lines must not decide: the pooled ratio has to be whole within its printing error.
        let error = (ratio - whole).abs();
        let printed =
            ratio * 0.006 * (1.0 / (bottom / usable.len() as f64)) / (usable.len() as f64).sqrt();
        let inside = (lo..=hi).contains(&whole) || error <= 3.0 * printed;
        let n = (whole as u32).saturating_add(u32::from(def == RateDef::DraftsOnly));
        ((1.0..MOST_DRAFTS).contains(&whole) && inside && n >= 2)
            .then_some((n, error / printed.max(1e-6)))
    };
    let drafts = fits(RateDef::DraftsOnly);
    let bonus = fits(RateDef::WithBonus);
    let make = |def, draft_tokens| Some(Inferred { def, draft_tokens });
    if let Some(known) = known {
        let is = |fit: Option<(u32, f64)>| fit.is_some_and(|(n, _)| n == known);
        match (is(drafts), is(bonus)) {
            (true, false) => return make(RateDef::DraftsOnly, known),
            (false, true) => return make(RateDef::WithBonus, known),
            (true, true) => return None,
            (false, false) => {}
        }
    }
    match (drafts, bonus) {
        (Some((n, _)), None) => make(RateDef::DraftsOnly, n),
        (None, Some((n, _))) => make(RateDef::WithBonus, n),
        (Some((a, x)), Some((b, y))) if (x - y).abs() > 2.0 => {
            if x < y {
                make(RateDef::DraftsOnly, a)
            } else {
                make(RateDef::WithBonus, b)
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_tell_the_formula_and_the_depth() {
        let found = infer(&[(1.75, 0.75), (1.73, 0.72)], None).unwrap();
        assert_eq!((found.def, found.draft_tokens), (RateDef::DraftsOnly, 2));
        let found = infer(&[(2.92, 0.73), (2.80, 0.70), (2.73, 0.68)], None).unwrap();
        assert_eq!((found.def, found.draft_tokens), (RateDef::WithBonus, 4));
    }

    #[test]
    fn lengths_beyond_all_reason_tell_nothing() {
        for length in [1e30, f32::MAX, f32::INFINITY] {
            assert_eq!(infer(&[(length, 0.5), (length, 0.03)], None), None, "{length}");
        }
    }

    #[test]
    fn wide_trees_have_small_rates() {
        let found =
            infer(&[(3.53, 0.17), (3.33, 0.15), (3.21, 0.15), (3.37, 0.16)], Some(16)).unwrap();
        assert_eq!((found.def, found.draft_tokens), (RateDef::DraftsOnly, 16));
    }

    #[test]
    fn the_same_speed_under_both_formulas() {
        // 3/1/4 at accept length 2.80 prints 0.70 before 0.5.11 and 0.60 after.
        assert!(
            (2.8f64 / 4.0 - 0.70).abs() < 1e-9
                && (RateDef::drafts_only(2.8, 4.0) - 0.60).abs() < 1e-9
        );
        let v = |s| Version::parse(s).unwrap();
        assert_eq!(RateDef::of_version(Engine::Sglang, &v("0.5.10.post1")), RateDef::WithBonus);
        assert_eq!(RateDef::of_version(Engine::Sglang, &v("0.5.11")), RateDef::DraftsOnly);
        assert_eq!(RateDef::of_version(Engine::Vllm, &v("0.5.4")), RateDef::DraftsOnly);
        assert_eq!(infer(&[], None), None);
    }
}
