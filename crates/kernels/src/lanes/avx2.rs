//! The lanes in two 256-bit registers.

use std::arch::x86_64::*;

use super::{LANES, Lanes};

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(pub(crate) __m256, pub(crate) __m256);

/// Evaluates intrinsics that need only the instruction set.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: by the contract of `Lanes`, this is inlined into a function compiled for, and
        // called only on, machines with these instructions. No memory is touched.
        unsafe { $e }
    };
}

/// Applies a two-operand intrinsic to both halves.
macro_rules! both {
    ($op:ident, $a:expr, $b:expr) => {
        Avx2(simd!($op($a.0, $b.0)), simd!($op($a.1, $b.1)))
    };
}

impl Lanes for Avx2 {
    // 16 registers of 8 lanes.
    const TILE_COLUMNS: [usize; 6] = [4, 1, 1, 1, 1, 1];
    const STATE_COLUMNS: usize = 2;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        let v = simd!(_mm256_set1_ps(x));
        Avx2(v, v)
    }

    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self {
        let p = x.as_ptr();
        // SAFETY: the reference covers 16 elements; the instructions as in `simd!`.
        unsafe { Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    fn store(self, y: &mut [f32; LANES]) {
        let p = y.as_mut_ptr();
        // SAFETY: the reference covers 16 elements; the instructions as in `simd!`.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }

    #[inline(always)]
    fn load_bf16_pairs(x: &[u32; LANES]) -> (Self, Self) {
        let p = x.as_ptr().cast::<__m256i>();
        // SAFETY: the reference covers 16 elements; the instructions as in `simd!`.
        let (first, second) = unsafe { (_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))) };
        simd!({
            let mask = _mm256_set1_epi32(-65536);
            (
                Avx2(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(first)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(second)),
                ),
                Avx2(
                    _mm256_castsi256_ps(_mm256_and_si256(first, mask)),
                    _mm256_castsi256_ps(_mm256_and_si256(second, mask)),
                ),
            )
        })
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        both!(_mm256_add_ps, self, b)
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        both!(_mm256_sub_ps, self, b)
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        both!(_mm256_mul_ps, self, b)
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        both!(_mm256_div_ps, self, b)
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        simd!(Avx2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        both!(_mm256_max_ps, self, b)
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        both!(_mm256_min_ps, self, b)
    }

    #[inline(always)]
    fn zero_below(self, limit: Self, value: Self) -> Self {
        simd!(Avx2(
            _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0), value.0),
            _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(self.1, limit.1), value.1),
        ))
    }

    #[inline(always)]
    fn exponent_from_low_bits(self) -> Self {
        simd!({
            let bias = _mm256_set1_epi32(127);
            let first = _mm256_add_epi32(_mm256_castps_si256(self.0), bias);
            let second = _mm256_add_epi32(_mm256_castps_si256(self.1), bias);
            Avx2(
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(first)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(second)),
            )
        })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        simd!({
            let eight = _mm256_add_ps(self.0, self.1);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        simd!({
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }
}
