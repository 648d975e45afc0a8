//! The normal and Student's distribution, as far as the tests need them.

use std::f64::consts::SQRT_2;

/// Probability that a standard normal number is above `z`.
pub(super) fn normal_tail(z: f64) -> f64 {
    0.5 * libm::erfc(z / SQRT_2)
}

/// The number below which a standard normal number lies with probability `p` in (0, 1).
///
/// Bisection on the tail: some fifty evaluations, and it cannot diverge.
pub(super) fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-40.0_f64, 40.0_f64);
    while high - low > 1e-12 {
        let middle = (low + high) / 2.0;
        if normal_tail(middle) > 1.0 - p {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// Probability that Student's t with `n` degrees of freedom is at least `t` away from zero.
pub(super) fn student_two_sided(t: f64, n: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    incomplete_beta(n / 2.0, 0.5, n / (n + t * t))
}

/// The regularised incomplete beta function by its continued fraction (Lentz's method).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || 1.0 <= x {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast only on one side of the mean.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front =
        libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * x.ln() + b * (1.0 - x).ln();
    const TINY: f64 = 1e-300;
    let away_from_zero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut c, mut d) = (1.0, 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut factor = 1.0;
        for term in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + term * d);
            c = away_from_zero(1.0 + term / c);
            factor = c * d;
            fraction *= factor;
        }
        if (factor - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front.exp() * fraction / a
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fixture, near};
    use super::{normal_quantile, student_two_sided};

    #[test]
    fn quantiles_and_tails_agree_with_scipy() {
        for row in fixture()["normal"].as_array().unwrap() {
            near(normal_quantile(row[0].as_f64().unwrap()), row[1].as_f64().unwrap(), 1e-9);
        }
        for row in fixture()["student"].as_array().unwrap() {
            let (t, n) = (row[0].as_f64().unwrap(), row[1].as_f64().unwrap());
            near(student_two_sided(t, n), row[2].as_f64().unwrap(), 1e-9);
        }
        assert_eq!(student_two_sided(f64::INFINITY, 5.0), 0.0);
    }
}
