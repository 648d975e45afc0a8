//! What the logits of a model say about a text, and about the logits of another model.

use serde::Serialize;

/// What is kept of every scored token.
#[derive(Default)]
pub(crate) struct Scores {
    /// `-ln p(token)`, in nats.
    losses: Vec<f64>,
    /// Filled when there is a reference.
    distances: Distances,
}

/// What is kept of every scored token beside a reference.
#[derive(Default)]
struct Distances {
    /// `-ln p(token)` of the reference.
    losses: Vec<f64>,
    /// `KL(reference || model)`, in nats.
    divergences: Vec<f64>,
    /// Tokens of which both think another one the most likely.
    n_top_differs: usize,
}

impl Scores {
    /// Takes the logits that predict `token`, and those of the reference where there is one.
    pub(crate) fn take(&mut self, token: u32, logits: &[f32], reference: Option<&[f32]>) {
        let norm = log_sum_exp(logits);
        self.losses.push(norm - f64::from(logits[token as usize]));
        let Some(other) = reference else { return };
        let other_norm = log_sum_exp(other);
        let distances = &mut self.distances;
        distances.losses.push(other_norm - f64::from(other[token as usize]));
        distances.divergences.push(divergence((other, other_norm), (logits, norm)));
        distances.n_top_differs += usize::from(top(logits) != top(other));
    }

    /// The figures of the report; `None` while nothing was scored.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let loss = Mean::of(&self.losses)?;
        let comparison = Mean::of(&self.distances.divergences).map(|divergence| {
            let mut sorted = self.distances.divergences.clone();
            sorted.sort_by(f64::total_cmp);
            let n = sorted.len();
            let quantile = |q: f64| sorted[((n - 1) as f64 * q).round() as usize];
            let reference = Mean::of(&self.distances.losses).expect("one for each divergence");
            Comparison {
                reference_perplexity: reference.mean.exp(),
                kl_mean: divergence.mean,
                kl_standard_error: divergence.standard_error,
                kl_median: quantile(0.5),
                kl_99: quantile(0.99),
                kl_max: sorted[n - 1],
                top_1_agreement: 1.0 - self.distances.n_top_differs as f64 / n as f64,
            }
        });
        Some(Summary {
            n_tokens: self.losses.len(),
            nats_per_token: loss.mean,
            standard_error: loss.standard_error,
            perplexity: loss.mean.exp(),
            comparison,
        })
    }
}

/// How well a model predicts a text.
#[derive(Serialize)]
pub(crate) struct Summary {
    /// Scored tokens.
    pub(crate) n_tokens: usize,
    /// Mean of `-ln p(token)`.
    pub(crate) nats_per_token: f64,
    /// Standard error of that mean.
    pub(crate) standard_error: f64,
    /// `exp` of the mean.
    pub(crate) perplexity: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comparison: Option<Comparison>,
}

/// How far a model is from its reference on a text.
#[derive(Serialize)]
pub(crate) struct Comparison {
    pub(crate) reference_perplexity: f64,
    /// Mean over the tokens of `KL(reference || model)`, in nats.
    pub(crate) kl_mean: f64,
    pub(crate) kl_standard_error: f64,
    pub(crate) kl_median: f64,
    /// 99th percentile.
    pub(crate) kl_99: f64,
    pub(crate) kl_max: f64,
    /// Share of tokens of which both think the same one the most likely.
    pub(crate) top_1_agreement: f64,
}

struct Mean {
    mean: f64,
    standard_error: f64,
}

impl Mean {
    fn of(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let spread = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        (!values.is_empty()).then_some(Self { mean, standard_error: (spread / n).sqrt() })
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|l| (f64::from(*l) - max).exp()).sum::<f64>().ln()
}

/// `KL(p || q)` in nats, each given as logits and their log-sum-exp.
fn divergence((p, p_norm): (&[f32], f64), (q, q_norm): (&[f32], f64)) -> f64 {
    let terms = p.iter().zip(q).map(|(p, q)| {
        let (p, q) = (f64::from(*p) - p_norm, f64::from(*q) - q_norm);
        // What p thinks impossible counts nothing, whatever q thinks.
        if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }
    });
    // Rounding can leave a sum of nothing just below zero.
    terms.sum::<f64>().max(0.0)
}

/// The most likely token; the first of equals.
fn top(logits: &[f32]) -> usize {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(p: &[f64]) -> Vec<f32> {
        // A constant added to all logits changes nothing.
        p.iter().map(|p| (p.ln() + 3.0) as f32).collect()
    }

    #[test]
    fn perplexity_is_the_inverse_of_the_geometric_mean_probability() {
        let mut scores = Scores::default();
        scores.take(0, &logits(&[0.5, 0.25, 0.25]), None);
        scores.take(1, &logits(&[0.5, 0.125, 0.375]), None);
        let summary = scores.summary().expect("two tokens");
        assert_eq!(summary.n_tokens, 2);
        assert!((summary.perplexity - 4.0).abs() < 1e-5, "{}", summary.perplexity);
        assert!(summary.comparison.is_none());
    }

    #[test]
    fn divergence_is_that_of_the_textbook_and_not_symmetric() {
        let (p, q) = ([0.5, 0.5], [0.9, 0.1]);
        let mut scores = Scores::default();
        scores.take(0, &logits(&q), Some(&logits(&p)));
        let c = scores.summary().and_then(|s| s.comparison).expect("a reference");
        let expected = 0.5 * (0.5f64 / 0.9).ln() + 0.5 * (0.5f64 / 0.1).ln();
        assert!((c.kl_mean - expected).abs() < 1e-6, "{} {expected}", c.kl_mean);
        assert!((c.reference_perplexity - 2.0).abs() < 1e-6);
        assert_eq!(c.top_1_agreement, 1.0);
    }

    #[test]
    fn the_same_logits_are_no_distance_apart_and_others_are() {
        let (a, b) = (logits(&[0.7, 0.2, 0.1]), logits(&[0.2, 0.7, 0.1]));
        let mut scores = Scores::default();
        scores.take(2, &a, Some(&a));
        scores.take(2, &a, Some(&b));
        let c = scores.summary().and_then(|s| s.comparison).expect("a reference");
        assert_eq!(c.top_1_agreement, 0.5);
        assert!(c.kl_max > 0.5 && c.kl_mean > 0.25, "{} {}", c.kl_max, c.kl_mean);
    }

    #[test]
    fn impossible_tokens_do_not_make_the_divergence_undefined() {
        let masked = [0.0, f32::NEG_INFINITY];
        let mut scores = Scores::default();
        scores.take(0, &[0.0, 0.0], Some(&masked));
        let c = scores.summary().and_then(|s| s.comparison).expect("a reference");
        assert!((c.kl_mean - 2f64.ln()).abs() < 1e-9, "{}", c.kl_mean);
    }

    #[test]
    fn nothing_scored_is_no_summary() {
        assert!(Scores::default().summary().is_none());
    }
}
