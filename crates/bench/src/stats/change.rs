//! When a series changed: the split with the largest energy distance, kept if a t-test agrees.
//!
//! Splitting goes on inside both halves; in the end every point is tested once more between its
//! neighbours, because the first splits were judged against segments that have since been divided.

use serde::Serialize;

use super::distribution::student_two_sided;
use super::median::median;

/// A place where the series changed its level.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangePoint {
    /// Index of the first value after the change.
    pub at: usize,
    /// Median of the segment before.
    pub before: f64,
    /// Median of the segment after.
    pub after: f64,
    /// Two-sided probability of Welch's t-test between the two segments.
    pub p: f64,
}

/// Shortest segment on either side of a change.
const SHORTEST: usize = 4;
/// A change with a larger probability is noise; small, because the best of many splits is tested.
const SIGNIFICANT: f64 = 0.001;

/// Where the series changed its level, in order.
#[must_use]
pub fn change_points(series: &[f64]) -> Vec<ChangePoint> {
    let mut cuts = Vec::new();
    divide(series, 0, &mut cuts);
    cuts.sort_unstable();
    loop {
        let points = describe(series, &cuts);
        match points.iter().enumerate().max_by(|a, b| a.1.p.total_cmp(&b.1.p)) {
            Some((weakest, point)) if point.p > SIGNIFICANT => {
                cuts.remove(weakest);
            }
            _ => return points,
        }
    }
}

/// Finds the cuts inside a segment that begins at `offset`.
fn divide(segment: &[f64], offset: usize, cuts: &mut Vec<usize>) {
    let Some((at, _)) = best_split(segment, SHORTEST) else { return };
    let (left, right) = segment.split_at(at);
    if welch_p(left, right) <= SIGNIFICANT {
        cuts.push(offset + at);
        divide(left, offset, cuts);
        divide(right, offset + at, cuts);
    }
}

fn describe(series: &[f64], cuts: &[usize]) -> Vec<ChangePoint> {
    let edge = |i: usize| if i == 0 { 0 } else { cuts[i - 1] };
    let end = |i: usize| cuts.get(i + 1).copied().unwrap_or(series.len());
    let point = |(i, at): (usize, &usize)| {
        let (left, right) = (&series[edge(i)..*at], &series[*at..end(i)]);
        Some(ChangePoint {
            at: *at,
            before: median(left)?,
            after: median(right)?,
            p: welch_p(left, right),
        })
    };
    cuts.iter().enumerate().filter_map(point).collect()
}

/// The split with the largest weighted energy distance between its sides, and that distance.
pub(super) fn best_split(series: &[f64], shortest: usize) -> Option<(usize, f64)> {
    let n = series.len();
    if n < 2 * shortest {
        return None;
    }
    let statistic = |at: usize| {
        let (left, right) = series.split_at(at);
        let weight = (left.len() * right.len()) as f64 / n as f64;
        let distance = 2.0 * mean_distance(left, right)
            - mean_distance(left, left)
            - mean_distance(right, right);
        (at, weight * distance)
    };
    (shortest..=n - shortest).map(statistic).max_by(|a, b| a.1.total_cmp(&b.1))
}

fn mean_distance(x: &[f64], y: &[f64]) -> f64 {
    let sum: f64 = x.iter().map(|a| y.iter().map(|b| (a - b).abs()).sum::<f64>()).sum();
    sum / (x.len() * y.len()) as f64
}

/// Welch's t-test: the variances of the sides need not be equal.
pub(super) fn welch_p(x: &[f64], y: &[f64]) -> f64 {
    let (m, n) = (x.len() as f64, y.len() as f64);
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mean_x, mean_y) = (mean(x), mean(y));
    let variance = |v: &[f64], mean: f64| {
        v.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / (v.len() as f64 - 1.0)
    };
    let (error_x, error_y) = (variance(x, mean_x) / m, variance(y, mean_y) / n);
    let error = error_x + error_y;
    if error == 0.0 {
        return if mean_x == mean_y { 1.0 } else { 0.0 };
    }
    let degrees = error.powi(2) / (error_x.powi(2) / (m - 1.0) + error_y.powi(2) / (n - 1.0));
    student_two_sided((mean_x - mean_y) / error.sqrt(), degrees)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fixture, near, numbers};
    use super::{best_split, change_points, welch_p};

    #[test]
    fn splits_agree_with_scipy() {
        for case in fixture()["splits"].as_array().unwrap() {
            let shortest = case["shortest"].as_u64().unwrap() as usize;
            let (at, statistic) = best_split(&numbers(&case["series"]), shortest).unwrap();
            assert_eq!(at as u64, case["at"].as_u64().unwrap());
            near(statistic, case["statistic"].as_f64().unwrap(), 1e-9);
        }
        for case in fixture()["two_samples"].as_array().unwrap() {
            let p = welch_p(&numbers(&case["x"]), &numbers(&case["y"]));
            near(p, case["welch_p"].as_f64().unwrap(), 1e-8);
        }
    }

    #[test]
    fn two_steps_are_two_changes() {
        let level = |n, base: f64| (0..n).map(move |i| base + 0.1 * f64::from(i % 3));
        let series: Vec<f64> =
            level(12, 70.0).chain(level(9, 40.0)).chain(level(10, 66.0)).collect();
        let points = change_points(&series);
        assert_eq!(points.iter().map(|point| point.at).collect::<Vec<_>>(), [12, 21]);
        near(points[0].after, 40.1, 1e-9);
    }

    #[test]
    fn noise_and_short_series_have_no_change() {
        let noise: Vec<f64> = (0..40).map(|i| f64::from(i * 7919 % 13)).collect();
        assert!(change_points(&noise).is_empty());
        assert!(change_points(&[1.0, 2.0, 3.0]).is_empty());
        assert!(change_points(&[]).is_empty());
        assert!(change_points(&[5.0; 30]).is_empty());
    }
}
