//! The definition of the integer lanes: plain Rust, one element after another.

use half::f16;

use super::Dot;
use crate::lanes::{Lanes, Scalar};

/// Sixteen sums as an array.
#[derive(Clone, Copy)]
pub(crate) struct ScalarDot([i32; 16]);

impl Dot for ScalarDot {
    type Floats = Scalar;
    type Weights = [u8; 64];
    type Inputs = [i8; 4];

    const COLUMNS: usize = 1;
    const ROWS: usize = 2;
    const FINE_ROWS: usize = 2;

    #[inline(always)]
    fn splat(x: i32) -> Self {
        ScalarDot([x; 16])
    }

    #[inline(always)]
    fn load(x: &[i32; 16]) -> Self {
        ScalarDot(*x)
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        ScalarDot(std::array::from_fn(|i| self.0[i] + b.0[i]))
    }

    #[inline(always)]
    fn weights(x: &[u8; 64]) -> [u8; 64] {
        *x
    }

    #[inline(always)]
    fn nibbles(x: &[u8; 64]) -> ([u8; 64], [u8; 64]) {
        (x.map(|byte| byte & 15), x.map(|byte| byte >> 4))
    }

    #[inline(always)]
    fn store_weights(w: [u8; 64], y: &mut [u8; 64]) {
        *y = w;
    }

    #[inline(always)]
    fn inputs(x: &[i8; 4]) -> [i8; 4] {
        *x
    }

    #[inline(always)]
    fn dot(self, w: [u8; 64], x: [i8; 4]) -> Self {
        let product = |i: usize, j: usize| i32::from(w[4 * i + j]) * i32::from(x[j]);
        ScalarDot(std::array::from_fn(|i| {
            self.0[i] + product(i, 0) + product(i, 1) + product(i, 2) + product(i, 3)
        }))
    }

    #[inline(always)]
    fn to_floats(self) -> Scalar {
        Scalar::load(&self.0.map(|x| x as f32))
    }

    #[inline(always)]
    fn scales(x: &[u8; 32]) -> Scalar {
        let (halves, _) = x.as_chunks::<2>();
        Scalar::load(&std::array::from_fn(|i| f16::from_le_bytes(halves[i]).to_f32()))
    }
}
