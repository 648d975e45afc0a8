//! Sixteen f32 lanes: the one vocabulary in which every operation is written.
//!
//! An operation is a function that is generic over [`Lanes`]; `per_isa!` compiles it once for
//! each instruction set. Every method rounds exactly as its scalar version does, so all
//! instruction sets give the same bits.
//!
//! Contract: `Avx2` and `Avx512` may be used only inside a function that `per_isa!` compiled for
//! them. Everything generic over `Lanes` is therefore `#[inline(always)]` and free of closures.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pairs;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) use pairs::{Avx2Pairs, Avx512Pairs, VnniPairs};
pub(crate) use pairs::{Pairs, ScalarPairs};
pub(crate) use scalar::Scalar;

/// Number of lanes.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 lanes.
pub(crate) trait Lanes: Copy {
    /// Register blocking: how many vectors of 16 outputs a matrix tile keeps in registers for
    /// each of 1, 2, 3, 4, 5 and 6 rows.
    const TILE_COLUMNS: [usize; 6];
    /// How many vectors of 16 columns the delta rule advances together.
    const STATE_COLUMNS: usize;

    fn splat(x: f32) -> Self;
    fn load(x: &[f32; LANES]) -> Self;
    fn store(self, y: &mut [f32; LANES]);
    /// 16 pairs of bf16, each pair in one word: (the low halves, the high halves), widened.
    fn load_bf16_pairs(x: &[u32; LANES]) -> (Self, Self);

    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `if self > b { self } else { b }`: where either is NaN, `b`.
    fn max(self, b: Self) -> Self;
    /// `if self < b { self } else { b }`: where either is NaN, `b`.
    fn min(self, b: Self) -> Self;
    /// `if self < limit { 0 } else { value }`.
    fn zero_below(self, limit: Self, value: Self) -> Self;
    /// `(bits + 127) << 23` read as f32: 2^n for the n in the low bits of `1.5 * 2^23 + n`.
    fn exponent_from_low_bits(self) -> Self;

    /// Sum of the lanes: lane i plus lane i + 8, then + 4, + 2, + 1.
    fn sum(self) -> f32;
    /// Largest lane, compared in the same tree.
    fn largest(self) -> f32;

    /// Loads fewer than 16 elements, the missing lanes being `fill`.
    #[inline(always)]
    fn load_tail(x: &[f32], fill: f32) -> Self {
        let mut lanes = [fill; LANES];
        lanes[..x.len()].copy_from_slice(x);
        Self::load(&lanes)
    }

    /// Stores the first `y.len()` lanes.
    #[inline(always)]
    fn store_tail(self, y: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        y.copy_from_slice(&lanes[..y.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Target, per_isa};
    use crate::testing::{Random, targets};

    /// Every method once, into 16 lanes each.
    #[inline(always)]
    fn every_method<V: Lanes>(a: &[f32; 16], b: &[f32; 16], c: &[f32; 16], out: &mut Vec<f32>) {
        let (x, y, z) = (V::load(a), V::load(b), V::load(c));
        let (low, high) = V::load_bf16_pairs(&a.map(f32::to_bits));
        let magic = V::splat(12_582_912.0);
        let results = [
            V::splat(a[3]),
            x.add(y),
            x.sub(y),
            x.mul(y),
            x.div(y),
            x.mul_add(y, z),
            x.max(y),
            x.min(y),
            x.zero_below(y, z),
            x.add(magic).exponent_from_low_bits(),
            V::splat(x.sum()),
            V::splat(x.largest()),
            V::load_tail(&a[..5], 7.0),
            low,
            high,
        ];
        for v in results {
            let mut lanes = [0.0; 16];
            v.store(&mut lanes);
            out.extend_from_slice(&lanes);
        }
        let mut short = [0.0; 3];
        x.store_tail(&mut short);
        out.extend_from_slice(&short);
    }

    per_isa!(fn run(a: &[f32; 16], b: &[f32; 16], c: &[f32; 16], out: &mut Vec<f32>) = every_method);

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_scalar_one() {
        let mut random = Random::new(1);
        for round in 0..200 {
            let mut draw = || -> [f32; 16] {
                std::array::from_fn(|i| match (round, i) {
                    (0, 0) => -0.0,
                    (0, 1) => f32::INFINITY,
                    (0, 2) => 0.0,
                    _ => random.normal() * 30.0,
                })
            };
            let (a, b, c) = (draw(), draw(), draw());
            let mut expected = Vec::new();
            run(Target::new(crate::Isa::Scalar), &a, &b, &c, &mut expected);
            for target in targets() {
                let mut got = Vec::new();
                run(target, &a, &b, &c, &mut got);
                let bits = |v: &[f32]| -> Vec<u32> {
                    v.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
                };
                assert_eq!(bits(&got), bits(&expected), "{:?}", target.isa());
            }
        }
    }

    #[inline(always)]
    fn max_of_nan<V: Lanes>(out: &mut [f32; 4]) {
        let (nan, one) = (V::splat(f32::NAN), V::splat(1.0));
        *out = [one.max(nan).sum(), nan.max(one).sum(), one.min(nan).sum(), nan.min(one).sum()];
    }

    per_isa!(fn run_max_of_nan(out: &mut [f32; 4]) = max_of_nan);

    #[test]
    fn max_and_min_return_the_second_operand_beside_nan() {
        for target in targets() {
            let mut out = [0.0; 4];
            run_max_of_nan(target, &mut out);
            assert!(out[0].is_nan() && out[2].is_nan(), "{:?}", target.isa());
            assert_eq!((out[1], out[3]), (16.0, 16.0), "{:?}", target.isa());
        }
    }
}
