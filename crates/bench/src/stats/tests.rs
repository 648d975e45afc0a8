//! Every statistic beside the value that scipy gives; `fixtures/make.py` wrote them.

use serde_json::Value;

use super::rank::{asymptotic_p, exact_p};
use super::{holm, mann_whitney, median, median_interval, shift};

pub(super) fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/scipy.json")).unwrap()
}

pub(super) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

pub(super) fn near(value: f64, expected: f64, tolerance: f64) {
    let error = (value - expected).abs();
    assert!(error <= tolerance * expected.abs().max(1.0), "{value} is not near {expected}");
}

#[test]
fn rank_tests() {
    for case in fixture()["two_samples"].as_array().unwrap() {
        let (x, y) = (numbers(&case["x"]), numbers(&case["y"]));
        let test = mann_whitney(&x, &y).unwrap();
        near(test.u, case["u"].as_f64().unwrap(), 0.0);
        let asymptotic = case["p_asymptotic"].as_f64().unwrap();
        match case["p_exact"].as_f64() {
            Some(exact) => {
                near(exact_p(test.u, x.len(), y.len()), exact, 1e-12);
                let large = x.len().max(y.len()) > 20;
                near(test.p, if large { asymptotic } else { exact }, 1e-9);
                near(asymptotic_p(test.u, x.len() as f64, y.len() as f64, &[]), asymptotic, 1e-9);
            }
            None => near(test.p, asymptotic, 1e-9),
        }
        let found = shift(&x, &y, 0.95).unwrap();
        let expected = &case["hodges_lehmann"];
        near(found.value, expected["shift"].as_f64().unwrap(), 1e-12);
        near(found.lo, expected["lo"].as_f64().unwrap(), 1e-12);
        near(found.hi, expected["hi"].as_f64().unwrap(), 1e-12);
    }
}

#[test]
fn median_intervals() {
    for case in fixture()["median_intervals"].as_array().unwrap() {
        let values = numbers(&case["values"]);
        let found = median_interval(&values, 0.95).unwrap();
        near(found.value, case["median"].as_f64().unwrap(), 1e-12);
        // Two sets of resamples: the ends may differ by a neighbouring order statistic.
        let rank = |x: f64| values.iter().filter(|value| **value <= x).count();
        for (end, expected) in [(found.lo, &case["lo"]), (found.hi, &case["hi"])] {
            assert!(rank(end).abs_diff(rank(expected.as_f64().unwrap())) <= 1);
        }
        assert_eq!(median_interval(&values, 0.95), Some(found), "the same input, the same result");
    }
}

#[test]
fn holm_corrections() {
    for case in fixture()["holm"].as_array().unwrap() {
        let adjusted = holm(&numbers(&case["p"]));
        for (found, expected) in adjusted.iter().zip(numbers(&case["adjusted"])) {
            near(*found, expected, 1e-12);
        }
    }
}

#[test]
fn few_values() {
    assert_eq!(median(&[]), None);
    assert_eq!(median(&[2.0]), Some(2.0));
    assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    assert_eq!(median_interval(&[], 0.95), None);
    let few = median_interval(&[3.0, 1.0, 2.0], 0.95).unwrap();
    assert_eq!((few.lo, few.value, few.hi), (1.0, 2.0, 3.0));
    assert_eq!(mann_whitney(&[], &[1.0]), None);
    assert_eq!(shift(&[1.0], &[], 0.95), None);
    assert!(holm(&[]).is_empty());
    assert_eq!(mann_whitney(&[1.0, 1.0], &[1.0, 1.0]).unwrap().p, 1.0);
}

#[test]
fn paired_differences_are_tested_by_their_signed_ranks() {
    // All ten positive: 2 of 2^10 choices of signs are as extreme.
    let up: Vec<f64> = (1..=10).map(f64::from).collect();
    let p = super::signed_rank(&up).unwrap();
    assert!((p - 2.0 / 1024.0).abs() < 1e-12, "{p}");
    let mixed = [1.0, -2.0, 3.0, -4.0, 5.0, -6.0];
    assert!(super::signed_rank(&mixed).unwrap() > 0.5);
    assert_eq!(super::signed_rank(&[0.0, 0.0]), None);
    let tied = [1.0; 12];
    assert!(super::signed_rank(&tied).unwrap() < 0.01);
    let middle = super::walsh(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], 0.95).unwrap();
    assert!(
        (middle.value - 0.4).abs() < 1e-12 && middle.lo < 0.25 && middle.hi > 0.55,
        "{middle:?}"
    );
    assert!(super::walsh(&[], 0.95).is_none());
}
