//! The definition of the lanes: plain Rust, one element after another.

use super::{LANES, Lanes};

/// Sixteen lanes as an array.
#[derive(Clone, Copy)]
pub(crate) struct Scalar(pub(super) [f32; LANES]);

impl Scalar {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Scalar(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }

    #[inline(always)]
    fn fold(self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] = f(lanes[i], lanes[i + half]);
            }
        }
        lanes[0]
    }
}

impl Lanes for Scalar {
    const TILE_COLUMNS: [usize; 6] = [4, 4, 4, 4, 4, 4];
    const STATE_COLUMNS: usize = 1;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Scalar([x; LANES])
    }

    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self {
        Scalar(*x)
    }

    #[inline(always)]
    fn store(self, y: &mut [f32; LANES]) {
        *y = self.0;
    }

    #[inline(always)]
    fn load_bf16_pairs(x: &[u32; LANES]) -> (Self, Self) {
        (
            Scalar(x.map(|pair| f32::from_bits(pair << 16))),
            Scalar(x.map(|pair| f32::from_bits(pair & 0xffff_0000))),
        )
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self.zip(b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Scalar(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self.zip(b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        self.zip(b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn zero_below(self, limit: Self, value: Self) -> Self {
        Scalar(std::array::from_fn(|i| if self.0[i] < limit.0[i] { 0.0 } else { value.0[i] }))
    }

    #[inline(always)]
    fn exponent_from_low_bits(self) -> Self {
        Scalar(self.0.map(|x| f32::from_bits(x.to_bits().wrapping_add(127) << 23)))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.fold(|a, b| a + b)
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        self.fold(|a, b| if a > b { a } else { b })
    }
}
