//! Exponential, sigmoid, SiLU and softplus, as polynomials of fused multiply-adds.
//!
//! Relative errors stay below 2e-7. NaN gives NaN.

use crate::lanes::Lanes;

/// 1.5 * 2^23: adding it rounds to an integer and leaves that integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; the first is short enough that its product with an exponent is exact.
const LN2_HIGH: f32 = 0.693_115_23;
const LN2_LOW: f32 = 3.194_618_3e-5;
/// Below this, `exp` returns 0 rather than a number close to the smallest normal one.
const EXP_MIN: f32 = -87.0;
const EXP_MAX: f32 = 89.0;

/// e^x; 0 below -87, infinity from 88.73.
#[inline(always)]
pub(crate) fn exp<V: Lanes>(x: V) -> V {
    // The clamps take x as the second operand, which keeps NaN.
    let clamped = V::splat(EXP_MIN).max(V::splat(EXP_MAX).min(x));
    // x = n ln 2 + r with |r| <= ln 2 / 2.
    let magic = clamped.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(ROUND));
    let n = magic.sub(V::splat(ROUND));
    let r = n.mul_add(V::splat(-LN2_HIGH), clamped);
    let r = n.mul_add(V::splat(-LN2_LOW), r);
    // e^r = 1 + r + r^2 q(r), minimax in the relative error: 3e-9 before rounding.
    let q = V::splat(1.381_446_5e-3);
    let q = q.mul_add(r, V::splat(8.368_781e-3));
    let q = q.mul_add(r, V::splat(4.166_839_3e-2));
    let q = q.mul_add(r, V::splat(0.166_665_2));
    let q = q.mul_add(r, V::splat(0.499_999_94));
    let e = q.mul_add(r.mul(r), r).add(V::splat(1.0));
    // 2 e^r * 2^(n-1), because 2^128 is not a number but e^88.7 is.
    let scale = magic.sub(V::splat(1.0)).exponent_from_low_bits();
    x.zero_below(V::splat(EXP_MIN), e.add(e).mul(scale))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<V: Lanes>(x: V) -> V {
    let one = V::splat(1.0);
    one.div(exp(x.mul(V::splat(-1.0))).add(one))
}

/// x * sigmoid(x).
#[inline(always)]
pub(crate) fn silu<V: Lanes>(x: V) -> V {
    x.div(exp(x.mul(V::splat(-1.0))).add(V::splat(1.0)))
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|).
#[inline(always)]
pub(crate) fn softplus<V: Lanes>(x: V) -> V {
    let negated = x.mul(V::splat(-1.0));
    // ln(1 + t) = 2 artanh(s) with s = t / (t + 2) in (0, 1/3]: 2 s + s^3 q(s^2).
    let t = exp(x.min(negated));
    let s = t.div(t.add(V::splat(2.0)));
    let z = s.mul(s);
    let q = V::splat(0.242_895_62);
    let q = q.mul_add(z, V::splat(0.214_307_4));
    let q = q.mul_add(z, V::splat(0.286_165_98));
    let q = q.mul_add(z, V::splat(0.399_988_9));
    let q = q.mul_add(z, V::splat(0.666_666_75));
    let log = q.mul(z).mul_add(s, s.add(s));
    V::splat(0.0).max(x).add(log)
}

/// bf16 nearest to x, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::per_isa;
    use crate::lanes::LANES;
    use crate::testing::{Random, bits, targets};

    #[inline(always)]
    fn all<V: Lanes>(x: &[f32; LANES], out: &mut [[f32; LANES]; 4]) {
        let v = V::load(x);
        exp(v).store(&mut out[0]);
        sigmoid(v).store(&mut out[1]);
        silu(v).store(&mut out[2]);
        softplus(v).store(&mut out[3]);
    }

    per_isa!(fn run(x: &[f32; LANES], out: &mut [[f32; LANES]; 4]) = all);

    #[test]
    fn close_to_f64_and_the_same_bits_everywhere() {
        let mut random = Random::new(2);
        let mut worst = [0.0f64; 4];
        for round in 0..20_000 {
            let x: [f32; LANES] = std::array::from_fn(|_| match round % 4 {
                0 => random.normal(),
                1 => random.normal() * 0.01,
                2 => random.uniform() * 174.0 - 86.0,
                _ => random.normal() * 20.0,
            });
            let results: Vec<_> = targets()
                .map(|target| {
                    let mut out = [[0.0; LANES]; 4];
                    run(target, &x, &mut out);
                    out
                })
                .collect();
            for other in &results[1..] {
                assert_eq!(bits(results[0].as_flattened()), bits(other.as_flattened()));
            }
            for (i, &x) in x.iter().enumerate() {
                let x = f64::from(x);
                let e = x.exp();
                let expected = [e, 1.0 / (1.0 + (-x).exp()), x / (1.0 + (-x).exp()), e.ln_1p()];
                for f in 0..4 {
                    let got = f64::from(results[0][f][i]);
                    if expected[f].abs() > 1e-36 {
                        worst[f] = worst[f].max((got / expected[f] - 1.0).abs());
                    } else {
                        assert!(got.abs() <= 2e-36, "function {f} of {x}: {got}");
                    }
                }
            }
        }
        assert!(worst.iter().all(|&w| w < 2.5e-7), "{worst:?}");
    }

    #[test]
    fn extremes() {
        let mut x = [0.0; LANES];
        x[..7].copy_from_slice(&[
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1e30,
            -1e30,
            88.7,
            -87.01,
        ]);
        for target in targets() {
            let mut out = [[1.0; LANES]; 4];
            run(target, &x, &mut out);
            let [exp, sigmoid, silu, softplus] = out;
            assert!(exp[0].is_nan() && sigmoid[0].is_nan() && silu[0].is_nan());
            assert!(softplus[0].is_nan());
            assert_eq!(exp[1..5], [f32::INFINITY, 0.0, f32::INFINITY, 0.0]);
            assert!((f64::from(exp[5]) / 88.7f32.exp() as f64 - 1.0).abs() < 1e-6);
            assert_eq!((exp[6], exp[7]), (0.0, 1.0));
            assert_eq!(sigmoid[1..5], [1.0, 0.0, 1.0, 0.0]);
            assert_eq!((silu[3], silu[4]), (1e30, 0.0));
            assert_eq!(softplus[1..5], [f32::INFINITY, 0.0, 1e30, 0.0]);
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        let mut random = Random::new(3);
        for _ in 0..10_000 {
            let x = random.normal() * 3.0;
            assert_eq!(to_bf16(x), half::bf16::from_f32(x).to_bits());
        }
        for x in [0.0, -0.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, 1.0 + 1.0 / 256.0] {
            assert_eq!(to_bf16(x), half::bf16::from_f32(x).to_bits());
        }
        assert!(half::bf16::from_bits(to_bf16(f32::NAN)).is_nan());
    }
}
