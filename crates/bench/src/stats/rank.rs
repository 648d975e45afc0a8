//! Comparing two samples by ranks: whether they differ, by how much, and how sure that is.

use super::distribution::{normal_quantile, normal_tail};
use super::median::{Estimate, median};

/// Result of the Mann-Whitney U test, two-sided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankTest {
    /// Pairs in which the first sample is larger, ties counting half.
    pub u: f64,
    /// Probability of a difference this large when both samples come from one distribution.
    pub p: f64,
}

/// Largest samples for which all orders are counted instead of taking the normal limit.
const EXACT: usize = 20;

/// Whether `x` and `y` come from one distribution: exact for small samples without ties.
#[must_use]
pub fn mann_whitney(x: &[f64], y: &[f64]) -> Option<RankTest> {
    if x.is_empty() || y.is_empty() {
        return None;
    }
    let u = u_statistic(x, y);
    let ties = tie_sizes(x, y);
    let p = if ties.is_empty() && x.len().max(y.len()) <= EXACT {
        exact_p(u, x.len(), y.len())
    } else {
        asymptotic_p(u, x.len() as f64, y.len() as f64, &ties)
    };
    Some(RankTest { u, p })
}

fn u_statistic(x: &[f64], y: &[f64]) -> f64 {
    let mut u = 0.0;
    for a in x {
        for b in y {
            u += if b < a { 1.0 } else { f64::from(u8::from(a == b)) / 2.0 };
        }
    }
    u
}

/// How many values share each value that occurs more than once.
fn tie_sizes(x: &[f64], y: &[f64]) -> Vec<f64> {
    let mut all = [x, y].concat();
    all.sort_unstable_by(f64::total_cmp);
    all.chunk_by(|a, b| a == b).map(|run| run.len() as f64).filter(|n| *n > 1.0).collect()
}

/// Share of all orders whose U is at least as far from the middle.
pub(super) fn exact_p(u: f64, n_x: usize, n_y: usize) -> f64 {
    let upper = u.max((n_x * n_y) as f64 - u) as usize;
    // counts[v]: orders of the first i values of x among y with U = v, built up value by value.
    let mut counts = vec![0.0; n_x * n_y + 1];
    counts[0] = 1.0;
    // The counts are the coefficients of prod (1 - q^(n_y+i)) / (1 - q^i), i = 1..=n_x.
    for i in 1..=n_x {
        for v in (n_y + i..counts.len()).rev() {
            counts[v] -= counts[v - n_y - i];
        }
        for v in i..counts.len() {
            counts[v] += counts[v - i];
        }
    }
    let total: f64 = counts.iter().sum();
    (2.0 * counts[upper..].iter().sum::<f64>() / total).min(1.0)
}

/// The normal limit with the corrections for ties and for continuity.
pub(super) fn asymptotic_p(u: f64, n_x: f64, n_y: f64, ties: &[f64]) -> f64 {
    let n = n_x + n_y;
    let tied: f64 = ties.iter().map(|t| t * t * t - t).sum();
    let variance = n_x * n_y / 12.0 * (n + 1.0 - tied / (n * (n - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let distance = (u - n_x * n_y / 2.0).abs() - 0.5;
    (2.0 * normal_tail(distance / variance.sqrt())).min(1.0)
}

/// How far `y` lies above `x`: the Hodges-Lehmann estimate with its interval at `confidence`.
#[must_use]
pub fn shift(x: &[f64], y: &[f64], confidence: f64) -> Option<Estimate> {
    let mut shifts: Vec<f64> = x.iter().flat_map(|a| y.iter().map(move |b| b - a)).collect();
    shifts.sort_unstable_by(f64::total_cmp);
    let value = median(&shifts)?;
    let (m, n) = (x.len() as f64, y.len() as f64);
    let spread = (m * n * (m + n + 1.0) / 12.0).sqrt();
    let k = m * n / 2.0 - normal_quantile(0.5 + confidence / 2.0) * spread;
    let k = k.floor().max(0.0) as usize;
    Some(Estimate { value, lo: shifts[k], hi: shifts[shifts.len() - 1 - k] })
}

/// Holm's correction: the probabilities that any of several tests is a false alarm.
#[must_use]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for (rank, i) in order.into_iter().enumerate() {
        largest = largest.max(((p.len() - rank) as f64 * p[i]).min(1.0));
        adjusted[i] = largest;
    }
    adjusted
}

/// Wilcoxon's signed-rank test of paired differences against none, two-sided: exact for few pairs without ties.
#[must_use]
pub fn signed_rank(differences: &[f64]) -> Option<f64> {
    let mut left: Vec<f64> = differences.iter().copied().filter(|d| *d != 0.0).collect();
    if left.is_empty() {
        return None;
    }
    left.sort_unstable_by(|a, b| a.abs().total_cmp(&b.abs()));
    let n = left.len();
    // Equal sizes share the mean of their ranks.
    let mut ranks = Vec::with_capacity(n);
    let mut ties = 0.0;
    for run in left.chunk_by(|a, b| a.abs() == b.abs()) {
        let (first, size) = (ranks.len() as f64, run.len() as f64);
        ties += size.powi(3) - size;
        ranks.extend(std::iter::repeat_n(first + (size + 1.0) / 2.0, run.len()));
    }
    let positive: f64 = left.iter().zip(&ranks).filter(|(d, _)| **d > 0.0).map(|(_, r)| r).sum();
    let total = (n * (n + 1)) as f64 / 2.0;
    let upper = positive.max(total - positive);
    if ties == 0.0 && n <= EXACT {
        // counts[s]: choices of signs whose positive ranks sum to s.
        let mut counts = vec![0.0; total as usize + 1];
        counts[0] = 1.0;
        for rank in 1..=n {
            for sum in (rank..counts.len()).rev() {
                counts[sum] += counts[sum - rank];
            }
        }
        let all: f64 = counts.iter().sum();
        return Some((2.0 * counts[upper as usize..].iter().sum::<f64>() / all).min(1.0));
    }
    let n = n as f64;
    let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - ties / 48.0;
    let distance = (upper - total / 2.0 - 0.5).max(0.0);
    Some((2.0 * normal_tail(distance / variance.sqrt())).min(1.0))
}

/// The middle of paired differences: the Hodges-Lehmann estimate over all pairs of them (Walsh averages), with its interval
/// at `confidence`.
#[must_use]
pub fn walsh(differences: &[f64], confidence: f64) -> Option<Estimate> {
    let n = differences.len();
    let mut averages: Vec<f64> =
        (0..n).flat_map(|i| (i..n).map(move |j| (differences[i] + differences[j]) / 2.0)).collect();
    averages.sort_unstable_by(f64::total_cmp);
    let value = median(&averages)?;
    let n = n as f64;
    let spread = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
    let k = n * (n + 1.0) / 4.0 - normal_quantile(0.5 + confidence / 2.0) * spread;
    let k = k.floor().max(0.0) as usize;
    Some(Estimate { value, lo: averages[k], hi: averages[averages.len() - 1 - k] })
}
