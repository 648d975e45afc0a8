//! The lanes in one 512-bit register.

use std::arch::x86_64::*;

use super::{LANES, Lanes};

/// Sixteen lanes in one register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(pub(crate) __m512);

/// Evaluates intrinsics that need only the instruction set.
macro_rules! simd {
    ($e:expr) => {
        // SAFETY: by the contract of `Lanes`, this is inlined into a function compiled for, and
        // called only on, machines with these instructions. No memory is touched.
        unsafe { $e }
    };
}

impl Lanes for Avx512 {
    // 32 registers: 6 rows x 4 accumulators, 4 weights and a broadcast.
    const TILE_COLUMNS: [usize; 6] = [4, 4, 4, 4, 4, 4];
    const STATE_COLUMNS: usize = 4;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Avx512(simd!(_mm512_set1_ps(x)))
    }

    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self {
        // SAFETY: the reference covers 16 elements; the instructions as in `simd!`.
        Avx512(unsafe { _mm512_loadu_ps(x.as_ptr()) })
    }

    #[inline(always)]
    fn store(self, y: &mut [f32; LANES]) {
        // SAFETY: the reference covers 16 elements; the instructions as in `simd!`.
        unsafe { _mm512_storeu_ps(y.as_mut_ptr(), self.0) }
    }

    #[inline(always)]
    fn load_bf16_pairs(x: &[u32; LANES]) -> (Self, Self) {
        // SAFETY: the reference covers 16 elements; the instructions as in `simd!`.
        let pairs = unsafe { _mm512_loadu_si512(x.as_ptr().cast()) };
        simd!({
            let low = _mm512_slli_epi32::<16>(pairs);
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(-65536));
            (Avx512(_mm512_castsi512_ps(low)), Avx512(_mm512_castsi512_ps(high)))
        })
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Avx512(simd!(_mm512_add_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Avx512(simd!(_mm512_sub_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Avx512(simd!(_mm512_mul_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        Avx512(simd!(_mm512_div_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Avx512(simd!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        Avx512(simd!(_mm512_max_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        Avx512(simd!(_mm512_min_ps(self.0, b.0)))
    }

    #[inline(always)]
    fn zero_below(self, limit: Self, value: Self) -> Self {
        Avx512(simd!({
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0);
            _mm512_mask_blend_ps(below, value.0, _mm512_setzero_ps())
        }))
    }

    #[inline(always)]
    fn exponent_from_low_bits(self) -> Self {
        Avx512(simd!({
            let biased = _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        simd!({
            let eight =
                _mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        simd!({
            let eight =
                _mm256_max_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }
}
