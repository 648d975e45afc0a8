//! The few statistics a diagnosis needs: quantiles, rank tests, intervals. All deterministic.

/// A number with the interval in which it is believed to lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// Lower end, at about 95 %.
    pub lo: f64,
    /// Upper end, at about 95 %.
    pub hi: f64,
    /// Samples behind it.
    pub n: usize,
}

impl Estimate {
    /// A number without an interval: one measurement, or a count.
    pub fn exact(value: f64) -> Estimate {
        Estimate { value, lo: value, hi: value, n: 1 }
    }
}

/// The values in ascending order, those that are not numbers left out.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|x| x.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Quantile `p` of ascending values, interpolated between neighbours.
pub fn quantile(ascending: &[f64], p: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let at = p.clamp(0.0, 1.0) * last as f64;
    let low = at.floor() as usize;
    let high = (low + 1).min(last);
    Some(ascending[low] + (ascending[high] - ascending[low]) * (at - low as f64))
}

/// Median of any values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    quantile(&sorted(values), 0.5)
}

/// Mean of any values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Median with the order-statistics interval of about 95 %.
pub fn median_estimate(values: impl IntoIterator<Item = f64>) -> Option<Estimate> {
    quantile_estimate(&sorted(values), 0.5)
}

/// Quantile with its order-statistics interval of about 95 %; with few samples the interval is the whole range.
pub fn quantile_estimate(ascending: &[f64], p: f64) -> Option<Estimate> {
    let value = quantile(ascending, p)?;
    let n = ascending.len() as f64;
    let half = 1.96 * (n * p * (1.0 - p)).sqrt();
    let pick = |rank: f64| ascending[(rank.max(0.0) as usize).min(ascending.len() - 1)];
    Some(Estimate {
        value,
        lo: pick((n * p - half).floor()).min(value),
        hi: pick((n * p + half).ceil()).max(value),
        n: ascending.len(),
    })
}

/// Mean with its interval of about 95 %.
pub fn mean_estimate(values: &[f64]) -> Option<Estimate> {
    let value = mean(values)?;
    let n = values.len() as f64;
    let variance = values.iter().map(|x| (x - value).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    let half = 1.96 * (variance / n).sqrt();
    Some(Estimate { value, lo: value - half, hi: value + half, n: values.len() })
}

/// Two-sided p-value of the Mann-Whitney rank test with ties, by the normal approximation.
/// `None` with fewer than four samples on a side: nothing could be shown.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<f64> {
    let (n, m) = (a.len() as f64, b.len() as f64);
    if a.len() < 4 || b.len() < 4 {
        return None;
    }
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|x| (*x, true)).chain(b.iter().map(|x| (*x, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut rank_sum, mut ties, mut i) = (0.0, 0.0, 0);
    while i < all.len() {
        let end = i + all[i..].iter().take_while(|x| x.0 == all[i].0).count();
        let rank = (i + 1 + end) as f64 / 2.0;
        rank_sum += rank * all[i..end].iter().filter(|x| x.1).count() as f64;
        let tied = (end - i) as f64;
        ties += tied.powi(3) - tied;
        i = end;
    }
    let u = rank_sum - n * (n + 1.0) / 2.0;
    let total = n + m;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return Some(1.0);
    }
    let z = ((u - n * m / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    Some(2.0 * upper_tail(z))
}

/// P(Z > z) of the standard normal distribution; error below 1e-7 (Abramowitz and Stegun 26.2.17).
fn upper_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let poly = t
        * (0.319_381_53
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly
}

/// Interval of the ratio median(b) / median(a), by a bootstrap with a fixed seed.
pub fn median_ratio(a: &[f64], b: &[f64]) -> Option<Estimate> {
    const ROUNDS: usize = 2000;
    let value = median(b.iter().copied())? / median(a.iter().copied())?;
    let mut random = SplitMix(0x0dd0_5eed);
    let mut resample = |from: &[f64]| {
        median((0..from.len()).map(|_| from[random.below(from.len())])).unwrap_or(f64::NAN)
    };
    let ratios = sorted((0..ROUNDS).map(|_| {
        let bottom = resample(a);
        resample(b) / bottom
    }));
    let (lo, hi) = (quantile(&ratios, 0.025)?, quantile(&ratios, 0.975)?);
    value.is_finite().then_some(Estimate { value, lo, hi, n: a.len().min(b.len()) })
}

/// A small deterministic generator for the bootstrap.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// Two groups of values with a gap between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modes {
    /// Mean of the lower group.
    pub low: f64,
    /// Mean of the upper group.
    pub high: f64,
    /// Share of the values in the lower group.
    pub low_share: f64,
}

/// Splits values into two groups where that explains nearly all of their spread: both groups hold at least a tenth of
/// the values, and lie further apart than five times the spread inside them.
pub fn two_modes(values: &[f64]) -> Option<Modes> {
    let ascending = sorted(values.iter().copied());
    let n = ascending.len();
    if n < 10 {
        return None;
    }
    let mut sums = vec![(0.0, 0.0)];
    for x in &ascending {
        let (sum, squares) = sums[sums.len() - 1];
        sums.push((sum + x, squares + x * x));
    }
    let group = |from: usize, to: usize| {
        let count = (to - from) as f64;
        let sum = sums[to].0 - sums[from].0;
        let mean = sum / count;
        let inside = (sums[to].1 - sums[from].1 - sum * mean).max(0.0);
        (mean, inside)
    };
    let fewest = (n / 10).max(2);
    let (cut, inside) = (fewest..=n - fewest)
        .map(|cut| (cut, group(0, cut).1 + group(cut, n).1))
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    let (low, high) = (group(0, cut).0, group(cut, n).0);
    let spread = (inside / n as f64).sqrt();
    (high - low > 5.0 * spread && high > low * 1.05).then_some(Modes {
        low,
        high,
        low_share: cut as f64 / n as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.5));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(median([3.0, f64::NAN, 1.0]), Some(2.0));
        let estimate = median_estimate((0..100).map(f64::from)).unwrap();
        assert!(estimate.lo < 42.0 && estimate.hi > 57.0 && estimate.n == 100);
    }

    #[test]
    fn rank_test_knows_equal_from_shifted() {
        let a: Vec<f64> = (0..30).map(|i| f64::from(i % 10)).collect();
        let shifted: Vec<f64> = a.iter().map(|x| x + 6.0).collect();
        assert!(mann_whitney(&a, &a).unwrap() > 0.9);
        assert!(mann_whitney(&a, &shifted).unwrap() < 1e-4);
        assert_eq!(mann_whitney(&a, &[1.0]), None);
        // A published example: 0.0107 with the continuity correction.
        let (x, y) = ([19.0, 22.0, 16.0, 29.0, 24.0], [20.0, 11.0, 17.0, 12.0]);
        assert!((mann_whitney(&x, &y).unwrap() - 0.1113).abs() < 0.005);
    }

    #[test]
    fn the_ratio_has_an_interval_that_holds_it() {
        let a: Vec<f64> = (0..40).map(|i| 100.0 + f64::from(i % 7)).collect();
        let b: Vec<f64> = a.iter().map(|x| x * 0.6).collect();
        let ratio = median_ratio(&a, &b).unwrap();
        assert!((ratio.value - 0.6).abs() < 1e-9 && ratio.lo <= 0.6 && ratio.hi >= 0.6);
        assert!(ratio.hi - ratio.lo < 0.05);
    }

    #[test]
    fn two_modes_need_a_gap() {
        let even: Vec<f64> = (0..40).map(|i| 100.0 + f64::from(i)).collect();
        assert_eq!(two_modes(&even), None);
        let split: Vec<f64> =
            (0..40).map(|i| if i % 4 == 0 { 50.0 } else { 100.0 } + f64::from(i % 3)).collect();
        let modes = two_modes(&split).unwrap();
        assert!((modes.low - 51.0).abs() < 1.5 && (modes.low_share - 0.25).abs() < 0.01);
    }
}
