//! The speed model: what a change should do, as a range. The arithmetic of acceptance is the plan's.

use plan::engines::speed::{Range, accept_length, accept_length_range};

use crate::stats::Estimate;

/// Verify steps behind one SGLang decode line, when the log does not say otherwise.
const STEPS_PER_WINDOW: f64 = 40.0;
/// Share of a step that one more draft costs where the weights lie on the device: the draft layer and the whole output
/// head against all weights. Small models and heads on the host cost more.
const DRAFT_COST: f64 = 0.06;
/// How far that share may be off, one way or the other.
const DRAFT_COST_SPREAD: f64 = 0.03;
/// Decay of acceptance per further position of a draft head that runs on its own output, at worst.
const WORST_DECAY: f64 = 0.88;

/// Tokens per second of one stream at another draft depth, from one measured depth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtDepth {
    /// Accept length.
    pub accept_len: Range,
    /// Steps per second.
    pub steps_per_s: Range,
    /// Tokens per second.
    pub tok_s: Range,
}

/// Predicts another depth.
///
/// With one draft only the first position's acceptance is seen. Whether the next is likelier (mixed text) or less likely
/// (a tired head) is not known, so the range spans both; sampling error of the first position and the unknown cost of a
/// draft widen it. `accept_len` and `steps_per_s` are the measured ones at depth `now`.
pub fn at_depth(accept_len: Estimate, steps_per_s: f64, now: u64, wanted: u64) -> Option<AtDepth> {
    if now == 0 || wanted == 0 || accept_len.value <= 1.0 {
        return None;
    }
    let first = first_position(accept_len.value, now)?;
    let rounds = STEPS_PER_WINDOW * accept_len.n as f64;
    let sampling = 1.96 * (first * (1.0 - first) / rounds).sqrt();
    let length = |first: f64| {
        let first = first.clamp(0.01, 0.99);
        (accept_length(first, 1e9, WORST_DECAY, wanted), accept_length(first, 2.0, 1.0, wanted))
    };
    // At the measured depth the model is exact; scale its error away from there.
    let (tired, mixed) = length(first);
    let middle = (tired + mixed) / 2.0;
    let form = (mixed - tired) / (mixed + tired);
    let (low, high) = (length(first - sampling), length(first + sampling));
    let sampled = ((high.0 + high.1) / (low.0 + low.1)).ln() / 2.0;
    let steps = wanted as f64 - now as f64;
    let cost = (1.0 + DRAFT_COST * wanted as f64) / (1.0 + DRAFT_COST * now as f64);
    let cost_error = DRAFT_COST_SPREAD * steps.abs() / cost;
    let length_error = (form.powi(2) + sampled.powi(2)).sqrt();
    let error = (length_error.powi(2) + cost_error.powi(2)).sqrt();
    let around = |x: f64, error: f64| Range { lo: x * (-error).exp(), hi: x * error.exp() };
    let rate = steps_per_s / cost;
    Some(AtDepth {
        accept_len: around(middle, length_error),
        steps_per_s: around(rate, cost_error),
        tok_s: around(middle * rate, error),
    })
}

/// Predicts a depth for a server that runs without drafts, at `steps_per_s`: nothing was seen of its acceptance, so it is
/// that of trained heads.
pub fn with_drafts(steps_per_s: f64, wanted: u64) -> AtDepth {
    let accept_len = accept_length_range(None, wanted);
    let rate = |cost: f64| steps_per_s / (1.0 + cost * wanted as f64);
    let steps_per_s = Range {
        lo: rate(DRAFT_COST + DRAFT_COST_SPREAD),
        hi: rate(DRAFT_COST - DRAFT_COST_SPREAD),
    };
    let tok_s = Range { lo: accept_len.lo * steps_per_s.lo, hi: accept_len.hi * steps_per_s.hi };
    AtDepth { accept_len, steps_per_s, tok_s }
}

/// The acceptance of the first position that gives an accept length at a depth, between the two extremes of the model.
fn first_position(accept_len: f64, depth: u64) -> Option<f64> {
    let model = |first: f64| {
        (accept_length(first, 1e9, WORST_DECAY, depth) + accept_length(first, 2.0, 1.0, depth))
            / 2.0
    };
    let (mut low, mut high) = (0.0, 1.0);
    if accept_len > model(1.0) + 0.05 {
        return None; // more tokens than such a depth can commit: the depth is not what it seems
    }
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if model(middle) < accept_len { low = middle } else { high = middle }
    }
    Some((low + high) / 2.0)
}

/// A range around a measured value: its own interval, and at least eight percent for what differs between two days.
pub fn around_measured(estimate: Estimate) -> Range {
    const DAY_TO_DAY: f64 = 0.08;
    let half = ((estimate.hi - estimate.lo) / 2.0 / estimate.value).clamp(0.0, 0.25);
    let error = (DAY_TO_DAY.powi(2) + half.powi(2)).sqrt();
    Range { lo: estimate.value * (1.0 - error), hi: estimate.value * (1.0 + error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story that the project starts from: two windows at depth 1, measured afterwards at depth 3: 47 to 57 tok/s.
    #[test]
    fn the_story_is_predicted_honestly() {
        let seen = Estimate { value: 1.74, lo: 1.72, hi: 1.76, n: 2 };
        let at = at_depth(seen, 20.4, 1, 3).unwrap();
        assert!(at.tok_s.lo > 40.0 && at.tok_s.lo < 47.0, "{at:?}");
        assert!(at.tok_s.hi > 57.0 && at.tok_s.hi < 62.0, "{at:?}");
    }

    #[test]
    fn the_measured_depth_predicts_itself() {
        for (len, depth) in [(1.75, 1), (2.6, 3), (3.4, 5)] {
            let seen = Estimate { value: len, lo: len, hi: len, n: 1000 };
            let at = at_depth(seen, 20.0, depth, depth).unwrap();
            assert!((at.tok_s.lo * at.tok_s.hi).sqrt() / (len * 20.0) - 1.0 < 0.01, "{at:?}");
        }
        assert_eq!(at_depth(Estimate::exact(2.5), 20.0, 1, 3), None);
    }

    #[test]
    fn drafts_that_were_never_seen_are_a_wide_range() {
        let at = with_drafts(40.0, 3);
        assert!(at.accept_len.lo > 1.3 && at.accept_len.hi < 4.0, "{at:?}");
        assert!(at.tok_s.lo > 40.0 && at.tok_s.hi < 160.0, "{at:?}");
        assert!(at.tok_s.hi / at.tok_s.lo > 1.3, "{at:?}");
    }

    #[test]
    fn one_draft_more_costs_a_little() {
        let seen = Estimate { value: 1.74, lo: 1.74, hi: 1.74, n: 50 };
        let at = at_depth(seen, 24.1, 1, 3).unwrap();
        assert!(at.steps_per_s.lo < 22.0 && 22.0 < at.steps_per_s.hi, "{at:?}"); // measured: 22.0
    }
}
